/* The fake driver: what a card and its contexts have. Streams are in fake_streams.c. */
#include "cuda/fake_driver.h"

#include "cuda/emulator.h"
#include "cuda/fake_streams.h"

#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Results that only the fake gives. */
enum {
    ERROR_INVALID_VALUE = 1,
    ERROR_NOT_INITIALIZED = 3,
    ERROR_INVALID_DEVICE = 101,
    ERROR_INVALID_CONTEXT = 201,
    ERROR_INVALID_HANDLE = 400,
    ERROR_NOT_FOUND = 500,
    ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    ERROR_LAUNCH_FAILED = 719,
};

#define PAGE_BYTES 4096
#define SPOILT_BYTES ((size_t)4 << 20) /* at either end of an allocation */
#define CONTEXT ((CUcontext)(uintptr_t)0xc0)

struct CUfunc_st {
    CUmodule module;
    char name[64];
    emulate_kernel *kernel;
    size_t args_bytes;
    unsigned most_shared_bytes;
};

struct CUmod_st {
    struct CUfunc_st functions[64];
    int count;
};

/* Device memory, or pages of the host that are registered. */
struct span {
    struct span *next;
    uintptr_t at;
    size_t bytes;
};

static struct fake_driver {
    struct fake_driver_options options;
    struct fake_driver_counts counts;
    bool started;
    int contexts;  /* how often the primary one is retained */
    CUresult died; /* the context did, of this */
    struct span *memory, *registered;
    int64_t modules;
    char kernel_error[512];
} fake;

static struct mutex mutex;
static bool mutex_made;
static _Thread_local CUcontext current;

static void violate(const char *what)
{
    if (!fake.counts.violation) fake.counts.violation = what;
}

/* ---- spans ---- */

static struct span **find_span(struct span **list, uintptr_t at, size_t bytes)
{
    while (*list && !(at >= (*list)->at && at + bytes <= (*list)->at + (*list)->bytes))
        list = &(*list)->next;
    return list;
}

static void add_span(struct span **list, uintptr_t at, size_t bytes)
{
    struct span *span = malloc(sizeof *span);

    if (!span) abort();
    *span = (struct span){*list, at, bytes};
    *list = span;
    fake.counts.things++;
}

/* The one that begins there, without taking it. */
static struct span **span_at(struct span **list, uintptr_t at)
{
    while (*list && (*list)->at != at)
        list = &(*list)->next;
    return list;
}

static size_t remove_span(struct span **list)
{
    struct span *span = *list;
    size_t bytes = span->bytes;

    *list = span->next;
    free(span);
    fake.counts.things--;
    return bytes;
}

static void free_memory(struct span **list)
{
    void *memory = (void *)(*list)->at;

    fake.counts.memory_bytes -= remove_span(list);
    free(memory);
}

static bool on_card(CUdeviceptr at, size_t bytes)
{
    return *find_span(&fake.memory, (uintptr_t)at, bytes) != NULL;
}

/* ---- starting, cards ---- */

static CUresult fake_init(unsigned flags)
{
    if (flags) return ERROR_INVALID_VALUE;
    if (fake.options.cards < 0) return CUDA_ERROR_NO_DEVICE;
    fake.started = true;
    return CUDA_SUCCESS;
}

static CUresult fake_driver_version(int *version)
{
    *version = fake.options.driver_version;
    return CUDA_SUCCESS;
}

static CUresult fake_error_name(CUresult result, const char **name)
{
    *name = result == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS;
}

static CUresult fake_error_string(CUresult result, const char **text)
{
    *text = result == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
            : fake.counts.kernel_error         ? fake.counts.kernel_error
                                               : "the fake driver does not say more";
    return CUDA_SUCCESS;
}

static CUresult fake_device_count(int *count)
{
    *count = fake.options.cards;
    return CUDA_SUCCESS;
}

