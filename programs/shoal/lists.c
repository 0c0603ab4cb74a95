/* shoal devices, shoal samplers: what there is to choose from. */
#include "options.h"

const struct command command_devices = {
    .name = "devices",
    .usage = "[--json]",
    .summary = "Lists the devices that this build and this machine can compute on, and why not on "
               "the others.",
    .set = COMMAND_DEVICES,
};

const struct command command_samplers = {
    .name = "samplers",
    .usage = "[--json]",
    .summary = "Lists the samplers, how often each calls the model in a step and whether it adds "
               "noise, and the schedules.",
    .set = COMMAND_SAMPLERS,
};

static int list(const struct command *command, int argc, char **argv,
    enum shoal_status (*say)(bool json, char **text, struct shoal_error *error))
{
    struct options options;
    struct shoal_error error = {0};
    char *text = NULL;
    int code;

    if (!options_parse(command, argc, argv, &options, &code)) goto done;
    if (say(options.json, &text, &error) != SHOAL_OK) {
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

int devices_main(int argc, char **argv)
{
    return list(&command_devices, argc, argv, shoal_devices);
}

int samplers_main(int argc, char **argv)
{
    return list(&command_samplers, argc, argv, shoal_samplers);
}
