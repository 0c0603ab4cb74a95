/* The CUDA device: opening a card, its arena, and what became of it. Streams are in streams.c,
 * kernels in launch.c. */
#include "device/cuda/internal.h"

#include "base/memory.h"
#include "base/size.h"
#include "device/cuda/blas.h"
#include "device/cuda/cudnn.h"
#include "device/cuda/nvml.h"

#include <stdio.h>
#include <string.h>

#define ARENA_ALIGNMENT 4096
#define WORKSPACE_BYTES ((uint64_t)64 << 20)

/* What a context takes, where nobody can be asked: a guess, rather too much. */
#define CONTEXT_BYTES ((uint64_t)512 << 20)

/* What comes later: streams and events, kernels of libraries that are loaded when they are first
 * used, and the arena's last piece, which the driver rounds up. */
#define LATER_BYTES ((uint64_t)8 << 20)
/* The same of the process's memory: 31 to 70 MiB were measured. */
#define HOST_LATER_BYTES ((uint64_t)96 << 20)

/*
 * What the process has on each card. Its devices share the card's context, and what is measured is
 * the process's or even the card's; so devices are opened and closed, and arenas reserved and
 * released, one at a time.
 */
static struct mutex taking = MUTEX_STATIC;
static struct card_use {
    int devices; /* that are open, or being opened */
    bool dead;   /* the context is: it is reset when the last of them goes */
    uint64_t overhead_bytes, host_bytes; /* that plans count with */
} cards[CUDA_MAX_CARDS];

/* ---- failing ---- */

bool cuda_lost(struct cuda_device *cuda)
{
    mutex_lock(&cuda->mutex);
    bool lost = cuda->error.status != SHOAL_OK;
    mutex_unlock(&cuda->mutex);
    return lost;
}

void cuda_fail(struct cuda_device *cuda, CUresult result, const char *what)
{
    mutex_lock(&cuda->mutex);
    if (!cuda->error.status) {
        enum shoal_status status = cuda_check(cuda->driver, result, what, &cuda->error);

        if (status) error_prefix(&cuda->error, "%s is lost to this device: ", cuda->name);
    }
    mutex_unlock(&cuda->mutex);
}

enum shoal_status cuda_failure(struct cuda_device *cuda, struct shoal_error *error)
{
    mutex_lock(&cuda->mutex);
    enum shoal_status status = cuda->error.status;
    if (status && error) *error = cuda->error;
    mutex_unlock(&cuda->mutex);
    return status;
}

bool cuda_enter(struct cuda_device *cuda)
{
    /* Whoever else uses CUDA in this thread may have made another one current. */
    CUresult result = cuda->driver->context_set_current(cuda->context);

    if (result) cuda_fail(cuda, result, "making the card's context current");
    return !cuda_lost(cuda);
}

/* ---- the arena ---- */

static enum shoal_status arena_take(
    struct cuda_device *cuda, uint64_t bytes, struct shoal_error *error)
{
    char wanted[SIZE_TEXT_BYTES], left[SIZE_TEXT_BYTES];
    size_t free_bytes = 0, card_bytes = 0;
    CUresult result;

    if (!cuda_enter(cuda)) return cuda_failure(cuda, error);
    result = cuda->driver->memory_alloc(&cuda->arena_memory, bytes ? bytes : 1);
    if (!result && cuda->arena_memory % ARENA_ALIGNMENT) { /* a small one: it may lie anywhere */
        cuda->driver->memory_free(cuda->arena_memory);
        result = cuda->driver->memory_alloc(&cuda->arena_memory, bytes + ARENA_ALIGNMENT);
    }
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        cuda->driver->memory_info(&free_bytes, &card_bytes);
        FAIL(error, SHOAL_E_MEMORY,
            "could not reserve %s on %s: %s are free; a smaller budget would do, or ending what "
            "else uses the card",
            size_format(wanted, bytes), cuda->name, size_format(left, free_bytes));
    }
    TRY(cuda_check(cuda->driver, result, "reserving the device arena", error));
    cuda->base.arena = size_align(cuda->arena_memory, ARENA_ALIGNMENT);
    cuda->base.arena_bytes = bytes;
    return SHOAL_OK;
}

