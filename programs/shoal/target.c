/*
 * Checking where a file shall go before anything runs, and writing one. Pictures and traces are
 * written by libshoal; what this program draws itself is written here, in the same way.
 */
#include "target.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Room in a file name for the suffix of a file that is being written. */
#define NAME_SPARE_BYTES 24

/* Links followed from one name, as many as Linux follows. */
#define LINKS_MOST 40

/* ---- names ---- */

bool target_name(char path[TARGET_PATH_BYTES], const char *format, ...)
{
    va_list values;
    int length;

    va_start(values, format);
    length = vsnprintf(path, TARGET_PATH_BYTES, format, values);
    va_end(values);
    return length > 0 && length < TARGET_PATH_BYTES;
}

const char *target_base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* The folder of the file `path`, "." for a bare name. False if it does not fit. */
static bool name_folder(const char *path, char folder[TARGET_PATH_BYTES])
{
    const char *name = target_base_name(path);

    if (name == path) return target_name(folder, ".");
    return target_name(folder, "%.*s", (int)(name - path), path);
}

/* ---- checking ---- */

static bool check_writable(const char *option, const char *folder)
{
    struct stat status;

    if (stat(folder, &status) != 0) {
        cli_error(
            "%s: folder '%s': %s: make it first, or name another", option, folder, strerror(errno));
        return false;
    }
    if (!S_ISDIR(status.st_mode)) {
        cli_error("%s: '%s' is no folder: name another", option, folder);
        return false;
    }
    if (access(folder, W_OK | X_OK) != 0) {
        cli_error("%s: folder '%s' cannot be written to: %s: name another", option, folder,
            strerror(errno));
        return false;
    }
    return true;
}

/* `folder` is a real path; `path` is what the user named. */
static bool check_place(const char *option, const char *folder, const char *path)
{
    static const char *const systems[] = {"/dev", "/proc"};

    for (size_t i = 0; i < sizeof systems / sizeof *systems; i++) {
        size_t length = strlen(systems[i]);

        if (strncmp(folder, systems[i], length) != 0) continue;
        if (folder[length] != '\0' && folder[length] != '/') continue;
        cli_error("%s: '%s' lies under %s, where no such file belongs: name a file elsewhere%s",
            option, path, systems[i],
            strcmp(option, "--output") ? "" : ", or use -o - for standard output");
        return false;
    }
    return true;
}

bool target_check_folder(const char *option, const char *folder)
{
    char real[PATH_MAX];

    /* Where realpath fails, check_writable knows why. */
    if (realpath(folder, real) && !check_place(option, real, folder)) return false;
    return check_writable(option, folder);
}

static bool say_link_to_nothing(const char *option, const char *path)
{
    cli_error("%s: '%s' is a link to nothing: remove it, or name another file", option, path);
    return false;
}

/* `here` is a link: what it points to takes its place. False if that cannot be told. */
static bool follow_link(char here[TARGET_PATH_BYTES])
{
    char target[TARGET_PATH_BYTES];
    char folder[TARGET_PATH_BYTES];
    ssize_t length = readlink(here, target, sizeof target - 1);

    if (length <= 0) return false;
    target[length] = '\0';
    if (*target == '/') return target_name(here, "%s", target);
    return name_folder(here, folder) && target_name(here, "%s/%s", folder, target);
}

/* Whether the file is empty or of the kind. */
static bool is_of_kind(enum target_kind kind, const char *path)
{
    static const char *const signs[] = {[TARGET_PNG] = "\x89PNG\r\n",
        [TARGET_TRACE] = "\"traceEvents\"",
        [TARGET_SVG] = "<svg",
        [TARGET_RATES] = "\"linear_flops\""};
    char start[512];
    FILE *file = fopen(path, "rb");
    size_t bytes = file ? fread(start, 1, sizeof start, file) : 0;

    if (!file) return true; /* what cannot be read is told when it is written */
    fclose(file);
    return bytes == 0 || memmem(start, bytes, signs[kind], strlen(signs[kind])) != NULL;
}

