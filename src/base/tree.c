/* Folders over POSIX. */
#include "base/tree.h"

#include "base/file.h"
#include "base/memory.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum shoal_status tree_make(const char *path, bool *made, struct shoal_error *error)
{
    int code = mkdir(path, 0777) ? errno : 0;

    if (made) *made = !code;
    if (!code || (code == EEXIST && file_kind(path) == FILE_FOLDER)) return SHOAL_OK;
    FAIL(error, SHOAL_E_IO, "cannot make the folder %s: %s", path, strerror(code));
}

enum shoal_status tree_make_temporary(const char *prefix, char **path, struct shoal_error *error)
{
    int code = EEXIST;

    *path = NULL;
    for (int i = 0; i < 100 && code == EEXIST; i++) {
        mem_free(*path);
        *path = mem_format("%s.%ld-%d.part", prefix, (long)getpid(), i);
        if (!*path) FAIL_MEMORY(error);
        code = mkdir(*path, 0777) ? errno : 0;
    }
    if (!code) return SHOAL_OK;
    mem_free(*path);
    *path = NULL;
    FAIL(error, SHOAL_E_IO, "cannot make a folder beside %s: %s", prefix, strerror(code));
}

static enum shoal_status move_one(
    const char *from, const char *to, const char *name, struct shoal_error *error)
{
    char *source = mem_format("%s/%s", from, name), *target = mem_format("%s/%s", to, name);
    enum shoal_status status = SHOAL_E_MEMORY;

    if (source && target)
        status = tree_move(source, target, error);
    else
        error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
    mem_free(source);
    mem_free(target);
    return status;
}

enum shoal_status tree_move(const char *from, const char *to, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;
    size_t count = 0;
    char **names;

    if (file_kind(from) != FILE_FOLDER || file_kind(to) != FILE_FOLDER) {
        if (!rename(from, to)) return SHOAL_OK;
        FAIL(error, SHOAL_E_IO, "cannot write %s: %s", to, strerror(errno));
    }
    TRY(file_list(from, &names, &count, error));
    for (size_t i = 0; i < count && !status; i++)
        status = move_one(from, to, names[i], error);
    mem_free(names);
    if (!status) tree_remove(from);
    return status;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *at)
{
    (void)info, (void)type, (void)at;
    remove(path);
    return 0;
}

void tree_remove(const char *path)
{
    (void)!nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

void tree_remove_empty(const char *path)
{
    rmdir(path);
}

enum shoal_status tree_real(const char *path, char **real, struct shoal_error *error)
{
    *real = realpath(path, NULL);
    if (*real) return SHOAL_OK;
    FAIL(error, errno == ENOMEM ? SHOAL_E_MEMORY : SHOAL_E_IO, "cannot look at %s: %s", path,
        strerror(errno));
}

bool tree_same(const char *a, const char *b)
{
    struct stat x, y;

    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool tree_holds(const char *folder, const char *path)
{
    char *outer = realpath(folder, NULL), *copy = mem_strdup(path), *inner = NULL;
    size_t length = copy ? strlen(copy) : 0;
    bool holds = false;

    while (length > 1 && copy[length - 1] == '/')
        copy[--length] = 0;
    if (copy) inner = realpath(path, NULL);
    if (copy && !inner) {
        char *slash = strrchr(copy, '/');

        if (slash) slash[slash == copy] = 0;
        inner = realpath(slash ? copy : ".", NULL);
    }
    if (outer && inner) {
        length = strlen(outer);
        while (length && outer[length - 1] == '/')
            length--;
        holds = !strncmp(outer, inner, length) && (!inner[length] || inner[length] == '/');
    }
    mem_free(outer);
    mem_free(inner);
    mem_free(copy);
    return holds;
}
