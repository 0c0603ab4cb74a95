/* Predicted times: cases that can be worked out by hand, and every chunk followed one by one. */
#include "plan_models.h"

#include "base/ring.h"

#include <math.h>
#include <stdlib.h>

#define WALKS 6

/* ---- the same queues, chunk by chunk ---- */

struct chunks {
    double disk, packer, link;
    double *left;    /* when each staged chunk has been copied */
    uint64_t *bytes; /* that it takes in the staging ring */
    size_t count, first;
    uint64_t in_use, staging_bytes;
};

static double chunks_move(struct chunks *c, const struct rates *rates, uint64_t read, uint64_t copy,
    bool staged, uint64_t pack, double room)
{
    int64_t n = read ? (int64_t)((read + PLAN_CHUNK_BYTES - 1) / PLAN_CHUNK_BYTES) : 1;

    for (int64_t i = 0; i < n; i++) {
        double part = read ? fmin(PLAN_CHUNK_BYTES, (double)read - (double)i * PLAN_CHUNK_BYTES) /
                                 (double)read
                           : 1;
        uint64_t takes = (uint64_t)(part * (double)read) + PLAN_CHUNK_SLOP_BYTES;
        double at = 0, issue = c->disk;

        if (read) {
            while (staged && c->in_use + takes > c->staging_bytes && c->first < c->count) {
                issue = fmax(issue, c->left[c->first]);
                c->in_use -= c->bytes[c->first++];
            }
            at = c->disk = issue + part * (double)read / rates->disk_bytes;
            if (pack)
                at = c->packer = fmax(c->packer, at) + part * (double)pack / rates->pack_bytes;
        }
        c->link = fmax(c->link, fmax(at, room)) + part * (double)copy / rates->link_bytes;
        if (!read || !staged) continue;
        c->left[c->count] = c->link;
        c->bytes[c->count++] = takes;
        c->in_use += takes;
    }
    return c->link;
}

/* When each walk ends. */
static void follow(const struct plan_model *m, const struct plan_phase *p, int walks, double *ends)
{
    const struct rates *r = &m->rates;
    const size_t most = (size_t)walks * MOST_BLOCKS * 200;
    struct chunks c = {.staging_bytes = p->staging_bytes,
        .left = calloc(most, sizeof *c.left),
        .bytes = calloc(most, sizeof *c.bytes)};
    double released[RING_MAX_SPANS] = {0}, compute = 0;
    uint64_t streamed = 0;
    struct ring ring;

    ring_init(&ring, p->ring_bytes);
    if (m->in.globals.bytes)
        compute = chunks_move(&c, r, m->in.globals.host_bytes, m->in.globals.bytes, true, 0, 0);
    for (int w = 0; w < walks; w++) {
        double link = w ? (double)p->stream_bytes
                        : (double)(p->stream_bytes + p->resident_bytes + p->globals_bytes);
        double disk = w ? (double)p->disk_bytes : (double)p->first_disk_bytes;
        double tax = p->compute_seconds > 0
                         ? 1 + r->copy_tax * fmin(1, link / r->link_bytes / p->compute_seconds) +
                               r->read_tax * fmin(1, disk / r->disk_bytes / p->compute_seconds)
                         : 1;

        for (int32_t i = 0; i < m->in.block_count; i++) {
            const struct plan_block_input *b = &m->blocks[i];
            const struct plan_placement at = p->blocks[i];
            const struct plan_form *form = at.packed ? &b->packed : &b->raw;
            bool packs = at.packed && m->in.source == PLAN_SOURCE_RAW;
            bool once = !w && m->in.source == PLAN_SOURCE_PACKED && b->packed.bytes;
            uint64_t read =
                w ? at.disk ? form->host_bytes : 0 : simulate_first_read(b, m->in.source);
            double room = 0, ready = 0, freed, unpacking = 0;

            if (!at.resident) {
                uint64_t offset, retired[RING_MAX_SPANS];
                int32_t count;

                ring_place(&ring, form->bytes, streamed, UINT64_MAX, &offset, retired, &count);
                if (count) room = released[retired[count - 1] % RING_MAX_SPANS];
            }
            if (!w || !at.resident)
                ready = chunks_move(&c, r, read, form->bytes, (at.resident || at.disk) && !packs,
                    packs && !w ? b->raw.bytes : 0, room);
            if (at.packed || once) unpacking = tax * (double)b->unpacked_bytes / r->unpack_bytes;
            freed = fmax(compute, ready) + unpacking / RING_PARTS;
            compute = fmax(compute, ready) + unpacking + tax * b->compute_seconds;
            if (!at.resident) released[streamed++ % RING_MAX_SPANS] = at.packed ? freed : compute;
        }
        ends[w] = compute;
    }
    free(c.left);
    free(c.bytes);
}

/* ---- layouts ---- */

/* Placements that the sources allow, otherwise at random. */
static void place_random(const struct plan_model *m, struct plan_phase *p, uint64_t *seed)
{
    int residents = test_int(seed, 0, 100), packed = test_int(seed, 0, 1) * test_int(seed, 0, 100);
    int disk = test_int(seed, 0, 1) * test_int(seed, 0, 100);

    for (int32_t i = 0; i < m->in.block_count; i++) {
        struct plan_placement *at = &p->blocks[i];

        at->resident = test_int(seed, 0, 99) < residents;
        at->packed = m->blocks[i].packed.bytes && test_int(seed, 0, 99) < packed;
        if (m->in.source == PLAN_SOURCE_PACKED && !at->resident) at->packed = true;
        at->disk = !at->resident && test_int(seed, 0, 99) < disk &&
                   !(at->packed && m->in.source == PLAN_SOURCE_RAW);
    }
}

