/* The planner: which layouts there are, which fit, and which of those is fastest. */
#include "plan/planner.h"

#include "base/memory.h"
#include "base/size.h"
#include "plan/simulate.h"

#include <math.h>

/* Predictions that differ by less, of all walks and of one, count as equal: then raw wins over
 * packed, then fewer bytes over the link, then fewer from disk, then fewer slots. Where arithmetic
 * hides the copies, packing has nothing to give. */
#define TIE 0.01
/* What cannot win more than this is not simulated. */
#define WORTH_A_TRY 0.002

/* So many counts of residents that gain nothing end the search for fewer. */
#define VAIN 8

/* How much is packed: quarters of the streamed blocks first, then quarters of the residents too. */
#define PACKED_NONE 0
#define PACKED_STREAMED 4
#define PACKED_ALL 8

/* The staging ring's size in chunks, by preference; the last is a block more than the default. */
static const uint64_t staging_chunks[] = {
    PLAN_DEFAULT_CHUNKS, 8, 4, PLAN_LEAST_CHUNKS, PLAN_DEFAULT_CHUNKS};
#define STAGINGS ((int)(sizeof staging_chunks / sizeof *staging_chunks))
#define STAGING_DEEP (STAGINGS - 1)

/* One way to lay a phase out. */
struct choice {
    int32_t residents, packed, slots, staging;
};

/* What a layout asks of host memory, before it is decided what waits on disk. */
struct waiting {
    uint64_t staged; /* room that all that must be staged would take at once */
    uint64_t tier;   /* images of all streamed blocks */
    int32_t movable; /* streamed blocks that may wait on disk */
};

/* The search for one phase's layout. */
struct search {
    const struct plan_input *in;
    const struct plan_limits *limits;
    struct plan_phase *phase;  /* the layout being tried */
    struct choice least, most; /* what the options allow */
    uint64_t host_bytes;       /* of the RAM budget, for weights */
    uint64_t device_bytes;     /* of the device budget, for the arena */

    struct choice at;
    struct waiting waiting;    /* of phase */
    uint64_t largest_stream;   /* block of phase, on the device */
    uint64_t largest_crossing; /* packed block that is unpacked once, to be resident */
    bool ties;                 /* the fastest is known; now for the one to prefer */
    double worth_seconds;      /* what takes longer need not be simulated */
    double best_seconds;
    double worth_walk_seconds; /* nor, of ties, whose later walks take longer than this */
    struct choice best;
    uint64_t best_stream_bytes, best_disk_bytes;
    int32_t best_packed;
};

/* ---- spreading ---- */

/*
 * Picks `count` of `of` things, spread evenly: the j-th is the one nearest (j + 1/2) of / count, so
 * that every gap between streamed blocks has compute to hide copies under.
 */
struct spread {
    int64_t sum, step, period;
};

static struct spread spread_init(int32_t count, int32_t of)
{
    return (struct spread){.sum = of - 1, .step = 2 * (int64_t)count, .period = 2 * (int64_t)of};
}

/* Whether the next one is picked. */
static bool spread_next(struct spread *s)
{
    s->sum += s->step;
    if (s->sum < s->period) return false;
    s->sum -= s->period;
    return true;
}

/* ---- layouts ---- */

/* Room in the staging ring for all of a read at once. */
static uint64_t staged_bytes(uint64_t read_bytes)
{
    uint64_t chunks = (read_bytes + PLAN_CHUNK_BYTES - 1) / PLAN_CHUNK_BYTES;

    return read_bytes + chunks * PLAN_CHUNK_SLOP_BYTES;
}

/* Whether a block may stream like this: what the files hold packed cannot stream raw. */
static bool may_stream(const struct plan_input *in, int32_t block, bool packed)
{
    return in->source != PLAN_SOURCE_PACKED || packed || !in->blocks[block].packed.bytes;
}

