/* The streamer. */
#include "stream/streamer.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/profile.h"
#include "base/size.h"
#include "stream/berths.h"
#include "stream/intake.h"
#include "stream/timeline.h"

#include <assert.h>
#include <string.h>

/* Visits between the copy's start and the visit's end; residents take no ring, so it is these
 * that bound how far the first walk's copies run ahead. */
#define MAX_VISITS 64

/* Of visit v at v % MAX_VISITS. */
struct visit {
    struct event *ready; /* its bytes are there */
    device_addr span;    /* where they go */
    struct berth *berth; /* its place in the ring; NULL: it has a place of its own */
};

struct streamer {
    struct streamer_setup setup;
    struct streamer_place *places; /* the setup's, copied */
    struct cargo *cargos;          /* by position: the pass's blocks, then the globals */
    bool *kept;                    /* by position: in the RAM tier */
    int32_t *streamed;             /* positions */
    struct visits visits;
    struct intake intake;
    struct stream *copy;
    bool factors_pinned[PATCH_TERMS]; /* of the setup's patches */
    uint64_t factors_pinned_bytes;
    struct shoal_error factors_unpinned;

    device_addr *own; /* by position: of residents and globals; 0: streamed */
    device_addr unpack_addr;
    struct timeline unpacks, uses;
    uint64_t acquired, waited_ns;

    /* Guarded by the intake's mutex. */
    struct visit recent[MAX_VISITS];
    struct berths berths;
    struct timeline copies;
    uint64_t given;    /* visits whose copies were given to the copy stream */
    int32_t chunks;    /* and of the next visit, so many chunks; -1: it has no place yet */
    uint64_t released; /* visits that have ended */
    bool detached;     /* there is no ring */
    uint64_t copied_bytes, settled_bytes;
};

static const struct device_ops *ops_of(const struct streamer *s)
{
    return s->setup.arena->device->ops;
}

static struct visit *visit_at(struct streamer *s, uint64_t visit)
{
    return &s->recent[visit % MAX_VISITS];
}

/* Whether it crosses the ring: streamed ones, and what is unpacked into its own place. Packed ones
 * are there until they have been unpacked, others until they have been used. */
static bool crosses_ring(const struct streamer *s, int32_t position)
{
    bool stays_packed = position < s->visits.block_count && s->places[position].packed;

    return !s->own[position] || (s->cargos[position].opens && !stays_packed);
}

/* ---- copies: the intake's mutex is held ---- */

/* Finds the next visit's place. */
static bool place_next(struct streamer *s)
{
    int32_t position = visits_position(&s->visits, s->given);
    const struct cargo *cargo = &s->cargos[position];
    struct visit *visit = visit_at(s, s->given);

    if (s->given >= s->released + MAX_VISITS) return false; /* it is another one's still */
    visit->berth = NULL;
    visit->span = s->own[position];
    if (crosses_ring(s, position)) {
        visit->berth = berths_place(&s->berths, cargo->bytes);
        if (!visit->berth) return false;
        visit->span = visit->berth->span;
    }
    timeline_begin(&s->copies, s->copy, cargo->block->name, cargo->bytes);
    s->chunks = 0;
    return true;
}

/* A run of bytes that is contiguous on both sides, up to so many, is one copy. */
#define COPY_BYTES (16u << 20)

struct copy_run {
    const char *from;
    device_addr to;
    uint64_t bytes;
};

static void flush(struct streamer *s, struct copy_run *run)
{
    if (!run->bytes) return;
    if (visit_at(s, s->given)->berth) berths_await(&s->berths, s->copy, run->to + run->bytes);
    ops_of(s)->copy_in(s->copy, run->to, run->from, run->bytes);
    run->bytes = 0;
}

static void add_chunk(struct streamer *s, const struct cargo *cargo,
    const struct cargo_chunk *chunk, const char *data, struct copy_run *run)
{
    device_addr span = visit_at(s, s->given)->span;

    for (int32_t i = 0; i < chunk->copy_count; i++) {
        const struct cargo_copy *copy = &cargo->copies[chunk->first_copy + i];

        if (run->bytes && run->bytes < COPY_BYTES && data + copy->from == run->from + run->bytes &&
            span + copy->to == run->to + run->bytes) {
            run->bytes += copy->bytes;
            continue;
        }
        flush(s, run);
        *run = (struct copy_run){data + copy->from, span + copy->to, copy->bytes};
    }
}

