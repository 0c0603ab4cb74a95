/*
 * What the files of the program share: exit codes, the subcommands, messages and small formats.
 * Not the options (options.h) and nothing about models: that is libshoal's.
 */
#ifndef CLI_H
#define CLI_H

#include <shoal/shoal.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Written down in docs/shoal.1. An interrupted run ends with 128 + the signal: 130 for Ctrl-C. */
enum cli_exit {
    CLI_OK = 0,
    CLI_FAILED = 1,
    CLI_USAGE = 2,
    CLI_BUDGET = 3,
    CLI_DIFFERENT = 4,
    CLI_INTERRUPTED = 130,
};

/* argv[0] is the subcommand's name. Each returns the exit code. */
int generate_main(int argc, char **argv);
int plan_main(int argc, char **argv);
int verify_main(int argc, char **argv);
int devices_main(int argc, char **argv);
int samplers_main(int argc, char **argv);
int inspect_main(int argc, char **argv);
int trace_main(int argc, char **argv);
int bench_main(int argc, char **argv);
int bench_stream_main(int argc, char **argv); /* argv[0] is "stream" */
int convert_main(int argc, char **argv);
int cache_main(int argc, char **argv);

/* ---- messages, on standard error, and results ---- */

void cli_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cli_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints the library's error and returns the exit code that fits it. */
int cli_fail(const struct shoal_error *error);

/*
 * Prints `text` for a person: one line, control characters and bytes that are not UTF-8 replaced.
 */
void cli_print_clean(FILE *stream, const char *text);

/* Prints a text of the library's on standard output, as lines; JSON as it is. */
void cli_print_text(const char *text, bool json);

/*
 * To be called last: makes sure that everything reached standard output. Returns `code`, or
 * CLI_FAILED (in place of CLI_OK) if it did not.
 */
int cli_finish(int code);

/* ---- the terminal ---- */

enum cli_colour { COLOUR_NONE, COLOUR_BOLD, COLOUR_RED, COLOUR_GREEN, COLOUR_CYAN };

/* The escape sequence, or "" where `stream` is no terminal, NO_COLOR is set or TERM is dumb. */
const char *cli_colour(FILE *stream, enum cli_colour colour);

/* True if lines on `stream` can be redrawn. */
bool cli_is_terminal(FILE *stream);

/* Columns of the terminal behind `stream`; 80 if that is unknown. */
int cli_columns(FILE *stream);

/* ---- formats ---- */

/* By value, so that it can stand in an argument list: cli_size(n).text. */
struct cli_text {
    char text[48];
};

struct cli_text cli_size(uint64_t bytes); /* "12.3 MiB", "unlimited" */
/* "850 ms", "3.21 s", "12 min 05 s", "7 h 05 min", "3 d 1 h" */
struct cli_text cli_seconds(double seconds);
struct cli_text cli_count(uint64_t count); /* "2.51 G" */

/* ---- JSON ---- */

/*
 * Writes `text` as a JSON string: control characters are escaped, bytes that are not UTF-8 become
 * U+FFFD.
 */
void cli_json_string(FILE *stream, const char *text);

#endif