/* Adds a block that has been placed, but for the disk, to the phase's sums. */
static void add_block(struct search *s, int32_t index)
{
    const struct plan_input *in = s->in;
    const struct plan_block_input *block = &in->blocks[index];
    const struct plan_placement at = s->phase->blocks[index];
    const struct plan_form *form = simulate_form(block, at);
    struct plan_phase *out = s->phase;
    uint64_t read = simulate_first_read(block, in->source);

    out->first_disk_bytes += read;
    out->compute_seconds += block->compute_seconds;
    if (at.packed) {
        out->packed_count++;
        out->unpack_bytes = max_u64(out->unpack_bytes, block->unpacked_bytes);
        out->unpack_seconds += plan_open_seconds(block, s->limits->rates);
    }
    if (at.resident) {
        out->resident_bytes += form->bytes;
        /* What is unpacked once crosses the ring to get there. */
        if (at.packed && in->source == PLAN_SOURCE_RAW)
            out->packing_bytes = max_u64(out->packing_bytes, form->host_bytes);
        if (!at.packed && in->source == PLAN_SOURCE_PACKED)
            s->largest_crossing = max_u64(s->largest_crossing, block->packed.bytes);
        if (!at.packed) s->largest_crossing = max_u64(s->largest_crossing, block->crossing_bytes);
        s->waiting.staged += staged_bytes(read);
        return;
    }
    out->stream_bytes += form->bytes;
    s->largest_stream = max_u64(s->largest_stream, form->bytes);
    s->waiting.tier += form->host_bytes;
    /* What we pack is read through the staging ring, into the encoder; it stays in RAM then. */
    if (in->source == PLAN_SOURCE_RAW && at.packed)
        s->waiting.staged += staged_bytes(read);
    else
        s->waiting.movable++;
}

/* Fills the ring's side of the phase for s->at.slots. */
static void lay_ring(struct search *s)
{
    struct plan_phase *out = s->phase;

    out->slots = out->stream_bytes ? s->at.slots : 0;
    out->ring_bytes = max_u64(
        s->largest_crossing, min_u64(s->largest_stream * (uint64_t)s->at.slots, out->stream_bytes));
    out->peak_bytes = out->globals_bytes + out->resident_bytes + out->ring_bytes +
                      out->unpack_bytes + out->scratch_bytes;
}

/* Fills the device's side of the phase for s->at. False: not allowed, the files hold other forms.
 */
static bool lay_out(struct search *s)
{
    const struct plan_input *in = s->in;
    struct plan_phase *out = s->phase;
    const int32_t streamed = in->block_count - s->at.residents;
    const int32_t quarters = s->at.packed > PACKED_STREAMED ? PACKED_STREAMED : s->at.packed;
    struct spread residents = spread_init(s->at.residents, in->block_count);
    struct spread packed = spread_init(streamed * quarters / 4, streamed);
    struct spread lying =
        spread_init(s->at.residents * (s->at.packed - quarters) / 4, s->at.residents);
    bool allowed = true;

    out->resident_count = s->at.residents;
    out->packed_count = 0;
    out->globals_bytes = in->globals.bytes;
    out->resident_bytes = out->stream_bytes = out->unpack_bytes = out->packing_bytes = 0;
    out->scratch_bytes = in->scratch_bytes;
    out->first_disk_bytes = in->globals.host_bytes;
    out->compute_seconds = out->unpack_seconds = 0;
    s->largest_stream = 0;
    s->largest_crossing = in->globals_crossing_bytes;
    s->waiting = (struct waiting){.staged = staged_bytes(in->globals.host_bytes)};
    for (int32_t i = 0; i < in->block_count; i++) {
        struct plan_placement *at = &out->blocks[i];

        at->disk = false;
        at->resident = spread_next(&residents);
        at->packed = spread_next(at->resident ? &lying : &packed) && in->blocks[i].packed.bytes;
        if (!at->resident && !may_stream(in, i, at->packed)) allowed = false;
        add_block(s, i);
    }
    out->compute_seconds += out->unpack_seconds;
    out->packs = out->packed_count && in->source == PLAN_SOURCE_RAW;
    lay_ring(s);
    return allowed;
}

/* Fills the host's side, with so many of the blocks that may wait on disk there. */
static void put_on_disk(struct search *s, int32_t count)
{
    const struct plan_input *in = s->in;
    struct plan_phase *out = s->phase;
    struct spread disk = spread_init(count, s->waiting.movable);
    uint64_t size = staging_chunks[s->at.staging] * (PLAN_CHUNK_BYTES + PLAN_CHUNK_SLOP_BYTES);
    uint64_t staged = s->waiting.staged, largest = 0;

    out->disk_count = count;
    out->disk_bytes = 0;
    for (int32_t i = 0; i < in->block_count; i++) {
        struct plan_placement *at = &out->blocks[i];
        uint64_t bytes = simulate_form(&in->blocks[i], *at)->host_bytes;

        at->disk = false;
        if (at->resident || (in->source == PLAN_SOURCE_RAW && at->packed)) continue;
        at->disk = spread_next(&disk);
        if (!at->disk) continue;
        out->disk_bytes += bytes;
        staged += staged_bytes(bytes);
        largest = max_u64(largest, staged_bytes(bytes));
    }
    if (s->at.staging == STAGING_DEEP) size += largest;
    out->staging_bytes = min_u64(size, s->limits->all_staged ? staged + s->waiting.tier : staged);
    out->tier_bytes = s->waiting.tier - out->disk_bytes;
    out->ram_bytes = out->staging_bytes + out->tier_bytes + out->packing_bytes;
}