static enum shoal_status arena_reserve(
    struct device *device, uint64_t bytes, struct shoal_error *error)
{
    enum shoal_status status;

    if (device->arena)
        FAIL(error, SHOAL_E_DEVICE, "the device's arena is reserved already; release it first");
    mutex_lock(&taking);
    status = arena_take(cuda_device(device), bytes, error);
    mutex_unlock(&taking);
    return status;
}

static void arena_give_back(struct cuda_device *cuda)
{
    CUresult result;

    if (!cuda->base.arena) return;
    (void)cuda_enter(cuda);
    result = cuda->driver->memory_free(cuda->arena_memory);
    if (result) cuda_fail(cuda, result, "releasing the device arena");
    cuda->base.arena = 0;
    cuda->base.arena_bytes = 0;
}

static void arena_release(struct device *device)
{
    mutex_lock(&taking);
    arena_give_back(cuda_device(device));
    mutex_unlock(&taking);
}

/* ---- the caller's memory ---- */

static enum shoal_status host_register(
    struct device *device, void *pages, uint64_t bytes, struct shoal_error *error)
{
    struct cuda_device *cuda = cuda_device(device);
    char size[SIZE_TEXT_BYTES], doing[120];
    CUresult result;

    if (!cuda_enter(cuda)) return cuda_failure(cuda, error);
    result = cuda->driver->host_register(pages, bytes, CU_MEMHOSTREGISTER_PORTABLE);
    snprintf(doing, sizeof doing,
        "pinning %s of host memory (ulimit -l, a container's limit or free memory may be too "
        "small)",
        size_format(size, bytes));
    return cuda_check(cuda->driver, result, doing, error);
}

static void host_unregister(struct device *device, void *pages)
{
    struct cuda_device *cuda = cuda_device(device);
    CUresult result;

    (void)cuda_enter(cuda);
    result = cuda->driver->host_unregister(pages);
    if (result) cuda_fail(cuda, result, "unpinning host memory");
}

/* ---- opening and closing ---- */

static void free_workspace(struct cuda_device *cuda)
{
    cuda_cudnn_close(&cuda->cudnn);
    cuda_blas_close(&cuda->blas);
    if (cuda->workspace) cuda->driver->memory_free(cuda->workspace);
    cuda->workspace = 0;
    cuda->workspace_bytes = 0;
}

/*
 * A lost context is of no use to anybody else in the process either: it is reset, so that the card
 * can be opened again where the driver allows that. Other devices that are open on the card still
 * have things in it, and calls of theirs to fail; so it is the last one that resets it.
 */
static void close_context(struct cuda_device *cuda)
{
    const struct cuda_driver *driver = cuda->driver;
    struct card_use *card = &cards[cuda->ordinal];
    bool dead = driver->context_set_current(cuda->context) != CUDA_SUCCESS;

    arena_give_back(cuda);
    cuda_clock_close(cuda);
    free_workspace(cuda);
    cuda_kernels_unload(cuda);
    dead = dead || driver->context_synchronize() != CUDA_SUCCESS;
    driver->context_release(cuda->handle);
    card->dead = card->dead || dead;
    if (--card->devices > 0 || !card->dead) return;
    driver->context_reset(cuda->handle);
    card->dead = false;
}

void cuda_stop_computing(struct device *device)
{
    struct cuda_device *cuda = cuda_device(device);

    mutex_lock(&taking);
    (void)cuda_enter(cuda);
    free_workspace(cuda);
    mutex_unlock(&taking);
}

static void cuda_destroy(struct device *device)
{
    struct cuda_device *cuda = cuda_device(device);

    if (cuda->context) {
        mutex_lock(&taking);
        close_context(cuda);
        mutex_unlock(&taking);
    }
    cuda_nvml_close(&cuda->nvml);
    mutex_fini(&cuda->mutex);
    mem_free(cuda);
}

static const struct device_ops cuda_device_ops = {
    .name = "cuda",
    .destroy = cuda_destroy,
    .arena_reserve = arena_reserve,
    .arena_release = arena_release,
    .host_register = host_register,
    .host_unregister = host_unregister,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_synchronize = cuda_stream_synchronize,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_synchronize = cuda_event_synchronize,
    .event_happened = cuda_event_happened,
    .event_time_ns = cuda_event_time_ns,
    .copy_in = cuda_copy_in,
    .copy_out = cuda_copy_out,
    .copy_within = cuda_copy_within,
    .compute = &cuda_compute_ops,
};

