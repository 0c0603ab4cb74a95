/*
 * One table says every option: its name, value, help and where its value goes. Not here: defaults
 * (the model's own, from shoal_request_init) and what an option does to a plan.
 */
#include "options.h"

#include "read_prompt.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum value_kind {
    VALUE_NONE,
    VALUE_TEXT,    /* const char * */
    VALUE_PATH,    /* the same, not empty */
    VALUE_INTEGER, /* int32_t in [low, high]; `auto` where allowed */
    VALUE_NUMBER,  /* float in [low, high] */
    VALUE_SIZE,    /* uint64_t */
    VALUE_SEED,
    VALUE_CHOICE, /* an enum, whose values are numbered as the names are */
    VALUE_PROMPT, /* these two may be given several times */
    VALUE_LORA,
};

struct option_spec {
    const char *name;
    const char *value; /* as shown in help */
    const char *help;
    size_t offset; /* of the value in struct options */
    double low, high;
    enum value_kind kind;
    bool automatic; /* takes "auto" */
    bool limits;    /* says how to run, not what to paint */
    char letter;
    int32_t multiple;
    enum command_set of;    /* who takes it; 0: COMMANDS_RUN */
    const char *choices[3]; /* the last may be NULL */
};

#define AT(member) .offset = offsetof(struct options, member)

