/* The planner, by tables: budgets in, plans out; and by random models, what must hold of all. */
#include "plan_models.h"

#include <math.h>
#include <time.h>

#define BLOCKS 10
#define BLOCK (100 * MIB)
#define CHUNK (PLAN_CHUNK_BYTES + PLAN_CHUNK_SLOP_BYTES)
#define PAGE 4096

static const struct rates rates = {
    .link_bytes = 10e9, .disk_bytes = 1e9, .unpack_bytes = 100e9, .pack_bytes = 10e9};

static struct plan_block_input dit_blocks[BLOCKS], text_blocks[3];

/* A text encoder of 3 blocks, then a DiT of 10. */
static struct plan_input inputs[2] = {
    {.name = "text",
        .block_count = 3,
        .blocks = text_blocks,
        .scratch_bytes = 20 * MIB,
        .walks = 1},
    {.name = "steps",
        .block_count = BLOCKS,
        .blocks = dit_blocks,
        .globals = {30 * MIB, 30 * MIB},
        .scratch_bytes = 200 * MIB,
        .walks = 8,
        .main = true},
};

static int make_models(void **state)
{
    (void)state;
    for (int i = 0; i < BLOCKS; i++)
        dit_blocks[i] = (struct plan_block_input){.raw = form_of(BLOCK), .compute_seconds = 0.002};
    for (int i = 0; i < 3; i++)
        text_blocks[i] = (struct plan_block_input){.raw = form_of(BLOCK / 2)};
    return 0;
}

static struct plan_limits unlimited(void)
{
    return (struct plan_limits){.vram_bytes = SHOAL_UNLIMITED,
        .ram_bytes = SHOAL_UNLIMITED,
        .resident_blocks = SHOAL_AUTO,
        .prefetch_slots = SHOAL_AUTO,
        .rates = &rates};
}

static struct plan_solution solve(struct plan_limits limits)
{
    struct shoal_error error = {0};
    struct plan_solution solution;

    assert_ok(planner_solve(inputs, 2, &limits, &solution, &error));
    return solution;
}

/* ---- device memory ---- */

static void test_unlimited(void **state)
{
    struct plan_solution s = solve(unlimited());

    (void)state;
    assert_true(s.fits);
    assert_int_equal(s.phases[1].resident_count, BLOCKS);
    assert_int_equal(s.phases[1].slots, 0);
    assert_int_equal(s.peak_bytes, 1230 * MIB);
    assert_int_equal(s.full_bytes, s.peak_bytes);
    assert_int_equal(s.least_bytes, 330 * MIB);
    assert_int_equal(s.phases[1].stream_bytes, 0);
    /* Nothing waits in host memory but what is being read. */
    assert_int_equal(s.ram_bytes, PLAN_DEFAULT_CHUNKS * CHUNK);
    assert_int_equal(s.phases[1].limit, PLAN_LIMIT_COMPUTE);
    assert_true(fabs(s.phases[1].walk_seconds - 0.02) < 1e-9);
    planner_release(&s);
}

/* Every budget between the least and the full one is used and never exceeded. */
static void test_budgets(void **state)
{
    struct plan_limits limits = unlimited();
    uint64_t last_stream = UINT64_MAX;
    double last_seconds = INFINITY;

    (void)state;
    for (limits.vram_bytes = 330 * MIB; limits.vram_bytes <= 1230 * MIB;
         limits.vram_bytes += 10 * MIB) {
        struct plan_solution s = solve(limits);

        assert_true(s.fits);
        assert_true(s.peak_bytes <= limits.vram_bytes);
        assert_true(s.phases[1].stream_bytes <= last_stream); /* more memory never streams more */
        assert_true(s.seconds <= last_seconds * 1.0001);
        last_stream = s.phases[1].stream_bytes;
        last_seconds = s.seconds;
        planner_release(&s);
    }
    assert_int_equal(last_stream, 0);
}

