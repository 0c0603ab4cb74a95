/* Noise models and rigs. */
#include "noise_model.h"

#include "base/memory.h"
#include "base/size.h"
#include "wire/wire.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Something like weights: small, finite, exponents near each other. */
static uint16_t random_bf16(uint64_t *seed)
{
    uint32_t r = test_random(seed);
    uint32_t exponent = 121 - (uint32_t)__builtin_ctz(r | 0x100);

    return (uint16_t)((r >> 16 & 0x807f) | exponent << 7);
}

static void add_tensor(
    struct noise_model *m, int index, uint64_t count, uint64_t *seed, bool packed, FILE *file)
{
    struct checkpoint_tensor *t = &m->tensors[index];
    uint16_t *values = malloc(count * 2);
    char *stored = (char *)values;

    for (uint64_t i = 0; i < count; i++)
        values[i] = random_bf16(seed);
    while (packed && ftell(file) % WIRE_ALIGNMENT)
        fputc(0, file);
    m->data[index] = (char *)values;
    *t = (struct checkpoint_tensor){.name = "noise",
        .dtype = DTYPE_BF16,
        .shape = {1, {(int64_t)count}},
        .bytes = count * 2,
        .stored_bytes = count * 2,
        .packed = packed,
        .offset = (uint64_t)ftell(file),
        .file = &m->file};
    if (packed) {
        stored = malloc(wire_bound(DTYPE_BF16, count));
        t->stored_bytes = wire_encode(NULL, DTYPE_BF16, values, count, stored);
    }
    assert_int_equal(fwrite(stored, 1, t->stored_bytes, file), t->stored_bytes);
    if (packed) free(stored);
    m->weights[index] = (struct weight){.name = "noise",
        .dtype = DTYPE_BF16,
        .rows = 1,
        .cols = (int64_t)count,
        .bytes = count * 2,
        .pieces = {t},
        .piece_count = 1};
}

static void add_block(struct noise_model *m, int index, uint64_t *seed, bool packed, FILE *file)
{
    uint64_t count = index == 5 ? (9u << 19) : 64 * (1 + test_random(seed) % 2000);
    struct weight *w = &m->weights[2 * index];
    uint64_t span;

    add_tensor(m, 2 * index, 1 + test_random(seed) % 300, seed, false, file);
    if (index % 3 == 0) { /* something alien in between */
        for (int i = 0; i < 70000; i++)
            fputc(i, file);
    }
    add_tensor(m, 2 * index + 1, count, seed, packed, file);
    w[1].offset = size_align(w[0].bytes, BLOCK_WEIGHT_ALIGNMENT);
    m->blocks[index] = (struct block){.weights = w,
        .weight_count = 2,
        .index = index,
        .bytes = size_align(w[1].offset + w[1].bytes, BLOCK_WEIGHT_ALIGNMENT)};
    snprintf(m->blocks[index].name, sizeof m->blocks[index].name, "block %d", index);
    if (index == BLOCKS && !packed) return;
    struct cargo_size size;
    struct shoal_error error = {0};
    assert_ok(cargo_measure(&m->blocks[index], NULL, NULL, &size, &error));
    span = size.bytes;
    if (span > m->largest) m->largest = span;
    if (m->blocks[index].bytes > m->largest_block) m->largest_block = m->blocks[index].bytes;
}

void noise_open(struct noise_model *m, uint64_t seed, bool packed)
{
    struct shoal_error error = {0};
    char path[] = "/tmp/shoal-noise.XXXXXX";
    int fd = mkstemp(path);
    FILE *file;

    *m = (struct noise_model){0};
    assert_true(fd >= 0);
    file = fdopen(fd, "wb");
    fputs("a header of odd length", file);
    for (int i = 0; i <= BLOCKS; i++)
        add_block(m, i, &seed, packed, file);
    fclose(file);
    assert_ok(file_open(path, &m->file, &error));
    unlink(path);
    m->model = (struct model){.family = "noise",
        .blocks = m->blocks,
        .block_count = BLOCKS + 1,
        .passes = {{.name = "walk", .first = 0, .count = BLOCKS, .globals = BLOCKS}},
        .pass_count = 1};
}