/* What packs crosses when all of it has been packed. False: it has not. */
static bool ship_image(struct streamer *s, const struct cargo *cargo)
{
    const char *image = intake_image(&s->intake, s->given);

    if (!image) return false;
    for (uint64_t at = 0; at < cargo->bytes; at += COPY_BYTES) {
        struct copy_run run = {
            image + at, visit_at(s, s->given)->span + at, min_u64(cargo->bytes - at, COPY_BYTES)};

        flush(s, &run);
    }
    intake_image_taken(&s->intake, s->given, s->copy);
    return true;
}

/* The same in the later walks, if it bounces: what is there of it. */
static bool ship_pieces(struct streamer *s, const struct cargo *cargo)
{
    uint64_t at = (uint64_t)s->chunks * CARGO_CHUNK_BYTES;
    const char *data;

    while (at < cargo->bytes && (data = intake_chunk(&s->intake, s->given, s->chunks))) {
        struct copy_run run = {
            data, visit_at(s, s->given)->span + at, min_u64(cargo->bytes - at, CARGO_CHUNK_BYTES)};

        flush(s, &run);
        intake_taken(&s->intake, s->given, s->copy);
        s->chunks++;
        at += CARGO_CHUNK_BYTES;
    }
    return at >= cargo->bytes;
}

/* The adapters' factors, behind all else. */
static void ship_factors(struct streamer *s, const struct cargo *cargo)
{
    for (int32_t i = 0; cargo->opens && cargo->patch && i < cargo->patch->source_count; i++) {
        const struct patch_source *source = &cargo->patch->sources[i];
        struct copy_run run = {source->data,
            visit_at(s, s->given)->span + cargo->factors_at + source->at, source->bytes};

        flush(s, &run);
    }
}

/* Gives the copies of what is there of the next visit. True: of all. */
static bool ship_chunks(struct streamer *s, const struct cargo *cargo)
{
    struct copy_run run = {0};
    const char *data;

    if (cargo->packs && intake_bounces(&s->intake, s->given)) return ship_pieces(s, cargo);
    if (cargo->packs) return ship_image(s, cargo);
    while (
        s->chunks < cargo->chunk_count && (data = intake_chunk(&s->intake, s->given, s->chunks))) {
        add_chunk(s, cargo, &cargo->chunks[s->chunks], data, &run);
        /* The intake's event says when the staging ring may take the chunk's bytes again. */
        if (intake_is_staged(&s->intake, s->given)) flush(s, &run);
        intake_taken(&s->intake, s->given, s->copy);
        s->chunks++;
    }
    flush(s, &run);
    return s->chunks == cargo->chunk_count;
}

/* Gives the copy stream everything that is there and fits. */
static void ship(void *user)
{
    struct streamer *s = user;
    uint64_t before = s->given;

    while (s->given < s->visits.total && !s->detached) {
        int32_t position = visits_position(&s->visits, s->given);
        const struct cargo *cargo = &s->cargos[position];
        bool whole;

        if (s->chunks < 0 && !place_next(s)) break;
        profile_begin(PROFILE_COPY, cargo->block->name);
        whole = ship_chunks(s, cargo);
        profile_end();
        if (!whole) break;
        ship_factors(s, cargo);
        berths_await(&s->berths, s->copy, UINT64_MAX);
        s->copied_bytes += cargo->bytes;
        if (s->own[position]) s->settled_bytes += cargo->bytes;
        ops_of(s)->event_record(s->copy, visit_at(s, s->given)->ready);
        timeline_end(&s->copies, s->copy);
        s->given++;
        s->chunks = -1;
    }
    if (s->given > before || s->intake.failed.status) cond_wake_all(&s->intake.changed);
}

/* ---- the compute stream's side ---- */

/* The host waits until a visit's copies have been given. Long only if the drive is slow. Who is
 * asked whether to go on may say no only once: it counts even if the copies were given meanwhile.
 */