static void test_one_byte_short(void **state)
{
    struct plan_limits limits = unlimited();
    struct plan_solution s;

    (void)state;
    limits.vram_bytes = 330 * MIB - 1;
    s = solve(limits);
    assert_false(s.fits);
    assert_true(s.fits_ram);
    assert_int_equal(s.least_bytes, 330 * MIB);
    assert_int_equal(s.peak_bytes, 330 * MIB);
    planner_release(&s);
    limits.vram_bytes = 330 * MIB;
    s = solve(limits);
    assert_true(s.fits);
    assert_int_equal(s.phases[1].slots, 1);
    assert_int_equal(s.peak_bytes, 330 * MIB);
    planner_release(&s);
}

/* What the driver takes of the budget shifts every figure and changes no choice. */
static void test_context(void **state)
{
    struct plan_limits limits = unlimited();
    struct plan_solution without, with;

    (void)state;
    limits.vram_bytes = 700 * MIB;
    without = solve(limits);
    limits.context_bytes = 500 * MIB;
    limits.vram_bytes += limits.context_bytes;
    with = solve(limits);
    assert_true(with.fits);
    assert_int_equal(with.arena_bytes, without.arena_bytes);
    assert_int_equal(with.peak_bytes, without.peak_bytes + 500 * MIB);
    assert_int_equal(with.least_bytes, without.least_bytes + 500 * MIB);
    assert_int_equal(with.full_bytes, without.full_bytes + 500 * MIB);
    planner_release(&without);
    planner_release(&with);
    limits.vram_bytes = 400 * MIB; /* not even the context */
    with = solve(limits);
    assert_false(with.fits);
    assert_int_equal(with.least_bytes, 830 * MIB);
    planner_release(&with);
}

static void test_residents_are_spread(void **state)
{
    struct plan_limits limits = unlimited();

    (void)state;
    /* The j-th of n goes to the block nearest (j + 1/2) N / n. */
    for (int32_t n = 0; n <= BLOCKS; n++) {
        bool expected[BLOCKS] = {false};
        struct plan_solution s;

        for (int32_t j = 0; j < n; j++)
            expected[(2 * j + 1) * BLOCKS / (2 * n)] = true;
        limits.resident_blocks = n;
        s = solve(limits);
        assert_int_equal(s.phases[1].resident_count, n);
        for (int i = 0; i < BLOCKS; i++)
            assert_int_equal(s.phases[1].blocks[i].resident, expected[i]);
        assert_int_equal(s.phases[1].stream_bytes, (uint64_t)(BLOCKS - n) * BLOCK);
        assert_int_equal(s.phases[0].resident_count, 3); /* the option speaks of the DiT */
        planner_release(&s);
    }
}

static void test_slots_and_buffers(void **state)
{
    struct plan_limits limits = unlimited();
    struct plan_solution s;

    (void)state;
    limits.resident_blocks = 0;
    for (uint32_t slots = 2; slots <= PLAN_MAX_SLOTS; slots++) {
        limits.prefetch_slots = (int32_t)slots;
        s = solve(limits);
        assert_int_equal(s.phases[1].slots, slots);
        assert_int_equal(s.phases[1].ring_bytes, BLOCK * slots);
        assert_int_equal(s.least_bytes, 230 * MIB + BLOCK * slots);
        planner_release(&s);
    }
    limits.prefetch_slots = SHOAL_AUTO;
    limits.buffer = SHOAL_BUFFER_SINGLE;
    s = solve(limits);
    assert_int_equal(s.phases[1].slots, 1);
    planner_release(&s);
    limits.buffer = SHOAL_BUFFER_DOUBLE;
    limits.vram_bytes = 430 * MIB;
    s = solve(limits);
    assert_true(s.fits);
    assert_int_equal(s.phases[1].slots, 2);
    planner_release(&s);
    limits.vram_bytes--;
    s = solve(limits);
    assert_false(s.fits);
    planner_release(&s);
}

