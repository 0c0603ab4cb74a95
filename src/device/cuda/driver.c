/* Opening the CUDA driver's library, or another, and its results in words. */
#include "device/cuda/driver.h"

#include <dlfcn.h>
#include <string.h>

static const struct cuda_symbol symbols[] = {
#define SYMBOL(member, symbol, parameters, arguments)                                              \
    {#symbol, offsetof(struct cuda_driver, member)},
    CUDA_DRIVER_CALLS(SYMBOL)
#undef SYMBOL
};

void *cuda_library_open(const char *file, const struct cuda_symbol *wanted, size_t count,
    void *calls, const char **missing)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);

    *missing = NULL;
    for (size_t i = 0; library && i < count; i++) {
        void *function = dlsym(library, wanted[i].name);

        if (!function) {
            *missing = wanted[i].name;
            dlclose(library);
            return NULL;
        }
        memcpy((char *)calls + wanted[i].offset, &function, sizeof function);
    }
    return library;
}

enum shoal_status cuda_driver_open(
    struct cuda_driver *driver, const char *library, struct shoal_error *error)
{
    const char *missing;

    if (cuda_library_open(library, symbols, sizeof symbols / sizeof *symbols, driver, &missing))
        return SHOAL_OK;
    if (!missing)
        FAIL(error, SHOAL_E_DEVICE,
            "no NVIDIA driver (%s) on this machine; one for CUDA 12 or newer would do, or "
            "--device cpu",
            library);
    FAIL(error, SHOAL_E_DEVICE,
        "the NVIDIA driver (%s) is too old: it has no %s; one for CUDA 12 or newer would do",
        library, missing);
}

enum shoal_status cuda_check(
    const struct cuda_driver *driver, CUresult result, const char *doing, struct shoal_error *error)
{
    const char *name = NULL, *text = NULL;

    if (result == CUDA_SUCCESS) return SHOAL_OK;
    if (driver->error_name(result, &name) || !name) name = "unknown CUDA error";
    if (driver->error_string(result, &text) || !text) text = "the driver does not say more";
    FAIL(error, SHOAL_E_DEVICE, "%s: %s (%d: %s)", doing, name, result, text);
}