static CUresult fake_device_get(CUdevice *device, int ordinal)
{
    if (ordinal < 0 || ordinal >= fake.options.cards) return ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult fake_device_name(char *name, int bytes, CUdevice device)
{
    (void)device;
    snprintf(name, (size_t)bytes, "%s", fake.options.name);
    return CUDA_SUCCESS;
}

static CUresult fake_device_attribute(int *value, int attribute, CUdevice device)
{
    (void)device;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = 4;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = fake.options.sm / 10;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = fake.options.sm % 10;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = fake.options.shared_bytes;
        break;
    default:
        return ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult fake_device_memory(size_t *bytes, CUdevice device)
{
    (void)device;
    *bytes = fake.options.card_bytes;
    return CUDA_SUCCESS;
}

static CUresult fake_device_pci_bus_id(char *id, int bytes, CUdevice device)
{
    snprintf(id, (size_t)bytes, "ffff:ff:%02x.0", (unsigned)device);
    return CUDA_SUCCESS;
}

/* ---- the context ---- */

static CUresult fake_context_flags(CUdevice device, unsigned flags)
{
    (void)device, (void)flags;
    return fake.contexts ? CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE : CUDA_SUCCESS;
}

static CUresult fake_context_retain(CUcontext *context, CUdevice device)
{
    (void)device;
    *context = CONTEXT;
    fake.contexts++;
    fake.counts.things++;
    return CUDA_SUCCESS;
}

/* All that it had goes with it. */
static void end_context(void)
{
    if (fake.memory || fake.registered || fake.modules || fake_streams_count())
        if (!fake.died) violate("the context was released with things in it");
    fake_streams_forget();
    while (fake.memory)
        free_memory(&fake.memory);
    while (fake.registered)
        remove_span(&fake.registered);
}

static CUresult fake_context_release(CUdevice device)
{
    (void)device;
    if (!fake.contexts) return ERROR_INVALID_CONTEXT;
    fake.counts.things--;
    if (--fake.contexts == 0) {
        end_context();
        fake.died = CUDA_SUCCESS;
    }
    return CUDA_SUCCESS;
}

static CUresult fake_context_reset(CUdevice device)
{
    (void)device;
    end_context();
    fake.died = CUDA_SUCCESS;
    return CUDA_SUCCESS;
}

static CUresult fake_context_set_current(CUcontext context)
{
    if (context && (context != CONTEXT || !fake.contexts)) return ERROR_INVALID_CONTEXT;
    current = context;
    return fake.died;
}

static CUresult fake_context_synchronize(void)
{
    fake_streams_run();
    return fake.died;
}

/* ---- kernels ---- */

static CUresult fake_module_load(CUmodule *module, const void *image)
{
    (void)image; /* a build without nvcc has none */
    *module = calloc(1, sizeof **module);
    if (!*module) abort();
    fake.modules++;
    fake.counts.things++;
    return CUDA_SUCCESS;
}

static CUresult fake_module_unload(CUmodule module)
{
    fake.modules--;
    fake.counts.things--;
    free(module);
    return CUDA_SUCCESS;
}

static CUresult fake_module_function(CUfunction *function, CUmodule module, const char *name)
{
    struct CUfunc_st *f = &module->functions[module->count];

    if (module->count == sizeof module->functions / sizeof *module->functions) abort();
    f->kernel = emulate_find(name, &f->args_bytes);
    if (!f->kernel) return ERROR_NOT_FOUND;
    f->module = module;
    f->most_shared_bytes = 48 << 10;
    snprintf(f->name, sizeof f->name, "%s", name);
    module->count++;
    *function = f;
    return CUDA_SUCCESS;
}

static CUresult fake_function_attribute(int *value, int attribute, CUfunction function)
{
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = 0; /* nobody knows */
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        *value = fake.options.sm;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = (int)function->most_shared_bytes;
        return CUDA_SUCCESS;
    default:
        return ERROR_INVALID_VALUE;
    }
}

static CUresult fake_function_set_attribute(CUfunction function, int attribute, int value)
{
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 ||
        value > fake.options.shared_bytes)
        return ERROR_INVALID_VALUE;
    function->most_shared_bytes = (unsigned)value;
    return CUDA_SUCCESS;
}