/* On average the flow is off by next to nothing; by more than 1 % only where a whole walk takes a
 * few chunks, or two of them share the staging ring. */
static void test_every_chunk(void **state)
{
    uint64_t seed = 6;
    double worst = 0, sum = 0;
    const int rounds = 4000;
    int far = 0;

    (void)state;
    for (int round = 0; round < rounds; round++) {
        struct plan_placement blocks[MOST_BLOCKS] = {0};
        struct plan_phase p = {.blocks = blocks};
        struct plan_model m;
        double ends[WALKS], error;

        model_random(&m, &seed);
        m.in.walks = test_int(&seed, 1, WALKS);
        place_random(&m, &p, &seed);
        phase_add_up(&m, &p, test_int(&seed, 1, PLAN_MAX_SLOTS));
        p.staging_bytes = (uint64_t)test_int(&seed, PLAN_LEAST_CHUNKS, 40) *
                          (PLAN_CHUNK_BYTES + PLAN_CHUNK_SLOP_BYTES);
        follow(&m, &p, (int)m.in.walks, ends);
        simulate(&m.in, &m.rates, &p);
        error = fabs(p.seconds / ends[m.in.walks - 1] - 1);
        worst = fmax(worst, error);
        sum += error;
        far += error > 0.01;
    }
    print_message(
        "largest error %.4f, mean %.6f, above 1 %%: %d of %d\n", worst, sum / rounds, far, rounds);
    assert_true(worst < 0.06);
    assert_true(sum / rounds < 0.0005);
    assert_true(far * 500 < rounds);
}

/* ---- by hand ---- */

#define BLOCKS 10
#define SECOND 1e9 /* bytes of a block, and what each queue moves in a second */

/* Ten blocks of a billion bytes, none resident, all placed `at`, through a ring of so many slots.
 */
static struct plan_phase run(
    struct plan_model *m, int slots, int64_t walks, struct plan_placement at)
{
    static struct plan_placement blocks[BLOCKS];
    struct plan_phase p = {.blocks = blocks};

    model_uniform(m, BLOCKS, (uint64_t)SECOND, at.packed, m->blocks[0].compute_seconds);
    m->in.walks = walks;
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = at;
    phase_add_up(m, &p, slots);
    p.staging_bytes = 16 * (PLAN_CHUNK_BYTES + PLAN_CHUNK_SLOP_BYTES);
    simulate(&m->in, &m->rates, &p);
    return p;
}

static void assert_near(double value, double expected)
{
    if (fabs(value / expected - 1) > 0.01) fail_msg("%g, not %g", value, expected);
}

static void test_limits(void **state)
{
    const struct plan_placement ram = {0}, disk = {.disk = true};
    struct plan_model m = {.rates = {.link_bytes = SECOND, .disk_bytes = SECOND / 2}};
    struct plan_phase p;

    (void)state;
    /* The link: a second a block, whatever the arithmetic, if that is less. */
    m.blocks[0].compute_seconds = 0.5;
    p = run(&m, 2, 20, ram);
    assert_near(p.walk_seconds, 10);
    assert_int_equal(p.limit, PLAN_LIMIT_LINK);
    /* Loading is the disk's two seconds a block, and the last block's arithmetic. */
    assert_near(p.first_walk_seconds, 20.5);
    assert_near(p.seconds, 20.5 + 19 * 10);
    /* Arithmetic hides the copies... */
    m.blocks[0].compute_seconds = 1.5;
    p = run(&m, 2, 20, ram);
    assert_near(p.walk_seconds, 15);
    assert_int_equal(p.limit, PLAN_LIMIT_COMPUTE);
    /* ...but not with a single buffer, where one waits for the other. */
    p = run(&m, 1, 20, ram);
    assert_near(p.walk_seconds, 25);
    /* The disk: two seconds a block, walk after walk. */
    p = run(&m, 2, 20, disk);
    assert_near(p.walk_seconds, 20);
    assert_int_equal(p.limit, PLAN_LIMIT_DISK);
}

/* A packed block gives its bytes up while it is unpacked: with a single buffer too, the next one's
 * copy goes on beside the arithmetic. */
static void test_packed_in_one_slot(void **state)
{
    const struct plan_placement packed = {.packed = true};
    struct plan_model m = {
        .rates = {.link_bytes = SECOND, .disk_bytes = SECOND, .unpack_bytes = 4 * SECOND},
        .in.source = PLAN_SOURCE_PACKED};

    (void)state;
    /* A copy and a part of an unpacking, under which none goes on. */
    m.blocks[0].compute_seconds = 0.5;
    assert_near(run(&m, 1, 20, packed).walk_seconds, 10.625);
    /* With a second slot the copies go on beside that too. */
    assert_near(run(&m, 2, 20, packed).walk_seconds, 10);
    /* Arithmetic and unpacking hide the copies. */
    m.blocks[0].compute_seconds = 1.5;
    assert_near(run(&m, 1, 20, packed).walk_seconds, 17.5);
}

/* Copies and reads slow arithmetic for as long as they go on. */
static void test_taxes(void **state)
{
    struct plan_model m = {
        .rates = {.link_bytes = SECOND, .disk_bytes = SECOND, .copy_tax = 0.1, .read_tax = 0.3}};

    (void)state;
    m.blocks[0].compute_seconds = 2;
    assert_near(run(&m, 2, 20, (struct plan_placement){0}).walk_seconds, 20 + 0.1 * 10);
    assert_near(
        run(&m, 2, 20, (struct plan_placement){.disk = true}).walk_seconds, 20 + (0.1 + 0.3) * 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_packed_in_one_slot),
        cmocka_unit_test(test_taxes),
        cmocka_unit_test(test_every_chunk),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
