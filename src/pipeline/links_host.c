/* Measuring what the device has no part in: the drive, and the wire's encoder and decoder. */
#include "pipeline/links.h"

#include "base/checksum.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/reader.h"
#include "base/rng.h"
#include "base/size.h"
#include "memory/cargo.h"
#include "wire/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DISK_DEPTH 16 /* reads under way at once */
#define DISK_ROUNDS 3
#define DISK_ROUND_NS 600000000u /* of each way of reading */

double links_best(void (*body)(void *arg), void *arg, double seconds)
{
    uint64_t start = clock_ns(), best = UINT64_MAX;

    for (int round = 0;; round++) {
        uint64_t begun = clock_ns(), now;

        body(arg);
        now = clock_ns();
        if (now - begun < best) best = now - begun;
        if ((double)(now - start) * 1e-9 >= (round < 2 ? 3 * seconds : seconds)) break;
    }
    return (double)(best ? best : 1) * 1e-9;
}

/* ---- the drive ---- */

struct disk {
    struct file file;
    int direct_fd; /* past the page cache; -1: it cannot be */
    char *buffer;  /* DISK_DEPTH pieces */
    uint64_t start, pieces;
    struct reader *reader;
};

/* The piece that is read as the nth of a round: on from where the round before ended, round and
 * round. */
static uint64_t piece_offset(const struct disk *disk, uint64_t nth)
{
    return (disk->start + nth) % disk->pieces * CARGO_CHUNK_BYTES;
}

static uint64_t piece_bytes(const struct disk *disk, uint64_t nth)
{
    uint64_t left = disk->file.bytes - piece_offset(disk, nth);

    return left < CARGO_CHUNK_BYTES ? left : CARGO_CHUNK_BYTES;
}

/* The drive is to be measured, not what is left in memory from before. A file is read round and
 * round only past the page cache. */
static void drop_pages(const struct disk *disk)
{
    (void)posix_fadvise(disk->file.fd, 0, 0, POSIX_FADV_DONTNEED);
}

/* One read after another, as dd does it. Bytes a second. */
static enum shoal_status read_in_turn(
    const struct disk *disk, double *rate, uint64_t *pieces, struct shoal_error *error)
{
    int fd = disk->direct_fd >= 0 ? disk->direct_fd : disk->file.fd;
    uint64_t begun = clock_ns(), bytes = 0, nth = 0;

    do {
        uint64_t least = piece_bytes(disk, nth), have = 0;

        while (have < least) {
            ssize_t got = pread(fd, disk->buffer + have, CARGO_CHUNK_BYTES - have,
                (off_t)(piece_offset(disk, nth) + have));

            if (got < 0 && errno == EINTR) continue;
            if (got < 0)
                FAIL(error, SHOAL_E_IO, "reading %s at byte %llu failed: %s", disk->file.path,
                    (unsigned long long)(piece_offset(disk, nth) + have), strerror(errno));
            if (got == 0 || (have + (uint64_t)got < least && got % READER_ALIGNMENT))
                FAIL(error, SHOAL_E_IO, "%s ends early: was it changed?", disk->file.path);
            have += (uint64_t)got;
        }
        bytes += least;
        nth++;
    } while (clock_ns() - begun < DISK_ROUND_NS && nth < disk->pieces);
    *rate = (double)bytes / ((double)(clock_ns() - begun) * 1e-9);
    *pieces = nth;
    return SHOAL_OK;
}

