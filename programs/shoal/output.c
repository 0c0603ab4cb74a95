/*
 * Naming the files that generate writes. The writing itself, and that a file appears
 * complete or not at all, is libshoal's.
 */
#include "output.h"

#include "interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define NUMBERED_NAME "shoal-%04d.png"
#define NUMBER_LAST 9999

/* Of the temporary folder's name: files in it need room for theirs. */
#define TEMPORARY_MOST_BYTES (TARGET_PATH_BYTES - 64)
#define NO_TEMPORARY                                                                               \
    "--output -: cannot make a folder in '%.300s': %s: set TMPDIR to one that can be written to"

/* ---- names ---- */

/* The dot of the extension in `path`, or its end. */
static const char *extension(const char *path)
{
    const char *name = target_base_name(path);
    const char *dot = strrchr(name, '.');

    return dot && dot != name ? dot : name + strlen(name);
}

/* x.png for one picture; x-1.png, x-2.png for several. */
static bool name_file(const struct output *output, int32_t index, char path[TARGET_PATH_BYTES])
{
    const char *end = extension(output->path);

    if (output->count == 1) return target_name(path, "%s", output->path);
    return target_name(path, "%.*s-%d%s", (int)(end - output->path), output->path, index + 1, end);
}

/* ---- before the run ---- */

static bool check_format(const char *path)
{
    static const char *const others[] = {".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff",
        ".avif", ".jxl", ".heic", ".ppm", ".svg", ".mp4", ".webm"};
    const char *end = extension(path);

    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (strcasecmp(end, others[i]) != 0) continue;
        cli_error("--output: '%s': pictures are PNG files: name it '%.*s.png'", path,
            (int)(end - path), path);
        return false;
    }
    return true;
}

/* Where a picture for standard output is put together. */
static const char *temporary_place(void)
{
    const char *place = getenv("TMPDIR");

    return place && *place ? place : "/tmp";
}

/* Makes a folder there; false with errno. */
static bool make_temporary(char folder[TARGET_PATH_BYTES])
{
    const char *place = temporary_place();

    errno = ENAMETOOLONG;
    return strlen(place) < TEMPORARY_MOST_BYTES - sizeof "/shoal-XXXXXX" &&
           target_name(folder, "%s/shoal-XXXXXX", place) && mkdtemp(folder);
}

/* Nothing but making a folder tells whether one can be made. */
static bool check_temporary(void)
{
    char folder[TARGET_PATH_BYTES];
    bool made;

    interrupt_defer(true); /* it is not to be left behind */
    made = make_temporary(folder);
    if (made)
        rmdir(folder);
    else
        cli_error(NO_TEMPORARY, temporary_place(), strerror(errno));
    interrupt_defer(false);
    return made;
}

static bool check_stdout(int32_t count, bool json)
{
    if (json)
        cli_error("--output - and --json both need standard output: leave one out");
    else if (count > 1)
        cli_error(
            "--output - takes one picture: leave --count and further prompts out, or name a file");
    else if (isatty(STDOUT_FILENO))
        cli_error("--output -: standard output is a terminal: send it to a program or a file");
    else
        return check_temporary();
    return false;
}

static bool check_file(const struct output *output)
{
    char path[TARGET_PATH_BYTES];

    if (!check_format(output->path)) return false;
    for (int32_t i = 0; i < output->count; i++) {
        if (!name_file(output, i, path)) {
            cli_error("--output: '%s' is too long: give a shorter path", output->path);
            return false;
        }
        if (!target_check("--output", TARGET_PNG, path)) return false;
    }
    return true;
}

bool output_prepare(const char *path, int32_t count, bool json, struct output *output)
{
    struct stat status;
    size_t length = path ? strlen(path) : 0;

    *output = (struct output){.kind = OUTPUT_FILE, .path = path, .count = count};
    if (path && length == 0) {
        cli_error("--output: the name is empty: name a file");
        return false;
    }
    if (path && !strcmp(path, "-")) {
        output->kind = OUTPUT_STDOUT;
        return check_stdout(count, json);
    }
    if (!path) output->path = "";
    if (!path || path[length - 1] == '/' || (stat(path, &status) == 0 && S_ISDIR(status.st_mode))) {
        output->kind = OUTPUT_NUMBERED;
        return target_check_folder("--output", path ? path : ".");
    }
    return check_file(output);
}

/* Whether `path` leads to a name that a picture in a folder could get. */
static bool is_numbered(const struct output *output, const char *path)
{
    char real[PATH_MAX];
    const char *place = realpath(path, real) ? real : path;
    char name[sizeof "shoal-0000.png"];
    int number = 0;

    if (sscanf(target_base_name(place), "shoal-%4d.png", &number) != 1) return false;
    if (number < 1 || number > NUMBER_LAST) return false;
    snprintf(name, sizeof name, NUMBERED_NAME, number);
    return !strcmp(target_base_name(place), name) &&
           target_in_folder(place, *output->path ? output->path : ".");
}