/* The sizes of a block differ: the least is not always without residents. */
static void test_uneven_blocks(void **state)
{
    const uint64_t sizes[5] = {3, 3, 10, 3, 3};
    struct plan_limits limits = unlimited();
    struct plan_solution s;

    (void)state;
    for (int i = 0; i < 5; i++)
        dit_blocks[i].raw = form_of(sizes[i] * BLOCK);
    inputs[1].block_count = 5;
    limits.buffer = SHOAL_BUFFER_DOUBLE;
    s = solve(limits);
    assert_int_equal(s.least_bytes, 230 * MIB + 16 * BLOCK); /* the large one resident */
    limits.vram_bytes = s.least_bytes;
    planner_release(&s);
    s = solve(limits);
    assert_true(s.fits && s.phases[1].blocks[2].resident);
    planner_release(&s);
    inputs[1].block_count = BLOCKS;
    make_models(NULL);
}

/* ---- host memory ---- */

static void test_tiers(void **state)
{
    struct plan_limits limits = unlimited();
    const uint64_t staging = PLAN_DEFAULT_CHUNKS * CHUNK;

    (void)state;
    limits.resident_blocks = 0;
    limits.process_bytes = 40 * MIB;
    for (uint64_t kept = 0; kept <= BLOCKS; kept++) {
        struct plan_solution s;
        const struct plan_phase *p = &s.phases[1];
        bool expected[BLOCKS] = {false};
        int32_t disk = BLOCKS - (int32_t)kept;

        limits.ram_bytes = 40 * MIB + staging + kept * BLOCK;
        s = solve(limits);
        assert_true(s.fits);
        assert_true(s.ram_bytes <= limits.ram_bytes);
        /* As few wait on disk as the budget allows, between those that wait in RAM. */
        assert_int_equal(p->disk_count, disk);
        assert_int_equal(p->disk_bytes, (uint64_t)disk * BLOCK);
        assert_int_equal(p->tier_bytes, kept * BLOCK);
        assert_int_equal(p->first_disk_bytes, BLOCKS * BLOCK + 30 * MIB);
        for (int j = 0; j < disk; j++)
            expected[(2 * j + 1) * BLOCKS / (2 * disk)] = true;
        for (int i = 0; i < BLOCKS; i++)
            assert_int_equal(p->blocks[i].disk, expected[i]);
        /* The encoder runs once: all of it is read through the staging ring. */
        assert_int_equal(s.phases[0].tier_bytes, 0);
        planner_release(&s);
    }
}

static void test_ram_one_page_short(void **state)
{
    struct plan_limits limits = unlimited();
    struct plan_solution s;

    (void)state;
    limits.process_bytes = 40 * MIB;
    s = solve(limits);
    assert_int_equal(s.least_ram_bytes, 40 * MIB + PLAN_LEAST_CHUNKS * CHUNK);
    limits.ram_bytes = s.least_ram_bytes;
    planner_release(&s);
    s = solve(limits);
    assert_true(s.fits);
    assert_int_equal(s.ram_bytes, limits.ram_bytes);
    planner_release(&s);
    limits.ram_bytes -= PAGE;
    s = solve(limits);
    assert_false(s.fits);
    assert_false(s.fits_ram);
    planner_release(&s);
}

/* A phase that is smaller than the staging ring needs only its own size. */
static void test_small_phase(void **state)
{
    struct plan_model m = {.rates = rates};
    struct shoal_error error = {0};
    struct plan_limits limits = unlimited();
    struct plan_solution s;

    (void)state;
    model_uniform(&m, 4, 64 << 10, 0, 1e-4);
    m.in.walks = 1;
    limits.resident_blocks = 0;
    assert_ok(planner_solve(&m.in, 1, &limits, &s, &error));
    assert_int_equal(s.ram_bytes, 4 * ((64 << 10) + PLAN_CHUNK_SLOP_BYTES));
    planner_release(&s);
    m.in.walks = 2;
    assert_ok(planner_solve(&m.in, 1, &limits, &s, &error));
    assert_int_equal(s.phases[0].staging_bytes, 0); /* all four stay in RAM, nothing is staged */
    assert_int_equal(s.ram_bytes, 4 * (64 << 10));
    planner_release(&s);
}

/* ---- the wire ---- */

static struct plan_phase solve_one(
    const struct plan_model *m, struct plan_limits limits, struct plan_solution *s)
{
    struct shoal_error error = {0};

    limits.rates = &m->rates;
    assert_ok(planner_solve(&m->in, 1, &limits, s, &error));
    return s->phases[0];
}

