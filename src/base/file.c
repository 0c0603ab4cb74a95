/* Files over POSIX. */
#include "base/file.h"

#include "base/memory.h"
#include "base/size.h"
#include "base/writer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum file_kind file_kind(const char *path)
{
    struct stat info;

    /* What is there but cannot be looked at is not absent: opening it will say why. */
    if (stat(path, &info)) return errno == ENOENT || errno == ENOTDIR ? FILE_NONE : FILE_OTHER;
    if (S_ISREG(info.st_mode)) return FILE_REGULAR;
    return S_ISDIR(info.st_mode) ? FILE_FOLDER : FILE_OTHER;
}

bool file_is_link(const char *path)
{
    struct stat info;

    return !lstat(path, &info) && S_ISLNK(info.st_mode);
}

static int64_t to_ns(struct timespec time)
{
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void take_identity(struct file *file, const struct stat *info)
{
    file->bytes = (uint64_t)info->st_size;
    file->modified_ns = to_ns(info->st_mtim);
    file->changed_ns = to_ns(info->st_ctim);
    file->device = (uint64_t)info->st_dev;
    file->inode = (uint64_t)info->st_ino;
    file->names = info->st_nlink;
}

/* The time of modification can be put back; the time of change cannot, but it is also that of the
 * last name given to the file or taken from it, as when a cache drops what is still in use. */
static bool is_same(const struct file *file, const struct stat *info)
{
    return (uint64_t)info->st_size == file->bytes && to_ns(info->st_mtim) == file->modified_ns &&
           (to_ns(info->st_ctim) == file->changed_ns || info->st_nlink != file->names);
}

bool file_same(const struct file *a, const struct file *b)
{
    return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes &&
           a->modified_ns == b->modified_ns && a->changed_ns == b->changed_ns;
}

enum shoal_status file_open(const char *path, struct file *file, struct shoal_error *error)
{
    struct stat info;
    int fd;

    *file = (struct file){.fd = -1};
    /* O_NONBLOCK: opening a FIFO without a writer would wait for ever. */
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) FAIL(error, SHOAL_E_IO, "cannot open %s: %s", path, strerror(errno));
    if (fstat(fd, &info) || !S_ISREG(info.st_mode)) {
        close(fd);
        FAIL(error, SHOAL_E_IO, "cannot read %s: it is %s, not a regular file", path,
            S_ISDIR(info.st_mode)    ? "a folder"
            : S_ISFIFO(info.st_mode) ? "a FIFO"
                                     : "a special file");
    }
    file->path = mem_strdup(path);
    if (!file->path) {
        close(fd);
        FAIL_MEMORY(error);
    }
    file->fd = fd;
    take_identity(file, &info);
    return SHOAL_OK;
}

struct file file_of_memory(const char *name, const void *memory, uint64_t bytes)
{
    return (struct file){
        .fd = -1, .bytes = bytes, .path = (char *)(uintptr_t)name, .memory = memory};
}

void file_close(struct file *file)
{
    if (file->path && !file->memory) {
        close(file->fd);
        mem_free(file->path);
    }
    *file = (struct file){.fd = -1};
}

enum shoal_status file_look_again(struct file *file, struct shoal_error *error)
{
    struct stat info;

    if (fstat(file->fd, &info))
        FAIL(error, SHOAL_E_IO, "cannot look at %s: %s", file->path, strerror(errno));
    take_identity(file, &info);
    return SHOAL_OK;
}