static const struct option_spec specs[OPTIONS] = {
    [OPTION_PROMPT] = {"prompt", "TEXT",
        "what to paint; - reads it from standard input; may be given several times",
        AT(request.prompt), .letter = 'p', .kind = VALUE_PROMPT},
    [OPTION_NEGATIVE] = {"negative", "TEXT", "what to keep away from; needs a --cfg other than 1",
        AT(request.negative_prompt), .letter = 'n', .kind = VALUE_TEXT},
    [OPTION_MODEL] = {"model", "MODEL",
        "a folder (diffusers or ComfyUI layout), a file, or the embedded \"mini\" (default)",
        AT(paths.model), .letter = 'm', .kind = VALUE_PATH, .of = COMMANDS_RUN | COMMAND_BENCH},
    [OPTION_DIT] = {"dit", "FILE", "the diffusion transformer, in place of the model's",
        AT(paths.dit), .kind = VALUE_PATH},
    [OPTION_TEXT_ENCODER] = {"text-encoder", "FILE", "the text encoder, in place of the model's",
        AT(paths.text_encoder), .kind = VALUE_PATH},
    [OPTION_VAE] = {"vae", "FILE", "the VAE, in place of the model's", AT(paths.vae),
        .kind = VALUE_PATH},
    [OPTION_TOKENIZER] = {"tokenizer", "FILE", "the tokenizer, in place of the model's",
        AT(paths.tokenizer), .kind = VALUE_PATH},
    [OPTION_TOKENIZER_2] = {"tokenizer-2", "FILE", "the second one, which Anima takes prompts in",
        AT(paths.second_tokenizer), .kind = VALUE_PATH},
    [OPTION_OUTPUT] = {"output", "FILE",
        "the PNG to write (replaced if it exists), a folder, or - for standard output; "
        "default: shoal-0001.png or the next free number",
        AT(output), .letter = 'o', .kind = VALUE_TEXT},
    [OPTION_WIDTH] = {"width", "N", "pixels, a multiple of 16; default: the model's",
        AT(request.width), .kind = VALUE_INTEGER, .low = 16, .high = 16384, .multiple = 16},
    [OPTION_HEIGHT] = {"height", "N", "pixels, a multiple of 16; default: the model's",
        AT(request.height), .kind = VALUE_INTEGER, .low = 16, .high = 16384, .multiple = 16},
    [OPTION_STEPS] = {"steps", "N", "sampling steps, 1 to 1000; default: the model's (verify: 2)",
        AT(request.steps), .kind = VALUE_INTEGER, .low = 1, .high = 1000},
    [OPTION_CFG] = {"cfg", "X", "guidance; 1 is off; default: the model's", AT(request.cfg),
        .kind = VALUE_NUMBER, .low = 0, .high = 100},
    [OPTION_SEED] = {"seed", "N", "a number, or random; default 0: the same picture every time",
        AT(request.seed), .kind = VALUE_SEED},
    [OPTION_COUNT] = {"count", "N",
        "pictures of each prompt, 1 to 64 in all; picture i has seed + i", AT(request.count),
        .kind = VALUE_INTEGER, .low = 1, .high = 64},
    [OPTION_SAMPLER] = {"sampler", "NAME",
        "how to step from noise to picture: see shoal samplers; default: euler",
        AT(request.sampler), .kind = VALUE_TEXT},
    [OPTION_SCHEDULE] = {"schedule", "NAME",
        "the noise levels of the steps: see shoal samplers; default: the model's",
        AT(request.schedule), .kind = VALUE_TEXT},
    [OPTION_SHIFT] = {"shift", "X", "of the noise schedule; default: the model's",
        AT(request.shift), .kind = VALUE_NUMBER, .low = 0.01, .high = 100},
    [OPTION_INIT] = {"init", "FILE", "a PNG to begin with in place of noise alone; says the size",
        AT(request.init), .kind = VALUE_PATH},
    [OPTION_STRENGTH] = {"strength", "X",
        "how much of --init is painted anew, 0.001 to 1: ComfyUI's denoise; default: 0.6",
        AT(request.strength), .kind = VALUE_NUMBER, .low = 0.001, .high = 1},
    [OPTION_LORA] = {"lora", "FILE:X",
        "an adapter (LoRA, LoHa, LoKr, differences) and how much of it: -100 to 100, default 1; "
        "may "
        "be given several times",
        AT(loras), .low = -100, .high = 100, .kind = VALUE_LORA},
    [OPTION_VRAM] = {"vram", "SIZE", "hard cap on device memory, e.g. 3GiB; default: max",
        AT(request.vram_bytes), .kind = VALUE_SIZE, .limits = true,
        .of = COMMANDS_RUN | COMMAND_STREAM},
    [OPTION_RAM] = {"ram", "SIZE", "hard cap on the process's memory beside --vram; default: max",
        AT(request.ram_bytes), .kind = VALUE_SIZE, .limits = true,
        .of = COMMANDS_RUN | COMMAND_STREAM},
    [OPTION_RESIDENT_BLOCKS] = {"resident-blocks", "N",
        "blocks that stay on the device, or auto (default): as many as fit",
        AT(request.resident_blocks), .kind = VALUE_INTEGER, .low = 0, .high = 100000,
        .automatic = true, .limits = true},
    [OPTION_PREFETCH_SLOTS] = {"prefetch-slots", "2..6",
        "blocks that the ring for streamed weights has room for, or auto (default)",
        AT(request.prefetch_slots), .kind = VALUE_INTEGER, .low = 2, .high = 6, .automatic = true,
        .limits = true, .of = COMMANDS_RUN | COMMAND_STREAM},
    [OPTION_BUFFER] = {"buffer", "double|single",
        "fetch the next block while one runs, or after it; default: auto", AT(request.buffer),
        .kind = VALUE_CHOICE, .limits = true, .choices = {"auto", "single", "double"},
        .of = COMMANDS_RUN | COMMAND_STREAM},
    [OPTION_LANES] = {"lanes", "N",
        "prompts and pictures that share one pass over the blocks, or auto (default)",
        AT(request.lanes), .kind = VALUE_INTEGER, .low = 1, .high = 128, .automatic = true,
        .limits = true},
    [OPTION_VAE_STRIPS] = {"vae-strips", "auto|off|on",
        "decode pictures in strips, which takes less memory and more arithmetic, and changes no "
        "bit: if memory is short (auto, default), never, or always",
        AT(request.vae_strips), .kind = VALUE_CHOICE, .limits = true,
        .choices = {"auto", "off", "on"}},
    [OPTION_WIRE] = {"wire", "auto|raw|packed",
        "how streamed weights cross: as they are, packed without loss (those of plain files while "
        "they are read), or as the plan decides (auto, default)",
        AT(request.wire), .kind = VALUE_CHOICE, .limits = true,
        .choices = {"auto", "raw", "packed"}, .of = COMMANDS_RUN | COMMAND_STREAM},
    [OPTION_HOST_FORMAT] = {"host-format", "storage|compute",
        "how streamed weights in FP8 wait in host memory and cross: as codes (default), or widened "
        "to 16 bits while they are read, which changes no bit",
        AT(request.host_format), .kind = VALUE_CHOICE, .limits = true,
        .choices = {"storage", "compute"}},
    [OPTION_PIN] = {"pin", "on|staging|off",
        "host memory that a card copies from: pinned (default), through a small pinned ring, or "
        "as it is",
        AT(request.pin), .kind = VALUE_CHOICE, .limits = true, .choices = {"on", "staging", "off"},
        .of = COMMANDS_RUN | COMMAND_STREAM},
    [OPTION_DISK_CACHE] = {"disk-cache", "DIR",
        "a folder for packed copies of the model's files, written once; needs --wire packed",
        AT(paths.disk_cache), .kind = VALUE_PATH, .limits = true},
    [OPTION_DEVICE] = {"device", "NAME",
        "where to compute: see shoal devices; default: $SHOAL_DEVICE, or the first card, or the "
        "CPU where there is none",
        AT(request.device), .kind = VALUE_TEXT,
        .of = COMMANDS_RUN | COMMAND_BENCH | COMMAND_STREAM},
    [OPTION_THREADS] = {"threads", "N", "threads to compute with; 0 (default): one for each core",
        AT(request.threads), .kind = VALUE_INTEGER, .low = 0, .high = 1024,
        .of = COMMANDS_RUN | COMMAND_BENCH | COMMAND_STREAM},
    [OPTION_RATES] = {"rates", "FILE",
        "what this machine was measured to do: written by bench links, read by plans; "
        "default: ~/.cache/shoal/rates.json, of a card rates-cuda.json",
        AT(request.rates_path), .kind = VALUE_PATH, .limits = true,
        .of = COMMANDS_RUN | COMMAND_BENCH},
    [OPTION_ON] = {"on", "CARD|FILE",
        "plan for another machine: a card, such as rtx4060, or a file of rates", AT(request.on),
        .kind = VALUE_PATH, .limits = true, .of = COMMAND_PLAN},
    [OPTION_FILE] = {"file", "FILE",
        "the file to measure the drive with, several GiB best; default: the model's largest",
        AT(file), .kind = VALUE_PATH, .of = COMMAND_BENCH},
    [OPTION_BLOCKS] = {"blocks", "N", "blocks of a step, 1 to 1000; default: 60", AT(blocks),
        .kind = VALUE_INTEGER, .low = 1, .high = SHOAL_STREAM_MOST_BLOCKS, .of = COMMAND_STREAM},
    [OPTION_BLOCK_SIZE] = {"block-size", "SIZE",
        "of each block's weights in BF16, 1MiB to 1TiB; default: 648MiB", AT(block_bytes),
        .kind = VALUE_SIZE, .of = COMMAND_STREAM},
    [OPTION_TOKENS] = {"tokens", "N",
        "rows that each block computes with, 1 to 65536: the load of arithmetic; default: 4096",
        AT(tokens), .kind = VALUE_INTEGER, .low = 1, .high = SHOAL_STREAM_MOST_TOKENS,
        .of = COMMAND_STREAM},
    [OPTION_STREAM_STEPS] = {"steps", "N",
        "steps, 2 to 1000, of which the first one loads and does not count; default: 4",
        AT(request.steps), .kind = VALUE_INTEGER, .low = 2, .high = 1000, .of = COMMAND_STREAM},
    [OPTION_STREAM_RESIDENT] = {"resident-blocks", "N",
        "blocks that stay on the device, or auto: as many as fit; default: 0, so that all stream",
        AT(request.resident_blocks), .kind = VALUE_INTEGER, .low = 0,
        .high = SHOAL_STREAM_MOST_BLOCKS, .automatic = true, .of = COMMAND_STREAM},
    [OPTION_DIR] = {"dir", "DIR",
        "the folder for the weights, a file of four blocks; default: $TMPDIR, or /var/tmp",
        AT(folder), .kind = VALUE_PATH, .of = COMMAND_STREAM},
    [OPTION_TRACE] = {"trace", "FILE",
        "write what happened when, as JSON for shoal trace, chrome://tracing or Perfetto",
        AT(trace), .kind = VALUE_PATH, .of = COMMAND_GENERATE},
    [OPTION_SVG] = {"output", "FILE",
        "the SVG to write (replaced if it exists), or - for standard output; default: the trace's "
        "name with .svg in place of .json",
        AT(output), .letter = 'o', .kind = VALUE_PATH, .of = COMMAND_TRACE},
    [OPTION_FROM] = {"from", "SECONDS", "draw from this time on; default: the beginning", AT(from),
        .kind = VALUE_NUMBER, .low = 0, .high = 1e6, .of = COMMAND_TRACE},
    [OPTION_TO] = {"to", "SECONDS", "draw up to this time; default: the end", AT(to),
        .kind = VALUE_NUMBER, .low = 0, .high = 1e6, .of = COMMAND_TRACE},
    [OPTION_STEP] = {"step", "N", "draw this sampling step alone", AT(step), .kind = VALUE_INTEGER,
        .low = 1, .high = 1999, .of = COMMAND_TRACE},
    [OPTION_CONVERT_WIRE] = {"wire", "packed|raw",
        "pack weights without loss (default), or give back what was packed", AT(convert_wire),
        .kind = VALUE_CHOICE, .choices = {"packed", "raw"}, .of = COMMAND_CONVERT},
    [OPTION_FORCE] = {"force", NULL,
        "replace OUT if it is a file; if it is a folder, the files of the same names in it",
        AT(force), .kind = VALUE_NONE, .of = COMMAND_CONVERT},
    [OPTION_REMOVE] = {"remove", NULL, "remove the copies that are named, or all", AT(remove),
        .kind = VALUE_NONE, .of = COMMAND_CACHE},
    [OPTION_REMOVE_STALE] = {"remove-stale", NULL,
        "remove the copies whose originals have changed or are gone, and what interrupted runs "
        "left",
        AT(remove_stale), .kind = VALUE_NONE, .of = COMMAND_CACHE},
    [OPTION_JSON] = {"json", NULL, "one JSON object on standard output", AT(json),
        .kind = VALUE_NONE, .of = COMMANDS_ALL & ~COMMAND_TRACE},
    [OPTION_HELP] = {"help", NULL, "this text", .letter = 'h', .kind = VALUE_NONE,
        .of = COMMANDS_ALL},
};