/* The same; whether that is within the RAM budget. */
static bool fits_host(struct search *s, int32_t count)
{
    put_on_disk(s, count);
    return s->phase->ram_bytes <= s->host_bytes;
}

/*
 * Decides what waits on disk: as little as the RAM budget allows; everything, if nothing is read
 * twice anyway. False: it does not fit.
 */
static bool fit_host(struct search *s)
{
    int32_t few = 0, many = s->waiting.movable;

    if (s->in->walks == 1) return fits_host(s, many);
    if (fits_host(s, few)) return true;
    if (!fits_host(s, many)) return false;
    /* Few is too few, many is enough. */
    while (many - few > 1) {
        int32_t middle = few + (many - few) / 2;

        if (fits_host(s, middle))
            many = middle;
        else
            few = middle;
    }
    return fits_host(s, many);
}

/* The least host memory with which this layout can do. */
static uint64_t least_host(struct search *s)
{
    uint64_t none = SHOAL_UNLIMITED;

    for (s->at.staging = 0; staging_chunks[s->at.staging] > PLAN_LEAST_CHUNKS; s->at.staging++)
        continue;
    if (s->in->walks > 1) {
        put_on_disk(s, 0);
        none = s->phase->ram_bytes;
    }
    put_on_disk(s, s->waiting.movable);
    return min_u64(none, s->phase->ram_bytes);
}

/* ---- the search ---- */

static void choices_init(struct search *s)
{
    const struct plan_input *in = s->in;
    const struct plan_limits *limits = s->limits;
    bool packs = false;

    s->least = (struct choice){.slots = 1};
    s->most = (struct choice){.residents = in->block_count, .slots = PLAN_MAX_SLOTS};
    for (int32_t i = 0; i < in->block_count; i++)
        packs |= in->blocks[i].packed.bytes != 0;
    /* Packing what is used once costs more than it saves. */
    if (in->source == PLAN_SOURCE_RAW && in->walks == 1) packs = false;
    if (packs && limits->widened && in->source == PLAN_SOURCE_RAW) {
        s->least.packed = s->most.packed = PACKED_STREAMED;
    } else if (packs && in->patched) {
        s->least.packed = PACKED_STREAMED;
        s->most.packed = PACKED_ALL;
    } else if (packs && limits->wire != SHOAL_WIRE_RAW) {
        s->most.packed = PACKED_ALL;
        if (limits->wire == SHOAL_WIRE_PACKED) s->least.packed = PACKED_STREAMED;
    }
    if (!in->main) return;
    if (limits->resident_blocks != SHOAL_AUTO)
        s->least.residents = s->most.residents = limits->resident_blocks;
    if (limits->buffer == SHOAL_BUFFER_SINGLE) s->most.slots = 1;
    if (limits->buffer == SHOAL_BUFFER_DOUBLE) s->least.slots = 2;
    if (limits->prefetch_slots != SHOAL_AUTO)
        s->least.slots = s->most.slots = limits->prefetch_slots;
}

/* Whether the layout wins over the best one if they take equal time. */
static bool preferred(const struct search *s)
{
    const struct plan_phase *p = s->phase;

    if (p->packed_count != s->best_packed) return p->packed_count < s->best_packed;
    if (p->stream_bytes != s->best_stream_bytes) return p->stream_bytes < s->best_stream_bytes;
    if (p->disk_bytes != s->best_disk_bytes) return p->disk_bytes < s->best_disk_bytes;
    if (s->at.slots != s->best.slots) return s->at.slots < s->best.slots;
    return s->at.staging < s->best.staging;
}

static bool worth_trying(const struct search *s)
{
    if (simulate_bound(s->in, s->limits->rates, s->phase) > s->worth_seconds) return false;
    return !s->ties || preferred(s);
}

/* Takes the layout if it is faster than the best, or preferred among those that are as fast. */
static void try_layout(struct search *s)
{
    simulate(s->in, s->limits->rates, s->phase);
    if (s->phase->seconds > (s->ties ? s->worth_seconds : s->best_seconds)) return;
    if (s->ties && s->phase->walk_seconds > s->worth_walk_seconds) return;
    s->best = s->at;
    s->best_stream_bytes = s->phase->stream_bytes;
    s->best_disk_bytes = s->phase->disk_bytes;
    s->best_packed = s->phase->packed_count;
    if (s->ties) return;
    s->best_seconds = s->phase->seconds;
    s->worth_walk_seconds = s->phase->walk_seconds * (1 + TIE);
    s->worth_seconds = s->best_seconds * (1 - WORTH_A_TRY);
}