static enum shoal_status await_given(struct streamer *s, uint64_t visit, struct shoal_error *error)
{
    uint64_t start = clock_ns();
    bool cancelled = false;
    struct shoal_error failed;

    mutex_lock(&s->intake.mutex);
    while (s->given <= visit && !s->intake.failed.status && !cancelled) {
        cond_wait_for(&s->intake.changed, &s->intake.mutex, 50);
        cancelled = s->setup.cancelled && s->setup.cancelled(s->setup.user);
    }
    failed = s->intake.failed;
    if (s->given > visit) failed.status = SHOAL_OK;
    mutex_unlock(&s->intake.mutex);
    s->waited_ns += clock_ns() - start;
    if (failed.status && error) *error = failed;
    if (failed.status) return failed.status;
    if (cancelled) FAIL(error, SHOAL_E_CANCELLED, "cancelled");
    return SHOAL_OK;
}

/* Where weight `w` of a packed resident lies whole and as it is used in its span: only if it has
 * one part, and that is neither packed nor patched. Otherwise NULL. */
static const struct cargo_part *plain_part(const struct cargo *cargo, int32_t w)
{
    for (int32_t i = 0; i < cargo->part_count; i++)
        if (cargo->parts[i].weight == w && !cargo->parts[i].packed && !cargo->parts[i].patched &&
            cargo->block->weights[w].piece_count == 1)
            return &cargo->parts[i];
    return NULL;
}

static struct crossed crossed_part(const struct cargo_part *part, device_addr span, device_addr to)
{
    device_addr values = to + part->unpack_offset;

    return (struct crossed){
        .y = part->packed ? matrix_at(values, part->tensor->dtype, 1,
                                (int64_t)checkpoint_elements(part->tensor))
                          : matrix_at(values, DTYPE_U8, 1, (int64_t)part->bytes),
        .from = span + part->offset,
        .bytes = part->bytes,
        .packed = part->packed,
    };
}

static void patch_rows(void *user, struct matrix y, struct matrix x, const struct patch *terms)
{
    struct stream *compute = user;

    compute->device->ops->compute->patch(compute, y, x, terms);
}

/* From where it lies as it is stored: in its span, or unpacked. */
static void patch_part(struct streamer *s, const struct cargo *cargo, const struct cargo_part *part,
    device_addr span, device_addr to)
{
    const device_addr x = part->packed ? to + part->unpack_offset : span + part->offset;
    const struct weight *w = &cargo->block->weights[part->weight];

    cargo_patch(cargo, part, 0, part->count * (w->rows == 1 ? 1 : w->cols), x,
        to + part->values_offset, span + cargo->factors_at, patch_rows, s->setup.compute);
}

/* Opens a block's span to `to`: all of it, and gives up its berth but for the last bytes, or if it
 * has none only what cannot be used where it lies. */
static void open_span(struct streamer *s, const struct cargo *cargo, device_addr span,
    device_addr to, struct berth *berth)
{
    struct crossed tensors[UNPACK_TENSORS];
    int32_t count = 0;

    timeline_begin(&s->unpacks, s->setup.compute, cargo->block->name, cargo->open_bytes);
    for (int32_t i = 0; i < cargo->part_count; i++) {
        const struct cargo_part *part = &cargo->parts[i];
        uint64_t end = part->offset + part->bytes;
        bool last = i == cargo->part_count - 1;
        bool gives = berth && !last && berth->parts < RING_PARTS - 1 &&
                     end * RING_PARTS >= cargo->bytes * (uint64_t)(berth->parts + 1);

        if (part->packed || (!part->patched && (berth || !plain_part(cargo, part->weight))))
            tensors[count++] = crossed_part(part, span, to);
        if (count && (last || gives || part->patched || count == UNPACK_TENSORS)) {
            ops_of(s)->compute->unpack(s->setup.compute, tensors, count);
            count = 0;
        }
        if (part->patched) patch_part(s, cargo, part, span, to);
        if (gives) berth_give_up(berth, s->setup.compute, span + end);
    }
    timeline_end(&s->unpacks, s->setup.compute);
}

