/* The program make_checkpoint: options and messages. */
#include "make_checkpoint.h"

#include "base/clock.h"
#include "base/size.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char usage[] =
    "Usage: make_checkpoint [OPTION]... OUT\n"
    "Writes a checkpoint of real shapes with random weights, for benchmarks and tests.\n"
    "\n"
    "  --family FAMILY        z-image (the default), qwen-image, cosmos-2b, cosmos-14b or\n"
    "                         anima\n"
    "  --layout LAYOUT        diffusers (a folder, sharded) or comfyui (a folder of single files,\n"
    "                         or one file of everything if OUT ends in .safetensors)\n"
    "  --parts LIST           of dit,text,vae; by default all that are made of the family\n"
    "  --scale full|small     full: of z-image 6.15 B + 4.02 B weights, about 20 GB, of "
    "qwen-image\n"
    "                         20.4 B + 7.1 B, about 56 GB, of cosmos 2.0 B or 14.3 B + 4.9 B,\n"
    "                         of anima 2.1 B + 0.6 B; small: a few MB\n"
    "  --depth N              only the first N blocks of the DiT and of the text encoder, as wide\n"
    "                         as they are; of the comfyui layout. Most models run with 2 at least\n"
    "  --dtype bf16|f32|fp8   f32 holds the same values as bf16; fp8 has its matrices rounded to\n"
    "                         unscaled E4M3, the rest in bf16 (tools/make_fp8.py makes scaled "
    "ones)\n"
    "  --seed N               equal seeds give equal weights in every layout and dtype\n"
    "  --shard SIZE           of the diffusers layout's files, 5GB by default\n"
    "  --tokenizer PATH       a tokenizer.json or a folder with one, to be copied\n"
    "  --help                 this text\n";

static enum shoal_status parse_parts(char *list, unsigned *parts, struct shoal_error *error)
{
    static const struct {
        const char *name;
        unsigned part;
    } known[] = {{"dit", MAKE_DIT}, {"text", MAKE_TEXT}, {"vae", MAKE_VAE}};
    char *rest = NULL;

    *parts = 0;
    for (char *name = strtok_r(list, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        unsigned part = 0;

        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (!strcmp(name, known[i].name)) part = known[i].part;
        if (!part) FAIL(error, SHOAL_E_INVALID, "--parts: '%s' is none of dit, text, vae", name);
        *parts |= part;
    }
    if (!*parts) FAIL(error, SHOAL_E_INVALID, "--parts: give some of dit, text, vae");
    return SHOAL_OK;
}

/* Which of two words; anything else is an error. */
static enum shoal_status parse_choice(const char *option, const char *text, const char *first,
    const char *second, bool *is_second, struct shoal_error *error)
{
    *is_second = !strcmp(text, second);
    if (!*is_second && strcmp(text, first))
        FAIL(
            error, SHOAL_E_INVALID, "--%s: '%s' is neither %s nor %s", option, text, first, second);
    return SHOAL_OK;
}

static enum shoal_status parse_number(
    const char *option, const char *text, uint64_t *number, struct shoal_error *error)
{
    char *end;

    errno = 0;
    *number = strtoull(text, &end, 10);
    if (errno || *end || text[0] < '0' || text[0] > '9')
        FAIL(error, SHOAL_E_INVALID, "--%s: '%s' is not a number from 0 to 2^64 - 1", option, text);
    return SHOAL_OK;
}

static enum shoal_status parse_option(
    int option, struct make_options *options, struct shoal_error *error)
{
    bool second;

    switch (option) {
    case 'f':
        options->family = make_family_find(optarg);
        if (!options->family)
            FAIL(error, SHOAL_E_UNSUPPORTED, "--family: '%s' is not made; there are: %s", optarg,
                make_family_names);
        break;
    case 'l':
        TRY(parse_choice("layout", optarg, "diffusers", "comfyui", &second, error));
        options->layout = second ? MAKE_COMFYUI : MAKE_DIFFUSERS;
        break;
    case 'c':
        return parse_choice("scale", optarg, "full", "small", &options->small, error);
    case 'd':
        options->dtype = !strcmp(optarg, "f32")   ? DTYPE_F32
                         : !strcmp(optarg, "fp8") ? DTYPE_F8_E4M3
                                                  : DTYPE_BF16;
        if (options->dtype == DTYPE_BF16 && strcmp(optarg, "bf16"))
            FAIL(error, SHOAL_E_INVALID, "--dtype: '%s' is none of bf16, f32, fp8", optarg);
        break;
    case 'p':
        return parse_parts(optarg, &options->parts, error);
    case 's':
        return parse_number("seed", optarg, &options->seed, error);
    case 'n':
        TRY(parse_number("depth", optarg, &options->depth, error));
        if (options->depth < 1 || options->depth > 1000)
            FAIL(error, SHOAL_E_INVALID, "--depth: %s is not from 1 to 1000", optarg);
        break;
    case 'b':
        return shoal_parse_size(optarg, &options->shard_bytes, error);
    case 't':
        options->tokenizer = optarg;
        break;
    default: /* getopt has printed what is wrong */
        FAIL(error, SHOAL_E_INVALID, "see make_checkpoint --help");
    }
    return SHOAL_OK;
}

int main(int argc, char **argv)
{
    static const struct option known[] = {{"family", 1, NULL, 'f'}, {"layout", 1, NULL, 'l'},
        {"parts", 1, NULL, 'p'}, {"scale", 1, NULL, 'c'}, {"dtype", 1, NULL, 'd'},
        {"seed", 1, NULL, 's'}, {"shard", 1, NULL, 'b'}, {"tokenizer", 1, NULL, 't'},
        {"depth", 1, NULL, 'n'}, {"help", 0, NULL, 'h'}, {NULL, 0, NULL, 0}};
    struct make_options options = {.layout = MAKE_DIFFUSERS,
        .family = make_family_find(NULL),
        .dtype = DTYPE_BF16,
        .shard_bytes = 5000000000u};
    enum shoal_status status = SHOAL_OK;
    struct shoal_error error = {0};
    uint64_t start = clock_ns(), bytes = 0;
    char size[SIZE_TEXT_BYTES];
    double seconds;

    for (int option; !status && (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        if (option == 'h') {
            fputs(usage, stdout);
            return 0;
        }
        status = parse_option(option, &options, &error);
    }
    if (!status && optind != argc - 1)
        status = error_set(&error, SHOAL_E_INVALID, __FILE__, __LINE__,
            "give one output path; see make_checkpoint --help");
    if (!status) {
        options.out = argv[optind];
        if (!options.parts) options.parts = make_family_parts(options.family);
        status = make_checkpoint(&options, &bytes, &error);
    }
    if (status) {
        fprintf(stderr, "make_checkpoint: %s\n", error.text);
        return status == SHOAL_E_INVALID ? 2 : 1;
    }
    seconds = (double)(clock_ns() - start) / 1e9;
    printf("%s: %s of weights in %.1f s (%.0f MB/s)\n", options.out, size_format(size, bytes),
        seconds, (double)bytes / 1e6 / seconds);
    return 0;
}