/* wire.md's example: 24 GB of weights, 8 GB for them, a link that limits. */
static void test_packed_residents(void **state)
{
    struct plan_model m = {
        .rates = {
            .link_bytes = 25e9, .disk_bytes = 3e9, .unpack_bytes = 1000e9, .pack_bytes = 20e9}};
    struct plan_limits limits = unlimited();
    struct plan_solution s;
    struct plan_phase p;
    double raw, packed;

    (void)state;
    model_uniform(&m, 240, 100000000, 0.7, 0.0005);
    m.in.walks = 30;
    limits.vram_bytes = 8000000000;
    limits.wire = SHOAL_WIRE_RAW;
    p = solve_one(&m, limits, &s);
    raw = (double)p.stream_bytes;
    assert_true(fabs(raw / 16e9 - 1) < 0.03);
    assert_int_equal(p.packed_count, 0);
    planner_release(&s);
    limits.wire = SHOAL_WIRE_AUTO;
    p = solve_one(&m, limits, &s);
    packed = (double)p.stream_bytes;
    assert_int_equal(p.packed_count, 240);
    assert_true(fabs(raw / packed / 1.82 - 1) < 0.03);
    assert_int_equal(p.limit, PLAN_LIMIT_LINK);
    assert_int_equal(p.unpack_bytes, 100000000);
    assert_true(p.peak_bytes <= limits.vram_bytes);
    planner_release(&s);
}

/* A first walk that takes nearly all of the time makes no other walk's time equal. */
static void test_later_walks_count(void **state)
{
    struct plan_model m = {.rates = {.link_bytes = 54e9, .disk_bytes = 1.8e9}};
    struct plan_limits limits = unlimited();
    struct plan_solution s;
    double chosen;

    (void)state;
    model_uniform(&m, 32, 362000000, 0, 0.0007);
    m.in.walks = 6;
    limits.wire = SHOAL_WIRE_RAW;
    limits.vram_bytes = 17 * 362000000ull + 10 * MIB;
    chosen = solve_one(&m, limits, &s).walk_seconds;
    planner_release(&s);
    limits.prefetch_slots = 2;
    assert_true(chosen <= solve_one(&m, limits, &s).walk_seconds * 1.01);
    planner_release(&s);
}

/* Raw where arithmetic hides the copies anyway, and packing costs; in between, some of each. */
static void test_wire_choice(void **state)
{
    struct plan_model m = {
        .rates = {
            .link_bytes = 25e9, .disk_bytes = 25e9, .unpack_bytes = 100e9, .pack_bytes = 50e9}};
    const double copy = 100e6 / 25e9; /* of a block, raw */
    struct plan_limits limits = unlimited();
    struct plan_solution s;
    struct plan_phase p;

    (void)state;
    limits.resident_blocks = 0;
    model_uniform(&m, 60, 100000000, 0.7, 1.1 * copy);
    m.in.walks = 30;
    p = solve_one(&m, limits, &s);
    assert_int_equal(p.packed_count, 0);
    assert_int_equal(p.limit, PLAN_LIMIT_COMPUTE);
    planner_release(&s);
    /* 0.85 + 0.25 of unpacking is more than 1, but half of that is less. */
    model_uniform(&m, 60, 100000000, 0.7, 0.8 * copy);
    p = solve_one(&m, limits, &s);
    assert_true(p.packed_count > 0 && p.packed_count < 60);
    assert_true(p.walk_seconds < 60 * copy * 0.95);
    planner_release(&s);
    limits.wire = SHOAL_WIRE_PACKED;
    p = solve_one(&m, limits, &s);
    assert_int_equal(p.packed_count, 60);
    planner_release(&s);
}

