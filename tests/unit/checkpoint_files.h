/* Writing checkpoints, whole and broken, for the tests of src/checkpoint. */
#ifndef TESTS_UNIT_CHECKPOINT_FILES_H
#define TESTS_UNIT_CHECKPOINT_FILES_H

#include "support.h"

#include "base/file.h"
#include "base/memory.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/shoal-test-XXXXXX"; /* of this program's files */

static int folder_make(void **state)
{
    (void)state;
    /* Others must get in: some tests drop root's rights. */
    return mkdtemp(folder) && !chmod(folder, 0755) ? 0 : -1;
}

static int folder_remove_entry(const char *path, const struct stat *info, int type, struct FTW *at)
{
    (void)info, (void)type, (void)at;
    return remove(path);
}

static int folder_remove(void **state)
{
    (void)state;
    return nftw(folder, folder_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* folder/name, in a ring of static buffers. */
static const char *at(const char *name)
{
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* How many files there are in a folder, hidden ones too. */
static inline size_t files_in(const char *name)
{
    struct shoal_error error = {0};
    char **names;
    size_t count;

    assert_ok(file_list(at(name), &names, &count, &error));
    mem_free(names);
    return count;
}

static inline const char *put_bytes(const char *name, const void *data, size_t bytes)
{
    const char *path = at(name);
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    return path;
}

static inline const char *put_text(const char *name, const char *text)
{
    return put_bytes(name, text, strlen(text));
}

/* A header that claims `length` bytes, and `data_bytes` bytes of data: 0, 1, 2 ... 250, 0 ... */
static inline const char *put_claiming(
    const char *name, uint64_t length, const char *header, size_t data_bytes)
{
    const char *path = at(name);
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    for (int i = 0; i < 8; i++)
        fputc((int)(length >> 8 * i & 255), file);
    fputs(header, file);
    for (size_t i = 0; i < data_bytes; i++)
        fputc((int)(i % 251), file);
    assert_int_equal(fclose(file), 0);
    return path;
}

static inline const char *put_safetensors(const char *name, const char *header, size_t data_bytes)
{
    return put_claiming(name, strlen(header), header, data_bytes);
}

#endif
