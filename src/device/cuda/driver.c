/* Opening the CUDA driver's library, and its results in words. */
#include "device/cuda/driver.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

static const struct symbol {
    const char *name;
    size_t offset; /* in struct cuda_driver */
} symbols[] = {
#define SYMBOL(member, symbol, parameters, arguments)                                              \
    {#symbol, offsetof(struct cuda_driver, member)},
    CUDA_DRIVER_CALLS(SYMBOL)
#undef SYMBOL
};

enum shoal_status cuda_driver_open(
    struct cuda_driver *driver, const char *library, struct shoal_error *error)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);

    if (!handle)
        FAIL(error, SHOAL_E_DEVICE,
            "no NVIDIA driver (%s) on this machine; one for CUDA 12 or newer would do, or the CPU "
            "device",
            library);
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *function = dlsym(handle, symbols[i].name);

        if (!function) {
            dlclose(handle);
            FAIL(error, SHOAL_E_DEVICE,
                "the NVIDIA driver (%s) is too old: it has no %s; one for CUDA 12 or newer would "
                "do",
                library, symbols[i].name);
        }
        memcpy((char *)driver + symbols[i].offset, &function, sizeof function);
    }
    return SHOAL_OK;
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
