/*
 * An emulated card for what opens cards by itself: linked with --wrap=cuda_open_driver, which gives
 * the fake driver where the program's argument says so. At its end the program fails if the driver
 * found something wrong.
 */
#include "cuda/fake_driver.h"
#include "device/cuda/internal.h"
#include "golden/devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum shoal_status __real_cuda_open_driver(struct cuda_driver *driver, struct shoal_error *error);
enum shoal_status __wrap_cuda_open_driver(struct cuda_driver *driver, struct shoal_error *error);

static void look_back(void)
{
    struct fake_driver_counts counts = fake_driver_counts();

    if (!counts.violation && !counts.kernel_error && !counts.things) return;
    printf("the driver: %s, %s, %lld things left\n", counts.violation, counts.kernel_error,
        (long long)counts.things);
    fflush(stdout);
    _exit(1);
}

enum shoal_status __wrap_cuda_open_driver(struct cuda_driver *driver, struct shoal_error *error)
{
    static struct cuda_driver fake;
    static bool opened;

    if (!golden_devices.emulated_sm) return __real_cuda_open_driver(driver, error);
    if (!opened) {
        const struct fake_driver_options options = {
            .pace = PACE_LATE, .sm = golden_devices.emulated_sm};

        fake_driver_open(&fake, &options);
        opened = atexit(look_back) == 0;
    }
    *driver = fake;
    return SHOAL_OK;
}
