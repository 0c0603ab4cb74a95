/* NVML, opened when it is asked for. Types and names are its public ABI. */
#include "device/cuda/nvml.h"

#include "base/memory.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

struct nvml_memory {
    unsigned long long bytes, free_bytes, used_bytes;
};

struct nvml_process {
    unsigned pid;
    unsigned long long used_bytes; /* all ones: not known */
    unsigned gpu_instance, compute_instance;
};

/* X(member, symbol, (parameters)): all return 0 when they succeed. */
#define NVML_CALLS(X)                                                                              \
    X(init, nvmlInit_v2, (void))                                                                   \
    X(shutdown, nvmlShutdown, (void))                                                              \
    X(device_at, nvmlDeviceGetHandleByPciBusId_v2, (const char *pci_bus_id, void **device))        \
    X(memory, nvmlDeviceGetMemoryInfo, (void *device, struct nvml_memory *memory))                 \
    X(processes, nvmlDeviceGetComputeRunningProcesses_v3,                                          \
        (void *device, unsigned *count, struct nvml_process *processes))

struct cuda_nvml {
    void *library, *device;
    bool started;
#define MEMBER(member, symbol, parameters) int(*member) parameters;
    NVML_CALLS(MEMBER)
#undef MEMBER
};

static bool find_symbol(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);

    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

struct cuda_nvml *cuda_nvml_open(const char *pci_bus_id)
{
    struct cuda_nvml *nvml = mem_calloc(1, sizeof *nvml);

    if (!nvml) return NULL;
    nvml->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!nvml->library) goto fail;
#define FIND(member, symbol, parameters)                                                           \
    if (!find_symbol(nvml->library, #symbol, &nvml->member)) goto fail;
    NVML_CALLS(FIND)
#undef FIND
    nvml->started = nvml->init() == 0;
    if (!nvml->started || nvml->device_at(pci_bus_id, &nvml->device)) goto fail;
    return nvml;
fail:
    cuda_nvml_close(&nvml);
    return NULL;
}

void cuda_nvml_close(struct cuda_nvml **nvml)
{
    if (!*nvml) return;
    if ((*nvml)->started) (*nvml)->shutdown();
    if ((*nvml)->library) dlclose((*nvml)->library);
    mem_free(*nvml);
    *nvml = NULL;
}

bool cuda_nvml_used(struct cuda_nvml *nvml, uint64_t *used_bytes, uint64_t *free_bytes)
{
    struct nvml_memory memory = {0};

    if (!nvml || nvml->memory(nvml->device, &memory)) return false;
    *used_bytes = memory.used_bytes;
    *free_bytes = memory.free_bytes;
    return true;
}

#define MAX_PROCESSES 256 /* of a card; on one with more, ours may not be found */

uint64_t cuda_nvml_process_bytes(struct cuda_nvml *nvml)
{
    struct nvml_process *processes;
    unsigned count = MAX_PROCESSES;
    uint64_t bytes = 0;

    if (!nvml) return 0;
    processes = mem_calloc(MAX_PROCESSES, sizeof *processes);
    if (!processes) return 0;
    if (nvml->processes(nvml->device, &count, processes) == 0)
        for (unsigned i = 0; i < count; i++)
            if (processes[i].pid == (unsigned)getpid() && processes[i].used_bytes != UINT64_MAX)
                bytes += processes[i].used_bytes;
    mem_free(processes);
    return bytes;
}
