/* shoal inspect: what the files at a path are. */
#include "model_path.h"
#include "options.h"

const struct command command_inspect = {
    .name = "inspect",
    .usage = "PATH [--json]",
    .summary = "Says what the file or folder at PATH is: family, blocks, bytes a block, dtypes, "
               "and what is missing or, with exit code 1, damaged. Reads headers only, no weights. "
               "\"mini\" is the embedded model.",
    .set = COMMAND_INSPECT,
    .max_arguments = 1,
};

int inspect_main(int argc, char **argv)
{
    struct options options;
    struct shoal_error error = {0};
    char buffer[MODEL_PATH_BYTES];
    const char *path;
    char *text = NULL;
    bool damaged;
    int code;

    if (!options_parse(&command_inspect, argc, argv, &options, &code)) goto done;
    if (!options.argument) {
        cli_error("inspect what? Name a file or a folder, or mini");
        code = CLI_USAGE;
        goto done;
    }
    if (!*options.argument) {
        cli_error("inspect: the path is empty: name a file or a folder, or mini");
        code = CLI_USAGE;
        goto done;
    }
    code = CLI_FAILED;
    path = model_path_find(options.argument, buffer);
    if (!path) goto done;
    if (shoal_inspect(path, options.json, &text, &damaged, &error) != SHOAL_OK) {
        code = cli_fail(&error);
        goto done;
    }
    cli_print_text(text, options.json);
    if (!damaged) code = CLI_OK;
    code = cli_finish(code);
    if (damaged) cli_error("%s: a part is damaged or cannot be read", path);
done:
    shoal_text_free(&text);
    options_fini(&options);
    return code;
}
