/* Measuring the drive: alone, and kept busy beside something else. */
#include "pipeline/links.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/reader.h"
#include "base/size.h"
#include "memory/cargo.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DISK_DEPTH 16 /* reads under way at once */
#define DISK_ROUNDS 3
#define DISK_ROUND_NS 600000000u /* of each way of reading */

struct disk {
    struct file file;
    int direct_fd; /* past the page cache; -1: it cannot be */
    char *buffer;  /* DISK_DEPTH pieces */
    uint64_t start, pieces;
    struct reader *reader;
    atomic_bool stop; /* no more reads are to be given */
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
    struct disk *disk, double *rate, uint64_t *pieces, struct shoal_error *error)
{
    uint64_t begun = clock_ns(), bytes = 0, given = 0;
    void *free[DISK_DEPTH];
    struct read read;
    int free_count = 0;

    for (; free_count < DISK_DEPTH; free_count++)
        free[free_count] = disk->buffer + (uint64_t)free_count * CARGO_CHUNK_BYTES;
    for (;;) {
        bool more = given < disk->pieces && !atomic_load(&disk->stop) &&
                    (given == 0 || clock_ns() - begun < DISK_ROUND_NS);

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
    double in_turn[DISK_ROUNDS], at_depth[DISK_ROUNDS];

    for (int round = 0; round < DISK_ROUNDS; round++) {
        uint64_t pieces = 0;
        double rate = 0;

        drop_pages(disk);
        TRY(read_in_turn(disk, &rate, &pieces, error));
        in_turn[round] = rate;
        disk->start += pieces;
        drop_pages(disk);
        TRY(read_at_depth(disk, &rate, &pieces, error));
        at_depth[round] = rate;
        disk->start += pieces;
    }
    figures->rates.disk_sequential_bytes =
        links_median_rate(in_turn, DISK_ROUNDS, &figures->spread);
    figures->rates.disk_bytes = links_median_rate(at_depth, DISK_ROUNDS, &figures->spread);
    return SHOAL_OK;
}

static void disk_close(struct disk *disk)
{
    reader_destroy(&disk->reader);
    pages_free(disk->buffer, DISK_DEPTH * CARGO_CHUNK_BYTES);
    if (disk->direct_fd >= 0) close(disk->direct_fd);
    file_close(&disk->file);
}

static enum shoal_status disk_open(const char *path, struct disk *disk, struct shoal_error *error)
{
    enum shoal_status status;

    *disk = (struct disk){.direct_fd = -1};
    TRY(file_open(path, &disk->file, error));
    disk->pieces = (disk->file.bytes + CARGO_CHUNK_BYTES - 1) / CARGO_CHUNK_BYTES;
    if (disk->pieces == 0) {
        status = error_set(error, SHOAL_E_INVALID, __FILE__, __LINE__,
            "%s is empty: name a file of a few GB", path);
        goto fail;
    }
    disk->direct_fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    disk->buffer = pages_alloc(DISK_DEPTH * CARGO_CHUNK_BYTES);
    if (!disk->buffer) {
        status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
        goto fail;
    }
    pages_want_large(disk->buffer, DISK_DEPTH * CARGO_CHUNK_BYTES); /* as the streamer does */
    memset(disk->buffer, 0, DISK_DEPTH * CARGO_CHUNK_BYTES); /* its pages are not to be measured */
    TRY_OR_FAIL(reader_create(&disk->reader, READER_AUTO, DISK_DEPTH, error));
    reader_go_past_cache(disk->reader); /* pages that somebody has mapped are not dropped */
    return SHOAL_OK;
fail:
    disk_close(disk);
    return status;
}

enum shoal_status links_measure_disk(
    const char *path, struct links_figures *figures, struct shoal_error *error)
{
    enum shoal_status status;
    struct disk disk;

    TRY(disk_open(path, &disk, error));
    figures->file_bytes = disk.file.bytes;
    figures->cached = disk.direct_fd < 0;
    status = read_rounds(&disk, figures, error);
    snprintf(figures->reader, sizeof figures->reader, "%s", reader_describe(disk.reader));
    disk_close(&disk);
    return status;
}

/* ---- beside something else ---- */

struct links_reading {
    struct disk disk;
    struct thread thread;
    enum shoal_status status;
    struct shoal_error error;
};

static void keep_reading(void *arg)
{
    struct links_reading *reading = arg;
    uint64_t pieces;
    double rate;

    while (!reading->status && !atomic_load(&reading->disk.stop)) {
        drop_pages(&reading->disk);
        reading->status = read_at_depth(&reading->disk, &rate, &pieces, &reading->error);
        reading->disk.start += pieces;
    }
}

enum shoal_status links_reading_open(
    const char *path, struct links_reading **reading, struct shoal_error *error)
{
    struct links_reading *r = mem_calloc(1, sizeof *r);
    enum shoal_status status;

    *reading = NULL;
    if (!r) FAIL_MEMORY(error);
    TRY_OR_FAIL(disk_open(path, &r->disk, error));
    status = thread_start(&r->thread, keep_reading, r, error);
    if (!status) {
        *reading = r;
        return SHOAL_OK;
    }
    disk_close(&r->disk);
fail:
    mem_free(r);
    return status;
}

enum shoal_status links_reading_close(struct links_reading **reading, struct shoal_error *error)
{
    struct links_reading *r = *reading;
    enum shoal_status status;

    *reading = NULL;
    atomic_store(&r->disk.stop, true);
    thread_join(&r->thread);
    disk_close(&r->disk);
    status = r->status;
    if (status && error) *error = r->error;
    mem_free(r);
    return status;
}