/* The file, to which `path` leads, may be replaced. */
static bool check_kind(
    const char *option, enum target_kind kind, const struct stat *status, const char *path)
{
    static const char *const names[] = {[TARGET_PNG] = "PNG",
        [TARGET_TRACE] = "trace",
        [TARGET_SVG] = "SVG",
        [TARGET_RATES] = "file of rates"};

    if (S_ISREG(status->st_mode) && is_of_kind(kind, path)) return true;
    if (S_ISREG(status->st_mode)) {
        cli_error("%s: '%s' is there already and is no %s: name another file, or remove it", option,
            path, names[kind]);
        return false;
    }
    if (S_ISDIR(status->st_mode))
        cli_error("%s: '%s' is a folder: name a file", option, path);
    else
        cli_error("%s: '%s' is no regular file: name a file%s", option, path,
            strcmp(option, "--output") ? "" : ", or - for standard output");
    return false;
}

/*
 * What is at `path` now may be replaced, or there is nothing. Links are followed one by one, since
 * only the way tells that /dev/stdout is meant: its real path may be any file.
 */
bool target_check(const char *option, enum target_kind kind, const char *path)
{
    char here[TARGET_PATH_BYTES];
    char folder[TARGET_PATH_BYTES];
    char real[PATH_MAX];
    struct stat status;

    if (!target_name(here, "%s", path)) {
        cli_error("%s: '%s' is %s", option, path,
            *path ? "too long: give a shorter path" : "empty: name a file");
        return false;
    }
    for (int links = 0; links <= LINKS_MOST; links++) {
        if (strlen(target_base_name(here)) > 255 - NAME_SPARE_BYTES) {
            cli_error("%s: the name of '%s' is too long: give a shorter one", option, here);
            return false;
        }
        name_folder(here, folder);
        if (!realpath(folder, real))
            return links && errno != EACCES ? say_link_to_nothing(option, path)
                                            : check_writable(option, folder);
        if (!check_place(option, real, path)) return false;
        if (lstat(here, &status) != 0) {
            if (links && errno == ENOENT) return say_link_to_nothing(option, path);
            if (errno == ENOENT) return check_writable(option, folder);
            cli_error("%s: '%s': %s: name another file", option, here, strerror(errno));
            return false;
        }
        if (!S_ISLNK(status.st_mode))
            return check_kind(option, kind, &status, path) && check_writable(option, folder);
        if (!follow_link(here)) return say_link_to_nothing(option, path);
    }
    cli_error("%s: '%s' is a link that leads back to itself: remove it, or name another file",
        option, path);
    return false;
}

/* ---- comparing ---- */

static bool same_inode(const char *a, const char *b)
{
    struct stat x, y;

    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool target_in_folder(const char *path, const char *folder)
{
    char own[TARGET_PATH_BYTES];

    return name_folder(path, own) && same_inode(own, folder);
}

bool target_same(const char *a, const char *b)
{
    char folder[TARGET_PATH_BYTES];

    if (same_inode(a, b)) return true;
    /* If one of them is there, then so were the other, were they the same. */
    if (access(a, F_OK) == 0 || access(b, F_OK) == 0) return false;
    return !strcmp(target_base_name(a), target_base_name(b)) && name_folder(b, folder) &&
           target_in_folder(a, folder);
}

/* ---- writing ---- */

static bool write_all(int fd, const char *from, size_t bytes)
{
    while (bytes) {
        ssize_t put = write(fd, from, bytes);

        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return false;
        from += put;
        bytes -= (size_t)put;
    }
    return true;
}

bool target_write(const char *path, const void *data, size_t bytes)
{
    char temporary[TARGET_PATH_BYTES];
    char real[PATH_MAX];
    const char *place = realpath(path, real) ? real : path;
    int fd = -1, code = ENAMETOOLONG;
    bool good = false;

    if (target_name(temporary, "%s.%ld.part", place, (long)getpid())) {
        fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        good = fd >= 0 && write_all(fd, data, bytes);
        code = errno;
    }
    if (fd >= 0 && close(fd) != 0 && good) {
        good = false;
        code = errno;
    }
    if (good && rename(temporary, place) != 0) {
        good = false;
        code = errno;
    }
    if (good) return true;
    if (fd >= 0) unlink(temporary);
    cli_error("cannot write %s: %s", path, strerror(code));
    return false;
}