/* A file of packed weights: what streams is packed; raw only if all of it is resident. */
static void test_packed_file(void **state)
{
    struct plan_model m = {.rates = rates};
    struct plan_limits limits = unlimited();
    struct plan_solution s;
    struct plan_phase p;
    /* Each crosses the ring packed, to be unpacked once. */
    uint64_t all = 10 * size_align(100000000, 256) + size_align(70000000, 256);

    (void)state;
    model_uniform(&m, 10, 100000000, 0.7, 0.001);
    m.in.walks = 8;
    m.in.source = PLAN_SOURCE_PACKED;
    limits.wire = SHOAL_WIRE_RAW;
    p = solve_one(&m, limits, &s);
    assert_true(s.fits && !s.needs_packed);
    assert_int_equal(p.resident_count, 10);
    assert_int_equal(p.packed_count, 0);
    assert_int_equal(s.least_bytes, all);
    assert_int_equal(p.first_disk_bytes, 10 * size_align(70000000, 4096)); /* read packed */
    planner_release(&s);
    limits.vram_bytes = all - 1;
    p = solve_one(&m, limits, &s);
    assert_true(!s.fits && s.needs_packed);
    planner_release(&s);
    limits.wire = SHOAL_WIRE_AUTO;
    p = solve_one(&m, limits, &s);
    assert_true(s.fits && !s.needs_packed);
    for (int i = 0; i < 10; i++)
        assert_true(p.blocks[i].resident || p.blocks[i].packed);
    planner_release(&s);
    /* No budget makes this possible. */
    limits.vram_bytes = SHOAL_UNLIMITED;
    limits.wire = SHOAL_WIRE_RAW;
    limits.resident_blocks = 3;
    p = solve_one(&m, limits, &s);
    assert_true(!s.fits && s.needs_packed);
    assert_true(s.least_bytes == SHOAL_UNLIMITED);
    planner_release(&s);
}

/* Packed, one slot is enough for the next block's copy to go on beside the arithmetic. */
static void test_packed_in_one_slot(void **state)
{
    struct plan_model m = {.rates = rates};
    struct plan_limits limits = unlimited();

    (void)state;
    limits.resident_blocks = 0;
    for (int packed = 0; packed < 2; packed++) {
        struct plan_solution s;
        struct plan_phase p;

        model_uniform(&m, 10, 100000000, packed * 0.7, 1e8 / rates.link_bytes);
        m.in.walks = 8;
        m.in.source = packed ? PLAN_SOURCE_PACKED : PLAN_SOURCE_RAW;
        p = solve_one(&m, limits, &s);
        assert_true(s.fits && p.packed_count == (packed ? 10 : 0));
        assert_true(packed ? p.slots == 1 : p.slots > 1);
        planner_release(&s);
    }
}

/* What we pack ourselves is not on disk: it waits in RAM, or stays raw. */
static void test_packed_by_us(void **state)
{
    struct plan_model m = {.rates = rates};
    struct plan_limits limits = unlimited();
    struct plan_solution s;
    struct plan_phase p;

    (void)state;
    model_uniform(&m, 10, 100000000, 0.7, 0.0001);
    m.in.walks = 8;
    limits.resident_blocks = 0;
    limits.ram_bytes = 300 * MIB;
    p = solve_one(&m, limits, &s);
    assert_true(s.fits && p.disk_count > 0);
    for (int i = 0; i < 10; i++)
        assert_false(p.blocks[i].disk && p.blocks[i].packed);
    planner_release(&s);
    limits.wire = SHOAL_WIRE_PACKED;
    p = solve_one(&m, limits, &s);
    assert_false(s.fits_ram);
    assert_true(s.least_ram_bytes > 700000000 && s.least_ram_bytes < 720000000);
    planner_release(&s);
    /* Residents are packed through an image of one of them. */
    limits.ram_bytes = SHOAL_UNLIMITED;
    limits.resident_blocks = 10;
    limits.vram_bytes = 10 * size_align(70000000, 256) + 101 * MIB;
    m.rates.unpack_bytes = 1e15;
    p = solve_one(&m, limits, &s);
    assert_true(s.fits && p.packs && p.packed_count > 0);
    assert_int_equal(p.packing_bytes, size_align(70000000, 4096));
    assert_int_equal(p.ram_bytes, p.staging_bytes + p.packing_bytes);
    planner_release(&s);
    /* By itself it makes no budget smaller. */
    limits.vram_bytes = SHOAL_UNLIMITED;
    limits.resident_blocks = SHOAL_AUTO;
    limits.prefetch_slots = 6;
    p = solve_one(&m, limits, &s);
    assert_true(s.least_bytes < 600000000);
    planner_release(&s);
    limits.wire = SHOAL_WIRE_AUTO;
    p = solve_one(&m, limits, &s);
    assert_int_equal(s.least_bytes, 6 * size_align(100000000, 256));
    limits.vram_bytes = s.least_bytes - 1;
    planner_release(&s);
    p = solve_one(&m, limits, &s);
    assert_false(s.fits);
    planner_release(&s);
    limits = unlimited();
    limits.resident_blocks = 0;
    limits.ram_bytes = 300 * MIB;
    limits.wire = SHOAL_WIRE_PACKED;
    m.in.source = PLAN_SOURCE_PACKED;
    p = solve_one(&m, limits, &s);
    assert_true(s.fits && p.packed_count == 10 && p.disk_count > 0);
    planner_release(&s);
}