static bool is_picture(const struct output *output, const char *path)
{
    char picture[TARGET_PATH_BYTES];

    if (output->kind == OUTPUT_NUMBERED) return is_numbered(output, path);
    for (int32_t i = 0; output->kind == OUTPUT_FILE && i < output->count; i++)
        if (name_file(output, i, picture) && target_same(picture, path)) return true;
    return false;
}

bool output_takes(const struct output *output, const char *option, const char *path)
{
    struct stat file, out;

    if (is_picture(output, path)) {
        cli_error("%s: '%s' is where --output has a picture go: name another file", option, path);
        return true;
    }
    if (fstat(STDOUT_FILENO, &out) != 0 || stat(path, &file) != 0) return false;
    if (file.st_dev != out.st_dev || file.st_ino != out.st_ino) return false;
    cli_error("%s: '%s' is the file that standard output goes to: name another", option, path);
    return true;
}

/* ---- after it ---- */

static SHOAL_CHECKED enum shoal_status fail(
    struct shoal_error *error, const char *what, const char *path)
{
    *error = (struct shoal_error){.status = SHOAL_E_IO, .file = __FILE__, .line = __LINE__};
    snprintf(error->text, sizeof error->text, "%s '%.900s': %s", what, path, strerror(errno));
    return SHOAL_E_IO;
}

static bool copy_to_stdout(const char *path)
{
    FILE *file = fopen(path, "rb");
    char buffer[65536];
    size_t length;
    bool good;

    if (!file) return false;
    while ((length = fread(buffer, 1, sizeof buffer, file)) > 0)
        if (fwrite(buffer, 1, length, stdout) != length) break;
    good = !ferror(file) && !ferror(stdout) && feof(file);
    fclose(file);
    return good;
}

/* The cause in `error` does not say what the file is for. */
static enum shoal_status say_temporary(struct shoal_error *error)
{
    struct shoal_error cause = *error;

    snprintf(error->text, sizeof error->text, "--output -: in TMPDIR, '%.300s': %.600s",
        temporary_place(), cause.text);
    return error->status;
}

/* libshoal writes to a path; so through a folder of our own, gone before this returns. */
static enum shoal_status write_stdout(const struct shoal_result *result, int32_t index,
    char path[TARGET_PATH_BYTES], struct shoal_error *error)
{
    char folder[TARGET_PATH_BYTES];
    enum shoal_status status;

    if (!make_temporary(folder)) {
        *error = (struct shoal_error){.status = SHOAL_E_IO, .file = __FILE__, .line = __LINE__};
        snprintf(error->text, sizeof error->text, NO_TEMPORARY, temporary_place(), strerror(errno));
        return SHOAL_E_IO;
    }
    snprintf(path, TARGET_PATH_BYTES, "%.*s/picture.png", TEMPORARY_MOST_BYTES, folder);
    status = shoal_result_write_png(result, index, path, error);
    if (status == SHOAL_OK && !copy_to_stdout(path) && !ferror(stdout))
        status = fail(error, "copying", path);
    if (status != SHOAL_OK) status = say_temporary(error);
    unlink(path);
    rmdir(folder);
    snprintf(path, TARGET_PATH_BYTES, "-");
    return status;
}

/*
 * Takes the first free number in the folder. The empty file holds it against other programs, until
 * the picture replaces it.
 */
static enum shoal_status reserve_number(
    const struct output *output, char path[TARGET_PATH_BYTES], struct shoal_error *error)
{
    size_t length = strlen(output->path);
    const char *slash = length > 0 && output->path[length - 1] != '/' ? "/" : "";

    for (int number = 1; number <= NUMBER_LAST; number++) {
        int fd;

        if (!target_name(path, "%s%s" NUMBERED_NAME, output->path, slash, number)) {
            errno = ENAMETOOLONG;
            return fail(error, "naming a picture in", output->path);
        }
        fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) {
            close(fd);
            return SHOAL_OK;
        }
        if (errno != EEXIST) return fail(error, "cannot write", path);
    }
    errno = EEXIST;
    return fail(error, "no free number left for a picture in", output->path);
}

static enum shoal_status write_numbered(const struct output *output,
    const struct shoal_result *result, int32_t index, char path[TARGET_PATH_BYTES],
    struct shoal_error *error)
{
    enum shoal_status status = reserve_number(output, path, error);

    if (status != SHOAL_OK) return status;
    status = shoal_result_write_png(result, index, path, error);
    if (status != SHOAL_OK) unlink(path);
    return status;
}

enum shoal_status output_write(const struct output *output, const struct shoal_result *result,
    int32_t index, char path[TARGET_PATH_BYTES], struct shoal_error *error)
{
    switch (output->kind) {
    case OUTPUT_STDOUT:
        return write_stdout(result, index, path, error);
    case OUTPUT_NUMBERED:
        return write_numbered(output, result, index, path, error);
    case OUTPUT_FILE:
        if (name_file(output, index, path)) break;
        errno = ENAMETOOLONG;
        return fail(error, "naming", output->path);
    }
    return shoal_result_write_png(result, index, path, error);
}
