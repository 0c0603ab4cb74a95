/*
 * Cards that one may ask about without having them: published figures, turned into rates.
 *
 * Peaks, all dense and with F32 accumulation, memory and bus are NVIDIA's, as lists of cards repeat
 * them:
 *   RTX 3060   GA10x whitepaper: 512 operations a clock and SM; 28 SMs at 1.777 GHz; 15 Gbps x 192
 *   RTX 4060   Ada whitepaper: the same 512; 24 SMs at 2.46 GHz; 17 Gbps x 128; 8 lanes only
 *   RTX 4090   Ada whitepaper, appendix A: 165.2 TFLOPS, 1008 GB/s
 *   RTX 5090   RTX Blackwell whitepaper, appendix A: 209.5 TFLOPS, 1792 GB/s
 *   L4         data sheet: 242 TFLOPS with sparsity, so 121 without; 300 GB/s; 72 W
 *   H200       data sheet (SXM): 1979 TFLOPS with sparsity, so 989 without; 4.8 TB/s; 141 GB
 * GeForce cards run BF16 with F32 accumulation at half the rate of F16 accumulation, which is the
 * figure that is advertised.
 */
#include "plan/rates.h"

#include "base/memory.h"
#include "base/text.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#define GIB (1024.0 * 1024 * 1024)

struct card {
    const char *name;
    double peak_flops;
    double linear_fraction; /* of the peak, that large products reach */
    double memory_bytes;    /* a second */
    int pcie, lanes;
    double vram_gib, context_gib;
};

/* Large BF16 products on an H200 were measured at 782 to 812 TFLOPS: 0.8 of the peak. An L4 cannot
 * hold its clock at 72 W: half is assumed. The H200's context, libraries and workspace were
 * measured at 590 to 598 MiB, those of the others are assumed. */
static const struct card cards[] = {
    {"rtx3060", 25.5e12, 0.8, 360e9, 4, 16, 12, 0.35},
    {"rtx4060", 30.2e12, 0.8, 272e9, 4, 8, 8, 0.35},
    {"rtx4090", 165.2e12, 0.8, 1008e9, 4, 16, 24, 0.4},
    {"rtx5090", 209.5e12, 0.8, 1792e9, 5, 16, 32, 0.45},
    {"l4", 121e12, 0.5, 300e9, 4, 16, 24, 0.4},
    {"h200", 989e12, 0.8, 4800e9, 5, 16, 141e9 / GIB, 598.0 / 1024},
};
#define CARDS (sizeof cards / sizeof *cards)

/* Of the products' rate: what flash attention and convolutions through tensor cores reach. */
#define ATTENTION_FRACTION 0.55
#define CONV_FRACTION 0.6
/* Of the published memory rate, that plain element-wise work reaches. */
#define MEMORY_FRACTION 0.8
/* Pinned copies: an H200 was measured at 55.4 GB/s of its 64; a lane of PCIe 4 carries 2 GB/s. */
#define LINK_FRACTION 0.866
#define PCIE4_LANE_BYTES 2e9
/* The decoder is bound by memory: measured on an H200 at 1264 GB/s of BF16. */
#define UNPACK_FRACTION (1264e9 / 4800e9)
#define PACK_BYTES 8e9      /* half of a host's eight cores, at the encoder's aim of 2 GB/s */
#define CORE_COPY_BYTES 7e9 /* of memory to memory, measured on two servers */
#define DISK_BYTES 3.4e9    /* a common PCIe 4 NVMe drive */
#define CALL_SECONDS 2.1e-6 /* measured on an H200: 2.0 to 2.2 us */
#define OVERLAP_TAX 0.037   /* measured on an H200, copying at full rate */

static void card_rates(const struct card *card, struct rates *rates)
{
    const double linear = card->peak_flops * card->linear_fraction;
    const double link = PCIE4_LANE_BYTES * (1 << (card->pcie - 4)) * card->lanes * LINK_FRACTION;

    /* How fast the host copies what is not pinned is not assumed: plans say so. */
    *rates = (struct rates){
        .origin = RATES_PUBLISHED,
        .flops = {[WORK_LINEAR] = linear,
            [WORK_ATTENTION] = linear * ATTENTION_FRACTION,
            [WORK_CONV] = linear * CONV_FRACTION},
        .weight_bytes = card->memory_bytes * MEMORY_FRACTION,
        .memory_bytes = card->memory_bytes * MEMORY_FRACTION,
        .call_seconds = CALL_SECONDS,
        .link_bytes = link,
        .unpinned_bytes = link,
        .bounce_bytes = link,
        .disk_bytes = DISK_BYTES,
        .disk_sequential_bytes = DISK_BYTES,
        .unpack_bytes = card->memory_bytes * UNPACK_FRACTION,
        .pack_bytes = PACK_BYTES,
        .copy_tax = OVERLAP_TAX,
        .vram_bytes = (uint64_t)(card->vram_gib * GIB),
        .context_bytes = (uint64_t)(card->context_gib * GIB),
    };
    strcpy(rates->name, card->name);
}

/* "RTX 4060" and "rtx4060" are one name: letters and digits count, in small letters. */
static void plain_name(char plain[64], const char *name)
{
    size_t length = 0;

    for (; *name && length < 63; name++)
        if (isalnum((unsigned char)*name)) plain[length++] = (char)tolower((unsigned char)*name);
    plain[length] = 0;
}

enum shoal_status rates_of_card(const char *name, struct rates *rates, struct shoal_error *error)
{
    struct text known = {0};
    enum shoal_status status;
    char plain[64];

    plain_name(plain, name);
    for (size_t i = 0; i < CARDS; i++) {
        const size_t length = strlen(cards[i].name);

        if (strncmp(plain, cards[i].name, length) != 0) continue;
        if (strncmp(plain + length, "laptop", 6) == 0)
            FAIL(error, SHOAL_E_INVALID,
                "\"%.32s\": only desktop cards are known, and a laptop's of that name is slower: "
                "take the step times of --on %s as lower bounds, or plan by a file that shoal "
                "bench links wrote there",
                name, cards[i].name);
        if (plain[length]) continue;
        card_rates(&cards[i], rates);
        return SHOAL_OK;
    }
    for (size_t i = 0; i < CARDS; i++)
        text_append(&known, "%s%s", i ? ", " : "", cards[i].name);
    status = known.failed
                 ? error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory")
                 : error_set(error, SHOAL_E_INVALID, __FILE__, __LINE__,
                       "there is no card \"%.32s\": known are %s; for others write a file of rates",
                       name, known.data);
    mem_free(known.data);
    return status;
}

/* "NVIDIA GeForce RTX 4060 Ti" names an rtx4060, "NVIDIA L40S" no l4. */
static bool names(const char *card_name, const char *name)
{
    const char *found;
    char plain[64];

    plain_name(plain, card_name);
    found = strstr(plain, name);
    return found && !isdigit((unsigned char)found[strlen(name)]);
}

void rates_guess_card(struct rates *rates, const char *card_name, int cores)
{
    const struct card *nearest = &cards[0];
    const double n = cores > 0 ? cores : 1;

    for (size_t i = 0; i < CARDS; i++)
        if (names(card_name, cards[i].name)) nearest = &cards[i];
    card_rates(nearest, rates);
    rates->origin = RATES_GUESSED;
    rates->pack_bytes = 1e9 * n;
    rates->unpinned_bytes = fmin(rates->link_bytes, CORE_COPY_BYTES); /* the driver's one thread */
    rates->bounce_bytes = CORE_COPY_BYTES * fmin(fmax(n / 2, 1), 8);
    strcpy(rates->name, "this machine");
}