/* What could be used where it lies, is. */
static void bind_unpacked(
    const struct cargo *cargo, device_addr span, device_addr unpacked, struct matrix *weights)
{
    cargo_bind(cargo, unpacked, weights);
    for (int32_t i = 0; i < cargo->block->weight_count; i++) {
        const struct cargo_part *plain = plain_part(cargo, i);

        if (plain) weights[i].addr = span + plain->offset;
    }
}

/* Makes a block usable and says where its weights are. `berth`: from where, if it just crossed. */
static void prepare(struct streamer *s, int32_t position, device_addr span, struct berth *berth,
    struct matrix *weights)
{
    const struct cargo *cargo = &s->cargos[position];
    device_addr own = s->own[position];

    if (!cargo->opens) {
        cargo_bind(cargo, span, weights);
    } else if (crosses_ring(s, position)) {
        device_addr to = own ? own : s->unpack_addr;

        if (berth) open_span(s, cargo, span, to, berth);
        cargo_bind(cargo, to, weights);
    } else {
        open_span(s, cargo, span, s->unpack_addr, NULL);
        bind_unpacked(cargo, span, s->unpack_addr, weights);
    }
}

/* What crossed is needed no more: copies may take its bytes. */
static void end_visit(struct streamer *s)
{
    struct berth *berth = visit_at(s, s->released)->berth;

    if (berth) berth_give_up(berth, s->setup.compute, UINT64_MAX);
    mutex_lock(&s->intake.mutex);
    if (berth) berths_release(&s->berths);
    s->released++;
    ship(s);
    intake_kick(&s->intake);
    mutex_unlock(&s->intake.mutex);
}

/* The next visit is this block's. It ends here if the block has been opened, else at release. */
static enum shoal_status begin_visit(
    struct streamer *s, int32_t position, struct matrix *weights, struct shoal_error *error)
{
    const char *name = s->cargos[position].block->name;
    struct visit *visit = visit_at(s, s->acquired);
    uint64_t start = clock_ns();
    enum shoal_status status;

    assert(visits_position(&s->visits, s->acquired) == position);
    profile_begin(PROFILE_WAIT, name);
    status = await_given(s, s->acquired, error);
    profile_end();
    if (status) return status;
    s->acquired++;
    ops_of(s)->event_wait(s->setup.compute, visit->ready);
    trace_add(s->setup.trace, TRACE_WAIT, name, start, clock_ns(), 0);
    prepare(s, position, visit->span, visit->berth, weights);
    if (s->cargos[position].opens && crosses_ring(s, position)) end_visit(s);
    return SHOAL_OK;
}

/* Whether it has been brought to its own place. */
static bool is_home(const struct streamer *s, int32_t position)
{
    uint64_t globals = (uint64_t)(s->visits.first - s->visits.block_count);

    if (position == s->visits.block_count) return s->acquired > 0;
    return s->own[position] && s->acquired > globals + (uint64_t)position;
}

/* Makes a block usable, which is a visit unless it is home. */
static enum shoal_status make_usable(
    struct streamer *s, int32_t position, struct matrix *weights, struct shoal_error *error)
{
    if (!is_home(s, position)) return begin_visit(s, position, weights, error);
    prepare(s, position, s->own[position], NULL, weights);
    return SHOAL_OK;
}

enum shoal_status streamer_globals(
    struct streamer *s, struct matrix *weights, struct shoal_error *error)
{
    TRY(make_usable(s, s->visits.block_count, weights, error));
    if (s->released < s->acquired) end_visit(s);
    return SHOAL_OK;
}

enum shoal_status streamer_acquire(
    struct streamer *s, int32_t index, struct matrix *weights, struct shoal_error *error)
{
    int32_t position = index - s->setup.pass->first;
    enum shoal_status status;

    profile_begin(PROFILE_BLOCK, s->cargos[position].block->name);
    status = make_usable(s, position, weights, error);
    if (status) { /* then there is no release */
        profile_end();
        return status;
    }
    timeline_begin(&s->uses, s->setup.compute, s->cargos[position].block->name, 0);
    return SHOAL_OK;
}

void streamer_release(struct streamer *s, int32_t index)
{
    (void)index;
    timeline_end(&s->uses, s->setup.compute);
    profile_end();
    if (s->released < s->acquired) end_visit(s);
}

