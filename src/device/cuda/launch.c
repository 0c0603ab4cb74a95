/* The kernels: loaded from the fatbins that the build put into the library, and launched. */
#include "device/cuda/fatbins.h" /* the build's: SHOAL_CUDA */
#include "device/cuda/internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#if SHOAL_CUDA
#define FATBIN(module) cuda_fatbin_##module
#define DECLARE(module, name) extern const unsigned char cuda_fatbin_##module[];
CUDA_KERNELS(DECLARE)
#else
#define FATBIN(module) NULL
#endif

static const struct {
    const char *module, *name;
    const void *fatbin;
} kernels[KERNEL_COUNT] = {
#define ENTRY(module, name) [KERNEL_##name] = {#module, #name, FATBIN(module)},
    CUDA_KERNELS(ENTRY)
#undef ENTRY
};

int cuda_kernels_version(void)
{
    return SHOAL_CUDA;
}

static enum shoal_status no_kernels(struct cuda_device *cuda, struct shoal_error *error)
{
    FAIL(error, SHOAL_E_DEVICE,
        "this build has no kernels for %s (sm_%d) that its driver takes; a build whose gpu_archs "
        "have %d would do, or a newer driver",
        cuda->name, cuda->sm, cuda->sm);
}

static enum shoal_status load_module(
    struct cuda_device *cuda, int kernel, CUmodule *module, struct shoal_error *error)
{
    CUresult result = cuda->driver->module_load(module, kernels[kernel].fatbin);
    char doing[80];

    snprintf(doing, sizeof doing, "loading the kernels %s", kernels[kernel].module);
    switch (result) {
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
        return no_kernels(cuda, error);
    default:
        return cuda_check(cuda->driver, result, doing, error);
    }
}

/* Finds a kernel and allows it all of the shared memory that it leaves; that also loads it now
 * where the driver would put it off, so that what it takes on the card is known. */
static enum shoal_status find_kernel(
    struct cuda_device *cuda, int kernel, CUmodule module, struct shoal_error *error)
{
    const struct cuda_driver *driver = cuda->driver;
    CUfunction *function = &cuda->functions[kernel];
    int shared_bytes = 0, compiled_for = 0;
    CUresult result = driver->module_function(function, module, kernels[kernel].name);
    char doing[80];

    if (!result)
        result = driver->function_attribute(
            &shared_bytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, *function);
    if (!result)
        result =
            driver->function_attribute(&compiled_for, CU_FUNC_ATTRIBUTE_PTX_VERSION, *function);
    if (!result)
        result = driver->function_set_attribute(*function,
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, cuda->shared_bytes - shared_bytes);
    snprintf(doing, sizeof doing, "loading kernel %s", kernels[kernel].name);
    TRY(cuda_check(driver, result, doing, error));
    /* PTX for sm_75 would run on any newer card, but is without what those have. */
    if (cuda->sm >= 80 && compiled_for < 80) return no_kernels(cuda, error);
    return SHOAL_OK;
}

enum shoal_status cuda_kernels_load(struct cuda_device *cuda, struct shoal_error *error)
{
    const char *module = NULL;

    for (int i = 0; i < KERNEL_COUNT; i++) { /* module by module */
        if (!module || strcmp(module, kernels[i].module) != 0) {
            assert(cuda->modules_loaded < CUDA_MAX_MODULES);
            TRY(load_module(cuda, i, &cuda->modules[cuda->modules_loaded], error));
            cuda->modules_loaded++;
            module = kernels[i].module;
        }
        TRY(find_kernel(cuda, i, cuda->modules[cuda->modules_loaded - 1], error));
    }
    return SHOAL_OK;
}

void cuda_kernels_unload(struct cuda_device *cuda)
{
    while (cuda->modules_loaded > 0)
        cuda->driver->module_unload(cuda->modules[--cuda->modules_loaded]);
}

void cuda_launch(
    struct stream *stream, enum cuda_kernel kernel, struct cuda_grid grid, const void *args)
{
    struct cuda_stream *s = (struct cuda_stream *)stream;
    struct cuda_device *cuda = cuda_device(stream->device);
    void *parameters[] = {(void *)(uintptr_t)args};
    CUresult result;

    assert(!s->copy && grid.x && grid.y && grid.z && grid.threads);
    if (!cuda_enter(cuda)) return;
    s->kernel = kernels[kernel].name;
    result = cuda->driver->launch(cuda->functions[kernel], grid.x, grid.y, grid.z, grid.threads, 1,
        1, grid.shared_bytes, s->handle, parameters, NULL);
    if (result) {
        char doing[80];

        snprintf(doing, sizeof doing, "kernel %s", kernels[kernel].name);
        cuda_fail(cuda, result, doing);
    }
}