struct launch {
    CUfunction function;
    struct emulate_size grid, threads;
    unsigned shared_bytes;
    _Alignas(16) unsigned char args[];
};

static void run_launch(void *given)
{
    struct launch *l = given;
    const char *error;

    if (!fake.died) {
        error = emulate_launch(
            l->function->name, l->function->kernel, l->args, l->grid, l->threads, l->shared_bytes);
        fake.counts.launches++;
        if (error) {
            snprintf(fake.kernel_error, sizeof fake.kernel_error, "%s", error);
            fake.counts.kernel_error = fake.kernel_error;
            fake.died = ERROR_LAUNCH_FAILED;
        }
    }
    free(l);
}

static CUresult fake_launch(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
    unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
    void **parameters, void **extra)
{
    struct launch *l;

    if (!grid_x || !grid_y || !grid_z || grid_x > 0x7fffffff || grid_y > 0xffff ||
        grid_z > 0xffff || !block_x || block_x > 1024 || block_y != 1 || block_z != 1 ||
        shared_bytes > function->most_shared_bytes || extra)
        return ERROR_INVALID_VALUE;
    l = malloc(sizeof *l + function->args_bytes);
    if (!l) abort();
    l->function = function;
    l->grid = (struct emulate_size){grid_x, grid_y, grid_z};
    l->threads = (struct emulate_size){block_x, block_y, block_z};
    l->shared_bytes = shared_bytes;
    memcpy(l->args, parameters[0], function->args_bytes);
    fake_stream_give(stream, (struct fake_command){.run = run_launch, .given = l});
    return CUDA_SUCCESS;
}

/* ---- memory ---- */

