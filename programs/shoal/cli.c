/* Messages, the terminal and small formats. Nothing here knows a subcommand or a model. */
#include "cli.h"

#include "interrupt.h"
#include "progress.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- messages ---- */

/* Bytes of the UTF-8 sequence at `s`, 0 if there is none (RFC 3629: shortest form, no halves). */
static int utf8_length(const unsigned char *s)
{
    int length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;

    if (s[0] > 0xf4) return 0;
    for (int i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (s[0] == 0xe0 && s[1] < 0xa0) return 0;
    if (s[0] == 0xed && s[1] > 0x9f) return 0;
    if (s[0] == 0xf0 && s[1] < 0x90) return 0;
    if (s[0] == 0xf4 && s[1] > 0x8f) return 0;
    return length;
}

/* The control character at `s`: below U+0020, U+007F to U+009F; -1 if there is none. */
static int control(const unsigned char *s)
{
    if (*s < 0x20 || *s == 0x7f) return *s;
    return *s == 0xc2 && s[1] >= 0x80 && s[1] < 0xa0 ? s[1] : -1;
}

/* Control characters less those in `kept`, and bytes that are not UTF-8, become question marks. */
static void print_clean(FILE *stream, const char *text, const char *kept)
{
    const unsigned char *s = (const unsigned char *)text;

    while (*s) {
        int length = utf8_length(s);

        if (length == 0 || (control(s) >= 0 && !strchr(kept, *s)))
            fputc('?', stream);
        else
            fwrite(s, 1, (size_t)length, stream);
        s += length ? length : 1;
    }
}

void cli_print_clean(FILE *stream, const char *text)
{
    print_clean(stream, text, "");
}

/* One line, whatever a file name or a tensor's name holds. */
static void message(const char *label, enum cli_colour colour, const char *format, va_list values)
{
    char text[2048];

    vsnprintf(text, sizeof text, format, values);
    progress_clear();
    fprintf(stderr, "shoal: %s%s%s", cli_colour(stderr, colour), label,
        cli_colour(stderr, COLOUR_NONE));
    print_clean(stderr, text, "");
    fputc('\n', stderr);
}

void cli_error(const char *format, ...)
{
    va_list values;

    va_start(values, format);
    message("error: ", COLOUR_RED, format, values);
    va_end(values);
}

void cli_note(const char *format, ...)
{
    va_list values;

    va_start(values, format);
    message("note: ", COLOUR_BOLD, format, values);
    va_end(values);
}

int cli_fail(const struct shoal_error *error)
{
    switch (error->status) {
    case SHOAL_E_CANCELLED:
        cli_error("interrupted");
        return interrupt_exit_code();
    case SHOAL_E_BUDGET:
        cli_error("%s", error->text);
        return CLI_BUDGET;
    case SHOAL_E_INVALID:
        cli_error("%s", error->text);
        return CLI_USAGE;
    default:
        cli_error("%s", error->text[0] ? error->text : shoal_status_text(error->status));
        return CLI_FAILED;
    }
}

void cli_print_text(const char *text, bool json)
{
    size_t length = strlen(text);

    if (json)
        fputs(text, stdout);
    else
        print_clean(stdout, text, "\n");
    if (length == 0 || text[length - 1] != '\n') fputc('\n', stdout);
}

int cli_finish(int code)
{
    bool failed = ferror(stdout) != 0;
    struct stat status;

    errno = 0;
    failed |= fflush(stdout) != 0;
    if (!failed) return code;
    /* A pipe's reader that has seen enough (`| head -1`) needs no telling. */
    if (fstat(STDOUT_FILENO, &status) != 0 ||
        !(S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode)))
        cli_error("standard output: %s", errno ? strerror(errno) : "writing failed");
    return code == CLI_OK ? CLI_FAILED : code;
}

/* ---- the terminal ---- */

bool cli_is_terminal(FILE *stream)
{
    const char *term = getenv("TERM");

    return isatty(fileno(stream)) && term && strcmp(term, "dumb") != 0;
}

const char *cli_colour(FILE *stream, enum cli_colour colour)
{
    static const char *const codes[] = {"\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[36m"};
    const char *no_color = getenv("NO_COLOR");

    if ((no_color && *no_color) || !cli_is_terminal(stream)) return "";
    return codes[colour];
}

int cli_columns(FILE *stream)
{
    struct winsize size;

    if (ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    return 80;
}

/* ---- formats ---- */

static struct cli_text scaled(
    double value, double factor, const char *const *units, size_t unit_count)
{
    struct cli_text text;
    size_t unit = 0;
    int digits = 0;

    while (value >= factor && unit + 1 < unit_count) {
        value /= factor;
        unit++;
    }
    if (unit > 0 && value < 100) digits = 2;
    snprintf(text.text, sizeof text.text, "%.*f%s%s", digits, value, *units[unit] ? " " : "",
        units[unit]);
    return text;
}

struct cli_text cli_size(uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};

    if (bytes == SHOAL_UNLIMITED) return (struct cli_text){"unlimited"};
    return scaled((double)bytes, 1024, units, sizeof units / sizeof *units);
}

struct cli_text cli_count(uint64_t count)
{
    static const char *const units[] = {"", "k", "M", "G", "T", "P", "E"};

    return scaled((double)count, 1000, units, sizeof units / sizeof *units);
}

#define HOUR 3600

struct cli_text cli_seconds(double seconds)
{
    struct cli_text text;

    if (seconds < 1)
        snprintf(text.text, sizeof text.text, "%.0f ms", seconds * 1000);
    else if (seconds < 100)
        snprintf(text.text, sizeof text.text, "%.2f s", seconds);
    else if (seconds < HOUR)
        snprintf(
            text.text, sizeof text.text, "%d min %02d s", (int)(seconds / 60), (int)seconds % 60);
    else if (seconds < 48 * HOUR)
        snprintf(text.text, sizeof text.text, "%d h %02d min", (int)(seconds / HOUR),
            (int)(seconds / 60) % 60);
    else
        snprintf(text.text, sizeof text.text, "%.0f d %d h", floor(seconds / (24 * HOUR)),
            (int)(fmod(seconds, 24 * HOUR) / HOUR));
    return text;
}

/* ---- JSON ---- */

void cli_json_string(FILE *stream, const char *text)
{
    const unsigned char *s = (const unsigned char *)text;

    fputc('"', stream);
    while (*s) {
        int length = utf8_length(s);

        if (length == 0) {
            fputs("\xef\xbf\xbd", stream);
            s++;
        } else if (*s == '"' || *s == '\\') {
            fprintf(stream, "\\%c", *s++);
        } else if (control(s) >= 0) {
            fprintf(stream, "\\u%04x", (unsigned)control(s));
            s += length;
        } else {
            fwrite(s, 1, (size_t)length, stream);
            s += length;
        }
    }
    fputc('"', stream);
}