static bool takes(const struct command *command, const struct option_spec *spec)
{
    return (command->set & (spec->of ? spec->of : COMMANDS_RUN)) != 0;
}

static bool runs(const struct command *command)
{
    return (command->set & COMMANDS_RUN) != 0;
}

const char *option_name(enum option_id id)
{
    static char names[OPTIONS][24];

    snprintf(names[id], sizeof names[id], "--%s", specs[id].name);
    return names[id];
}

/* ---- help ---- */

/* Prints `text` from column `indent` on, broken between words before column 80. */
static void print_wrapped(const char *text, int indent, int column)
{
    while (*text) {
        size_t length = strcspn(text, " ");

        if (column > indent && column + 1 + (int)length > 79) {
            printf("\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', stdout);
            column++;
        }
        printf("%.*s", (int)length, text);
        column += (int)length;
        text += length;
        text += strspn(text, " ");
    }
    fputc('\n', stdout);
}

static void print_option(const struct option_spec *spec)
{
    enum { INDENT = 28 };
    char left[64];
    int length;

    length = snprintf(left, sizeof left, spec->letter ? "  -%c, " : "      ", spec->letter);
    length += snprintf(left + length, sizeof left - (size_t)length, "--%s%s%s", spec->name,
        spec->value ? " " : "", spec->value ? spec->value : "");
    if (length + 2 > INDENT)
        printf("%s\n%*s", left, INDENT, "");
    else
        printf("%-*s", INDENT, left);
    print_wrapped(spec->help, INDENT, INDENT);
}

static void print_help(const struct command *command)
{
    printf("usage: shoal %s %s\n\n", command->name, command->usage);
    print_wrapped(command->summary, 0, 0);
    for (int limits = 0; limits < 2; limits++) {
        if (limits && !runs(command)) break;
        puts(limits ? "\nHow to run (changes no byte of the picture):" : "\nOptions:");
        for (int i = 0; i < OPTIONS; i++)
            if (takes(command, &specs[i]) && (specs[i].limits && runs(command)) == (limits != 0))
                print_option(&specs[i]);
    }
    if (takes(command, &specs[OPTION_VRAM]))
        puts("\nSizes: bytes, or with a unit: 3GiB, 512MiB, 2.5GB; max is no limit.\n"
             "More: man shoal.");
}

/* ---- values ---- */

/* False, having said why, unless `text` is a whole number that the option takes. */
static bool parse_integer(const struct option_spec *spec, const char *text, int32_t *value)
{
    char *end;
    long number;

    if (spec->automatic && !strcmp(text, "auto")) {
        *value = SHOAL_AUTO;
        return true;
    }
    errno = 0;
    number = strtol(text, &end, 10);
    if (end == text || *end || strchr(" \t\n\v\f\r+", *text)) {
        cli_error("--%s: '%s' is not a whole number: give %.0f to %.0f%s", spec->name, text,
            spec->low, spec->high, spec->automatic ? ", or auto" : "");
        return false;
    }
    if (errno || (double)number < spec->low || (double)number > spec->high) {
        cli_error("--%s: %s is out of range: give %.0f to %.0f%s", spec->name, text, spec->low,
            spec->high, spec->automatic ? ", or auto" : "");
        return false;
    }
    if (spec->multiple && number % spec->multiple) {
        long below = number - number % spec->multiple;

        cli_error("--%s: %s is no multiple of %d: give %ld or %ld", spec->name, text,
            spec->multiple, below, below + spec->multiple);
        return false;
    }
    *value = (int32_t)number;
    return true;
}

static bool parse_number(const struct option_spec *spec, const char *text, float *value)
{
    char *end;
    double number;

    /* strtod would also take hexadecimal, infinity and leading blanks. */
    number = strtod(text, &end);
    if (end == text || *end || text[strspn(text, "+-.0123456789eE")]) {
        cli_error(
            "--%s: '%s' is not a number: give %g to %g", spec->name, text, spec->low, spec->high);
        return false;
    }
    if (!(number >= spec->low && number <= spec->high)) {
        cli_error(
            "--%s: %s is out of range: give %g to %g", spec->name, text, spec->low, spec->high);
        return false;
    }
    *value = (float)number;
    return true;
}

static bool parse_seed(const char *text, uint64_t *seed)
{
    char *end;

    if (!strcmp(text, "random")) {
        uint32_t short_seed;

        /* 32 bits: short enough to type again. */
        if (getrandom(&short_seed, sizeof short_seed, 0) != sizeof short_seed) {
            cli_error("--seed random: the system gave no random number (%s): give a number",
                strerror(errno));
            return false;
        }
        *seed = short_seed;
        return true;
    }
    errno = 0;
    *seed = strtoull(text, &end, 10);
    if (end == text || *end || text[strspn(text, "0123456789")] || errno) {
        cli_error("--seed: '%s' is not a seed: give 0 to 18446744073709551615, or random", text);
        return false;
    }
    return true;
}

static bool parse_choice(const struct option_spec *spec, const char *text, void *value)
{
    for (unsigned i = 0; i < 3 && spec->choices[i]; i++) {
        if (strcmp(text, spec->choices[i]) != 0) continue;
        memcpy(value, &i, sizeof i);
        return true;
    }
    cli_error("--%s: '%s' is unknown: give %s%s%s or %s", spec->name, text,
        spec->choices[2] ? spec->choices[2] : "", spec->choices[2] ? ", " : "", spec->choices[1],
        spec->choices[0]);
    return false;
}

/* FILE, or FILE:X. A path may hold colons: what follows the last one is a strength if it is a
 * number. */
static bool parse_lora(const struct option_spec *spec, const char *text, struct options *options)
{
    struct shoal_lora *lora = &options->loras[options->lora_count];
    const char *colon = strrchr(text, ':');
    size_t bytes = strlen(text);
    char *path;

    if (options->lora_count == SHOAL_MAX_LORAS) {
        cli_error(
            "--%s: %d at once are the most: merge some into one file", spec->name, SHOAL_MAX_LORAS);
        return false;
    }
    lora->strength = 1;
    if (colon && colon[1] && !colon[1 + strspn(colon + 1, "+-.0123456789eE")]) {
        if (!parse_number(spec, colon + 1, &lora->strength)) return false;
        bytes = (size_t)(colon - text);
    }
    if (!bytes) {
        cli_error(
            "--%s is empty: name a .safetensors file, and after a colon a strength", spec->name);
        return false;
    }
    path = strndup(text, bytes);
    if (!path) {
        cli_error("out of memory");
        return false;
    }
    lora->path = path;
    options->lora_count++;
    return true;
}

static bool parse_prompt(const struct option_spec *spec, const char *text, struct options *options)
{
    const bool reads = !strcmp(text, "-");

    if (options->prompt_count == SHOAL_MAX_PICTURES) {
        cli_error("--%s: %d are the most, as each is a picture: leave some for another run",
            spec->name, SHOAL_MAX_PICTURES);
        return false;
    }
    if (reads && options->prompt_buffer) {
        cli_error("--%s - is given twice: standard input is one prompt", spec->name);
        return false;
    }
    if (reads && !(options->prompt_buffer = read_prompt())) return false;
    options->prompts[options->prompt_count++] = reads ? options->prompt_buffer : text;
    options->request.prompt = options->prompts[0];
    return true;
}

static bool parse_value(const struct option_spec *spec, const char *text, struct options *options)
{
    void *value = (char *)options + spec->offset;
    struct shoal_error error = {0};

    switch (spec->kind) {
    case VALUE_NONE:
        *(bool *)value = true;
        return true;
    case VALUE_PATH:
        if (!*text) {
            cli_error("--%s is empty: name a file or a folder", spec->name);
            return false;
        }
        *(const char **)value = text;
        return true;
    case VALUE_TEXT:
        *(const char **)value = text;
        return true;
    case VALUE_INTEGER:
        return parse_integer(spec, text, value);
    case VALUE_NUMBER:
        return parse_number(spec, text, value);
    case VALUE_SIZE:
        if (shoal_parse_size(text, value, &error) == SHOAL_OK) return true;
        cli_error("--%s: %s", spec->name, error.text);
        return false;
    case VALUE_SEED:
        return parse_seed(text, value);
    case VALUE_CHOICE:
        return parse_choice(spec, text, value);
    case VALUE_PROMPT:
        return parse_prompt(spec, text, options);
    case VALUE_LORA:
        return parse_lora(spec, text, options);
    }
    return false;
}

/* ---- what does not go together ---- */

/* A tokenizer is also found beside the text encoder's folder, so that one need not be named. */
static bool check_paths(const struct options *options)
{
    static const enum option_id parts[] = {OPTION_DIT, OPTION_TEXT_ENCODER, OPTION_VAE};
    char missing[80] = "";
    bool any = options->given[OPTION_TOKENIZER] || options->given[OPTION_TOKENIZER_2];

    if (options->given[OPTION_MODEL]) return true;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        any |= options->given[parts[i]];
        if (options->given[parts[i]]) continue;
        if (*missing) strcat(missing, ", ");
        strcat(missing, option_name(parts[i]));
    }
    if (!any || !*missing) return true;
    cli_error("without --model every part must be given: add %s", missing);
    return false;
}