/* ---- what must hold of every model ---- */

/* The sums are those of the placements, and within the budgets. */
static void check_phase(const struct plan_model *m, const struct plan_phase *p,
    const struct plan_limits *limits, bool fits)
{
    uint64_t resident = 0, stream = 0, disk = 0, tier = 0, unpack = 0, largest = 0, crossing = 0;
    uint64_t packing = 0;
    int32_t residents = 0, packed = 0, disks = 0;

    for (int32_t i = 0; i < p->block_count; i++) {
        const struct plan_placement at = p->blocks[i];
        const struct plan_form *form = simulate_form(&m->blocks[i], at);

        assert_true(form->bytes > 0);
        assert_false(at.resident && at.disk);
        residents += at.resident;
        packed += at.packed;
        disks += at.disk;
        if (at.packed && m->blocks[i].unpacked_bytes > unpack) unpack = m->blocks[i].unpacked_bytes;
        if (at.resident) resident += form->bytes;
        if (at.resident && at.packed && m->in.source == PLAN_SOURCE_RAW &&
            form->host_bytes > packing)
            packing = form->host_bytes;
        if (at.resident && !at.packed && m->in.source == PLAN_SOURCE_PACKED &&
            m->blocks[i].packed.bytes > crossing)
            crossing = m->blocks[i].packed.bytes;
        if (at.resident) continue;
        if (fits && m->in.source == PLAN_SOURCE_PACKED) assert_true(at.packed);
        stream += form->bytes;
        if (form->bytes > largest) largest = form->bytes;
        if (at.disk) {
            assert_false(at.packed && m->in.source == PLAN_SOURCE_RAW);
            disk += form->host_bytes;
        } else {
            tier += form->host_bytes;
        }
    }
    assert_int_equal(residents, p->resident_count);
    assert_int_equal(packed, p->packed_count);
    assert_int_equal(disks, p->disk_count);
    assert_int_equal(resident, p->resident_bytes);
    assert_int_equal(stream, p->stream_bytes);
    assert_int_equal(disk, p->disk_bytes);
    assert_int_equal(tier, p->tier_bytes);
    assert_int_equal(unpack, p->unpack_bytes);
    assert_true(p->ring_bytes >= largest && p->ring_bytes >= crossing);
    assert_true(p->ring_bytes <= stream || p->ring_bytes == crossing);
    assert_int_equal(
        p->peak_bytes, p->globals_bytes + resident + p->ring_bytes + unpack + p->scratch_bytes);
    assert_int_equal(packing, p->packing_bytes);
    assert_int_equal(p->packs, packed && m->in.source == PLAN_SOURCE_RAW);
    assert_int_equal(p->ram_bytes, p->staging_bytes + tier + packing);
    if (m->in.walks == 1) assert_int_equal(tier, 0);
    if (!fits) return;
    assert_true(p->peak_bytes <= limits->vram_bytes);
    assert_true(p->ram_bytes + limits->process_bytes <= limits->ram_bytes);
}

static struct plan_limits limits_random(const struct plan_model *m, uint64_t *seed)
{
    struct plan_limits limits = unlimited();
    uint64_t all = 0;

