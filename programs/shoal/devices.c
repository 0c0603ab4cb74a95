/* shoal devices: what this build and this machine can compute on. */
#include "options.h"

const struct command command_devices = {
    .name = "devices",
    .usage = "[--json]",
    .summary = "Lists the devices that this build and this machine can compute on, and why not on "
               "the others.",
    .set = COMMAND_DEVICES,
};

int devices_main(int argc, char **argv)
{
    struct options options;
    struct shoal_error error = {0};
    char *text = NULL;
    int code;

    if (!options_parse(&command_devices, argc, argv, &options, &code)) goto done;
    if (shoal_devices(options.json, &text, &error) != SHOAL_OK) {
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