static bool check_window(const struct options *options)
{
    if (options->given[OPTION_STEP] && (options->given[OPTION_FROM] || options->given[OPTION_TO])) {
        cli_error("--step says from when to when already: leave out --from and --to, or --step");
        return false;
    }
    if (options->given[OPTION_TO] &&
        !(options->to > (options->given[OPTION_FROM] ? options->from : 0))) {
        cli_error("--to must be later than --from: there is nothing to draw");
        return false;
    }
    return true;
}

static bool check_together(const struct command *command, const struct options *options)
{
    if (command == &command_trace) return check_window(options);
    if (!options->given[OPTION_PROMPT] && command == &command_generate) {
        cli_error("nothing to paint: give a prompt, e.g. -p 'a red apple'");
        return false;
    }
    if (options->given[OPTION_COUNT] &&
        options->request.count * options->prompt_count > SHOAL_MAX_PICTURES) {
        cli_error("--count %d of %d prompts: that is more than %d pictures: give %d, or fewer "
                  "prompts",
            options->request.count, options->prompt_count, SHOAL_MAX_PICTURES,
            SHOAL_MAX_PICTURES / options->prompt_count);
        return false;
    }
    if (options->given[OPTION_STRENGTH] && !options->given[OPTION_INIT]) {
        cli_error("--strength has no effect without --init: give a PNG to begin with, or leave it "
                  "out");
        return false;
    }
    if (options->request.buffer == SHOAL_BUFFER_SINGLE && options->given[OPTION_PREFETCH_SLOTS] &&
        options->request.prefetch_slots != SHOAL_AUTO) {
        cli_error("--prefetch-slots has no effect with --buffer single, which has one slot: leave "
                  "one of them out");
        return false;
    }
    return !runs(command) || check_paths(options);
}