/* As the streamer reads: DISK_DEPTH pieces under way at once. Bytes a second. */
static enum shoal_status read_at_depth(
    const struct disk *disk, double *rate, uint64_t *pieces, struct shoal_error *error)
{
    uint64_t begun = clock_ns(), bytes = 0, given = 0;
    void *free[DISK_DEPTH];
    struct read read;
    int free_count = 0;

    for (; free_count < DISK_DEPTH; free_count++)
        free[free_count] = disk->buffer + (uint64_t)free_count * CARGO_CHUNK_BYTES;
    for (;;) {
        bool more = given < disk->pieces && (given == 0 || clock_ns() - begun < DISK_ROUND_NS);

        if (more && free_count > 0) {
            read = (struct read){.file = &disk->file,
                .offset = piece_offset(disk, given),
                .bytes = size_align(piece_bytes(disk, given), READER_ALIGNMENT),
                .least = piece_bytes(disk, given),
                .to = free[--free_count]};
            TRY(reader_submit(disk->reader, &read, error));
            given++;
            continue;
        }
        if (free_count == DISK_DEPTH) break;
        if (!reader_next(disk->reader, true, &read, error)) continue;
        if (read.status) return read.status;
        bytes += read.least;
        free[free_count++] = read.to;
    }
    *rate = (double)bytes / ((double)(clock_ns() - begun) * 1e-9);
    *pieces = given;
    return SHOAL_OK;
}

/* In turns, so that both meet the same drive. */
static enum shoal_status read_rounds(
    struct disk *disk, struct links_figures *figures, struct shoal_error *error)
{
    struct rates *rates = &figures->rates;

    for (int round = 0; round < DISK_ROUNDS; round++) {
        uint64_t pieces = 0;
        double rate = 0;

        drop_pages(disk);
        TRY(read_in_turn(disk, &rate, &pieces, error));
        rates->disk_sequential_bytes = fmax(rates->disk_sequential_bytes, rate);
        disk->start += pieces;
        drop_pages(disk);
        TRY(read_at_depth(disk, &rate, &pieces, error));
        rates->disk_bytes = fmax(rates->disk_bytes, rate);
        disk->start += pieces;
    }
    return SHOAL_OK;
}

enum shoal_status links_measure_disk(
    const char *path, struct links_figures *figures, struct shoal_error *error)
{
    struct disk disk = {.direct_fd = -1};
    enum shoal_status status;

    figures->rates.disk_bytes = figures->rates.disk_sequential_bytes = 0;
    TRY(file_open(path, &disk.file, error));
    figures->file_bytes = disk.file.bytes;
    disk.pieces = (disk.file.bytes + CARGO_CHUNK_BYTES - 1) / CARGO_CHUNK_BYTES;
    if (disk.pieces == 0) {
        status = error_set(error, SHOAL_E_INVALID, __FILE__, __LINE__,
            "%s is empty: name a file of a few GB", path);
        goto fail;
    }
    disk.direct_fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    figures->cached = disk.direct_fd < 0;
    disk.buffer = pages_alloc(DISK_DEPTH * CARGO_CHUNK_BYTES);
    if (!disk.buffer) {
        status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
        goto fail;
    }
    pages_want_large(disk.buffer, DISK_DEPTH * CARGO_CHUNK_BYTES); /* as the streamer does */
    memset(disk.buffer, 0, DISK_DEPTH * CARGO_CHUNK_BYTES); /* its pages are not to be measured */
    TRY_OR_FAIL(reader_create(&disk.reader, READER_AUTO, DISK_DEPTH, error));
    status = read_rounds(&disk, figures, error);
    snprintf(figures->reader, sizeof figures->reader, "%s", reader_describe(disk.reader));
fail:
    reader_destroy(&disk.reader);
    pages_free(disk.buffer, DISK_DEPTH * CARGO_CHUNK_BYTES);
    if (disk.direct_fd >= 0) close(disk.direct_fd);
    file_close(&disk.file);
    return status;
}

/* ---- the wire ---- */

#define WIRE_ELEMENTS ((uint64_t)64 << 20) /* more than caches hold */
#define WIRE_PATTERN ((uint64_t)1 << 20)   /* drawn once and repeated: drawing is slow */
#define WIRE_SECONDS 0.4

struct wire_bench {
    struct pool *pool;
    uint16_t *weights, *payload;
    uint64_t bound, bytes; /* of the payload: at most, and as packed */
    struct device *device;
    struct stream *stream;
    struct shoal_error error; /* status: the stream's first failure */
};

