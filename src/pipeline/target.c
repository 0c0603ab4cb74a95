/* Finding and opening the device that a plan is for. */
#include "pipeline/target.h"

#include "device/cpu/cpu.h"
#include "device/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of a card that is not here: what the driver and cuBLASLt took of the process's memory on an H200,
 * with what is added there for later (BENCH.md, 12). */
#define CARD_HOST_BYTES ((uint64_t)500 << 20)

static void target_cpu(struct target *t)
{
    strcpy(t->name, "cpu");
    t->traits = CPU_TRAITS;
    t->vram_bytes = SHOAL_UNLIMITED;
}

static enum shoal_status target_card(struct target *t, int32_t ordinal, struct shoal_error *error)
{
    struct cuda_info info;

    TRY(cuda_create(&t->device, ordinal, error));
    info = cuda_info(t->device);
    if (ordinal)
        snprintf(t->name, sizeof t->name, "cuda:%d", (int)ordinal);
    else
        strcpy(t->name, "cuda");
    t->card = true;
    t->traits = t->device->traits;
    t->vram_bytes = info.free_bytes;
    t->context_bytes = info.overhead_bytes;
    t->host_bytes = info.host_bytes;
    return SHOAL_OK;
}

/* "cuda" or "cuda:N"; false: neither. */
static bool parse_card(const char *name, int32_t *ordinal)
{
    char *end;
    long number;

    *ordinal = 0;
    if (strcmp(name, "cuda") == 0) return true;
    if (strncmp(name, "cuda:", 5) || name[5] < '0' || name[5] > '9') return false;
    number = strtol(name + 5, &end, 10);
    if (*end || number >= CUDA_MAX_CARDS) return false;
    *ordinal = (int32_t)number;
    return true;
}

enum shoal_status target_open(struct target *t, const char *name, struct shoal_error *error)
{
    const char *from = "--device", *variable = getenv("SHOAL_DEVICE");
    int32_t ordinal;

    *t = (struct target){0};
    if (!name && variable && *variable) {
        name = variable;
        from = "SHOAL_DEVICE";
    }
    if (!name) {
        if (target_card(t, 0, &t->no_card) != SHOAL_OK) target_cpu(t);
        return SHOAL_OK;
    }
    if (strcmp(name, "cpu") == 0) {
        target_cpu(t);
        return SHOAL_OK;
    }
    if (parse_card(name, &ordinal)) return target_card(t, ordinal, error);
    FAIL(error, SHOAL_E_UNSUPPORTED,
        "%s: '%.32s' is not one that this build computes on; cpu is, and cuda or cuda:N where "
        "there "
        "is a card",
        from, name);
}

void target_elsewhere(struct target *t, const struct rates *rates)
{
    *t = (struct target){.elsewhere = true, .traits = CPU_TRAITS, .vram_bytes = SHOAL_UNLIMITED};
    snprintf(t->name, sizeof t->name, "%s", rates->name);
    if (!rates->vram_bytes) return; /* a CPU's */
    t->card = true;
    t->traits = CUDA_TRAITS;
    t->host_bytes = CARD_HOST_BYTES;
    t->vram_bytes = rates->vram_bytes;
    t->context_bytes = rates->context_bytes;
}

void target_close(struct target *t)
{
    if (!t->borrowed) device_destroy(&t->device);
}