    for (int32_t i = 0; i < m->in.block_count; i++)
        all += m->blocks[i].raw.bytes;
    limits.process_bytes = (uint64_t)test_int(seed, 0, 100) * MIB;
    if (test_int(seed, 0, 3))
        limits.vram_bytes = (uint64_t)test_real(seed, 0, 1.2) * all + m->in.scratch_bytes;
    if (test_int(seed, 0, 1)) limits.vram_bytes = (uint64_t)(test_real(seed, 0, 1.2) * (double)all);
    if (test_int(seed, 0, 1)) limits.ram_bytes = (uint64_t)(test_real(seed, 0, 1.2) * (double)all);
    limits.wire = (enum shoal_wire)test_int(seed, 0, 2);
    if (test_int(seed, 0, 3) == 0) limits.resident_blocks = test_int(seed, 0, m->in.block_count);
    limits.buffer = (enum shoal_buffer)test_int(seed, 0, 2);
    return limits;
}

/* Whether it fits is what the least budgets say, and those are exact. */
static void test_refusals_are_exact(void **state)
{
    uint64_t seed = 11;

    (void)state;
    for (int round = 0; round < 400; round++) {
        struct plan_model m;
        struct plan_solution s;
        struct plan_limits limits;
        uint64_t least, least_ram;

        model_random(&m, &seed);
        limits = limits_random(&m, &seed);
        solve_one(&m, limits, &s);
        check_phase(&m, &s.phases[0], &limits, s.fits);
        least = s.least_bytes;
        assert_int_equal(s.fits, least <= limits.vram_bytes && least != SHOAL_UNLIMITED &&
                                     s.least_ram_bytes <= limits.ram_bytes);
        planner_release(&s);
        if (least == SHOAL_UNLIMITED) continue;
        /* Exactly the least device budget, with host memory to spare. */
        limits.ram_bytes = SHOAL_UNLIMITED;
        limits.vram_bytes = least;
        solve_one(&m, limits, &s);
        assert_true(s.fits);
        /* What we pack makes plans faster, and no budget smaller unless it was asked for. */
        if (limits.wire != SHOAL_WIRE_AUTO || !s.phases[0].packs)
            assert_int_equal(s.peak_bytes, least);
        check_phase(&m, &s.phases[0], &limits, true);
        least_ram = s.least_ram_bytes;
        planner_release(&s);
        limits.vram_bytes--;
        solve_one(&m, limits, &s);
        assert_false(s.fits);
        assert_int_equal(s.least_bytes, least);
        planner_release(&s);
        /* And exactly the least host memory with that. */
        limits.vram_bytes++;
        limits.ram_bytes = least_ram;
        solve_one(&m, limits, &s);
        assert_true(s.fits);
        check_phase(&m, &s.phases[0], &limits, true);
        planner_release(&s);
        limits.ram_bytes--;
        solve_one(&m, limits, &s);
        assert_true(!s.fits && !s.fits_ram);
        planner_release(&s);
    }
}

/* More memory never makes a slower plan, but for what counts as a tie. */
static void test_more_is_not_slower(void **state)
{
    uint64_t seed = 3;
    double worst = 0;

    (void)state;
    for (int round = 0; round < 120; round++) {
        struct plan_model m;
        struct plan_solution s;
        struct plan_limits limits;
        bool host = round % 2;
        double last = INFINITY;
        uint64_t most, least;

        model_random(&m, &seed);
        limits = limits_random(&m, &seed);
        if (host) limits.vram_bytes = SHOAL_UNLIMITED;
        limits.ram_bytes = SHOAL_UNLIMITED;
        if (limits.resident_blocks == m.in.block_count) limits.resident_blocks = SHOAL_AUTO;
        if (host && limits.resident_blocks == SHOAL_AUTO) limits.resident_blocks = 0;
        solve_one(&m, limits, &s);
        least = host ? s.least_ram_bytes : s.least_bytes;
        most = host ? s.ram_bytes : s.full_bytes;
        planner_release(&s);
        if (least == SHOAL_UNLIMITED) continue;
        for (int i = 0; i <= 12; i++) {
            uint64_t budget = least + (most > least ? (most - least) / 12 * (uint64_t)i : 0);

            if (host)
                limits.ram_bytes = budget;
            else
                limits.vram_bytes = budget;
            solve_one(&m, limits, &s);
            assert_true(s.fits);
            if (s.seconds / last - 1 > worst) worst = s.seconds / last - 1;
            if (s.seconds < last) last = s.seconds;
            planner_release(&s);
        }
    }
    print_message("the most that a larger budget was slower: %.4f\n", worst);
    assert_true(worst < 0.013);
}