/* Tries every depth of the ring with which the layout is within the budget. */
static void try_rings(struct search *s)
{
    for (s->at.slots = s->least.slots; s->at.slots <= s->most.slots; s->at.slots++) {
        lay_ring(s);
        if (s->phase->peak_bytes > s->device_bytes || !worth_trying(s)) return;
        try_layout(s);
        if (!s->phase->slots) return;
    }
}

/* Tries every depth of the staging ring with which the layout is within the budget. */
static void try_stagings(struct search *s)
{
    const struct plan_phase *phase = s->phase;
    int32_t disk = -1;

    for (s->at.staging = 0; s->at.staging < STAGINGS; s->at.staging++) {
        const bool deep = s->at.staging == STAGING_DEEP;

        s->at.slots = s->least.slots;
        /* A shallower one must save a read, a deeper one have some to do. */
        if (!fit_host(s) || (deep ? !phase->disk_count : phase->disk_count == disk)) continue;
        disk = phase->disk_count;
        try_rings(s);
    }
}

/* Tries the layouts within the budgets that may be fast enough, for one share of packing. */
static void try_residents(struct search *s)
{
    int32_t vain = 0;

    /* More residents are nearly always better, but blocks differ. */
    for (s->at.residents = s->most.residents; s->at.residents >= s->least.residents && vain < VAIN;
         s->at.residents--) {
        const double before = s->best_seconds;

        s->at.slots = s->least.slots;
        s->at.staging = 0;
        if (!lay_out(s) || s->phase->peak_bytes > s->device_bytes) continue;
        s->phase->disk_bytes = 0; /* at best */
        if (!worth_trying(s)) continue;
        try_stagings(s);
        vain = s->best_seconds < before || isinf(before) ? 0 : vain + 1;
    }
}

static void try_layouts(struct search *s)
{
    for (s->at.packed = s->least.packed; s->at.packed <= s->most.packed; s->at.packed++)
        try_residents(s);
}

/* Finds the least budgets; s->best becomes the layout to show if nothing fits. */
static void find_least(struct search *s)
{
    const bool ours = s->in->source == PLAN_SOURCE_RAW && !s->limits->widened &&
                      s->limits->wire == SHOAL_WIRE_AUTO;
    struct plan_phase *out = s->phase;

    s->at = (struct choice){.residents = s->in->block_count, .slots = s->least.slots};
    lay_out(s);
    out->full_bytes = out->peak_bytes;
    out->least_bytes = out->least_ram_bytes = SHOAL_UNLIMITED;
    s->best = s->most;
    s->at.slots = s->least.slots;
    for (s->at.packed = s->least.packed; s->at.packed <= (ours ? 0 : s->most.packed);
         s->at.packed++)
        for (s->at.residents = s->most.residents; s->at.residents >= s->least.residents;
             s->at.residents--) {
            uint64_t host;

            if (!lay_out(s)) continue;
            host = least_host(s);
            if (out->peak_bytes <= s->device_bytes) {
                if (host < out->least_ram_bytes) s->best = s->at;
                out->least_ram_bytes = min_u64(out->least_ram_bytes, host);
            }
            if (out->peak_bytes < out->least_bytes) {
                if (out->least_ram_bytes == SHOAL_UNLIMITED) s->best = s->at;
                out->least_bytes = out->peak_bytes;
            }
        }
}

/* What a fixed part leaves of a budget. */
static uint64_t beside(uint64_t budget, uint64_t part)
{
    return budget == SHOAL_UNLIMITED ? budget : budget > part ? budget - part : 0;
}

/* A need and the fixed part. */
static uint64_t with(uint64_t need, uint64_t part)
{
    return need < SHOAL_UNLIMITED - part ? need + part : SHOAL_UNLIMITED;
}

static void solve_phase(
    const struct plan_input *in, const struct plan_limits *limits, struct plan_phase *out)
{
    struct search s = {.in = in, .limits = limits, .phase = out};

    s.host_bytes = beside(limits->ram_bytes, limits->process_bytes);
    s.device_bytes = beside(limits->vram_bytes, limits->context_bytes);
    choices_init(&s);
    find_least(&s);
    if (out->least_bytes <= s.device_bytes && out->least_ram_bytes <= s.host_bytes) {
        s.best_seconds = s.worth_seconds = INFINITY;
        try_layouts(&s);
        s.worth_seconds = s.best_seconds * (1 + TIE);
        s.ties = true;
        try_layouts(&s);
    }
    s.at = s.best;
    lay_out(&s);
    if (!fit_host(&s)) put_on_disk(&s, s.waiting.movable);
    simulate(in, limits->rates, out);
}

