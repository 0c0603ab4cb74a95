/* The cards that the driver knows, and whether this build can use them. */
#include "device/cuda/internal.h"

#define LEAST_DRIVER 12000 /* as the driver gives its version: 12000 is CUDA 12.0 */
#define LEAST_SM 75

/* Kernels run with drivers of their compiler's major version, or newer. */
static int least_driver(void)
{
    int kernels = cuda_kernels_version() / 1000 * 1000;

    return kernels > LEAST_DRIVER ? kernels : LEAST_DRIVER;
}

enum shoal_status cuda_start(const struct cuda_driver *driver, struct shoal_error *error)
{
    int version = 0;
    CUresult result = driver->init(0);

    if (result == CUDA_ERROR_NO_DEVICE)
        FAIL(error, SHOAL_E_DEVICE, "the NVIDIA driver finds no card on this machine");
    TRY(cuda_check(driver, result, "starting the NVIDIA driver (does nvidia-smi work?)", error));
    TRY(cuda_check(
        driver, driver->driver_version(&version), "asking for the NVIDIA driver's version", error));
    if (version < least_driver())
        FAIL(error, SHOAL_E_DEVICE,
            "the NVIDIA driver is too old: it is for CUDA %d.%d and this build needs %d.%d; a "
            "newer "
            "driver would do, or a build with an older CUDA toolkit",
            version / 1000, version % 1000 / 10, least_driver() / 1000, least_driver() % 1000 / 10);
    return SHOAL_OK;
}

static enum shoal_status describe(const struct cuda_driver *driver, CUdevice handle,
    struct cuda_card *card, struct shoal_error *error)
{
    int major = 0, minor = 0;
    size_t bytes = 0;
    CUresult result = driver->device_name(card->name, (int)sizeof card->name, handle);

    if (!result)
        result =
            driver->device_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle);
    if (!result)
        result =
            driver->device_attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle);
    if (!result) result = driver->device_memory(&bytes, handle);
    card->name[sizeof card->name - 1] = '\0';
    card->sm = 10 * major + minor;
    card->bytes = bytes;
    return cuda_check(driver, result, "asking the NVIDIA driver for the card's properties", error);
}

enum shoal_status cuda_card_find(const struct cuda_driver *driver, int32_t ordinal,
    CUdevice *handle, struct cuda_card *card, struct shoal_error *error)
{
    int count = 0;

    *card = (struct cuda_card){0};
    TRY(cuda_check(driver, driver->device_count(&count), "counting the cards", error));
    if (count == 0)
        FAIL(error, SHOAL_E_DEVICE,
            "the NVIDIA driver shows no card; CUDA_VISIBLE_DEVICES may hide it");
    if (ordinal < 0 || ordinal >= count)
        FAIL(error, SHOAL_E_DEVICE, "there is no card %d: the NVIDIA driver shows %d, from 0 on",
            ordinal, count);
    TRY(cuda_check(driver, driver->device_get(handle, ordinal), "asking for the card", error));
    TRY(describe(driver, *handle, card, error));
    if (card->sm < LEAST_SM)
        FAIL(error, SHOAL_E_DEVICE,
            "%s is too old: it is sm_%d, and the CUDA device needs sm_%d (Turing) or newer; the "
            "CPU "
            "device would do",
            card->name, card->sm, LEAST_SM);
    return SHOAL_OK;
}

enum shoal_status cuda_open_driver(struct cuda_driver *driver, struct shoal_error *error)
{
    if (!cuda_kernels_version())
        FAIL(error, SHOAL_E_DEVICE,
            "this build has no CUDA kernels; building where nvcc is would add them");
    return cuda_driver_open(driver, CUDA_DRIVER_LIBRARY, error);
}

enum shoal_status cuda_count(int32_t *count, struct shoal_error *error)
{
    struct cuda_driver driver;
    int cards = 0;

    *count = 0;
    TRY(cuda_open_driver(&driver, error));
    TRY(cuda_start(&driver, error));
    TRY(cuda_check(&driver, driver.device_count(&cards), "counting the cards", error));
    if (cards == 0)
        FAIL(error, SHOAL_E_DEVICE,
            "the NVIDIA driver shows no card; CUDA_VISIBLE_DEVICES may hide it");
    *count = cards;
    return SHOAL_OK;
}

enum shoal_status cuda_look(int32_t ordinal, struct cuda_card *card, struct shoal_error *error)
{
    struct cuda_driver driver;
    CUdevice handle;

    *card = (struct cuda_card){0};
    TRY(cuda_open_driver(&driver, error));
    TRY(cuda_start(&driver, error));
    return cuda_card_find(&driver, ordinal, &handle, card, error);
}