enum shoal_status streamer_check(struct streamer *s, struct shoal_error *error)
{
    struct shoal_error failed;

    mutex_lock(&s->intake.mutex);
    failed = s->intake.failed;
    mutex_unlock(&s->intake.mutex);
    if (failed.status && error) *error = failed;
    if (failed.status) return failed.status;
    return ops_of(s)->stream_synchronize(s->copy, error);
}

/* ---- another order ---- */

/* held. The first visit of a position that is not given yet. */
static uint64_t next_visit(const struct streamer *s, int32_t position)
{
    const uint64_t first = (uint64_t)s->visits.first, count = (uint64_t)s->visits.streamed_count;
    const uint64_t from = max_u64(s->given, first);

    if (s->given <= (uint64_t)position) return (uint64_t)position;
    return from + ((uint64_t)position + count - (from - first) % count) % count;
}

/* held. Its berth, if it has one, is free in the compute stream's order. */
static void drop_visit(struct streamer *s, const struct visit *visit)
{
    if (!visit->berth) return;
    berth_give_up(visit->berth, s->setup.compute, UINT64_MAX);
    berths_release(&s->berths);
}

/* held. Nothing before that visit is acquired any more; all that was given has been dropped. */
static void go_on_from(struct streamer *s, uint64_t visit)
{
    if (s->chunks >= 0) {
        berths_await(&s->berths, s->copy, UINT64_MAX);
        timeline_end(&s->copies, s->copy);
        drop_visit(s, visit_at(s, s->given));
    }
    s->chunks = -1;
    s->given = s->acquired = s->released = visit;
    intake_drop(&s->intake, visit);
}

/* held. */
static void seek(struct streamer *s, int32_t position)
{
    assert(s->visits.streamed_count == s->visits.first && s->released == s->acquired);
    while (s->released < s->given && visits_position(&s->visits, s->released) != position)
        drop_visit(s, visit_at(s, s->released++));
    s->acquired = s->released;
    if (s->released == s->given && visits_position(&s->visits, s->given) != position)
        go_on_from(s, next_visit(s, position));
    ship(s);
    intake_kick(&s->intake);
}

void streamer_seek(struct streamer *s, int32_t index)
{
    mutex_lock(&s->intake.mutex);
    seek(s, index - s->setup.pass->first);
    mutex_unlock(&s->intake.mutex);
}

enum shoal_status streamer_detach(struct streamer *s, struct shoal_error *error)
{
    const struct device_ops *ops = ops_of(s);
    struct shoal_error after;
    enum shoal_status status, computing;

    mutex_lock(&s->intake.mutex);
    s->detached = true;
    while (s->released < s->given)
        drop_visit(s, visit_at(s, s->released++));
    /* Of a visit that is given in part, chunks were taken that do not come again. */
    go_on_from(s, s->chunks >= 0 ? s->given + 1 : s->given);
    mutex_unlock(&s->intake.mutex);
    status = ops->stream_synchronize(s->copy, error);
    computing = ops->stream_synchronize(s->setup.compute, &after);
    timeline_flush(&s->copies);
    timeline_flush(&s->unpacks);
    timeline_flush(&s->uses);
    berths_close(&s->berths);
    if (!status && computing && error) *error = after;
    return status ? status : computing;
}

/* The ring and the unpacking buffer. */
static enum shoal_status take_ring(struct streamer *s, struct shoal_error *error)
{
    struct arena *arena = s->setup.arena;
    device_addr ring_addr;

    TRY(arena_take(arena, s->setup.ring_bytes, &ring_addr, error));
    TRY(arena_take(arena, s->setup.unpack_bytes, &s->unpack_addr, error));
    return berths_open(&s->berths, arena->device, ring_addr, s->setup.ring_bytes, error);
}

enum shoal_status streamer_attach(struct streamer *s, int32_t index, struct shoal_error *error)
{
    TRY(take_ring(s, error));
    mutex_lock(&s->intake.mutex);
    s->detached = false;
    seek(s, index - s->setup.pass->first);
    mutex_unlock(&s->intake.mutex);
    return SHOAL_OK;
}

