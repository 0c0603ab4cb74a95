/* shoal samplers: what a run can take its steps with. */
#include "options.h"

const struct command command_samplers = {
    .name = "samplers",
    .usage = "[--json]",
    .summary = "Lists the samplers, how often each calls the model in a step and whether it adds "
               "noise, and the schedules.",
    .set = COMMAND_SAMPLERS,
};

int samplers_main(int argc, char **argv)
{
    struct options options;
    struct shoal_error error = {0};
    char *text = NULL;
    int code;

    if (!options_parse(&command_samplers, argc, argv, &options, &code)) goto done;
    if (shoal_samplers(options.json, &text, &error) != SHOAL_OK) {
        code = cli_fail(&error);
        goto done;
    }
    cli_print_text(text, options.json);
    code = cli_finish(CLI_OK);
done:
    shoal_text_free(&text);
    options_fini(&options);
    return code;
}