/* ---- parsing ---- */

const char *options_nearest(const char *word, const char *const *names, size_t count)
{
    enum { MOST = 32 };
    const char *nearest = NULL;
    size_t best = 3; /* more than two slips are another word */
    size_t length = strlen(word);

    if (length >= MOST) return NULL;
    for (size_t n = 0; n < count; n++) {
        size_t row[MOST + 1];

        for (size_t i = 0; i <= length; i++)
            row[i] = i;
        for (size_t j = 0; names[n][j]; j++) {
            size_t diagonal = row[0]++;

            for (size_t i = 0; i < length; i++) {
                size_t change = diagonal + (word[i] != names[n][j]);
                size_t gap = (row[i] < row[i + 1] ? row[i] : row[i + 1]) + 1;

                diagonal = row[i + 1];
                row[i + 1] = change < gap ? change : gap;
            }
        }
        if (row[length] < best && row[length] < length) {
            best = row[length];
            nearest = names[n];
        }
    }
    return nearest;
}

static void say_unknown(const struct command *command, const char *word)
{
    const char *names[OPTIONS];
    const char *nearest = NULL;
    char bare[32];
    size_t count = 0;

    for (int i = 0; i < OPTIONS; i++)
        if (takes(command, &specs[i])) names[count++] = specs[i].name;
    snprintf(bare, sizeof bare, "%.*s", (int)strcspn(word + 2, "="), word + 2);
    nearest = options_nearest(bare, names, count);
    if (nearest)
        cli_error("unknown option %s: did you mean --%s?", word, nearest);
    else
        cli_error("unknown option %s: see shoal %s --help", word, command->name);
}

