/*
 * The reader: its files, what the page cache holds, and what the result of a read means. The reads
 * themselves are made by a back end: reader_uring.c or reader_threads.c.
 */
#include "base/reader_backend.h"

#include "base/clock.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define DEPTH_MOST 256
#define THREADS_MOST 32           /* more wait for the same drive */
#define AT_ONCE_MOST (1ull << 30) /* bytes in one read of the system */

#define TMPFS 0x01021994
#define RAMFS 0x858458f6

struct reader {
    const struct backend *backend;
    void *state; /* the back end's */
    char name[32], text[64];
    struct source *sources;
    struct request *spare, *all; /* linked by next, and by older */
    struct request_queue ready;  /* what came from memory */
    bool past_cache;             /* even what lies in it */
};

/* ---- files ---- */

/* Opens `path` past the page cache; -1 if it cannot be, or is another file. */
static int open_direct(const char *path, const struct stat *info)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
    struct stat found;

    if (fd >= 0 &&
        (fstat(fd, &found) || found.st_dev != info->st_dev || found.st_ino != info->st_ino)) {
        close(fd);
        fd = -1;
    }
    /* Only the opening must not wait (for a FIFO's writer). */
    if (fd >= 0) fcntl(fd, F_SETFL, O_DIRECT);
    return fd;
}

/*
 * The system says what the page cache holds to those who own the file or may write to it; to
 * others it says that all is there. For them everything comes from the drive.
 *
 * Reading with RWF_NOWAIT alone would find out too, but a miss starts read-ahead.
 */
static void map_source(struct source *source, const char *path, const struct stat *info)
{
    void *map;

    if (sysconf(_SC_PAGESIZE) != READER_ALIGNMENT || !info->st_size) return;
    if (info->st_uid != geteuid() && faccessat(AT_FDCWD, path, W_OK, AT_EACCESS)) return;
    map = mmap(NULL, (size_t)info->st_size, PROT_READ, MAP_SHARED, source->fd, 0);
    if (map == MAP_FAILED) return;
    source->map = map;
    source->map_bytes = (uint64_t)info->st_size;
}

/* Opens the file a second time, past the page cache, where that is possible. */
static void open_source(
    struct source *source, const struct file *file, const struct stat *info, bool past_cache)
{
    char same[64];
    struct statfs system;

    source->device = info->st_dev;
    source->inode = info->st_ino;
    source->fd = -1;
    /* Where files live in memory O_DIRECT may be taken, and means nothing. */
    if (!fstatfs(file->fd, &system) &&
        ((uint32_t)system.f_type == TMPFS || (uint32_t)system.f_type == RAMFS))
        return;
    /* The path may lead to another file by now, or need a folder that has been left. */
    snprintf(same, sizeof same, "/proc/self/fd/%d", file->fd);
    source->fd = open_direct(same, info);
    if (source->fd < 0) source->fd = open_direct(file->path, info);
    if (source->fd < 0) return;
    atomic_store(&source->direct, true);
    if (!past_cache) map_source(source, same, info);
}

/* Looked up by what it is and not by `file`: that may have been closed and used for another. */
static enum shoal_status find_source(struct reader *reader, const struct file *file,
    struct source **source, struct shoal_error *error)
{
    struct stat info;
    struct source *s;

    if (fstat(file->fd, &info))
        FAIL(error, SHOAL_E_IO, "cannot look at %s: %s", file->path, strerror(errno));
    for (s = reader->sources; s; s = s->next)
        if (s->device == info.st_dev && s->inode == info.st_ino) break;
    if (!s) {
        s = mem_calloc(1, sizeof *s);
        if (!s) FAIL_MEMORY(error);
        open_source(s, file, &info, reader->past_cache);
        s->next = reader->sources;
        reader->sources = s;
    }
    *source = s;
    return SHOAL_OK;
}

static void close_sources(struct reader *reader)
{
    while (reader->sources) {
        struct source *source = reader->sources;

        reader->sources = source->next;
        if (source->map) munmap(source->map, (size_t)source->map_bytes);
        if (source->fd >= 0) close(source->fd);
        mem_free(source);
    }
}

