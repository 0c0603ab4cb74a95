/* A CUDA driver whose calls can be made to fail. */
#include "cuda/faulty_driver.h"

#include "device/cuda/cuda.h"

#include <stdio.h>
#include <string.h>

struct faults faults;

static struct cuda_driver inner;
static atomic_int loads; /* calls that load kernels */

static const int opened[CALL_COUNT] = {
    [CALL_context_retain] = 1,
    [CALL_context_release] = -1,
    [CALL_module_load] = 1,
    [CALL_module_unload] = -1,
    [CALL_memory_alloc] = 1,
    [CALL_memory_free] = -1,
    [CALL_host_register] = 1,
    [CALL_host_unregister] = -1,
    [CALL_stream_create] = 1,
    [CALL_stream_destroy] = -1,
    [CALL_event_create] = 1,
    [CALL_event_destroy] = -1,
};

static const char *const symbols[CALL_COUNT] = {
#define SYMBOL(member, symbol, parameters, arguments) [CALL_##member] = #symbol,
    CUDA_DRIVER_CALLS(SYMBOL)
#undef SYMBOL
};

/* Kernels are all alike: the calls that load them count for the first one. */
static bool repeats(enum faulty_call call)
{
    return (call == CALL_module_function || call == CALL_function_attribute ||
               call == CALL_function_set_attribute) &&
           atomic_fetch_add(&loads, 1) >= 4;
}

static bool fails(enum faulty_call call)
{
    int number;

    if (call == CALL_error_name || call == CALL_error_string || repeats(call)) return false;
    if (call == CALL_context_reset) atomic_fetch_add(&faults.resets, 1);
    number = atomic_fetch_add(&faults.calls, 1) + 1;
    if (call != faults.always && number != faults.at &&
        !(faults.for_good && faults.at && number > faults.at))
        return false;
    if (atomic_fetch_add(&faults.failed, 1) == 0) faults.symbol = symbols[call];
    return true;
}

/* What comes of a call that gave `result`; that is not used of one that was made to fail. */
static CUresult finish(enum faulty_call call, bool failing, CUresult result)
{
    if (failing) result = faults.result;
    if (!result || opened[call] < 0) atomic_fetch_add(&faults.open, opened[call]);
    return result;
}

#define WRAPPER(member, symbol, parameters, arguments)                                             \
    static CUresult faulty_##member parameters                                                     \
    {                                                                                              \
        bool failing = fails(CALL_##member);                                                       \
                                                                                                   \
        return finish(CALL_##member, failing,                                                      \
            failing && opened[CALL_##member] >= 0 ? CUDA_SUCCESS : inner.member arguments);        \
    }
CUDA_DRIVER_CALLS(WRAPPER)

void faulty_driver(struct cuda_driver *driver, const struct cuda_driver *real)
{
    inner = *real;
    atomic_store(&loads, 0);
    faults = (struct faults){.always = CALL_COUNT};
#define MEMBER(member, symbol, parameters, arguments) driver->member = faulty_##member;
    CUDA_DRIVER_CALLS(MEMBER)
#undef MEMBER
}

bool faulty_releases(const char *symbol)
{
    for (int i = 0; i < CALL_COUNT; i++)
        if (opened[i] < 0 && strcmp(symbol, symbols[i]) == 0) return true;
    return false;
}

bool faulty_has_card(void)
{
    struct shoal_error error = {0};
    int32_t cards;

    if (cuda_count(&cards, &error) == SHOAL_OK) return true;
    printf("%s\n", error.text);
    return false;
}