/* What the card is, and what is taken of its memory before we take any. */
static enum shoal_status find_card(
    struct cuda_device *cuda, int32_t ordinal, struct shoal_error *error)
{
    const struct cuda_driver *driver = cuda->driver;
    struct cuda_card card;
    char pci_bus_id[32] = "";
    CUresult result;

    TRY(cuda_start(driver, error));
    TRY(cuda_card_find(driver, ordinal, &cuda->handle, &card, error));
    assert(ordinal < CUDA_MAX_CARDS);
    cuda->ordinal = ordinal;
    memcpy(cuda->name, card.name, sizeof cuda->name);
    cuda->sm = card.sm;
    cuda->card_bytes = card.bytes;
    cuda->base.traits = CUDA_TRAITS;
    if (card.sm < 80) cuda->base.traits.activation = DTYPE_F16;
    result = driver->device_attribute(
        &cuda->processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, cuda->handle);
    if (!result)
        result = driver->device_attribute(&cuda->shared_bytes,
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, cuda->handle);
    if (!result)
        result = driver->device_pci_bus_id(pci_bus_id, (int)sizeof pci_bus_id, cuda->handle);
    TRY(cuda_check(driver, result, "asking the NVIDIA driver for the card's properties", error));
    cuda->nvml = cuda_nvml_open(pci_bus_id);
    return SHOAL_OK;
}

static enum shoal_status open_context(struct cuda_device *cuda, struct shoal_error *error)
{
    const struct cuda_driver *driver = cuda->driver;
    /* Threads that wait for the card leave their core to those that read and unpack. Somebody else
     * in the process may have opened the context already: then it is as they want it. */
    CUresult result = driver->context_flags(cuda->handle, CU_CTX_SCHED_BLOCKING_SYNC);

    if (result == CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE) result = CUDA_SUCCESS;
    TRY(cuda_check(driver, result, "preparing the card's context", error));
    result = driver->context_retain(&cuda->context, cuda->handle);
    /* Measured: after a wild address the driver refuses every context, whatever is reset. */
    TRY(cuda_check(driver, result,
        result == CUDA_ERROR_ILLEGAL_ADDRESS
            ? "the card is lost to this process until it ends, by what failed before; another "
              "process can use it, and this one the CPU: opening its context"
            : "opening the card's context (its memory may be in use by others)",
        error));
    cards[cuda->ordinal].devices++;
    return cuda_check(driver, driver->context_set_current(cuda->context),
        "making the card's context current", error);
}

/* Everything that takes memory on the card, but for the arena. */
static enum shoal_status take_overhead(struct cuda_device *cuda, struct shoal_error *error)
{
    CUdeviceptr workspace = 0;

    TRY(cuda_kernels_load(cuda, error));
    TRY(cuda_clock_open(cuda, error));
    TRY(cuda_check(cuda->driver, cuda->driver->memory_alloc(&workspace, WORKSPACE_BYTES),
        "reserving the card's workspace", error));
    cuda->workspace = workspace;
    cuda->workspace_bytes = WORKSPACE_BYTES;
    TRY(cuda_blas_open(cuda, error));
    return cuda_cudnn_open(cuda, error);
}

/*
 * The most that was seen, so that all plans count with the same. But what was measured is the whole
 * card's where nobody says more, and others may have taken theirs meanwhile: a measurement that is
 * `complete`, from before there was a context, and far below tells that they had.
 */
static uint64_t settle(uint64_t *kept, uint64_t bytes, bool complete)
{
    if (*kept < bytes || (complete && *kept - bytes > LATER_BYTES)) *kept = bytes;
    return *kept;
}

/* What that took, by the best that can be asked: the process's use, the card's, or what was left
 * when there was a context. */