/* A plan is made while someone waits: 60 blocks and all their choices in well under 30 ms. */
static void test_cheap(void **state)
{
    struct plan_model m = {.rates = {.link_bytes = 25e9,
                               .disk_bytes = 3e9,
                               .unpack_bytes = 300e9,
                               .pack_bytes = 20e9,
                               .copy_tax = 0.037}};
    struct plan_limits limits = unlimited();
    double worst = 0;

    (void)state;
    model_uniform(&m, 60, 680000000, 0.69, 0.02);
    m.in.scratch_bytes = GIB;
    m.in.walks = 50;
    m.in.source = PLAN_SOURCE_RAW;
    for (uint64_t gib = 4; gib <= 32; gib += 4) {
        double best = INFINITY;

        for (int i = 0; i < 3; i++) {
            struct plan_solution s;
            struct timespec from, to;

            limits.vram_bytes = gib * GIB;
            limits.ram_bytes = gib % 8 ? SHOAL_UNLIMITED : 16 * GIB;
            clock_gettime(CLOCK_MONOTONIC, &from);
            solve_one(&m, limits, &s);
            clock_gettime(CLOCK_MONOTONIC, &to);
            best = fmin(best,
                (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9);
            planner_release(&s);
        }
        worst = fmax(worst, best);
    }
    print_message("a phase of 60 blocks: %.2f ms at most\n", worst * 1e3);
}

/* ---- options ---- */

static void test_bad_options(void **state)
{
    static const struct {
        int32_t residents, slots;
        enum shoal_buffer buffer;
        int wire;
        const char *names;
    } cases[] = {
        {11, SHOAL_AUTO, SHOAL_BUFFER_AUTO, 0, "--resident-blocks"},
        {-2, SHOAL_AUTO, SHOAL_BUFFER_AUTO, 0, "--resident-blocks"},
        {SHOAL_AUTO, 1, SHOAL_BUFFER_AUTO, 0, "--prefetch-slots"},
        {SHOAL_AUTO, 7, SHOAL_BUFFER_AUTO, 0, "--prefetch-slots"},
        {SHOAL_AUTO, 3, SHOAL_BUFFER_SINGLE, 0, "--buffer single"},
        {SHOAL_AUTO, SHOAL_AUTO, SHOAL_BUFFER_AUTO, 3, "--wire"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plan_limits limits = unlimited();
        struct shoal_error error = {0};
        struct plan_solution s;

        limits.resident_blocks = cases[i].residents;
        limits.prefetch_slots = cases[i].slots;
        limits.buffer = cases[i].buffer;
        limits.wire = (enum shoal_wire)cases[i].wire;
        assert_int_equal(planner_solve(inputs, 2, &limits, &s, &error), SHOAL_E_INVALID);
        assert_non_null(strstr(error.text, cases[i].names));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unlimited),
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_one_byte_short),
        cmocka_unit_test(test_context),
        cmocka_unit_test(test_residents_are_spread),
        cmocka_unit_test(test_slots_and_buffers),
        cmocka_unit_test(test_uneven_blocks),
        cmocka_unit_test(test_tiers),
        cmocka_unit_test(test_ram_one_page_short),
        cmocka_unit_test(test_small_phase),
        cmocka_unit_test(test_packed_residents),
        cmocka_unit_test(test_later_walks_count),
        cmocka_unit_test(test_wire_choice),
        cmocka_unit_test(test_packed_file),
        cmocka_unit_test(test_packed_in_one_slot),
        cmocka_unit_test(test_packed_by_us),
        cmocka_unit_test(test_refusals_are_exact),
        cmocka_unit_test(test_more_is_not_slower),
        cmocka_unit_test(test_cheap),
        cmocka_unit_test(test_bad_options),
    };

    return cmocka_run_group_tests(tests, make_models, NULL);
}