/* What getopt_long could not take; `result` is ':' or '?'. */
static void say_bad_option(const struct command *command, int result, char **argv)
{
    const char *word = argv[optind - 1]; /* not for letters: those may share a word */
    size_t length;
    int matches = 0;

    if (optopt >= 256) {
        const char *name = specs[optopt - 256].name;

        if (result == ':')
            cli_error("--%s needs a value: see shoal %s --help", name, command->name);
        else
            cli_error("--%s takes no value: write it alone", name);
        return;
    }
    if (optopt) {
        cli_error(result == ':' ? "-%c needs a value: see shoal %s --help"
                                : "unknown option -%c: see shoal %s --help",
            optopt, command->name);
        return;
    }
    length = strcspn(word + 2, "=");
    for (int i = 0; i < OPTIONS; i++)
        if (takes(command, &specs[i]))
            matches += length > 0 && !strncmp(specs[i].name, word + 2, length);
    if (matches > 1)
        cli_error("%s is short for more than one option: write it out", word);
    else
        say_unknown(command, word);
}

/* Long options get the value 256 + id. */
static void build_tables(
    const struct command *command, struct option table[OPTIONS + 1], char letters[2 * OPTIONS + 2])
{
    size_t count = 0;

    *letters++ = ':';
    for (int i = 0; i < OPTIONS; i++) {
        if (!takes(command, &specs[i])) continue;
        table[count++] = (struct option){
            specs[i].name, specs[i].value ? required_argument : no_argument, NULL, 256 + i};
        if (specs[i].letter) *letters++ = specs[i].letter;
        if (specs[i].letter && specs[i].value) *letters++ = ':';
    }
    *letters = '\0';
    table[count] = (struct option){0};
}