static enum shoal_status open_measured(struct cuda_device *cuda, struct shoal_error *error)
{
    const struct cuda_driver *driver = cuda->driver;
    struct card_use *card = &cards[cuda->ordinal];
    const bool complete = card->devices == 0;
    uint64_t process_before = cuda_nvml_process_bytes(cuda->nvml), process_after;
    const uint64_t resident_before = memory_resident();
    uint64_t resident_after;
    uint64_t used_before = 0, used_after = 0, free_after;
    bool known = cuda_nvml_used(cuda->nvml, &used_before, &cuda->free_bytes);
    size_t before = 0, after = 0, card_bytes;

    TRY(open_context(cuda, error));
    TRY(cuda_check(
        driver, driver->memory_info(&before, &card_bytes), "asking for the free memory", error));
    TRY(take_overhead(cuda, error));
    TRY(cuda_check(
        driver, driver->memory_info(&after, &card_bytes), "asking for the free memory", error));
    process_after = cuda_nvml_process_bytes(cuda->nvml);
    if (known) known = cuda_nvml_used(cuda->nvml, &used_after, &free_after);
    if (process_after > process_before)
        cuda->overhead_bytes = process_after - process_before;
    else if (used_after > used_before)
        cuda->overhead_bytes = used_after - used_before;
    else
        cuda->overhead_bytes = CONTEXT_BYTES + (before > after ? before - after : 0);
    resident_after = memory_resident();
    cuda->overhead_bytes =
        settle(&card->overhead_bytes, cuda->overhead_bytes + LATER_BYTES, complete);
    /* Never complete: libraries stay in the process's memory. */
    cuda->host_bytes = settle(&card->host_bytes,
        HOST_LATER_BYTES +
            (resident_after > resident_before ? resident_after - resident_before : 0),
        false);
    /* A slice of a card has less than NVML says of the whole. */
    if (!known || cuda->free_bytes > before + CONTEXT_BYTES)
        cuda->free_bytes = before + CONTEXT_BYTES;
    if (cuda->free_bytes > cuda->card_bytes) cuda->free_bytes = cuda->card_bytes;
    return SHOAL_OK;
}

static enum shoal_status open_alone(struct cuda_device *cuda, struct shoal_error *error)
{
    enum shoal_status status;
    bool shared;

    mutex_lock(&taking);
    shared = cards[cuda->ordinal].devices > 0;
    status = open_measured(cuda, error);
    mutex_unlock(&taking);
    if (status && shared)
        error_prefix(error,
            "another device of this process has %s too; if its context died with that one, closing "
            "all of them would do: ",
            cuda->name);
    return status;
}

enum shoal_status cuda_create_with(struct device **device, const struct cuda_driver *driver,
    int32_t ordinal, struct shoal_error *error)
{
    struct cuda_device *cuda = mem_calloc(1, sizeof *cuda);
    enum shoal_status status = SHOAL_OK;

    *device = NULL;
    if (!cuda) FAIL_MEMORY(error);
    mutex_init(&cuda->mutex);
    cuda->calls = *driver;
    cuda->driver = &cuda->calls;
    cuda->base.ops = &cuda_device_ops;
    TRY_OR_FAIL(find_card(cuda, ordinal, error));
    TRY_OR_FAIL(open_alone(cuda, error));
    *device = &cuda->base;
    return SHOAL_OK;
fail:
    cuda_destroy(&cuda->base);
    return status;
}

enum shoal_status cuda_create(struct device **device, int32_t ordinal, struct shoal_error *error)
{
    struct cuda_driver driver;

    *device = NULL;
    TRY(cuda_open_driver(&driver, error));
    return cuda_create_with(device, &driver, ordinal, error);
}

struct cuda_info cuda_info(const struct device *device)
{
    const struct cuda_device *cuda = (const struct cuda_device *)device;

    return (struct cuda_info){
        .name = cuda->name,
        .sm = cuda->sm,
        .card_bytes = cuda->card_bytes,
        .free_bytes = cuda->free_bytes,
        .overhead_bytes = cuda->overhead_bytes,
        .host_bytes = cuda->host_bytes,
        .multiplies = cuda_blas_name(cuda->blas),
        .attends = cuda_cudnn_name(cuda->cudnn),
    };
}

uint64_t cuda_process_bytes(const struct device *device)
{
    return cuda_nvml_process_bytes(((const struct cuda_device *)device)->nvml);
}
