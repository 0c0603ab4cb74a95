/* Files over POSIX. */
#include "base/file.h"

#include "base/memory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum file_kind file_kind(const char *path)
{
    struct stat info;

    /* What is there but cannot be looked at is not absent: opening it will say why. */
    if (stat(path, &info)) return errno == ENOENT || errno == ENOTDIR ? FILE_NONE : FILE_OTHER;
    if (S_ISREG(info.st_mode)) return FILE_REGULAR;
    return S_ISDIR(info.st_mode) ? FILE_FOLDER : FILE_OTHER;
}

static int64_t modified_ns(const struct stat *info)
{
    return (int64_t)info->st_mtim.tv_sec * 1000000000 + info->st_mtim.tv_nsec;
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
    file->bytes = (uint64_t)info.st_size;
    file->modified_ns = modified_ns(&info);
    return SHOAL_OK;
}

void file_close(struct file *file)
{
    if (file->path) {
        close(file->fd);
        mem_free(file->path);
    }
    *file = (struct file){.fd = -1};
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

    if (fstat(file->fd, &info))
        FAIL(error, SHOAL_E_IO, "cannot look at %s: %s", file->path, strerror(errno));
    if ((uint64_t)info.st_size != file->bytes || modified_ns(&info) != file->modified_ns)
        FAIL(error, SHOAL_E_IO, "%s was changed while it was in use: run again", file->path);
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

/* Opens a new file beside `path`; *temporary is its name, mem_free'd by the caller. */
static int open_beside(const char *path, char **temporary)
{
    int fd = -1;

    errno = EEXIST;
    /* Made by open and not by mkstemp, so that the permissions are what the umask leaves. */
    for (int i = 0; i < 100 && fd < 0 && errno == EEXIST; i++) {
        *temporary = mem_format("%s.%ld-%d.part", path, (long)getpid(), i);
        if (!*temporary) {
            errno = ENOMEM;
            return -1;
        }
        fd = open(*temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) break;
        mem_free(*temporary);
        *temporary = NULL;
    }
    return fd;
}

/* Writes all of it; 0 or an errno. */
static int write_all(int fd, const char *from, size_t bytes)
{
    while (bytes) {
        ssize_t put = write(fd, from, bytes);

        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return errno;
        from += put;
        bytes -= (size_t)put;
    }
    return 0;
}

enum shoal_status file_write_whole(
    const char *path, const void *data, size_t bytes, struct shoal_error *error)
{
    struct stat info;
    char *target = realpath(path, NULL), *temporary = NULL;
    int fd, code;

    /* A link keeps pointing where it does: what it points to is replaced. */
    if (!target && !lstat(path, &info) && S_ISLNK(info.st_mode))
        FAIL(error, SHOAL_E_IO, "cannot write %s: it is a link to nothing", path);
    fd = open_beside(target ? target : path, &temporary);
    code = fd < 0 ? errno : write_all(fd, data, bytes);
    if (fd >= 0 && close(fd) && !code) code = errno;
    if (!code && rename(temporary, target ? target : path)) code = errno;
    if (code && fd >= 0) unlink(temporary);
    mem_free(temporary);
    mem_free(target);
    if (code)
        FAIL(error, code == ENOMEM ? SHOAL_E_MEMORY : SHOAL_E_IO, "cannot write %s: %s", path,
            strerror(code));
    return SHOAL_OK;
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
