/* A profiler's library: notes the ranges that it is told of. */
#include "unit/nvtx_injection.h"

#include "base/nvtx.h"
#define NVTX_AS_SYSTEM_HEADER
#include SHOAL_NVTX_HEADER

#include <pthread.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT struct nvtx_seen nvtx_seen;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int threads;
static _Thread_local int thread, open_ranges; /* thread: from 1 on */

static nvtxDomainHandle_t NVTX_API domain_create(const char *name)
{
    strncpy(nvtx_seen.domain, name, sizeof nvtx_seen.domain - 1);
    return (nvtxDomainHandle_t)(void *)&nvtx_seen;
}

static void NVTX_API name_category(nvtxDomainHandle_t domain, uint32_t category, const char *name)
{
    if ((void *)domain == &nvtx_seen && category < NVTX_MOST_CATEGORIES)
        strncpy(nvtx_seen.categories[category], name, sizeof nvtx_seen.categories[category] - 1);
}

static int NVTX_API push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *attributes)
{
    struct nvtx_range *range;

    pthread_mutex_lock(&mutex);
    if (!thread) thread = ++threads;
    if ((void *)domain != &nvtx_seen || attributes->version != NVTX_VERSION ||
        attributes->messageType != NVTX_MESSAGE_TYPE_ASCII)
        nvtx_seen.wrong++;
    if (nvtx_seen.count < NVTX_MOST_RANGES) {
        range = &nvtx_seen.ranges[nvtx_seen.count++];
        range->thread = thread;
        range->depth = open_ranges;
        range->category = (int)attributes->category;
        strncpy(range->name, attributes->message.ascii, sizeof range->name - 1);
    } else {
        nvtx_seen.wrong++;
    }
    nvtx_seen.open++;
    pthread_mutex_unlock(&mutex);
    return open_ranges++;
}

static int NVTX_API pop(nvtxDomainHandle_t domain)
{
    pthread_mutex_lock(&mutex);
    if ((void *)domain != &nvtx_seen || open_ranges == 0) nvtx_seen.wrong++;
    nvtx_seen.open--;
    pthread_mutex_unlock(&mutex);
    return --open_ranges;
}

EXPORT int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t table);
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t table)
{
    const NvtxExportTableCallbacks *callbacks = table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable functions = NULL;
    unsigned count = 0;

    if (!callbacks ||
        !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &functions, &count) ||
        count < NVTX_CBID_CORE2_SIZE)
        return 0;
    *functions[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)domain_create;
    *functions[NVTX_CBID_CORE2_DomainNameCategoryA] = (NvtxFunctionPointer)name_category;
    *functions[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
    *functions[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
    return 1;
}
