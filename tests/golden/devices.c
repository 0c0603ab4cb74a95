/* What a program's argument asks for. */
#include "support.h"

#include "golden/devices.h"

#include "device/cpu/cpu.h"
#include "device/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>

static const enum run_device cpu[] = {RUN_REFERENCE, RUN_FAST}, card[] = {RUN_CARD};

struct golden_devices golden_devices = {.list = cpu, .count = 2, .name = "cpu"};

int golden_choose(int argc, char **argv)
{
    struct golden_devices *on = &golden_devices;
    struct shoal_error error = {0};
    struct device *device;

    on->traits = CPU_TRAITS;
    if (argc < 2) return 0;
    *on = (struct golden_devices){.list = card, .count = 1, .card = true, .name = "cuda"};
    if (strcmp(argv[1], "gpu") != 0) on->emulated_sm = atoi(argv[1]);
    if (cuda_create(&device, 0, &error)) {
        printf("%s: %s\n", on->emulated_sm ? "failed" : "skipped", error.text);
        return on->emulated_sm ? 1 : 77;
    }
    on->traits = device->traits;
    printf("on %s, %s\n", cuda_info(device).name, dtype_name(on->traits.activation));
    device_destroy(&device);
    return 0;
}

struct golden_gap golden_limit(struct golden_gap bf16)
{
    switch (golden_devices.traits.activation) {
    case DTYPE_BF16:
        return bf16;
    case DTYPE_F16:
        return (struct golden_gap){bf16.max / 8, bf16.rms / 8};
    default:
        return GOLDEN_FLOAT_LIMIT;
    }
}
