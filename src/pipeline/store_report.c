/* What a store plans and has done, in figures and words. */
#include "base/json.h"
#include "base/memory.h"
#include "base/size.h"
#include "base/text.h"
#include "pipeline/store.h"

struct streamer_stats store_done(const struct shoal_store *s)
{
    struct streamer_stats now = {0};

    if (s->streamer) now = streamer_stats(s->streamer);
    now.copied_bytes += s->done.copied_bytes;
    now.read_bytes += s->done.read_bytes;
    now.waited_ns += s->done.waited_ns;
    return now;
}

void shoal_store_stats(struct shoal_store *s, struct shoal_store_stats *stats)
{
    const struct plan_phase *phase = store_phase(s);
    const struct streamer_stats done = store_done(s);

    *stats = (struct shoal_store_stats){
        .device_bytes = s->resumed ? s->solution.arena_bytes : 0,
        .host_bytes = done.host_bytes,
        .pinned_bytes = done.pinned_bytes,
        .weight_bytes = s->model.bytes,
        .walk_copied_bytes = phase->stream_bytes,
        .copied_bytes = done.copied_bytes,
        .read_bytes = done.read_bytes,
        .wait_seconds = (double)done.waited_ns * 1e-9,
        .blocks = phase->block_count,
        .resident_blocks = phase->resident_count,
        .packed_blocks = phase->packed_count,
        .disk_blocks = phase->disk_count,
        .prefetch_slots = phase->slots,
    };
}

static void say_plan(struct text *t, const struct shoal_store *s, const struct shoal_store_stats *f)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES], c[SIZE_TEXT_BYTES];

    text_append(t,
        "%d blocks of %s on %s: %d stay on the device, %d wait in host memory, %d are "
        "read again in every walk; %d cross packed\n",
        (int)f->blocks, size_format(a, f->weight_bytes), s->target.name, (int)f->resident_blocks,
        (int)(f->blocks - f->resident_blocks - f->disk_blocks), (int)f->disk_blocks,
        (int)f->packed_blocks);
    text_append(t, "device memory %s, of which the ring of %d %s takes %s; host memory %s\n",
        size_format(a, s->solution.arena_bytes), (int)f->prefetch_slots,
        f->prefetch_slots == 1 ? "slot" : "slots", size_format(b, store_phase(s)->ring_bytes),
        size_format(c, s->solution.ram_bytes));
}

static void say_done(struct text *t, const struct shoal_store *s, const struct shoal_store_stats *f)
{
    const struct streamer_stats done = store_done(s);
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES];

    text_append(t, "a walk copies %s\n", size_format(a, f->walk_copied_bytes));
    if (!f->copied_bytes) return;
    text_append(t,
        "so far %s copied to the device, %s read, %.3f s waited for what was not read yet\n",
        size_format(a, f->copied_bytes), size_format(b, f->read_bytes), f->wait_seconds);
    text_append(t, "%s of host memory, %s of it pinned\n", size_format(a, f->host_bytes),
        size_format(b, f->pinned_bytes));
    if (done.unpinned.status)
        text_append(
            t, "not all of it could be pinned, so copies are slower: %s\n", done.unpinned.text);
}

const char *shoal_store_text(struct shoal_store *s)
{
    struct shoal_store_stats f;
    struct text t = {0};

    shoal_store_stats(s, &f);
    say_plan(&t, s, &f);
    say_done(&t, s, &f);
    mem_free(s->text);
    s->text = t.failed ? NULL : t.data;
    if (t.failed) mem_free(t.data);
    return s->text;
}

const char *shoal_store_json(struct shoal_store *s)
{
    struct shoal_store_stats f;
    json_t *object;

    shoal_store_stats(s, &f);
    object = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f}",
        "device", s->target.name, "blocks", (int)f.blocks, "resident_blocks",
        (int)f.resident_blocks, "packed_blocks", (int)f.packed_blocks, "disk_blocks",
        (int)f.disk_blocks, "prefetch_slots", (int)f.prefetch_slots, "weight_bytes",
        (json_int_t)f.weight_bytes, "device_bytes", (json_int_t)s->solution.arena_bytes,
        "host_bytes", (json_int_t)f.host_bytes, "pinned_bytes", (json_int_t)f.pinned_bytes,
        "walk_copied_bytes", (json_int_t)f.walk_copied_bytes, "copied_bytes",
        (json_int_t)f.copied_bytes, "read_bytes", (json_int_t)f.read_bytes, "wait_seconds",
        f.wait_seconds);
    mem_free(s->json);
    s->json = object ? json_print(object) : NULL;
    json_decref(object);
    return s->json;
}
