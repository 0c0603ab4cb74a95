/* Files that appear whole or not at all, over POSIX. */
#include "base/writer.h"

#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FAIL_WRITE(w, code, error)                                                                 \
    FAIL(error, (code) == ENOMEM ? SHOAL_E_MEMORY : SHOAL_E_IO, "cannot write %s: %s", (w)->path,  \
        strerror(code))

/* ---- opening ---- */

/* Fills the names but the temporary's. A link keeps pointing where it does. */
static enum shoal_status set_target(struct writer *w, const char *path, struct shoal_error *error)
{
    struct stat info;
    char *real;

    *w = (struct writer){.fd = -1, .path = mem_strdup(path)};
    if (!w->path) FAIL_MEMORY(error);
    real = realpath(path, NULL);
    if (!real && !lstat(path, &info) && S_ISLNK(info.st_mode))
        FAIL(error, SHOAL_E_IO, "cannot write %s: it is a link to nothing", path);
    w->target = mem_strdup(real ? real : path);
    mem_free(real);
    if (!w->target) FAIL_MEMORY(error);
    return SHOAL_OK;
}

enum shoal_status writer_open(const char *path, struct writer *w, struct shoal_error *error)
{
    enum shoal_status status;
    int code = EEXIST;

    TRY_OR_FAIL(set_target(w, path, error));
    /* Made by open and not by mkstemp, so that the permissions are what the umask leaves. */
    for (int i = 0; i < 100 && code == EEXIST; i++) {
        char *name = mem_format("%s.%ld-%d.part", w->target, (long)getpid(), i);

        if (!name) {
            status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
            goto fail;
        }
        w->fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        code = w->fd < 0 ? errno : 0;
        if (code)
            mem_free(name);
        else
            w->temporary = name;
    }
    if (!code) return SHOAL_OK;
    status = error_set(
        error, SHOAL_E_IO, __FILE__, __LINE__, "cannot write %s: %s", path, strerror(code));
fail:
    writer_close(w);
    return status;
}

/* Whether `fd` is still the file called that: whoever held the lock may have moved it away. */
static bool is_file(int fd, const char *name)
{
    struct stat own, named;

    return !fstat(fd, &own) && !stat(name, &named) && own.st_dev == named.st_dev &&
           own.st_ino == named.st_ino;
}

static bool is_regular(int fd)
{
    struct stat info;

    return !fstat(fd, &info) && S_ISREG(info.st_mode);
}

/* A locked file of that name, or -1 and an errno: EWOULDBLOCK if another has it, ENXIO if it is a
 * special file. */
static int open_and_lock(const char *name)
{
    for (;;) {
        /* O_NONBLOCK: opening a FIFO without a reader would wait for ever; so it is ENXIO. */
        int fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666), code;

        if (fd < 0) return -1;
        code = is_regular(fd) ? 0 : ENXIO;
        if (!code && flock(fd, LOCK_EX | LOCK_NB)) code = errno;
        if (!code && is_file(fd, name)) return fd;
        close(fd);
        errno = code;
        if (code) return -1;
    }
}

static enum shoal_status fail_to_lock(
    const char *path, const char *name, int code, struct shoal_error *error)
{
    if (code == ENXIO || code == EISDIR || code == ELOOP)
        FAIL(error, SHOAL_E_IO, "cannot write %s: %s is no regular file; move it away", path, name);
    FAIL(error, SHOAL_E_IO, "cannot write %s: %s", path, strerror(code));
}

enum shoal_status writer_open_locked(
    const char *path, struct writer *w, bool *busy, struct shoal_error *error)
{
    enum shoal_status status;
    char *name = NULL;

    *busy = false;
    TRY_OR_FAIL(set_target(w, path, error));
    name = mem_format("%s.part", w->target);
    if (!name) {
        status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
        goto fail;
    }
    w->fd = open_and_lock(name);
    if (w->fd < 0 && errno == EWOULDBLOCK) {
        *busy = true;
        status = SHOAL_OK;
        goto fail;
    }
    if (w->fd < 0) {
        status = fail_to_lock(path, name, errno, error);
        goto fail;
    }
    w->temporary = name;
    if (!ftruncate(w->fd, 0)) return SHOAL_OK;
    status = error_set(
        error, SHOAL_E_IO, __FILE__, __LINE__, "cannot write %s: %s", path, strerror(errno));
    name = NULL; /* the writer's now */
fail:
    mem_free(name);
    writer_close(w);
    return status;
}

enum shoal_status writer_open_nameless(const char *folder, const char *name, struct writer *w,
    struct file *file, struct shoal_error *error)
{
    char *path = mem_format("%s/%s", folder, name);
    enum shoal_status status;

    *file = (struct file){.fd = -1};
    *w = (struct writer){.fd = -1};
    if (!path) FAIL_MEMORY(error);
    status = writer_open(path, w, error);
    mem_free(path);
    if (status) return status;
    status = file_open(w->temporary, file, error);
    unlink(w->temporary);
    mem_free(w->temporary);
    w->temporary = NULL;
    if (status) writer_close(w);
    return status;
}

/* ---- writing ---- */