bool streamer_loaded(struct streamer *s)
{
    bool loaded;

    mutex_lock(&s->intake.mutex);
    loaded = intake_loaded(&s->intake);
    mutex_unlock(&s->intake.mutex);
    return loaded;
}

/* ---- lifetime ---- */

static enum shoal_status init_cargo(
    struct streamer *s, int32_t position, int32_t index, struct shoal_error *error)
{
    const struct streamer_setup *setup = &s->setup;
    const bool packed = position < setup->pass->count && s->places[position].packed;

    return cargo_init(&s->cargos[position], &setup->model->blocks[index],
        packed ? packing_rooms(setup->packing, position) : NULL,
        patches_of(setup->patches, setup->model, index), error);
}

static enum shoal_status list_blocks(struct streamer *s, struct shoal_error *error)
{
    const struct pass *pass = s->setup.pass;
    size_t positions = (size_t)pass->count + 1;
    int32_t streamed = 0;

    s->places = mem_calloc(positions, sizeof *s->places);
    s->cargos = mem_calloc(positions, sizeof *s->cargos);
    s->kept = mem_calloc(positions, sizeof *s->kept);
    s->own = mem_calloc(positions, sizeof *s->own);
    s->streamed = mem_calloc(positions, sizeof *s->streamed);
    if (!s->places || !s->cargos || !s->kept || !s->own || !s->streamed) FAIL_MEMORY(error);
    memcpy(s->places, s->setup.places, (size_t)pass->count * sizeof *s->places);
    for (int32_t i = 0; i < pass->count; i++) {
        TRY(init_cargo(s, i, pass->first + i, error));
        s->kept[i] = !s->places[i].resident && !s->places[i].disk;
        if (!s->places[i].resident) s->streamed[streamed++] = i;
    }
    if (pass->globals >= 0) TRY(init_cargo(s, pass->count, pass->globals, error));
    s->visits = (struct visits){.block_count = pass->count,
        .first = pass->count + (pass->globals >= 0),
        .streamed = s->streamed,
        .streamed_count = streamed};
    s->visits.total =
        (uint64_t)s->visits.first + (uint64_t)streamed * (uint64_t)(s->setup.walks - 1);
    return SHOAL_OK;
}

/* Residents that stay packed take what crosses; others, and the globals, what comes of it. */
static enum shoal_status take_arena(struct streamer *s, struct shoal_error *error)
{
    const struct pass *pass = s->setup.pass;
    struct arena *arena = s->setup.arena;

    if (pass->globals >= 0)
        TRY(arena_take(arena, s->cargos[pass->count].open_bytes, &s->own[pass->count], error));
    for (int32_t i = 0; i < pass->count; i++) {
        if (!s->places[i].resident) continue;
        TRY(arena_take(arena, s->places[i].packed ? s->cargos[i].bytes : s->cargos[i].open_bytes,
            &s->own[i], error));
    }
    return take_ring(s, error);
}

/* The adapters' factors, which every visit of what they patch copies. What is not pinned works,
 * only slower. */
static void pin_factors(struct streamer *s)
{
    const struct patches *patches = s->setup.patches;
    struct device *device = s->setup.arena->device;
    bool needed = false;

    for (int32_t i = 0; i <= s->setup.pass->count; i++)
        needed = needed || (s->cargos[i].opens && s->cargos[i].patch);
    if (!needed || s->setup.pin == SHOAL_PIN_OFF || !device->ops->host_register) return;
    for (int32_t i = 0; i < patches->page_count; i++) {
        const struct patch_pages *pages = &patches->pages[i];
        struct shoal_error error = {0};

        s->factors_pinned[i] =
            device->ops->host_register(device, pages->data, pages->bytes, &error) == SHOAL_OK;
        if (s->factors_pinned[i])
            s->factors_pinned_bytes += pages->bytes;
        else
            s->factors_unpinned = error;
    }
}

static void unpin_factors(struct streamer *s)
{
    struct device *device = s->setup.arena->device;

    for (int32_t i = 0; i < PATCH_TERMS; i++)
        if (s->factors_pinned[i])
            device->ops->host_unregister(device, s->setup.patches->pages[i].data);
}

