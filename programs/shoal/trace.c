/* shoal trace: draws what generate --trace recorded. */
#include "options.h"
#include "target.h"
#include "trace_svg.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct command command_trace = {
    .name = "trace",
    .usage = "FILE.json [-o FILE.svg] [options]",
    .summary = "Draws a trace that generate --trace wrote: when blocks were read, copied, unpacked "
               "and computed, how busy each was, and when computing had to wait. One SVG file that "
               "needs nothing else.",
    .set = COMMAND_TRACE,
    .max_arguments = 1,
};

/* x.svg for x.json. False if it does not fit. */
static bool default_output(const char *path, char output[TARGET_PATH_BYTES])
{
    size_t length = strlen(path);

    if (length > 5 && !strcmp(path + length - 5, ".json")) length -= 5;
    return target_name(output, "%.*s.svg", (int)length, path);
}

/* Whether the picture can go where it shall; before the trace is read. */
static bool check_output(const char *path, const char *output)
{
    if (!strcmp(output, "-")) {
        if (!isatty(STDOUT_FILENO)) return true;
        cli_error("--output -: standard output is a terminal: send it to a program or a file");
        return false;
    }
    if (target_same(output, path)) {
        cli_error("--output: '%s' is the trace itself: name another file", output);
        return false;
    }
    return target_check("--output", TARGET_SVG, output);
}

/* The window that the options ask for, within what the trace has. */
static bool find_window(
    const struct options *options, const struct trace_file *file, double *from, double *to)
{
    char name[24];
    int steps = 0;

    *from = options->given[OPTION_FROM] ? (double)options->from : 0;
    *to = options->given[OPTION_TO] ? (double)options->to : file->seconds;
    if (*to > file->seconds) *to = file->seconds;
    if (!options->given[OPTION_STEP]) {
        if (*from < *to) return true;
        cli_error(
            "--from: the trace ends at %.6g seconds: there is nothing to draw", file->seconds);
        return false;
    }
    snprintf(name, sizeof name, "step %d", options->step);
    for (size_t i = 0; i < file->count; i++) {
        const struct trace_span *span = &file->spans[i];

        if (span->kind != SPAN_PHASE || strncmp(span->name, "step ", 5) != 0) continue;
        steps++;
        if (strcmp(span->name, name) != 0 || !(span->begin < span->end)) continue;
        *from = span->begin;
        *to = span->end;
        return true;
    }
    cli_error("--step %d: the trace has %d steps", options->step, steps);
    return false;
}

static int draw(const struct trace_file *file, double from, double to, const char *output)
{
    char *data = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&data, &bytes);
    bool good = memory && trace_svg(memory, file, from, to);
    int code = CLI_FAILED;

    if (memory && (ferror(memory) | fclose(memory)) != 0) good = false;
    if (!good) {
        cli_error("out of memory for the picture");
    } else if (!strcmp(output, "-")) {
        code = fwrite(data, 1, bytes, stdout) == bytes ? CLI_OK : CLI_FAILED;
    } else if (target_write(output, data, bytes)) {
        printf("picture   ");
        cli_print_clean(stdout, output);
        printf("\n");
        code = CLI_OK;
    }
    free(data);
    return cli_finish(code);
}

int trace_main(int argc, char **argv)
{
    struct trace_file file = {0};
    struct options options;
    char buffer[TARGET_PATH_BYTES];
    const char *path, *output;
    double from, to;
    int code;

    if (!options_parse(&command_trace, argc, argv, &options, &code)) goto done;
    code = CLI_USAGE;
    path = options.argument;
    output = options.output ? options.output : buffer;
    if (!path || !*path) {
        cli_error("trace what? Name the file that generate --trace wrote");
        goto done;
    }
    if (!options.output && !default_output(path, buffer)) {
        cli_error("'%s' is too long for a name: give a shorter one", path);
        goto done;
    }
    if (!check_output(path, output)) goto done;
    code = CLI_FAILED;
    if (!trace_file_read(path, &file)) goto done;
    code = CLI_USAGE;
    if (find_window(&options, &file, &from, &to)) code = draw(&file, from, to, output);
done:
    trace_file_close(&file);
    options_fini(&options);
    return code;
}