static CUresult fake_memory_alloc(CUdeviceptr *addr, size_t bytes)
{
    void *memory;

    if (!bytes) return ERROR_INVALID_VALUE;
    if (fake.counts.memory_bytes + fake.options.context_bytes + bytes > fake.options.card_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (posix_memalign(&memory, 256, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    /* Of large memory the ends: work of a test's size reaches no further, and all would take long.
     */
    fake_spoil(memory, bytes < SPOILT_BYTES ? bytes : SPOILT_BYTES);
    if (bytes > SPOILT_BYTES) fake_spoil((char *)memory + bytes - SPOILT_BYTES, SPOILT_BYTES);
    add_span(&fake.memory, (uintptr_t)memory, bytes);
    fake.counts.memory_bytes += bytes;
    if (fake.counts.memory_bytes > fake.counts.most_memory_bytes)
        fake.counts.most_memory_bytes = fake.counts.memory_bytes;
    *addr = (uintptr_t)memory;
    return CUDA_SUCCESS;
}

/* Waits for the card, as the driver does. */
static CUresult fake_memory_free(CUdeviceptr addr)
{
    struct span **span = span_at(&fake.memory, (uintptr_t)addr);

    if (!*span) return ERROR_INVALID_VALUE;
    if (fake_streams_wait_for_work()) violate("memory was freed under work that waited");
    fake_streams_run();
    free_memory(span);
    return fake.died;
}

static CUresult fake_memory_info(size_t *free_bytes, size_t *bytes)
{
    *bytes = fake.options.card_bytes;
    *free_bytes = fake.options.card_bytes - fake.options.context_bytes - fake.counts.memory_bytes;
    return CUDA_SUCCESS;
}

static CUresult fake_host_register(void *pages, size_t bytes, unsigned flags)
{
    (void)flags;
    if (!bytes) return ERROR_INVALID_VALUE;
    if ((uintptr_t)pages % PAGE_BYTES || bytes % PAGE_BYTES)
        violate("memory that is not whole pages was registered");
    for (const struct span *s = fake.registered; s; s = s->next)
        if ((uintptr_t)pages < s->at + s->bytes && s->at < (uintptr_t)pages + bytes)
            return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    add_span(&fake.registered, (uintptr_t)pages, bytes);
    return CUDA_SUCCESS;
}

static CUresult fake_host_unregister(void *pages)
{
    struct span **span = span_at(&fake.registered, (uintptr_t)pages);

    if (!*span) return ERROR_HOST_MEMORY_NOT_REGISTERED;
    if (fake_streams_use((*span)->at, (*span)->bytes))
        violate("memory was unregistered under a copy that waited");
    remove_span(span);
    return CUDA_SUCCESS;
}

static CUresult give_copy(
    CUstream stream, enum fake_kind kind, void *to, const void *from, size_t bytes)
{
    fake_stream_give(
        stream, (struct fake_command){.kind = kind, .to = to, .from = from, .bytes = bytes});
    return CUDA_SUCCESS;
}

static CUresult fake_copy_in(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    if (!on_card(to, bytes)) return ERROR_INVALID_VALUE;
    return give_copy(stream, FAKE_COPY_IN, (void *)(uintptr_t)to, from, bytes);
}

static CUresult fake_copy_out(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    if (!on_card(from, bytes)) return ERROR_INVALID_VALUE;
    return give_copy(stream, FAKE_COPY_OUT, to, (const void *)(uintptr_t)from, bytes);
}

static CUresult fake_copy_within(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    if (!on_card(to, bytes) || !on_card(from, bytes)) return ERROR_INVALID_VALUE;
    if (to < from + bytes && from < to + bytes) violate("a copy overlaps itself");
    return give_copy(
        stream, FAKE_COPY_WITHIN, (void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
}

struct set {
    void *to;
    unsigned char value;
    size_t bytes;
};

static void run_set(void *given)
{
    struct set *set = given;

    memset(set->to, set->value, set->bytes);
    free(set);
}

static CUresult fake_memory_set(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
    struct set *set;

    if (!on_card(to, bytes)) return ERROR_INVALID_VALUE;
    set = malloc(sizeof *set);
    if (!set) abort();
    *set = (struct set){(void *)(uintptr_t)to, value, bytes};
    fake_stream_give(stream, (struct fake_command){.run = run_set, .given = set});
    return CUDA_SUCCESS;
}

/* ---- streams and events ---- */

static CUresult fake_stream_create(CUstream *stream, unsigned flags, int priority)
{
    (void)priority;
    if (flags != CU_STREAM_NON_BLOCKING) violate("a stream is ordered with the default stream");
    *stream = fake_stream_new();
    fake.counts.things++;
    return CUDA_SUCCESS;
}

static CUresult fake_stream_destroy(CUstream stream)
{
    fake_stream_drop(stream);
    fake.counts.things--;
    return CUDA_SUCCESS;
}

static CUresult fake_stream_synchronize(CUstream stream)
{
    fake_stream_run(stream);
    return fake.died;
}

static CUresult fake_stream_wait(CUstream stream, CUevent event, unsigned flags)
{
    if (flags) return ERROR_INVALID_VALUE;
    fake_stream_await(stream, event);
    return CUDA_SUCCESS;
}

static CUresult fake_event_create(CUevent *event, unsigned flags)
{
    (void)flags;
    *event = fake_event_new();
    fake.counts.things++;
    return CUDA_SUCCESS;
}

static CUresult fake_event_destroy(CUevent event)
{
    if (fake_event_drop(event))
        violate("an event was destroyed that a stream still had to record or await");
    fake.counts.things--;
    return CUDA_SUCCESS;
}

static CUresult fake_event_record(CUevent event, CUstream stream)
{
    fake_stream_record(stream, event);
    return CUDA_SUCCESS;
}

static CUresult fake_event_query(CUevent event)
{
    return fake_event_happened(event) ? fake.died : CUDA_ERROR_NOT_READY;
}

static CUresult fake_event_synchronize(CUevent event)
{
    fake_event_run(event);
    return fake.died;
}

static CUresult fake_event_elapsed(float *milliseconds, CUevent begin, CUevent end)
{
    uint64_t begin_ns, end_ns;

    if (!fake_event_time(begin, &begin_ns) || !fake_event_time(end, &end_ns))
        return CUDA_ERROR_NOT_READY;
    if (!begin_ns || !end_ns) return ERROR_INVALID_HANDLE;
    *milliseconds = (float)((double)(int64_t)(end_ns - begin_ns) / 1e6);
    return CUDA_SUCCESS;
}

/* ---- the table: each call is looked at, and has the lock ---- */

static bool is_one_of(const char *member, const char *names)
{
    const char *found = strstr(names, member);
    size_t length = strlen(member);

    return found && (found == names || found[-1] == ' ') &&
           (found[length] == ' ' || !found[length]);
}

static CUresult enter(const char *member)
{
    static const char anywhere[] = "init driver_version error_name error_string device_count "
                                   "device_get device_name device_attribute device_memory "
                                   "device_pci_bus_id context_flags context_retain "
                                   "context_release context_reset context_set_current";
    static const char ending[] = "module_unload memory_free host_unregister stream_destroy "
                                 "event_destroy context_synchronize";

    if (strcmp(member, "init") != 0 && strncmp(member, "error", 5) != 0 && !fake.started)
        return ERROR_NOT_INITIALIZED;
    if (!is_one_of(member, anywhere)) {
        if (current != CONTEXT || !fake.contexts) return ERROR_INVALID_CONTEXT;
        if (fake.died && !is_one_of(member, ending)) return fake.died;
    }
    return CUDA_SUCCESS;
}

#define CALL(member, symbol, parameters, arguments)                                                \
    static CUresult call_##member parameters                                                       \
    {                                                                                              \
        CUresult status;                                                                           \
                                                                                                   \
        mutex_lock(&mutex);                                                                        \
        status = enter(#member);                                                                   \
        if (!status) status = fake_##member arguments;                                             \
        mutex_unlock(&mutex);                                                                      \
        return status;                                                                             \
    }
CUDA_DRIVER_CALLS(CALL)

static int shared_bytes_of(int sm)
{
    switch (sm) {
    case 75:
        return 64 << 10;
    case 80:
        return 163 << 10;
    case 90:
    case 100:
        return 227 << 10;
    default:
        return 99 << 10;
    }
}

void fake_driver_open(struct cuda_driver *driver, const struct fake_driver_options *options)
{
    struct fake_driver_options *o = &fake.options;

    if (!mutex_made) mutex_init(&mutex);
    mutex_made = true;
    memset(&fake, 0, sizeof fake);
    *o = *options;
    if (!o->cards) o->cards = 1;
    if (!o->driver_version) o->driver_version = 13000;
    if (!o->sm) o->sm = 80;
    if (!o->shared_bytes) o->shared_bytes = shared_bytes_of(o->sm);
    if (!o->card_bytes) o->card_bytes = (uint64_t)8 << 30;
    if (!o->name) o->name = "Emulated";
    fake_streams_open(o->pace, o->seed);
    /* NVIDIA's libraries call the real driver, if there is one, and know nothing of this one's
     * memory. Tests that have a fake of theirs too say so before. */
    setenv("SHOAL_CUDA_MULTIPLY", "own", 0);
    current = NULL;
#define FILL(member, symbol, parameters, arguments) driver->member = call_##member;
    CUDA_DRIVER_CALLS(FILL)
#undef FILL
}

struct fake_driver_counts fake_driver_counts(void)
{
    struct fake_driver_counts counts;

    mutex_lock(&mutex);
    counts = fake.counts;
    mutex_unlock(&mutex);
    return counts;
}