static int option_from_letter(const struct command *command, int letter)
{
    for (int i = 0; i < OPTIONS; i++)
        if (specs[i].letter == letter && takes(command, &specs[i])) return i;
    return OPTIONS;
}

bool options_parse(
    const struct command *command, int argc, char **argv, struct options *options, int *code)
{
    struct option table[OPTIONS + 1];
    char letters[2 * OPTIONS + 2];
    int result;

    *options = (struct options){0};
    *code = CLI_USAGE;
    build_tables(command, table, letters);
    opterr = 0;
    while ((result = getopt_long(argc, argv, letters, table, NULL)) != -1) {
        int id;

        if (result == '?' || result == ':') {
            say_bad_option(command, result, argv);
            return false;
        }
        id = result >= 256 ? result - 256 : option_from_letter(command, result);
        if (id == OPTION_HELP) {
            print_help(command);
            *code = cli_finish(CLI_OK);
            return false;
        }
        if (!parse_value(&specs[id], optarg, options)) return false;
        options->given[id] = true;
    }
    if (argc - optind > command->max_arguments) {
        const char *extra = argv[optind + command->max_arguments];

        if (runs(command))
            cli_error("'%s' belongs to no option: a prompt is given as -p '%s'", extra, extra);
        else
            cli_error("'%s' is one argument too many: see shoal %s --help", extra, command->name);
        return false;
    }
    options->argument_count = argc - optind;
    options->arguments = (const char *const *)argv + optind;
    options->argument = argc > optind ? argv[optind] : NULL;
    return check_together(command, options);
}