/* ---- one read ---- */

/* How many of the bytes the page cache holds, up to the first hole. */
static uint64_t cached_bytes(const struct source *source, uint64_t offset, uint64_t bytes)
{
    unsigned char held[1024];
    uint64_t found = 0, pages = 1;

    if (offset >= source->map_bytes) return 0;
    if (bytes > source->map_bytes - offset) bytes = source->map_bytes - offset;
    /* One page first: to ask for all takes longer, and mostly there is none. */
    while (found < bytes) {
        uint64_t left = (bytes - found + READER_ALIGNMENT - 1) / READER_ALIGNMENT, i = 0;

        if (pages > left) pages = left;
        if (mincore((char *)source->map + offset + found, (size_t)(pages * READER_ALIGNMENT), held))
            break;
        while (i < pages && held[i] & 1)
            i++;
        found += i * READER_ALIGNMENT;
        if (i < pages) break;
        pages = sizeof held;
    }
    return found < bytes ? found : bytes;
}

void request_begin(struct request *request)
{
    request->read.begin_ns = clock_ns();
    request->done = 0;
    request->code = 0;
    request->again = false;
}

/* Past the page cache, unless that holds what comes next. */
void request_aim(struct request *request)
{
    const struct read *read = &request->read;
    const struct source *source = request->source;
    /* After a short read some bytes come twice, so that all stays aligned. */
    uint64_t from = request->done - request->done % READER_ALIGNMENT;
    uint64_t left = read->bytes - from, held = 0;

    request->direct = atomic_load(&source->direct);
    if (request->direct && source->map && !request->again)
        held = cached_bytes(source, read->offset + from, left);
    if (held > request->done - from) {
        request->direct = false;
        left = held;
    }
    request->fd = request->direct ? source->fd : read->file->fd;
    request->offset = read->offset + from;
    request->bytes = left < AT_ONCE_MOST ? left : AT_ONCE_MOST;
    request->to = (char *)read->to + from;
}

bool request_took(struct request *request, int64_t result)
{
    struct read *read = &request->read;
    uint64_t reached = request->offset - read->offset;
    bool ended = false;

    request->again = result == -EINTR || result == -EAGAIN;
    if (request->again) return false;
    if (result == -EINVAL && request->direct) {
        /* Taken when it was opened, refused when it is read: a file system that cannot. */
        atomic_store(&request->source->direct, false);
        return false;
    }
    if (result < 0) {
        request->code = (int)-result;
    } else {
        reached += (uint64_t)result;
        ended = reached <= request->done;
        if (!ended) request->done = reached;
    }
    if (!request->code && !ended && request->done < read->least) return false;
    read->end_ns = clock_ns();
    return true;
}

/* What became of a read that is over. */
static enum shoal_status judge(const struct request *request, struct shoal_error *error)
{
    const struct read *read = &request->read;

    if (request->code)
        FAIL(error, SHOAL_E_IO, "reading %s at byte %llu failed: %s", read->file->path,
            (unsigned long long)(read->offset + request->done), strerror(request->code));
    if (request->done < read->least)
        FAIL(error, SHOAL_E_IO, "%s ends at byte %llu: %llu bytes from byte %llu were wanted",
            read->file->path, (unsigned long long)(read->offset + request->done),
            (unsigned long long)read->least, (unsigned long long)read->offset);
    return SHOAL_OK;
}

/* ---- the reader ---- */

static enum shoal_status create_backend(
    struct reader *reader, enum reader_backend backend, int depth, struct shoal_error *error)
{
    int threads = depth < THREADS_MOST ? depth : THREADS_MOST;

    if (backend != READER_THREADS) {
        enum shoal_status status =
            uring_create(&reader->state, depth, backend == READER_URING ? error : NULL);

        if (!status) {
            reader->backend = &uring_backend;
            snprintf(reader->name, sizeof reader->name, "io_uring");
        }
        if (!status || backend == READER_URING) return status;
    }
    TRY(threads_create(&reader->state, threads, error));
    reader->backend = &threads_backend;
    snprintf(reader->name, sizeof reader->name, "%d thread%s", threads, threads > 1 ? "s" : "");
    return SHOAL_OK;
}

