/* The CPU device: creation and the arena. Streams are in streams.c, operations in their own files.
 */
#include "device/cpu/internal.h"

#include "base/memory.h"
#include "base/size.h"

#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define CHECK_STRAYS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CHECK_STRAYS 1
#endif
#endif

#ifdef CHECK_STRAYS
#include <sanitizer/asan_interface.h>
#endif

static void arena_mark(struct device *device, device_addr addr, uint64_t bytes, bool used)
{
    (void)device;
#ifdef CHECK_STRAYS
    if (used)
        ASAN_UNPOISON_MEMORY_REGION((void *)(uintptr_t)addr, (size_t)bytes);
    else
        ASAN_POISON_MEMORY_REGION((void *)(uintptr_t)addr, (size_t)bytes);
#else
    (void)addr;
    (void)bytes;
    (void)used;
#endif
}

static enum shoal_status arena_reserve(
    struct device *device, uint64_t bytes, struct shoal_error *error)
{
    struct cpu_device *cpu = cpu_device(device);
    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    char text[SIZE_TEXT_BYTES];
    uint64_t usable;
    char *pages = NULL;

    if (device->arena)
        FAIL(error, SHOAL_E_DEVICE, "the device's arena is reserved already; release it first");
    /* And a page after it that nobody may touch. */
    if (bytes < SIZE_MAX / 2) {
        usable = size_align(bytes, page_bytes);
        pages = pages_alloc((size_t)usable + page_bytes);
    }
    if (!pages)
        FAIL(error, SHOAL_E_MEMORY, "could not reserve %s for the device arena",
            size_format(text, bytes));
    if (mprotect(pages + usable, page_bytes, PROT_NONE)) {
        pages_free(pages, (size_t)usable + page_bytes);
        FAIL(error, SHOAL_E_DEVICE, "could not protect the page after the device arena");
    }
#ifdef MADV_HUGEPAGE
    /* Only a wish. Rows of matrices lie far apart, so with small pages the TLB misses tell. */
    (void)madvise(pages, (size_t)usable, MADV_HUGEPAGE);
#endif
    cpu->arena_pages_bytes = (size_t)usable + page_bytes;
    device->arena = (device_addr)(uintptr_t)pages;
    device->arena_bytes = bytes;
    arena_mark(device, device->arena, usable, false);
    return SHOAL_OK;
}

static void arena_release(struct device *device)
{
    struct cpu_device *cpu = cpu_device(device);

    if (!device->arena) return;
    /* The addresses will be somebody else's. */
    arena_mark(device, device->arena, cpu->arena_pages_bytes, true);
    pages_free((void *)(uintptr_t)device->arena, cpu->arena_pages_bytes);
    device->arena = 0;
    device->arena_bytes = 0;
}

static void cpu_destroy(struct device *device)
{
    struct cpu_device *cpu = cpu_device(device);

    arena_release(device);
    cpu_streams_free(cpu);
    pool_destroy(&cpu->pool);
    pages_free(cpu->scratch, cpu->scratch_bytes);
    cond_fini(&cpu->changed);
    mutex_fini(&cpu->mutex);
    mem_free(cpu);
}

#define CPU_DEVICE_OPS(table)                                                                      \
    {                                                                                              \
        .name = "cpu", .destroy = cpu_destroy, .arena_reserve = arena_reserve,                     \
        .arena_release = arena_release, .arena_mark = arena_mark,                                  \
        .stream_create = cpu_stream_create, .stream_destroy = cpu_stream_destroy,                  \
        .stream_synchronize = cpu_stream_synchronize, .event_create = cpu_event_create,            \
        .event_destroy = cpu_event_destroy, .event_record = cpu_event_record,                      \
        .event_wait = cpu_event_wait, .event_synchronize = cpu_event_synchronize,                  \
        .event_happened = cpu_event_happened, .event_time_ns = cpu_event_time_ns,                  \
        .copy_in = cpu_copy_in, .copy_out = cpu_copy_out, .copy_within = cpu_copy_within,          \
        .compute = &(table),                                                                       \
    }

static const struct device_ops reference_device_ops = CPU_DEVICE_OPS(cpu_reference_ops);
static const struct device_ops fast_device_ops = CPU_DEVICE_OPS(cpu_fast_ops);

const struct kernels *cpu_kernels_at(int index)
{
    const struct kernels *list[3] = {&kernels_generic};
    int count = 1;

#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        list[count++] = &kernels_avx2;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
            list[count++] = &kernels_avx512;
    }
#endif
    return index < count ? list[index] : NULL;
}

static const struct kernels *best_kernels(void)
{
    int index = 0;

    while (cpu_kernels_at(index + 1))
        index++;
    return cpu_kernels_at(index);
}

enum shoal_status cpu_create_with(
    struct device **device, const struct kernels *kernels, int threads, struct shoal_error *error)
{
    struct cpu_device *cpu = mem_calloc(1, sizeof *cpu);
    enum shoal_status status = SHOAL_OK;

    *device = NULL;
    if (!cpu) FAIL_MEMORY(error);
    mutex_init(&cpu->mutex);
    cond_init(&cpu->changed);
    cpu->base.ops = kernels ? &fast_device_ops : &reference_device_ops;
    cpu->base.traits = CPU_TRAITS;
    cpu->kernels = kernels;
    if (kernels) TRY_OR_FAIL(pool_create(&cpu->pool, threads, error));
    if (kernels) {
        cpu->scratch_bytes = (size_t)threads * SCRATCH_BYTES;
        cpu->scratch = pages_alloc(cpu->scratch_bytes);
        if (!cpu->scratch) {
            status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
            goto fail;
        }
    }
    *device = &cpu->base;
    return SHOAL_OK;
fail:
    cpu_destroy(&cpu->base);
    return status;
}

enum shoal_status cpu_create(
    struct device **device, enum cpu_kernels kernels, int threads, struct shoal_error *error)
{
    *device = NULL;
    if (threads < 0 || threads > CPU_MAX_THREADS)
        FAIL(error, SHOAL_E_INVALID, "%d threads: 1 to %d will do, or 0 for one each core", threads,
            CPU_MAX_THREADS);
    if (threads == 0) threads = thread_cores();
    if (threads > CPU_MAX_THREADS) threads = CPU_MAX_THREADS;
    return cpu_create_with(
        device, kernels == CPU_KERNELS_FAST ? best_kernels() : NULL, threads, error);
}

const char *cpu_describe(void)
{
    return best_kernels()->name;
}