enum shoal_status file_read_at(
    const struct file *file, uint64_t offset, void *data, uint64_t bytes, struct shoal_error *error)
{
    char *to = data;

    while (bytes) {
        size_t want = bytes < (1u << 30) ? (size_t)bytes : 1u << 30;
        ssize_t got = pread(file->fd, to, want, (off_t)offset);

        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            FAIL(error, SHOAL_E_IO, "reading %s at byte %llu failed: %s", file->path,
                (unsigned long long)offset, strerror(errno));
        if (!got)
            FAIL(error, SHOAL_E_IO, "%s ends at byte %llu, %llu bytes early", file->path,
                (unsigned long long)offset, (unsigned long long)bytes);
        to += got;
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return SHOAL_OK;
}

enum shoal_status file_check_unchanged(const struct file *file, struct shoal_error *error)
{
    struct stat info;

    if (file->memory) return SHOAL_OK; /* nobody could tell */
    if (fstat(file->fd, &info))
        FAIL(error, SHOAL_E_IO, "cannot look at %s: %s", file->path, strerror(errno));
    if (!is_same(file, &info))
        FAIL(error, SHOAL_E_IO,
            "%s was changed while it was in use (or renamed, or its permissions were): run again",
            file->path);
    return SHOAL_OK;
}

enum shoal_status file_read_all(
    const char *path, uint64_t limit, char **data, size_t *bytes, struct shoal_error *error)
{
    enum shoal_status status;
    struct file file;
    char *text = NULL;

    TRY(file_open(path, &file, error));
    if (file.bytes > limit) {
        status = error_set(error, SHOAL_E_FORMAT, __FILE__, __LINE__,
            "%s has %llu bytes; at most %llu are read", path, (unsigned long long)file.bytes,
            (unsigned long long)limit);
        goto fail;
    }
    text = mem_alloc((size_t)file.bytes + 1);
    status = SHOAL_E_MEMORY;
    if (!text) {
        error_set(error, status, __FILE__, __LINE__, "out of memory for %s", path);
        goto fail;
    }
    TRY_OR_FAIL(file_read_at(&file, 0, text, file.bytes, error));
    text[file.bytes] = 0;
    *bytes = (size_t)file.bytes;
    *data = text;
    file_close(&file);
    return SHOAL_OK;
fail:
    mem_free(text);
    file_close(&file);
    return status;
}

enum shoal_status file_write_whole(
    const char *path, const void *data, size_t bytes, struct shoal_error *error)
{
    enum shoal_status status;
    struct writer writer;

    TRY(writer_open(path, &writer, error));
    status = writer_put(&writer, 0, data, bytes, error);
    if (!status) status = writer_commit(&writer, false, error);
    writer_close(&writer);
    return status;
}

enum shoal_status file_remove(const char *path, struct shoal_error *error)
{
    if (!unlink(path) || errno == ENOENT) return SHOAL_OK;
    FAIL(error, SHOAL_E_IO, "cannot remove %s: %s", path, strerror(errno));
}

uint64_t file_free_bytes(const char *folder)
{
    struct statvfs info;
    uint64_t bytes;

    if (statvfs(folder, &info)) return UINT64_MAX;
    return size_mul(info.f_bavail, info.f_frsize, &bytes) ? bytes : UINT64_MAX;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

enum shoal_status file_list(
    const char *folder, char ***names, size_t *count, struct shoal_error *error)
{
    DIR *dir = opendir(folder);
    char **list = NULL, **packed, *to;
    size_t used = 0, room = 0, text = 0;

    if (!dir) FAIL(error, SHOAL_E_IO, "cannot list %s: %s", folder, strerror(errno));
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (used == room) {
            char **grown = mem_realloc(list, room = room ? 2 * room : 64, sizeof *list);

            if (!grown) goto memory;
            list = grown;
        }
        if (!(list[used] = mem_strdup(entry->d_name))) goto memory;
        text += strlen(list[used++]) + 1;
    }
    if (used) qsort(list, used, sizeof *list, by_name);
    /* One block, so that one mem_free releases it. */
    packed = mem_alloc(used * sizeof *packed + text + 1);
    if (!packed) goto memory;
    to = (char *)(packed + used);
    for (size_t i = 0; i < used; i++) {
        packed[i] = strcpy(to, list[i]);
        to += strlen(to) + 1;
        mem_free(list[i]);
    }
    mem_free(list);
    closedir(dir);
    *names = packed;
    *count = used;
    return SHOAL_OK;
memory:
    for (size_t i = 0; i < used; i++)
        mem_free(list[i]);
    mem_free(list);
    closedir(dir);
    FAIL_MEMORY(error);
}