void noise_pack(struct noise_model *m)
{
    struct shoal_error error = {0};

    assert_ok(packing_init(&m->packing, &m->model, &m->model.passes[0], &error));
}

struct cargo_size noise_measure(const struct noise_model *m, int index, struct streamer_place place)
{
    const struct cargo_room *rooms = place.packed ? packing_rooms(&m->packing, index) : NULL;
    struct shoal_error error = {0};
    struct cargo_size size;

    assert_ok(cargo_measure(&m->blocks[index], rooms, NULL, &size, &error));
    return size;
}

void noise_close(struct noise_model *m)
{
    packing_fini(&m->packing);
    for (int i = 0; i < 2 * (BLOCKS + 1); i++)
        free(m->data[i]);
    file_close(&m->file);
}

/* ---- rigs ---- */

void rig_open(struct rig *rig, struct noise_model *model, struct device *device,
    const struct streamer_place *places, uint64_t ring_bytes, uint64_t staging_bytes)
{
    struct shoal_error error = {0};
    uint64_t bytes = ring_bytes + model->blocks[BLOCKS].bytes;
    bool unpacks = false;

    *rig = (struct rig){.model = model, .device = device};
    for (int i = 0; i < BLOCKS; i++) {
        struct cargo_size size = noise_measure(model, i, places[i]);

        rig->places[i] = places[i];
        if (places[i].resident) bytes += places[i].packed ? size.bytes : model->blocks[i].bytes;
        unpacks = unpacks || (size.packed && (!places[i].resident || places[i].packed));
    }
    if (unpacks) bytes += model->largest_block;
    assert_ok(arena_open(&rig->arena, device, bytes, &error));
    assert_ok(device->ops->stream_create(device, false, &rig->compute, &error));
    rig->setup = (struct streamer_setup){.arena = &rig->arena,
        .compute = rig->compute,
        .model = &model->model,
        .pass = &model->model.passes[0],
        .places = rig->places,
        .packing = &model->packing,
        .threads = 8,
        .ring_bytes = ring_bytes,
        .unpack_bytes = unpacks ? model->largest_block : 0,
        .staging_bytes = staging_bytes,
        .walks = WALKS};
}

enum shoal_status rig_start(struct rig *rig, struct shoal_error *error)
{
    return streamer_create(&rig->streamer, &rig->setup, error);
}

void rig_close(struct rig *rig)
{
    streamer_destroy(&rig->streamer);
    rig->device->ops->stream_destroy(&rig->compute);
    arena_close(&rig->arena);
    device_destroy(&rig->device);
}

static void expect_weight(struct rig *rig, struct matrix weight, const char *data)
{
    struct shoal_error error = {0};
    uint64_t bytes = (uint64_t)weight.cols * 2;
    char *seen = malloc(bytes);

    rig->device->ops->copy_out(rig->compute, seen, weight.addr, bytes);
    assert_ok(rig->device->ops->stream_synchronize(rig->compute, &error));
    assert_memory_equal(seen, data, bytes);
    free(seen);
}

void rig_expect(struct rig *rig, int index)
{
    struct shoal_error error = {0};
    struct matrix weights[2];

    if (index == BLOCKS)
        assert_ok(streamer_globals(rig->streamer, weights, &error));
    else
        assert_ok(streamer_acquire(rig->streamer, index, weights, &error));
    expect_weight(rig, weights[0], rig->model->data[2 * index]);
    expect_weight(rig, weights[1], rig->model->data[2 * index + 1]);
    if (index < BLOCKS) streamer_release(rig->streamer, index);
}

void rig_walk(struct rig *rig)
{
    for (int i = 0; i < BLOCKS; i++)
        rig_expect(rig, i);
}
