/*
 * The command line. One table holds every option of every subcommand and says who takes it.
 * Checks what can be checked without a model; what depends on the model is libshoal's to refuse.
 */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "cli.h"

enum option_id {
    OPTION_PROMPT,
    OPTION_NEGATIVE,
    OPTION_MODEL,
    OPTION_DIT,
    OPTION_TEXT_ENCODER,
    OPTION_VAE,
    OPTION_TOKENIZER,
    OPTION_TOKENIZER_2,
    OPTION_OUTPUT,
    OPTION_WIDTH,
    OPTION_HEIGHT,
    OPTION_STEPS,
    OPTION_CFG,
    OPTION_SEED,
    OPTION_COUNT,
    OPTION_SAMPLER,
    OPTION_SCHEDULE,
    OPTION_SHIFT,
    OPTION_INIT,
    OPTION_STRENGTH,
    OPTION_LORA,
    OPTION_VRAM,
    OPTION_RAM,
    OPTION_RESIDENT_BLOCKS,
    OPTION_PREFETCH_SLOTS,
    OPTION_BUFFER,
    OPTION_LANES,
    OPTION_VAE_STRIPS,
    OPTION_WIRE,
    OPTION_HOST_FORMAT,
    OPTION_PIN,
    OPTION_DISK_CACHE,
    OPTION_DEVICE,
    OPTION_THREADS,
    OPTION_RATES,
    OPTION_ON,
    OPTION_FILE,
    OPTION_BLOCKS,
    OPTION_BLOCK_SIZE,
    OPTION_TOKENS,
    OPTION_STREAM_STEPS,
    OPTION_STREAM_RESIDENT,
    OPTION_DIR,
    OPTION_TRACE,
    OPTION_SVG,
    OPTION_FROM,
    OPTION_TO,
    OPTION_STEP,
    OPTION_CONVERT_WIRE,
    OPTION_FORCE,
    OPTION_REMOVE,
    OPTION_REMOVE_STALE,
    OPTION_JSON,
    OPTION_HELP,
    OPTIONS
};

/* The subcommands, as sets. */
enum command_set {
    COMMAND_GENERATE = 1,
    COMMAND_PLAN = 2,
    COMMAND_VERIFY = 4,
    COMMAND_DEVICES = 8,
    COMMAND_INSPECT = 16,
    COMMAND_TRACE = 32,
    COMMAND_BENCH = 64, /* links */
    COMMAND_CONVERT = 128,
    COMMAND_CACHE = 256,
    COMMAND_STREAM = 512, /* bench stream */
    COMMAND_SAMPLERS = 1024,
    COMMANDS_RUN = COMMAND_GENERATE | COMMAND_PLAN | COMMAND_VERIFY,
    COMMANDS_ALL = 2047,
};

/* A subcommand as the command line sees it. */
struct command {
    const char *name;
    const char *usage;   /* after "shoal NAME" */
    const char *summary; /* a sentence or three for --help */
    enum command_set set;
    int max_arguments;
};

extern const struct command command_generate, command_plan, command_verify, command_devices,
    command_inspect, command_trace, command_bench, command_stream, command_convert, command_cache,
    command_samplers;

struct options {
    struct shoal_model_paths paths; /* as given; model may be "mini" */
    struct shoal_request request;   /* only the members whose option was given are set */
    const char *output;
    const char *trace;      /* where generate writes one */
    const char *file;       /* that bench reads */
    const char *folder;     /* that bench stream writes to */
    int32_t blocks, tokens; /* of bench stream */
    uint64_t block_bytes;
    float from, to; /* seconds, of trace */
    int32_t step;   /* of trace */
    enum convert_wire { CONVERT_PACKED, CONVERT_RAW } convert_wire;
    bool force, remove, remove_stale;
    struct shoal_lora loras[SHOAL_MAX_LORAS]; /* their paths are owned */
    size_t lora_count;
    const char *argument;         /* what is no option; NULL if none */
    const char *const *arguments; /* all of these */
    int argument_count;
    const char *prompts[SHOAL_MAX_PICTURES];
    int32_t prompt_count;
    char *prompt_buffer; /* the prompt that came from standard input */
    bool json;
    bool given[OPTIONS];
};

/*
 * Parses argv. Returns true to go on; false to end with *code, everything having been said.
 * options_fini is due either way.
 */
bool options_parse(
    const struct command *command, int argc, char **argv, struct options *options, int *code);

void options_fini(struct options *options);

/* Copies what was given into `request`, which holds the model's defaults. */
void options_apply(const struct options *options, struct shoal_request *request);

/* The option's name, e.g. "--steps". */
const char *option_name(enum option_id id);

/* True if one of the options that say how to run was given (as against what to paint). */
bool options_limit_given(const struct options *options);

/* The nearest of `names` to a mistyped `word`; NULL if none is near. */
const char *options_nearest(const char *word, const char *const *names, size_t count);

#endif