static void pack(void *arg)
{
    struct wire_bench *b = arg;

    b->bytes = wire_encode(b->pool, DTYPE_BF16, b->weights, WIRE_ELEMENTS, b->payload);
}

/* The payload lies at the arena's begin, and the weights come after it. */
static void unpack(void *arg)
{
    struct wire_bench *b = arg;
    const device_addr arena = b->device->arena;
    struct matrix y = matrix_at(arena + b->bytes, DTYPE_BF16, 1, WIRE_ELEMENTS);

    b->device->ops->compute->unpack(b->stream, y, arena, b->bytes);
    if (!b->error.status)
        b->error.status = b->device->ops->stream_synchronize(b->stream, &b->error);
}

/* Weights as trained ones are spread. */
static enum shoal_status draw_weights(uint16_t *weights, struct shoal_error *error)
{
    float *normal = mem_alloc(WIRE_PATTERN * sizeof *normal);
    struct rng rng;

    if (!normal) FAIL_MEMORY(error);
    rng_init(&rng, 1);
    rng_normal(&rng, normal, WIRE_PATTERN);
    for (uint64_t i = 0; i < WIRE_ELEMENTS; i++)
        weights[i] = bf16_from_float(0.02f * normal[i % WIRE_PATTERN]);
    mem_free(normal);
    return SHOAL_OK;
}

/* The device unpacks what was packed; the weights are overwritten by what comes of it. */
static enum shoal_status measure_unpack(
    struct wire_bench *b, struct links_figures *figures, struct shoal_error *error)
{
    const struct device_ops *ops = b->device->ops;
    const uint64_t bytes = WIRE_ELEMENTS * sizeof(uint16_t);
    const uint64_t sum = checksum_of(b->weights, bytes);

    TRY(ops->arena_reserve(b->device, b->bytes + bytes, error));
    if (ops->arena_mark) ops->arena_mark(b->device, b->device->arena, b->bytes + bytes, true);
    TRY(ops->stream_create(b->device, false, &b->stream, error));
    ops->copy_in(b->stream, b->device->arena, b->payload, b->bytes);
    figures->rates.unpack_bytes = (double)bytes / links_best(unpack, b, WIRE_SECONDS);
    ops->copy_out(b->stream, b->weights, b->device->arena + b->bytes, bytes);
    if (!b->error.status) b->error.status = ops->stream_synchronize(b->stream, &b->error);
    if (b->error.status && error) *error = b->error;
    if (b->error.status) return b->error.status;
    if (checksum_of(b->weights, bytes) != sum)
        FAIL(error, SHOAL_E_NUMERIC,
            "the wire gave other bits than it got: this is a bug in shoal, please report it");
    return SHOAL_OK;
}

enum shoal_status links_measure_wire(
    struct device *device, int threads, struct links_figures *figures, struct shoal_error *error)
{
    const uint64_t bytes = WIRE_ELEMENTS * sizeof(uint16_t);
    struct wire_bench b = {.bound = wire_bound(DTYPE_BF16, WIRE_ELEMENTS), .device = device};
    enum shoal_status status = SHOAL_OK;

    b.weights = pages_alloc(bytes);
    b.payload = pages_alloc(b.bound);
    if (!b.weights || !b.payload) {
        status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
        goto fail;
    }
    TRY_OR_FAIL(pool_create(&b.pool, threads, error));
    TRY_OR_FAIL(draw_weights(b.weights, error));
    figures->rates.pack_bytes = (double)bytes / links_best(pack, &b, WIRE_SECONDS);
    figures->packed_part = (double)b.bytes / (double)bytes;
    status = measure_unpack(&b, figures, error);
fail:
    if (b.stream) device->ops->stream_destroy(&b.stream);
    if (device->arena_bytes) device->ops->arena_release(device);
    pool_destroy(&b.pool);
    pages_free(b.payload, b.bound);
    pages_free(b.weights, bytes);
    return status;
}
