/* shoal: the program. Finds the subcommand and hands over; all it knows is their names. */
#include "options.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    int (*main)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"generate", generate_main, "paint pictures"},
    {"plan", plan_main, "say what generate would do, without doing it"},
    {"verify", verify_main, "run under several memory plans and compare the results"},
    {"devices", devices_main, "list what can be computed on"},
    {"samplers", samplers_main, "list samplers and schedules"},
    {"inspect", inspect_main, "say what a model's files are"},
    {"trace", trace_main, "draw what a run did when"},
    {"bench", bench_main, "measure what this machine copies, reads and computes"},
    {"convert", convert_main, "pack a model's files without loss, or unpack them"},
    {"cache", cache_main, "list or remove the packed copies in a folder"},
};

#define COMMANDS (sizeof commands / sizeof *commands)

static void print_usage(FILE *stream)
{
    fputs(
        "usage: shoal COMMAND [options]\n\n"
        "Paints pictures with diffusion transformers that are bigger than the memory they get.\n\n",
        stream);
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(stream, "  %-10s%s\n", commands[i].name, commands[i].help);
    fputs("\n  shoal generate -p 'a red apple' --vram 8MiB\n\n"
          "shoal COMMAND --help says more; shoal --version says which version this is.\n",
        stream);
}

static int say_unknown(const char *word)
{
    const char *names[COMMANDS];
    const char *nearest;

    for (size_t i = 0; i < COMMANDS; i++)
        names[i] = commands[i].name;
    nearest = options_nearest(word, names, COMMANDS);
    if (nearest)
        cli_error("unknown command '%s': did you mean %s?", word, nearest);
    else
        cli_error("unknown command '%s': give generate, plan, verify, devices, samplers, "
                  "inspect, trace, bench, convert or cache",
            word);
    return CLI_USAGE;
}

/*
 * A closed standard stream would be reused for the next file that is opened, and printing would go
 * into a picture. Put something harmless in its place: reading gives nothing, writing fails.
 */
static void fill_standard_streams(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0) (void)!open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY);
}

/* What was asked for takes no arguments, or no more of them. */
static int say_too_many(const char *extra)
{
    cli_error("'%s' is one argument too many: see shoal --help", extra);
    return CLI_USAGE;
}

/* shoal help, and what came after it. */
static int help(int argc, char **argv)
{
    static const char *const pairs[][2] = {{"bench", "links"}, {"bench", "stream"}};
    static char option[] = "--help";
    size_t i = 0;
    int words = 1;

    if (argc == 0) {
        print_usage(stdout);
        return cli_finish(CLI_OK);
    }
    while (i < COMMANDS && strcmp(argv[0], commands[i].name) != 0)
        i++;
    if (i == COMMANDS) return *argv[0] == '-' ? say_too_many(argv[0]) : say_unknown(argv[0]);
    for (size_t k = 0; argc > 1 && k < sizeof pairs / sizeof *pairs; k++)
        if (!strcmp(argv[0], pairs[k][0]) && !strcmp(argv[1], pairs[k][1])) words = 2;
    if (argc > words) return say_too_many(argv[words]);
    return commands[i].main(words + 1, words == 1 ? (char *[]){argv[0], option, NULL}
                                                  : (char *[]){argv[0], argv[1], option, NULL});
}

static int dispatch(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : "";

    for (size_t i = 0; i < COMMANDS; i++)
        if (!strcmp(word, commands[i].name)) return commands[i].main(argc - 1, argv + 1);
    if (!strcmp(word, "help")) return help(argc - 2, argv + 2);
    if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
        if (argc > 2) return say_too_many(argv[2]);
        return help(0, NULL);
    }
    if (!strcmp(word, "--version") || !strcmp(word, "-V")) {
        if (argc > 2) return say_too_many(argv[2]);
        printf("shoal %s\n", shoal_version());
        return cli_finish(CLI_OK);
    }
    if (argc > 1) return say_unknown(word);
    print_usage(stderr);
    return CLI_USAGE;
}

int main(int argc, char **argv)
{
    fill_standard_streams();
    setvbuf(stderr, NULL, _IOLBF, BUFSIZ);
    /* Writing to a closed pipe or past a file-size limit is an error to report, not the end. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    return dispatch(argc, argv);
}
