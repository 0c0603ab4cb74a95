/* shoal convert: writes a model's files again, packed without loss or unpacked. */
#include "interrupt.h"
#include "model_path.h"
#include "options.h"
#include "pack_progress.h"
#include "progress.h"

#include <stdlib.h>

const struct command command_convert = {
    .name = "convert",
    .usage = "IN OUT [--wire packed|raw] [--force]",
    .summary = "Packs weights without loss, to some two thirds of their bytes for BF16, or gives "
               "back the bytes that were packed. IN is a .safetensors file, an index of shards, or "
               "a model's folder, of which every part is converted and all else is copied. OUT "
               "appears complete or not at all, and is used as IN was.",
    .set = COMMAND_CONVERT,
    .max_arguments = 2,
};

/* `parts` is the elements of the JSON array; NULL: for a person, who has seen them. */
static void print_total(const struct pack_progress *progress, const char *parts)
{
    double ratio = progress->bytes ? (double)progress->written_bytes / (double)progress->bytes : 1;

    if (parts)
        printf("{\"parts\": [%s],\n \"bytes\": %llu, \"written_bytes\": %llu, \"seconds\": %.6f}\n",
            parts, (unsigned long long)progress->bytes, (unsigned long long)progress->written_bytes,
            progress->seconds);
    else if (progress->parts > 1)
        printf("total: %s in %s (%.3f), %s, %.2f GB/s\n", cli_size(progress->bytes).text,
            cli_size(progress->written_bytes).text, ratio, cli_seconds(progress->seconds).text,
            progress->seconds > 0 ? 1e-9 * (double)progress->bytes / progress->seconds : 0);
}

/* Parts go to `json`, if it is not NULL. */
static bool convert(
    const struct options *options, struct pack_progress *progress, FILE *json, int *code)
{
    struct shoal_pack_callbacks callbacks = {progress, pack_progress_update, pack_progress_written,
        interrupt_requested, pack_progress_waiting};
    char buffer[MODEL_PATH_BYTES];
    const char *in = model_path_find(options->arguments[0], buffer);
    struct shoal_error error = {0};
    enum shoal_status status;

    *code = CLI_FAILED;
    if (!in) return false;
    pack_progress_start(progress, json, false);
    interrupt_defer(true);
    status = shoal_convert(in, options->arguments[1],
        options->convert_wire == CONVERT_RAW ? SHOAL_WIRE_RAW : SHOAL_WIRE_PACKED, options->force,
        &callbacks, &error);
    progress_clear();
    *code = status == SHOAL_OK ? CLI_OK : cli_fail(&error);
    return status == SHOAL_OK;
}

/* The JSON object is printed when all went well, or not at all. */
static int convert_to_json(const struct options *options)
{
    struct pack_progress progress;
    char *parts = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&parts, &bytes);
    int code = CLI_FAILED;
    bool good;

    if (!stream) {
        cli_error("out of memory");
        return CLI_FAILED;
    }
    good = convert(options, &progress, stream, &code);
    if (fclose(stream) == 0 && good)
        print_total(&progress, parts);
    else if (good)
        code = CLI_FAILED;
    free(parts);
    return code;
}

static int convert_for_person(const struct options *options)
{
    struct pack_progress progress;
    int code;

    if (convert(options, &progress, NULL, &code)) print_total(&progress, NULL);
    return code;
}

int convert_main(int argc, char **argv)
{
    struct options options;
    int code;

    interrupt_install();
    if (!options_parse(&command_convert, argc, argv, &options, &code)) goto done;
    code = CLI_USAGE;
    if (options.argument_count < 2)
        cli_error("convert %s: name what to convert and where it shall go: shoal convert IN OUT",
            options.argument ? "to what" : "what");
    else
        code = cli_finish(options.json ? convert_to_json(&options) : convert_for_person(&options));
done:
    options_fini(&options);
    return code;
}
