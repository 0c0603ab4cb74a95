/* The planner with blocks that adapters change: patched on the device, or baked on the host. */
#include "plan_models.h"

#define COUNT 10
#define STORED (100 * MIB)
#define FACTORS (3 * MIB)
#define OPENED (190 * MIB)
#define GLOBALS_CROSSING (150 * MIB)

static struct plan_model model;

static struct plan_limits unlimited(void)
{
    return (struct plan_limits){.vram_bytes = SHOAL_UNLIMITED,
        .ram_bytes = SHOAL_UNLIMITED,
        .resident_blocks = SHOAL_AUTO,
        .prefetch_slots = SHOAL_AUTO,
        .rates = &model.rates};
}

static struct plan_phase solve(struct plan_limits limits, struct plan_solution *s)
{
    struct shoal_error error = {0};

    assert_ok(planner_solve(&model.in, 1, &limits, s, &error));
    return s->phases[0];
}

/* Every second block is patched; the others have no packed form. */
static int set_up(void **state)
{
    (void)state;
    memset(&model, 0, sizeof model);
    model.rates = (struct rates){
        .link_bytes = 10e9, .disk_bytes = 1e9, .unpack_bytes = 100e9, .pack_bytes = 10e9};
    model_uniform(&model, COUNT, STORED, 0, 0.001);
    for (int i = 0; i < COUNT; i += 2) {
        model.blocks[i].raw = (struct plan_form){.bytes = OPENED};
        model.blocks[i].packed = (struct plan_form){STORED + FACTORS, STORED};
        model.blocks[i].unpacked_bytes = OPENED;
        model.blocks[i].crossing_bytes = STORED + FACTORS;
        model.blocks[i].patch_seconds = 0.004;
    }
    model.in.walks = 4;
    model.in.source = PLAN_SOURCE_PACKED;
    model.in.patched = true;
    return 0;
}

/* Whatever `wire` says, they stream as they are stored with the factors, and are opened at use; in
 * RAM and on disk they are as they are stored. */
static void test_streamed(void **state)
{
    static const enum shoal_wire wires[] = {SHOAL_WIRE_AUTO, SHOAL_WIRE_RAW, SHOAL_WIRE_PACKED};

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct plan_limits limits = unlimited();
        struct plan_solution s;
        struct plan_phase p;

        limits.wire = wires[i];
        limits.resident_blocks = 0;
        p = solve(limits, &s);
        assert_true(s.fits && p.patched && !p.packs && !s.needs_packed);
        assert_int_equal(p.packed_count, COUNT / 2);
        assert_int_equal(p.stream_bytes, COUNT * STORED + COUNT / 2 * FACTORS);
        assert_int_equal(p.tier_bytes, COUNT * STORED);
        assert_int_equal(p.unpack_bytes, OPENED);
        assert_true(p.unpack_seconds > COUNT / 2 * 0.004);
        limits.ram_bytes = s.least_ram_bytes;
        planner_release(&s);
        p = solve(limits, &s);
        assert_true(s.fits && p.disk_count == COUNT);
        assert_int_equal(p.disk_bytes, COUNT * STORED);
        planner_release(&s);
        limits.vram_bytes = 1;
        solve(limits, &s);
        assert_false(s.fits || s.needs_packed);
        planner_release(&s);
    }
}

/* Residents are opened once, out of the ring, which has room for what crosses. */
static void test_resident(void **state)
{
    struct plan_limits limits = unlimited();
    struct plan_solution s;
    struct plan_phase p;

    (void)state;
    p = solve(limits, &s);
    assert_int_equal(p.resident_count, COUNT);
    assert_int_equal(p.packed_count, 0);
    assert_int_equal(p.resident_bytes, COUNT / 2 * (OPENED + STORED));
    assert_int_equal(p.ring_bytes, STORED + FACTORS);
    assert_int_equal(s.full_bytes, p.peak_bytes);
    planner_release(&s);
    model.in.globals_crossing_bytes = GLOBALS_CROSSING;
    p = solve(limits, &s);
    assert_int_equal(p.ring_bytes, GLOBALS_CROSSING);
    planner_release(&s);
    /* What has no room opened may lie as it crosses. */
    limits.vram_bytes = COUNT * STORED + COUNT / 2 * FACTORS + OPENED + GLOBALS_CROSSING;
    p = solve(limits, &s);
    assert_true(s.fits && p.resident_count > COUNT / 2);
    assert_true(p.peak_bytes <= limits.vram_bytes);
    planner_release(&s);
}

/* Baked: what streams waits in RAM as it is used; residents cross as they are stored. */
static void test_baked(void **state)
{
    struct plan_limits limits = unlimited();
    struct plan_solution s;
    struct plan_phase p;

    (void)state;
    for (int i = 0; i < COUNT; i += 2) {
        model.blocks[i].raw.host_bytes = STORED;
        model.blocks[i].packed = form_of(OPENED);
        model.blocks[i].unpacked_bytes = 0;
        model.blocks[i].patch_seconds = 0;
    }
    model.in.source = PLAN_SOURCE_RAW;
    model.in.patched = false;
    limits.widened = true;
    limits.resident_blocks = 0;
    p = solve(limits, &s);
    assert_true(s.fits && p.packs && !p.patched);
    assert_int_equal(p.stream_bytes, COUNT / 2 * (OPENED + STORED));
    assert_int_equal(p.tier_bytes, COUNT / 2 * (OPENED + STORED));
    assert_int_equal(p.unpack_bytes, 0);
    planner_release(&s);
    limits.resident_blocks = COUNT;
    p = solve(limits, &s);
    assert_int_equal(p.resident_bytes, COUNT / 2 * (OPENED + STORED));
    assert_int_equal(p.ring_bytes, STORED + FACTORS);
    assert_int_equal(p.first_disk_bytes, COUNT * STORED);
    planner_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_streamed, set_up),
        cmocka_unit_test_setup(test_resident, set_up),
        cmocka_unit_test_setup(test_baked, set_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
