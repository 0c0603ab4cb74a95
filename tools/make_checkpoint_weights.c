/* Writing one safetensors file of random weights: by all cores, piece by piece, never a model in
 * memory. */
#include "make_checkpoint.h"

#include "base/memory.h"
#include "base/number.h"
#include "base/text.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE_VALUES (1u << 18) /* a multiple of 4, for the generator */

/* ---- numbers ---- */

/* A bijection of 64 bits that leaves nothing of the input's order (splitmix64's finisher). */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t stream_key(uint64_t seed, const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */

    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return mix(hash ^ mix(seed + 0x9e3779b97f4a7c15u));
}

/*
 * The normal distribution's value below which a share of (i + 1/2) / 65536 lies, for each i: 16
 * random bits pick one, which is much cheaper than a transform. By bisection, once: the first call
 * must be on one thread.
 */
static const float *normal_table(void)
{
    static float table[65536];

    /* table[0], the last one made, is negative from then on. */
    for (int i = 32767; i >= 0 && table[0] >= 0; i--) {
        double low = 0, high = 8, share = ((double)i + 0.5) / 65536;

        for (int k = 0; k < 40; k++) {
            double middle = (low + high) / 2;

            if (erfc(middle / sqrt(2)) / 2 > share)
                low = middle;
            else
                high = middle;
        }
        table[i] = (float)-low;
        table[65535 - i] = (float)low;
    }
    return table;
}

/* Values [first, first + count) of a stream; first is a multiple of 4. */
static void generate(
    const uint16_t table[65536], uint64_t key, uint64_t first, size_t count, uint16_t *values)
{
    uint64_t counter = first / 4;
    size_t i = 0;

    for (; i + 4 <= count; i += 4) {
        uint64_t bits = mix(key + counter++ * 0x9e3779b97f4a7c15u);

        values[i] = table[bits & 0xffff];
        values[i + 1] = table[bits >> 16 & 0xffff];
        values[i + 2] = table[bits >> 32 & 0xffff];
        values[i + 3] = table[bits >> 48];
    }
    for (uint64_t bits = mix(key + counter * 0x9e3779b97f4a7c15u); i < count; i++, bits >>= 16)
        values[i] = table[bits & 0xffff];
}

/* The E4M3 code nearest to a BF16 number, the even one of two; beyond 448 the largest. */
static uint8_t code_of(uint16_t half)
{
    const float value = bf16_to_float(half & 0x7fff);
    uint8_t low = 0, high = 0x7e;

    while (low + 1 < high) {
        uint8_t middle = (uint8_t)((low + high) / 2);

        if (f8_e4m3_to_float(middle) <= value)
            low = middle;
        else
            high = middle;
    }
    float up = f8_e4m3_to_float(high) - value, down = value - f8_e4m3_to_float(low);

    return (
        uint8_t)((up < down || (up <= down && high % 2 == 0) ? high : low) | (half >> 8 & 0x80));
}

/* ---- the file ---- */

/* Values of one source, as many as are made and written at once. */
struct piece {
    const struct make_source *source;
    enum dtype dtype;
    uint64_t first, offset; /* in the source's values; in the file's bytes */
    size_t count;
};

/* What a worker makes them in. */
struct room {
    float mean, deviation; /* that `table` was made for */
    uint16_t table[65536];
    uint16_t values[PIECE_VALUES];
    float wide[PIECE_VALUES];
    uint8_t codes[PIECE_VALUES];
};

struct writer {
    const char *path;
    int fd;
    enum dtype dtype;
    uint64_t seed;
    const float *normal;
    uint8_t code_of[65536];
    struct piece *pieces;
    size_t piece_count, piece_room;
    struct room *rooms; /* of each worker */
    struct mutex mutex;
    enum shoal_status status; /* under the mutex: the first failure */
    struct shoal_error *error;
};

static enum shoal_status put(
    struct writer *w, const void *data, size_t bytes, uint64_t offset, struct shoal_error *error)
{
    const char *from = data;

    while (bytes) {
        ssize_t written = pwrite(w->fd, from, bytes, (off_t)offset);

        if (written < 0 && errno == EINTR) continue;
        if (written < 0) FAIL(error, SHOAL_E_IO, "cannot write %s: %s", w->path, strerror(errno));
        from += written;
        offset += (uint64_t)written;
        bytes -= (size_t)written;
    }
    return SHOAL_OK;
}

enum dtype make_dtype(const struct make_tensor *tensor, enum dtype asked)
{
    const size_t length = strlen(tensor->name);
    const bool matrix =
        tensor->shape.rank == 2 && length > 7 && !strcmp(tensor->name + length - 7, ".weight");

    return asked == DTYPE_F8_E4M3 && !matrix ? DTYPE_BF16 : asked;
}

/* The piece's values as they are stored, in the worker's room. */
static const void *make_values(const struct writer *w, const struct piece *piece, struct room *room)
{
    const struct make_source *source = piece->source;
    const size_t count = piece->count;

    if (room->mean != source->mean || room->deviation != source->deviation) {
        for (int i = 0; i < 65536; i++)
            room->table[i] = bf16_from_float(source->mean + source->deviation * w->normal[i]);
        room->mean = source->mean;
        room->deviation = source->deviation;
    }
    generate(room->table, stream_key(w->seed, source->name), piece->first, count, room->values);
    if (piece->dtype == DTYPE_BF16) return room->values;
    if (piece->dtype == DTYPE_F8_E4M3) {
        for (size_t i = 0; i < count; i++)
            room->codes[i] = w->code_of[room->values[i]];
        return room->codes;
    }
    for (size_t i = 0; i < count; i++)
        room->wide[i] = bf16_to_float(room->values[i]);
    return room->wide;
}