static enum shoal_status create_events(struct streamer *s, struct shoal_error *error)
{
    struct device *device = s->setup.arena->device;
    struct trace *trace = s->setup.trace;

    TRY(device->ops->stream_create(device, true, &s->copy, error));
    for (int i = 0; i < MAX_VISITS; i++)
        TRY(device->ops->event_create(device, &s->recent[i].ready, error));
    TRY(timeline_open(&s->copies, trace, device, TRACE_COPY, error));
    TRY(timeline_open(&s->unpacks, trace, device, TRACE_UNPACK, error));
    return timeline_open(&s->uses, trace, device, TRACE_COMPUTE, error);
}

enum shoal_status streamer_create(
    struct streamer **streamer, const struct streamer_setup *setup, struct shoal_error *error)
{
    struct streamer *s = mem_calloc(1, sizeof *s);
    enum shoal_status status;

    *streamer = NULL;
    if (!s) FAIL_MEMORY(error);
    s->setup = *setup;
    s->chunks = -1;
    TRY_OR_FAIL(list_blocks(s, error));
    TRY_OR_FAIL(take_arena(s, error));
    TRY_OR_FAIL(create_events(s, error));
    pin_factors(s);
    TRY_OR_FAIL(intake_open(&s->intake,
        &(struct intake_setup){.device = setup->arena->device,
            .cargos = s->cargos,
            .kept = s->kept,
            .visits = s->visits,
            .staging_bytes = setup->staging_bytes,
            .backend = setup->backend,
            .pin = setup->pin,
            .threads = setup->threads,
            .trace = setup->trace,
            .arrived = ship,
            .user = s},
        error));
    *streamer = s;
    return SHOAL_OK;
fail:
    streamer_destroy(&s);
    return status;
}

void streamer_destroy(struct streamer **streamer)
{
    struct streamer *s = *streamer;
    const struct device_ops *ops;
    enum shoal_status ignored;

    if (!s) return;
    ops = ops_of(s);
    /* Reading gives copies, and copies read host memory and await the events: in this order. */
    intake_stop(&s->intake);
    if (s->copy) ops->stream_destroy(&s->copy);
    /* When a run ends early the compute stream still has events to record. */
    ignored = ops->stream_synchronize(s->setup.compute, NULL);
    (void)ignored;
    intake_close(&s->intake);
    unpin_factors(s);
    timeline_close(&s->copies);
    timeline_close(&s->unpacks);
    timeline_close(&s->uses);
    for (int i = 0; i < MAX_VISITS; i++)
        if (s->recent[i].ready) ops->event_destroy(&s->recent[i].ready);
    berths_close(&s->berths);
    for (int32_t i = 0; s->cargos && i <= s->setup.pass->count; i++)
        cargo_fini(&s->cargos[i]);
    mem_free(s->places);
    mem_free(s->cargos);
    mem_free(s->kept);
    mem_free(s->own);
    mem_free(s->streamed);
    mem_free(s);
    *streamer = NULL;
}

const struct checkpoint_tensor *streamer_outgrown(struct streamer *s)
{
    const struct checkpoint_tensor *tensor;

    mutex_lock(&s->intake.mutex);
    tensor = s->intake.outgrown;
    mutex_unlock(&s->intake.mutex);
    return tensor;
}

struct streamer_stats streamer_stats(struct streamer *s)
{
    struct intake_stats intake = intake_stats(&s->intake);
    struct streamer_stats stats = {
        .read_bytes = intake.read_bytes,
        .host_bytes = intake.host_bytes,
        .waited_ns = s->waited_ns,
        .pinned_bytes = intake.pinned_bytes + s->factors_pinned_bytes,
        .unpinned = intake.unpinned.status ? intake.unpinned : s->factors_unpinned,
    };

    for (int32_t i = 0; i <= s->visits.block_count; i++)
        stats.first_read_bytes += s->cargos[i].read_bytes;
    mutex_lock(&s->intake.mutex);
    stats.copied_bytes = s->copied_bytes;
    stats.settled_bytes = s->settled_bytes;
    mutex_unlock(&s->intake.mutex);
    return stats;
}

void streamer_describe(struct streamer *s, char *text, size_t bytes)
{
    intake_describe(&s->intake, text, bytes);
}