enum shoal_status writer_put(
    struct writer *w, uint64_t offset, const void *data, uint64_t bytes, struct shoal_error *error)
{
    const char *from = data;

    while (bytes) {
        size_t want = bytes < (1u << 30) ? (size_t)bytes : 1u << 30;
        ssize_t put = pwrite(w->fd, from, want, (off_t)offset);

        if (put < 0 && errno == EINTR) continue;
        if (put < 0) FAIL_WRITE(w, errno, error);
        from += put;
        offset += (uint64_t)put;
        bytes -= (uint64_t)put;
    }
    return SHOAL_OK;
}

/* So that the new name, too, outlives a crash. Not all file systems can; the data is safe. */
static void sync_folder(const char *path)
{
    char *folder = mem_strdup(path), *slash = folder ? strrchr(folder, '/') : NULL;
    int fd;

    if (slash) slash[slash == folder] = 0;
    fd = folder ? open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        (void)!fsync(fd);
        close(fd);
    }
    mem_free(folder);
}

/* What closing would say, such as a network drive's quota, with the file still open. 0 or -1. */
static int try_close(int fd)
{
    int copy = dup(fd);

    return copy < 0 ? -1 : close(copy);
}

enum shoal_status writer_commit(struct writer *w, bool durable, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;
    int code = 0;

    /* Renamed while it is still open: its lock, if it has one, covers the renaming. */
    if ((durable ? fsync(w->fd) : try_close(w->fd)) || rename(w->temporary, w->target))
        code = errno;
    if (code) {
        status = error_set(
            error, SHOAL_E_IO, __FILE__, __LINE__, "cannot write %s: %s", w->path, strerror(code));
    } else {
        mem_free(w->temporary);
        w->temporary = NULL;
        if (durable) sync_folder(w->target);
    }
    writer_close(w);
    return status;
}

enum shoal_status writer_commit_nameless(
    struct writer *w, struct file *file, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;

    if (fdatasync(w->fd))
        status = error_set(
            error, SHOAL_E_IO, __FILE__, __LINE__, "cannot write %s: %s", w->path, strerror(errno));
    /* Only what is on the drive can leave. */
    if (!status) (void)posix_fadvise(w->fd, 0, 0, POSIX_FADV_DONTNEED);
    writer_close(w);
    return status ? status : file_look_again(file, error);
}

void writer_close(struct writer *w)
{
    if (w->temporary) unlink(w->temporary);
    if (w->path && w->fd >= 0) close(w->fd);
    mem_free(w->temporary);
    mem_free(w->target);
    mem_free(w->path);
    *w = (struct writer){.fd = -1};
}

/* ---- appending ---- */

#define APPEND_BYTES ((size_t)4 << 20)

static int open_direct(const char *path)
{
#ifdef O_DIRECT
    return open(path, O_WRONLY | O_DIRECT | O_CLOEXEC);
#else
    (void)path;
    return -1;
#endif
}

enum shoal_status appender_init(
    struct appender *a, struct writer *writer, uint64_t offset, struct shoal_error *error)
{
    *a = (struct appender){.writer = writer, .direct = -1, .offset = offset};
    a->buffer = pages_alloc(APPEND_BYTES);
    if (!a->buffer) FAIL_MEMORY(error);
    a->direct = open_direct(writer->temporary);
    return SHOAL_OK;
}

/* Whole pages of the buffer; what is left moves to its beginning. */
static enum shoal_status flush_pages(struct appender *a, struct shoal_error *error)
{
    size_t bytes = a->used / HOST_PAGE_BYTES * HOST_PAGE_BYTES, done = 0;

    while (a->direct >= 0 && done < bytes) {
        ssize_t put = pwrite(a->direct, a->buffer + done, bytes - done, (off_t)(a->offset + done));

        if (put < 0 && errno == EINTR) continue;
        if (put > 0 && put % HOST_PAGE_BYTES == 0) {
            done += (size_t)put;
            continue;
        }
        /* Not possible here after all; or an error, which the other way will meet as well. */
        close(a->direct);
        a->direct = -1;
    }
    TRY(writer_put(a->writer, a->offset + done, a->buffer + done, bytes - done, error));
    a->offset += bytes;
    a->used -= bytes;
    memmove(a->buffer, a->buffer + bytes, a->used);
    return SHOAL_OK;
}

enum shoal_status appender_put(
    struct appender *a, const void *data, uint64_t bytes, struct shoal_error *error)
{
    const char *from = data;

    while (bytes) {
        size_t room = APPEND_BYTES - a->used, now = bytes < room ? (size_t)bytes : room;

        memcpy(a->buffer + a->used, from, now);
        a->used += now;
        from += now;
        bytes -= now;
        if (a->used == APPEND_BYTES) TRY(flush_pages(a, error));
    }
    return SHOAL_OK;
}

enum shoal_status appender_finish(struct appender *a, struct shoal_error *error)
{
    TRY(flush_pages(a, error));
    return writer_put(a->writer, a->offset, a->buffer, a->used, error);
}

void appender_fini(struct appender *a)
{
    if (a->buffer) {
        pages_free(a->buffer, APPEND_BYTES);
        if (a->direct >= 0) close(a->direct);
    }
    *a = (struct appender){.direct = -1};
}
