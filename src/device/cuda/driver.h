/*
 * The CUDA driver's library, opened when it is asked for, so that no CUDA header or library is
 * needed to build. Types, numbers and names are the driver's public ABI, which does not change:
 * what changed got a new name (_v2), and the old ones stay. Calls take and give what NVIDIA's
 * "CUDA Driver API" says of the function of that name.
 */
#ifndef DEVICE_CUDA_DRIVER_H
#define DEVICE_CUDA_DRIVER_H

#include "base/error.h"

#include <stddef.h>

/* ---- libraries that are opened when they are asked for, this one and those beside it ---- */

struct cuda_symbol {
    const char *name;
    size_t offset; /* of its pointer, in a struct of calls */
};

/* Opens the library and fills `calls`. NULL, and nothing is open, if it has no `*missing`, or if
 * that is NULL: then dlerror says why. */
void *cuda_library_open(const char *file, const struct cuda_symbol *symbols, size_t count,
    void *calls, const char **missing);

/* ---- the driver ---- */

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;

/* The results that we tell apart. */
enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_INVALID_PTX = 218,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_UNKNOWN = 999,
};

/* CUdevice_attribute */
enum {
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
};

/* CUfunction_attribute */
enum {
    CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
    CU_FUNC_ATTRIBUTE_PTX_VERSION = 5, /* 80: compiled for sm_80 */
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
};

/* Flags of contexts, streams, events and registered host memory. */
enum {
    CU_CTX_SCHED_BLOCKING_SYNC = 0x04, /* threads that wait sleep */
    CU_STREAM_NON_BLOCKING = 0x01,     /* not ordered with the default stream */
    CU_EVENT_BLOCKING_SYNC = 0x01,
    CU_MEMHOSTREGISTER_PORTABLE = 0x01,
};

/* X(member, symbol, (parameters), (arguments)) */
#define CUDA_DRIVER_CALLS(X)                                                                       \
    X(init, cuInit, (unsigned flags), (flags))                                                     \
    X(driver_version, cuDriverGetVersion, (int *version), (version))                               \
    X(error_name, cuGetErrorName, (CUresult result, const char **name), (result, name))            \
    X(error_string, cuGetErrorString, (CUresult result, const char **text), (result, text))        \
                                                                                                   \
    X(device_count, cuDeviceGetCount, (int *count), (count))                                       \
    X(device_get, cuDeviceGet, (CUdevice * device, int ordinal), (device, ordinal))                \
    X(device_name, cuDeviceGetName, (char *name, int bytes, CUdevice device),                      \
        (name, bytes, device))                                                                     \
    X(device_attribute, cuDeviceGetAttribute, (int *value, int attribute, CUdevice device),        \
        (value, attribute, device))                                                                \
    X(device_memory, cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device), (bytes, device))      \
    X(device_pci_bus_id, cuDeviceGetPCIBusId, (char *id, int bytes, CUdevice device),              \
        (id, bytes, device))                                                                       \
                                                                                                   \
    X(context_flags, cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned flags),             \
        (device, flags))                                                                           \
    X(context_retain, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device),            \
        (context, device))                                                                         \
    X(context_release, cuDevicePrimaryCtxRelease_v2, (CUdevice device), (device))                  \
    X(context_reset, cuDevicePrimaryCtxReset_v2, (CUdevice device), (device))                      \
    X(context_set_current, cuCtxSetCurrent, (CUcontext context), (context))                        \
    X(context_synchronize, cuCtxSynchronize, (void), ())                                           \
                                                                                                   \
    X(module_load, cuModuleLoadData, (CUmodule * module, const void *image), (module, image))      \
    X(module_unload, cuModuleUnload, (CUmodule module), (module))                                  \
    X(module_function, cuModuleGetFunction,                                                        \
        (CUfunction * function, CUmodule module, const char *name), (function, module, name))      \
    X(function_attribute, cuFuncGetAttribute, (int *value, int attribute, CUfunction function),    \
        (value, attribute, function))                                                              \
    X(function_set_attribute, cuFuncSetAttribute, (CUfunction function, int attribute, int value), \
        (function, attribute, value))                                                              \
    X(launch, cuLaunchKernel,                                                                      \
        (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
            unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,            \
            void **parameters, void **extra),                                                      \
        (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,        \
            parameters, extra))                                                                    \
                                                                                                   \
    X(memory_alloc, cuMemAlloc_v2, (CUdeviceptr * addr, size_t bytes), (addr, bytes))              \
    X(memory_free, cuMemFree_v2, (CUdeviceptr addr), (addr))                                       \
    X(memory_info, cuMemGetInfo_v2, (size_t * free_bytes, size_t * bytes), (free_bytes, bytes))    \
    X(host_register, cuMemHostRegister_v2, (void *pages, size_t bytes, unsigned flags),            \
        (pages, bytes, flags))                                                                     \
    X(host_unregister, cuMemHostUnregister, (void *pages), (pages))                                \
    X(copy_in, cuMemcpyHtoDAsync_v2,                                                               \
        (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),                         \
        (to, from, bytes, stream))                                                                 \
    X(copy_out, cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream), \
        (to, from, bytes, stream))                                                                 \
    X(copy_within, cuMemcpyDtoDAsync_v2,                                                           \
        (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),                         \
        (to, from, bytes, stream))                                                                 \
    X(memory_set, cuMemsetD8Async,                                                                 \
        (CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream),                      \
        (to, value, bytes, stream))                                                                \
                                                                                                   \
    X(stream_create, cuStreamCreateWithPriority,                                                   \
        (CUstream * stream, unsigned flags, int priority), (stream, flags, priority))              \
    X(stream_destroy, cuStreamDestroy_v2, (CUstream stream), (stream))                             \
    X(stream_synchronize, cuStreamSynchronize, (CUstream stream), (stream))                        \
    X(stream_wait, cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags),            \
        (stream, event, flags))                                                                    \
    X(event_create, cuEventCreate, (CUevent * event, unsigned flags), (event, flags))              \
    X(event_destroy, cuEventDestroy_v2, (CUevent event), (event))                                  \
    X(event_record, cuEventRecord, (CUevent event, CUstream stream), (event, stream))              \
    X(event_query, cuEventQuery, (CUevent event), (event))                                         \
    X(event_synchronize, cuEventSynchronize, (CUevent event), (event))                             \
    X(event_elapsed, cuEventElapsedTime, (float *milliseconds, CUevent begin, CUevent end),        \
        (milliseconds, begin, end))

/* The driver's calls. Tests fill one with their own. */
struct cuda_driver {
#define CUDA_DRIVER_MEMBER(member, symbol, parameters, arguments) CUresult(*member) parameters;
    CUDA_DRIVER_CALLS(CUDA_DRIVER_MEMBER)
#undef CUDA_DRIVER_MEMBER
};

/* The driver's library of this name, opened; it stays so until the process ends, since it has
 * threads of its own. The error says what is missing. */
#define CUDA_DRIVER_LIBRARY "libcuda.so.1"
enum shoal_status cuda_driver_open(
    struct cuda_driver *driver, const char *library, struct shoal_error *error) SHOAL_CHECKED;

/* SHOAL_OK if `result` is; else SHOAL_E_DEVICE, and the error says what was being done and what
 * the driver calls the result. */
enum shoal_status cuda_check(const struct cuda_driver *driver, CUresult result, const char *doing,
    struct shoal_error *error) SHOAL_CHECKED;

#endif