static bool has_failed(struct writer *w)
{
    bool failed;

    mutex_lock(&w->mutex);
    failed = w->status != SHOAL_OK;
    mutex_unlock(&w->mutex);
    return failed;
}

static void put_piece(void *arg, int64_t index, int worker)
{
    struct writer *w = arg;
    const struct piece *piece = &w->pieces[index];
    struct shoal_error error = {0};

    if (has_failed(w)) return;
    if (!put(w, make_values(w, piece, &w->rooms[worker]),
            (size_t)dtype_bytes(piece->dtype, (int64_t)piece->count), piece->offset, &error))
        return;
    mutex_lock(&w->mutex);
    if (!w->status) {
        w->status = error.status;
        if (w->error) *w->error = error;
    }
    mutex_unlock(&w->mutex);
}

static enum shoal_status add_piece(struct writer *w, struct piece piece)
{
    if (w->piece_count == w->piece_room) {
        size_t room = w->piece_room ? 2 * w->piece_room : 1024;
        struct piece *pieces = mem_realloc(w->pieces, room, sizeof *pieces);

        if (!pieces) FAIL_MEMORY(w->error);
        w->pieces = pieces;
        w->piece_room = room;
    }
    w->pieces[w->piece_count++] = piece;
    return SHOAL_OK;
}

/* All tensors' values, from the file's byte `offset` on. */
static enum shoal_status add_pieces(
    struct writer *w, const struct make_tensor *tensors, size_t count, uint64_t offset)
{
    for (size_t i = 0; i < count; i++) {
        const enum dtype dtype = make_dtype(&tensors[i], w->dtype);

        for (int k = 0; k < tensors[i].source_count; k++) {
            const struct make_source *source = &tensors[i].sources[k];

            for (uint64_t at = 0; at < source->count; at += PIECE_VALUES) {
                uint64_t left = source->count - at;
                struct piece piece = {
                    source, dtype, at, offset, left < PIECE_VALUES ? (size_t)left : PIECE_VALUES};

                TRY(add_piece(w, piece));
                offset += (uint64_t)dtype_bytes(dtype, (int64_t)piece.count);
            }
        }
    }
    return SHOAL_OK;
}

static enum shoal_status put_header(
    struct writer *w, const struct make_tensor *tensors, size_t count, uint64_t *end)
{
    struct text header = {0};
    unsigned char length[8];
    enum shoal_status status;
    uint64_t offset = 0, bytes;

    text_append(&header, "{\"__metadata__\":{\"format\":\"pt\",\"weights\":\"random\"}");
    for (size_t i = 0; i < count; i++) {
        char shape[SHAPE_TEXT_BYTES];

        const enum dtype dtype = make_dtype(&tensors[i], w->dtype);

        if (!shape_bytes(&tensors[i].shape, dtype, &bytes))
            FAIL(w->error, SHOAL_E_INVALID, "%s is too big", tensors[i].name);
        text_append(&header, ",\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%llu,%llu]}",
            tensors[i].name, dtype_name(dtype), shape_format(shape, &tensors[i].shape),
            (unsigned long long)offset, (unsigned long long)(offset + bytes));
        offset += bytes;
    }
    text_append(&header, "}");
    /* The data begins at a multiple of 8. */
    text_append(&header, "%*s", (int)((8 - header.length % 8) % 8), "");
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)header.length >> 8 * i);
    status = header.failed
                 ? error_set(w->error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory")
                 : put(w, length, sizeof length, 0, w->error);
    if (!status) status = put(w, header.data, header.length, sizeof length, w->error);
    *end = sizeof length + header.length;
    mem_free(header.data);
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct make_tensor *)a)->name, ((const struct make_tensor *)b)->name);
}

/* Makes and writes all pieces. */
static enum shoal_status put_pieces(struct writer *w)
{
    struct pool *pool;

    TRY(pool_create(&pool, thread_cores(), w->error));
    w->rooms = mem_calloc((size_t)pool_workers(pool), sizeof *w->rooms);
    if (w->rooms)
        pool_run(pool, (int64_t)w->piece_count, put_piece, w);
    else
        w->status = error_set(w->error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
    pool_destroy(&pool);
    return w->status;
}

enum shoal_status make_write(const char *path, struct make_tensor *tensors, size_t count,
    const struct make_options *options, struct shoal_error *error)
{
    struct writer *w = mem_calloc(1, sizeof *w);
    enum shoal_status status;
    uint64_t end = 0;

    if (!w) FAIL_MEMORY(error);
    w->path = path;
    w->dtype = options->dtype;
    w->seed = options->seed;
    w->normal = normal_table();
    w->error = error;
    mutex_init(&w->mutex);
    for (int half = 0; w->dtype == DTYPE_F8_E4M3 && half < 65536; half++)
        w->code_of[half] = code_of((uint16_t)half);
    w->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (w->fd < 0) {
        status = error_set(
            error, SHOAL_E_IO, __FILE__, __LINE__, "cannot write %s: %s", path, strerror(errno));
        goto fail;
    }
    /* As the usual writers do. */
    qsort(tensors, count, sizeof *tensors, by_name);
    TRY_OR_FAIL(put_header(w, tensors, count, &end));
    TRY_OR_FAIL(add_pieces(w, tensors, count, end));
    status = put_pieces(w);
fail:
    if (w->fd >= 0 && close(w->fd) && !status)
        status = error_set(
            error, SHOAL_E_IO, __FILE__, __LINE__, "cannot write %s: %s", path, strerror(errno));
    mutex_fini(&w->mutex);
    mem_free(w->rooms);
    mem_free(w->pieces);
    mem_free(w);
    return status;
}
