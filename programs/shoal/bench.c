/* shoal bench links: how fast this machine copies, reads, packs and computes. And the way to shoal
 * bench stream. */
#include "interrupt.h"
#include "model_path.h"
#include "options.h"
#include "target.h"

#include <string.h>

const struct command command_bench = {
    .name = "bench",
    .usage = "links [-m MODEL | --file FILE] [options]",
    .summary =
        "Measures, in some twenty seconds, how fast this machine copies to the device, reads "
        "from the drive, packs and unpacks weights and computes, prints a table, and stores "
        "the rates for plans to predict by. The other bench, of the streaming loop, is shoal bench "
        "stream: see its --help.",
    .set = COMMAND_BENCH,
    .max_arguments = 1,
};

/* The model whose file is read, if no file was named. */
static bool open_model(const struct options *options, struct shoal_model **model, int *code)
{
    char buffer[MODEL_PATH_BYTES];
    struct shoal_model_paths paths = options->paths;
    struct shoal_error error = {0};

    *code = CLI_FAILED;
    paths.model = model_path_find(paths.model ? paths.model : MODEL_DEFAULT, buffer);
    if (!paths.model) return false;
    if (shoal_model_open(&paths, model, &error) == SHOAL_OK) return true;
    *code = cli_fail(&error);
    return false;
}

static bool check_options(const struct options *options)
{
    const char *what = options->argument;

    if (what && !strcmp(what, "stream")) {
        cli_error("stream comes before its options: shoal bench stream [options]");
        return false;
    }
    if (!what || strcmp(what, "links") != 0) {
        cli_error("bench %s: what can be measured is links and stream: shoal bench links, shoal "
                  "bench stream",
            what ? what : "what?");
        return false;
    }
    if (options->given[OPTION_FILE] && options->given[OPTION_MODEL]) {
        cli_error("--file and --model both say what to read: leave one out");
        return false;
    }
    return !options->request.rates_path ||
           target_check("--rates", TARGET_RATES, options->request.rates_path);
}

int bench_main(int argc, char **argv)
{
    struct shoal_links_request request = {0};
    struct shoal_model *model = NULL;
    struct options options;
    struct shoal_error error = {0};
    char *text = NULL;
    int code;

    if (argc > 1 && !strcmp(argv[1], "stream")) return bench_stream_main(argc - 1, argv + 1);
    interrupt_install();
    if (!options_parse(&command_bench, argc, argv, &options, &code)) goto done;
    code = CLI_USAGE;
    if (!check_options(&options)) goto done;
    if (!options.file && !open_model(&options, &model, &code)) goto done;
    request = (struct shoal_links_request){.model = model,
        .file = options.file,
        .rates_path = options.request.rates_path,
        .device = options.request.device,
        .threads = options.request.threads};
    if (shoal_bench_links(&request, options.json, &text, &error) == SHOAL_OK) {
        cli_print_text(text, options.json);
        code = cli_finish(CLI_OK);
    } else {
        code = cli_fail(&error);
        /* A device that is not there: the command line is at fault. */
        if (error.status == SHOAL_E_UNSUPPORTED) code = CLI_USAGE;
    }
done:
    shoal_text_free(&text);
    shoal_model_close(&model);
    options_fini(&options);
    return code;
}