void options_fini(struct options *options)
{
    while (options->lora_count > 0)
        free((void *)(uintptr_t)options->loras[--options->lora_count].path);
    free(options->prompt_buffer);
    options->prompt_buffer = NULL;
}

void options_apply(const struct options *options, struct shoal_request *request)
{
    static const size_t sizes[] = {
        [VALUE_TEXT] = sizeof(char *),
        [VALUE_PATH] = sizeof(char *),
        [VALUE_INTEGER] = sizeof(int32_t),
        [VALUE_NUMBER] = sizeof(float),
        [VALUE_SIZE] = sizeof(uint64_t),
        [VALUE_SEED] = sizeof(uint64_t),
        [VALUE_CHOICE] = sizeof(enum shoal_buffer),
        [VALUE_PROMPT] = sizeof(char *),
    };
    const size_t start = offsetof(struct options, request);

    for (int i = 0; i < OPTIONS; i++) {
        size_t offset = specs[i].offset;

        if (!options->given[i] || offset < start || offset >= start + sizeof *request) continue;
        memcpy((char *)request + (offset - start), (const char *)options + offset,
            sizes[specs[i].kind]);
    }
    request->more_prompts = options->prompts + 1;
    request->more_prompt_count = options->prompt_count > 1 ? options->prompt_count - 1 : 0;
    request->loras = options->lora_count ? options->loras : NULL;
    request->lora_count = options->lora_count;
}

bool options_limit_given(const struct options *options)
{
    for (int i = 0; i < OPTIONS; i++)
        if (specs[i].limits && options->given[i]) return true;
    return false;
}
