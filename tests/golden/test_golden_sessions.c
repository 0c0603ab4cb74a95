/*
 * Sessions, one after another: a model is opened, a picture painted or given up in the middle of a
 * step, all is closed. Each picture is the first one's, and nothing grows: not the process's memory
 * nor, on a card, what the driver counts as its. A few here; on a card five hundred.
 */
#include "support.h"

#include "base/memory.h"
#include "device/cuda/cuda.h"
#include "golden/devices.h"

#include <stdio.h>

#define MIB ((uint64_t)1 << 20)

enum { SIZE = 32, STEPS = 2, WARM = 40, MANY = 500, FEW = 5 };

/* Which block to stop before; -1: none. */
struct stop {
    int32_t block;
    int32_t seen;
};

static void progress(void *user, const struct shoal_progress *p)
{
    struct stop *stop = user;

    if (p->phase == SHOAL_PHASE_STEPS) stop->seen++;
}

static bool cancelled(void *user)
{
    const struct stop *stop = user;

    return stop->block >= 0 && stop->seen >= stop->block;
}

/* A number that the picture's bytes give: FNV-1a. 0 if it was given up. */
static uint64_t session(int number)
{
    static const enum shoal_wire wires[] = {SHOAL_WIRE_AUTO, SHOAL_WIRE_RAW, SHOAL_WIRE_PACKED};
    struct stop stop = {.block = number % 3 == 2 ? number % 17 + 1 : -1};
    const struct shoal_callbacks callbacks = {&stop, progress, cancelled};
    struct shoal_error error = {0};
    struct shoal_model *model;
    struct shoal_plan *plan;
    struct shoal_result *result = NULL;
    struct shoal_request r;
    struct shoal_image image;
    uint64_t hash = 0xcbf29ce484222325u;
    enum shoal_status status;

    assert_ok(shoal_model_open(
        &(struct shoal_model_paths){.model = "models/shoal-mini"}, &model, &error));
    shoal_request_init(&r, model);
    r.prompt = "a cat wearing a hat";
    r.width = r.height = SIZE;
    r.steps = STEPS;
    r.cfg = 1;
    r.device = golden_devices.name;
    r.resident_blocks = number % 2 ? SHOAL_AUTO : 0;
    r.wire = wires[number % 5 % 3];
    assert_ok(shoal_plan_create(model, &r, &plan, &error));
    status = shoal_run(plan, &callbacks, &result, &error);
    if (stop.block >= 0) {
        assert_int_equal(status, SHOAL_E_CANCELLED);
        hash = 0;
    } else {
        assert_ok(status);
        shoal_result_image(result, 0, &image);
        for (size_t i = 0; i < (size_t)image.width * (size_t)image.height * 3; i++)
            hash = (hash ^ image.rgb[i]) * 0x100000001b3u;
    }
    shoal_result_destroy(&result);
    shoal_plan_destroy(&plan);
    shoal_model_close(&model);
    return hash;
}

/* What the driver counts while a device is open and has done nothing yet; 0: it does not say. */
static uint64_t card_bytes(void)
{
    struct shoal_error error = {0};
    struct device *device;
    uint64_t bytes;

    if (!golden_devices.card) return 0;
    assert_ok(cuda_create(&device, 0, &error));
    bytes = cuda_process_bytes(device);
    device_destroy(&device);
    return bytes;
}

static void test_sessions(void **state)
{
    const bool real = golden_devices.card && !golden_devices.emulated_sm;
    const int count = real ? MANY : FEW;
    uint64_t picture = session(0), host = 0, card = 0;

    (void)state;
    for (int i = 1; i < count; i++) {
        const uint64_t again = session(i);

        if (again) assert_int_equal(again, picture);
        if (i != WARM) continue;
        card = card_bytes();
        host = memory_resident();
    }
    if (!real) return;
    print_message("after %d sessions %llu MiB of host memory and %llu MiB of the card's, after %d "
                  "%llu and %llu\n",
        WARM, (unsigned long long)(host / MIB), (unsigned long long)(card / MIB), count,
        (unsigned long long)(memory_resident() / MIB), (unsigned long long)(card_bytes() / MIB));
    assert_true(card_bytes() <= card);
    assert_true(memory_resident() <= host + 16 * MIB);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_sessions)};

GOLDEN_MAIN(tests, NULL, NULL)
