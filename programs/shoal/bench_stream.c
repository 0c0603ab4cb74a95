/* shoal bench stream: the streaming loop alone, held against the physical limit. */
#include "interrupt.h"
#include "options.h"

const struct command command_stream = {
    .name = "bench stream",
    .usage = "[options]",
    .summary =
        "Streams made-up blocks, by default of Qwen-Image's size and number, and prints how long a "
        "step takes beside the physical limit: the greater of the time that its arithmetic takes "
        "with resident weights and the time that its bytes take over the link, both measured in "
        "the same run. Writes a file of four blocks that nobody can see and that is gone in the "
        "end. Fails if streaming changes a bit of what is computed.",
    .set = COMMAND_STREAM,
};

static void fill_request(const struct options *options, struct shoal_stream_request *request)
{
    struct shoal_request shared;

    shoal_stream_request_init(request);
    shared = (struct shoal_request){.steps = request->steps,
        .vram_bytes = request->vram_bytes,
        .ram_bytes = request->ram_bytes,
        .resident_blocks = request->resident_blocks,
        .prefetch_slots = request->prefetch_slots};
    options_apply(options, &shared);
    request->steps = shared.steps;
    request->vram_bytes = shared.vram_bytes;
    request->ram_bytes = shared.ram_bytes;
    request->resident_blocks = shared.resident_blocks;
    request->prefetch_slots = shared.prefetch_slots;
    request->buffer = shared.buffer;
    request->wire = shared.wire;
    request->pin = shared.pin;
    request->device = shared.device;
    request->threads = shared.threads;
    if (options->given[OPTION_BLOCKS]) request->blocks = options->blocks;
    if (options->given[OPTION_BLOCK_SIZE]) request->block_bytes = options->block_bytes;
    if (options->given[OPTION_TOKENS]) request->tokens = options->tokens;
    request->folder = options->folder;
    request->cancelled = interrupt_requested;
}

int bench_stream_main(int argc, char **argv)
{
    struct shoal_stream_request request;
    struct options options;
    struct shoal_error error = {0};
    enum shoal_status status;
    char *text = NULL;
    int code;

    interrupt_install();
    if (!options_parse(&command_stream, argc, argv, &options, &code)) goto done;
    fill_request(&options, &request);
    interrupt_defer(true);
    status = shoal_bench_stream(&request, options.json, &text, &error);
    if (status == SHOAL_OK) {
        cli_print_text(text, options.json);
        code = cli_finish(CLI_OK);
    } else {
        code = cli_fail(&error);
        /* A device that is not there: the command line is at fault. */
        if (status == SHOAL_E_UNSUPPORTED) code = CLI_USAGE;
        if (status == SHOAL_E_NUMERIC) code = CLI_DIFFERENT;
    }
done:
    shoal_text_free(&text);
    options_fini(&options);
    return code;
}