/* ---- the solution ---- */

static enum shoal_status check_limits(
    const struct plan_input *main, const struct plan_limits *limits, struct shoal_error *error)
{
    if (limits->resident_blocks != SHOAL_AUTO &&
        (limits->resident_blocks < 0 || (main && limits->resident_blocks > main->block_count)))
        FAIL(error, SHOAL_E_INVALID,
            "--resident-blocks: %d is not between 0 and %d, the number of blocks that run in a "
            "step",
            limits->resident_blocks, main ? main->block_count : 0);
    if (limits->wire != SHOAL_WIRE_AUTO && limits->wire != SHOAL_WIRE_RAW &&
        limits->wire != SHOAL_WIRE_PACKED)
        FAIL(error, SHOAL_E_INVALID, "--wire: %d is none of auto, raw and packed",
            (int)limits->wire);
    if (limits->prefetch_slots == SHOAL_AUTO) return SHOAL_OK;
    if (limits->prefetch_slots < 2 || limits->prefetch_slots > PLAN_MAX_SLOTS)
        FAIL(error, SHOAL_E_INVALID,
            "--prefetch-slots: %d is not between 2 and %d; for a single slot use --buffer single",
            limits->prefetch_slots, PLAN_MAX_SLOTS);
    if (limits->buffer == SHOAL_BUFFER_SINGLE)
        FAIL(error, SHOAL_E_INVALID,
            "--prefetch-slots and --buffer single exclude each other: a single buffer is one slot");
    return SHOAL_OK;
}

/* Adds a solved phase to the run. */
static void add_phase(struct plan_solution *solution, const struct plan_input *in,
    const struct plan_limits *limits, const struct plan_phase *phase)
{
    const uint64_t least = with(phase->least_bytes, limits->context_bytes);
    const uint64_t least_ram = with(phase->least_ram_bytes, limits->process_bytes);

    if (least > limits->vram_bytes || least == SHOAL_UNLIMITED) {
        solution->fits = false;
        if (limits->wire == SHOAL_WIRE_RAW && in->source == PLAN_SOURCE_PACKED && !in->patched)
            solution->needs_packed = true;
    } else if (least_ram > limits->ram_bytes) {
        solution->fits = solution->fits_ram = false;
    }
    solution->arena_bytes = max_u64(solution->arena_bytes, phase->peak_bytes);
    solution->peak_bytes = solution->arena_bytes + limits->context_bytes;
    solution->ram_bytes = max_u64(solution->ram_bytes, phase->ram_bytes + limits->process_bytes);
    solution->least_bytes = max_u64(solution->least_bytes, least);
    solution->full_bytes =
        max_u64(solution->full_bytes, with(phase->full_bytes, limits->context_bytes));
    solution->least_ram_bytes = max_u64(solution->least_ram_bytes, least_ram);
    solution->seconds += phase->seconds;
}

enum shoal_status planner_solve(const struct plan_input *inputs, int32_t count,
    const struct plan_limits *limits, struct plan_solution *solution, struct shoal_error *error)
{
    const struct plan_input *main = NULL;

    *solution = (struct plan_solution){.phase_count = count, .fits = true, .fits_ram = true};
    for (int32_t i = 0; i < count; i++)
        if (inputs[i].main) main = &inputs[i];
    TRY(check_limits(main, limits, error));
    for (int32_t i = 0; i < count; i++) {
        struct plan_phase *phase = &solution->phases[i];

        phase->name = inputs[i].name;
        phase->patched = inputs[i].patched;
        phase->block_count = inputs[i].block_count;
        phase->blocks = mem_calloc((size_t)inputs[i].block_count, sizeof *phase->blocks);
        if (!phase->blocks) {
            planner_release(solution);
            FAIL_MEMORY(error);
        }
        solve_phase(&inputs[i], limits, phase);
        add_phase(solution, &inputs[i], limits, phase);
    }
    return SHOAL_OK;
}

void planner_release(struct plan_solution *solution)
{
    for (int32_t i = 0; i < solution->phase_count; i++)
        mem_free(solution->phases[i].blocks);
    *solution = (struct plan_solution){0};
}
