/* shoal cache: what a folder of packed copies holds, and removing some of it. */
#include "options.h"

#define MOST_NAMES 1000

const struct command command_cache = {
    .name = "cache",
    .usage = "DIR [--remove [NAME...] | --remove-stale]",
    .summary = "Lists the packed copies that --disk-cache has written to the folder DIR: size, "
               "whether each still matches its original, and where that is. Removes those that are "
               "named, all, or the stale ones; no other file is ever touched.",
    .set = COMMAND_CACHE,
    .max_arguments = MOST_NAMES,
};

static int list(const struct options *options)
{
    struct shoal_error error = {0};
    char *text = NULL;

    if (shoal_cache_list(options->argument, options->json, &text, &error) != SHOAL_OK)
        return cli_fail(&error);
    cli_print_text(text, options->json);
    shoal_text_free(&text);
    return CLI_OK;
}

/* `user` counts them. */
static void say_failure(void *user, const struct shoal_error *error)
{
    ++*(int *)user;
    cli_fail(error);
}

static int remove_copies(const struct options *options)
{
    int failures = 0;
    const struct shoal_cache_callbacks callbacks = {&failures, say_failure};
    struct shoal_error error = {0};
    uint64_t bytes = 0;
    enum shoal_status status;

    if (options->remove_stale)
        status = shoal_cache_remove_stale(options->argument, &callbacks, &bytes, &error);
    else
        status = shoal_cache_remove(options->argument, options->arguments + 1,
            (size_t)options->argument_count - 1, &callbacks, &bytes, &error);
    if (status != SHOAL_OK && !failures) return cli_fail(&error);
    if (options->json)
        printf("{\"removed_bytes\": %llu}\n", (unsigned long long)bytes);
    else
        printf("removed %s\n", cli_size(bytes).text);
    return failures ? CLI_FAILED : CLI_OK;
}

/* False, having said why, unless the arguments make sense together. */
static bool check_arguments(const struct options *options)
{
    if (!options->argument || !*options->argument)
        cli_error("cache where? Name the folder that --disk-cache was given");
    else if (options->remove && options->remove_stale)
        cli_error("--remove and --remove-stale both say what to remove: leave one out");
    else if (options->argument_count > 1 && !options->remove)
        cli_error("'%s' is one argument too many: names go with --remove", options->arguments[1]);
    else
        return true;
    return false;
}

int cache_main(int argc, char **argv)
{
    struct options options;
    int code;

    if (!options_parse(&command_cache, argc, argv, &options, &code)) goto done;
    code = CLI_USAGE;
    if (!check_arguments(&options)) goto done;
    code = options.remove || options.remove_stale ? remove_copies(&options) : list(&options);
    code = cli_finish(code);
done:
    options_fini(&options);
    return code;
}
