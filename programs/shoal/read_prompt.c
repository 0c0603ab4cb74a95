/* Reading a prompt from standard input. Whether it is good UTF-8 is libshoal's to say. */
#include "read_prompt.h"

#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PROMPT_MAX_BYTES (1u << 20)

char *read_prompt(void)
{
    char *text = malloc(PROMPT_MAX_BYTES + 1);
    size_t length;

    if (!text) {
        cli_error("--prompt -: out of memory");
        return NULL;
    }
    length = fread(text, 1, PROMPT_MAX_BYTES + 1, stdin);
    if (ferror(stdin)) {
        cli_error("--prompt -: reading standard input: %s", strerror(errno));
    } else if (length > PROMPT_MAX_BYTES) {
        cli_error("--prompt -: standard input is longer than 1 MiB: give a prompt");
    } else if (memchr(text, '\0', length)) {
        cli_error("--prompt -: standard input is no text: it holds a zero byte");
    } else {
        if (length > 0 && text[length - 1] == '\n') length--;
        if (length > 0 && text[length - 1] == '\r') length--;
        text[length] = '\0';
        return text;
    }
    free(text);
    return NULL;
}
