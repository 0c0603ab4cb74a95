/* Ranges for profilers. NVTX is a header: it finds the profiler's library and calls that. */
#include "base/profile.h"

#include "base/nvtx.h" /* the build's: SHOAL_NVTX, and where the header is */

#if SHOAL_NVTX

#define NVTX_AS_SYSTEM_HEADER
#include SHOAL_NVTX_HEADER

#include <pthread.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static nvtxDomainHandle_t domain; /* ours; NULL: nobody listens */

static void look(void)
{
    static const char *const names[PROFILE_KINDS] = {
        [PROFILE_PHASE] = "phase",
        [PROFILE_UNIT] = "unit",
        [PROFILE_BLOCK] = "block",
        [PROFILE_WAIT] = "wait",
        [PROFILE_COPY] = "copy",
    };

    domain = nvtxDomainCreateA("shoal");
    for (uint32_t i = 0; domain && i < PROFILE_KINDS; i++)
        nvtxDomainNameCategoryA(domain, i + 1, names[i]); /* 0 is no category */
}

void profile_begin(enum profile_kind kind, const char *name)
{
    pthread_once(&once, look);
    if (!domain) return;
    nvtxDomainRangePushEx(domain, &(nvtxEventAttributes_t){
                                      .version = NVTX_VERSION,
                                      .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                      .category = (uint32_t)kind + 1,
                                      .messageType = NVTX_MESSAGE_TYPE_ASCII,
                                      .message.ascii = name,
                                  });
}

void profile_end(void)
{
    pthread_once(&once, look);
    if (domain) nvtxDomainRangePop(domain);
}

#else

void profile_begin(enum profile_kind kind, const char *name)
{
    (void)kind, (void)name;
}

void profile_end(void) {}

#endif
