/* Made-up models for the tests of the planner and of its simulation. */
#ifndef TESTS_PLAN_MODELS_H
#define TESTS_PLAN_MODELS_H

#include "support.h"

#include "base/size.h"
#include "plan/simulate.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define MOST_BLOCKS 256

struct plan_model {
    struct plan_block_input blocks[MOST_BLOCKS];
    struct plan_input in;
    struct rates rates;
};

static inline struct plan_form form_of(uint64_t bytes)
{
    return (struct plan_form){size_align(bytes, 256), size_align(bytes, 4096)};
}

/* `count` equal blocks, without a packed form if `packed` is 0. */
static inline void model_uniform(
    struct plan_model *m, int32_t count, uint64_t bytes, double packed, double compute_seconds)
{
    for (int32_t i = 0; i < count; i++)
        m->blocks[i] = (struct plan_block_input){.raw = form_of(bytes),
            .packed = form_of((uint64_t)((double)bytes * packed)),
            .unpacked_bytes = packed > 0 ? bytes : 0,
            .compute_seconds = compute_seconds};
    m->in.name = "steps";
    m->in.block_count = count;
    m->in.blocks = m->blocks;
    m->in.main = true;
}

static inline double test_real(uint64_t *seed, double low, double high)
{
    return low + (high - low) * test_random(seed) / 4294967296.0 * 2;
}

static inline int32_t test_int(uint64_t *seed, int32_t low, int32_t high)
{
    return low + (int32_t)(test_random(seed) % (uint32_t)(high - low + 1));
}

/* A model of two kinds of blocks, and rates, of any proportion. */
static inline void model_random(struct plan_model *m, uint64_t *seed)
{
    int32_t count = test_int(seed, 1, 64);
    uint64_t sizes[2] = {(uint64_t)(test_real(seed, 0.01, 1) * 700 * (double)MIB), 0};
    bool has_packed = test_int(seed, 0, 3) != 0;

    memset(m, 0, sizeof *m);
    sizes[1] = test_int(seed, 0, 1) ? sizes[0] : sizes[0] / 3 + 1;
    m->rates = (struct rates){
        .link_bytes = test_real(seed, 3e9, 60e9),
        .disk_bytes = test_real(seed, 0.3e9, 8e9),
        .unpack_bytes = test_real(seed, 5e9, 500e9),
        .pack_bytes = test_real(seed, 2e9, 50e9),
        .copy_tax = test_int(seed, 0, 1) ? 0.037 : 0,
        .read_tax = test_int(seed, 0, 1) ? 0.05 : 0,
    };
    model_uniform(m, count, sizes[0], 0, 0);
    double scale = test_real(seed, 0, 2) / m->rates.link_bytes;
    double ratio = test_real(seed, 0.6, 0.95);

    if (test_int(seed, 0, 3) == 0) scale = test_real(seed, 0, 2) / m->rates.disk_bytes;
    for (int32_t i = 0; i < count; i++) {
        uint64_t bytes = sizes[i * 3 > count];

        m->blocks[i] = (struct plan_block_input){
            .raw = form_of(bytes), .compute_seconds = scale * (double)bytes};
        if (!has_packed) continue;
        m->blocks[i].packed = form_of((uint64_t)((double)bytes * ratio));
        m->blocks[i].unpacked_bytes = bytes;
    }
    m->in.globals = form_of((uint64_t)test_int(seed, 0, 50) * MIB);
    m->in.scratch_bytes = (uint64_t)test_int(seed, 0, 2000) * MIB;
    m->in.walks = test_int(seed, 0, 3) ? test_int(seed, 2, 50) : 1;
    m->in.source = (enum plan_source)test_int(seed, 0, 1);
    if (!has_packed) m->in.source = PLAN_SOURCE_RAW;
}

/* Fills the sums of a phase whose blocks are placed, but for host memory. */
static inline void phase_add_up(const struct plan_model *m, struct plan_phase *p, int slots)
{
    uint64_t largest = 0;

    p->block_count = m->in.block_count;
    p->globals_bytes = m->in.globals.bytes;
    p->first_disk_bytes = m->in.globals.host_bytes;
    for (int32_t i = 0; i < m->in.block_count; i++) {
        const struct plan_block_input *b = &m->blocks[i];
        const struct plan_form *form = p->blocks[i].packed ? &b->packed : &b->raw;

        p->compute_seconds += b->compute_seconds;
        if (p->blocks[i].packed)
            p->compute_seconds += (double)b->unpacked_bytes / m->rates.unpack_bytes;
        p->first_disk_bytes += simulate_first_read(b, m->in.source);
        if (p->blocks[i].disk) p->disk_bytes += form->host_bytes;
        if (p->blocks[i].resident) {
            p->resident_bytes += form->bytes;
        } else {
            p->stream_bytes += form->bytes;
            if (form->bytes > largest) largest = form->bytes;
        }
    }
    p->ring_bytes = largest * (uint64_t)slots;
    if (p->ring_bytes > p->stream_bytes) p->ring_bytes = p->stream_bytes;
}

#endif