enum shoal_status reader_create(
    struct reader **reader, enum reader_backend backend, int depth, struct shoal_error *error)
{
    enum shoal_status status;
    struct reader *r;

    *reader = NULL;
    if (depth < 1 || depth > DEPTH_MOST)
        FAIL(error, SHOAL_E_INVALID, "a read depth of %d is not in 1..%d", depth, DEPTH_MOST);
    r = mem_calloc(1, sizeof *r);
    if (!r) FAIL_MEMORY(error);
    TRY_OR_FAIL(create_backend(r, backend, depth, error));
    snprintf(r->text, sizeof r->text, "%s", r->name);
    *reader = r;
    return SHOAL_OK;
fail:
    mem_free(r);
    return status;
}

void reader_destroy(struct reader **reader)
{
    struct reader *r = *reader;

    if (!r) return;
    r->backend->destroy(r->state);
    close_sources(r);
    while (r->all) {
        struct request *request = r->all;

        r->all = request->older;
        mem_free(request);
    }
    mem_free(r);
    *reader = NULL;
}

const char *reader_describe(const struct reader *reader)
{
    return reader->text;
}

/* A request that is in no queue. */
static struct request *take_request(struct reader *reader)
{
    struct request *request = reader->spare;

    if (request) {
        reader->spare = request->next;
        return request;
    }
    request = mem_calloc(1, sizeof *request);
    if (!request) return NULL;
    request->older = reader->all;
    reader->all = request;
    return request;
}

static bool aligned(const struct read *read)
{
    return (read->offset | read->bytes | (uintptr_t)read->to) % READER_ALIGNMENT == 0;
}

/* What lies in memory comes at once. */
static void take_from_memory(struct request *request)
{
    struct read *read = &request->read;
    const struct file *file = read->file;

    request_begin(request);
    if (read->offset < file->bytes) {
        request->done = file->bytes - read->offset;
        if (request->done > read->bytes) request->done = read->bytes;
        memcpy(read->to, file->memory + read->offset, (size_t)request->done);
    }
    read->end_ns = clock_ns();
}

enum shoal_status reader_submit(
    struct reader *reader, const struct read *read, struct shoal_error *error)
{
    struct request *request;
    struct source *source = NULL;
    uint64_t end;

    if (!aligned(read) || !read->least || read->least > read->bytes ||
        __builtin_add_overflow(read->offset, read->bytes, &end) || end > INT64_MAX)
        FAIL(error, SHOAL_E_INVALID,
            "reading %s: %llu bytes, at least %llu, from byte %llu to %p is no aligned read",
            read->file->path, (unsigned long long)read->bytes, (unsigned long long)read->least,
            (unsigned long long)read->offset, read->to);
    if (!read->file->memory) TRY(find_source(reader, read->file, &source, error));
    request = take_request(reader);
    if (!request) FAIL_MEMORY(error);
    request->read = *read;
    request->source = source;
    if (!source) {
        take_from_memory(request);
        queue_push(&reader->ready, request);
        return SHOAL_OK;
    }
    reader->backend->submit(reader->state, request);
    return SHOAL_OK;
}

bool reader_next(struct reader *reader, bool wait, struct read *read, struct shoal_error *error)
{
    struct request *request = queue_pop(&reader->ready);

    if (!request) request = reader->backend->next(reader->state, wait);
    if (!request) return false;
    if (request->source)
        snprintf(reader->text, sizeof reader->text, "%s, %s", reader->name,
            request->direct ? "direct" : "cached");
    request->read.status = judge(request, error);
    *read = request->read;
    request->next = reader->spare;
    reader->spare = request;
    return true;
}

void reader_go_past_cache(struct reader *reader)
{
    reader->past_cache = true;
}

void reader_wake(struct reader *reader)
{
    reader->backend->wake(reader->state);
}
