/* src/base/file: reading, listing, and writing that happens whole or not at all. */
#include "checkpoint_files.h"

#include "base/file.h"
#include "base/memory.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

static void test_reads(void **state)
{
    const char *path = put_text("ten", "0123456789");
    struct shoal_error error = {0};
    struct file file;
    char *text, data[11] = {0};
    size_t bytes;

    (void)state;
    assert_ok(file_open(path, &file, &error));
    assert_int_equal(file.bytes, 10);
    assert_string_equal(file.path, path);
    assert_ok(file_read_at(&file, 3, data, 4, &error));
    assert_string_equal(data, "3456");
    assert_ok(file_read_at(&file, 10, data, 0, &error));
    assert_int_equal(file_read_at(&file, 8, data, 4, &error), SHOAL_E_IO);
    assert_non_null(strstr(error.text, "ten ends at byte 10, 2 bytes early"));
    assert_int_equal(file_read_at(&file, UINT64_MAX, data, 1, &error), SHOAL_E_IO);
    file_close(&file);
    file_close(&file);
    assert_ok(file_read_all(path, 10, &text, &bytes, &error));
    assert_int_equal(bytes, 10);
    assert_string_equal(text, "0123456789");
    mem_free(text);
    assert_int_equal(file_read_all(path, 9, &text, &bytes, &error), SHOAL_E_FORMAT);
    assert_non_null(strstr(error.text, "at most 9"));
    assert_ok(file_read_all(put_text("none", ""), 0, &text, &bytes, &error));
    assert_int_equal(bytes, 0);
    assert_string_equal(text, "");
    mem_free(text);
}

static void test_kinds(void **state)
{
    struct shoal_error error = {0};
    const char *fifo = at("fifo");
    struct file file;

    (void)state;
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(file_kind(fifo), FILE_OTHER);
    assert_int_equal(file_kind(folder), FILE_FOLDER);
    assert_int_equal(file_kind(put_text("plain", "x")), FILE_REGULAR);
    assert_int_equal(file_kind(at("nothing")), FILE_NONE);
    assert_int_equal(file_open(fifo, &file, &error), SHOAL_E_IO);
    assert_non_null(strstr(error.text, "FIFO"));
    file_close(&file);
    assert_int_equal(file_open(folder, &file, &error), SHOAL_E_IO);
    assert_non_null(strstr(error.text, "a folder"));
    assert_int_equal(file_open(at("nothing"), &file, &error), SHOAL_E_IO);
    assert_non_null(strstr(error.text, "nothing"));
}

static void test_lists(void **state)
{
    static const char *const expected[] = {".hidden", "B", "a", "b"};
    struct shoal_error error = {0};
    char **names = NULL;
    size_t count;

    (void)state;
    assert_int_equal(mkdir(at("list"), 0755), 0);
    assert_ok(file_list(at("list"), &names, &count, &error));
    assert_int_equal(count, 0);
    mem_free(names);
    put_text("list/b", "");
    put_text("list/.hidden", "");
    put_text("list/a", "");
    assert_int_equal(mkdir(at("list/B"), 0755), 0);
    assert_ok(file_list(at("list"), &names, &count, &error));
    assert_int_equal(count, 4);
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(names[i], expected[i]);
    mem_free(names);
    assert_int_equal(file_list(at("nothing"), &names, &count, &error), SHOAL_E_IO);
    assert_non_null(strstr(error.text, "nothing"));
}

static void test_lists_many(void **state)
{
    struct shoal_error error = {0};
    char **names = NULL;
    size_t count;

    (void)state;
    assert_int_equal(mkdir(at("many"), 0755), 0);
    for (int i = 0; i < 300; i++) {
        char name[32];

        snprintf(name, sizeof name, "many/%03d", 299 - i);
        put_text(name, "");
    }
    assert_ok(file_list(at("many"), &names, &count, &error));
    assert_int_equal(count, 300);
    for (size_t i = 0; i < 300; i++)
        assert_int_equal(atoi(names[i]), i);
    mem_free(names);
}

static size_t entries(const char *path)
{
    struct shoal_error error = {0};
    char **names = NULL;
    size_t count;

    assert_ok(file_list(path, &names, &count, &error));
    mem_free(names);
    return count;
}

static void assert_content(const char *path, const char *expected)
{
    struct shoal_error error = {0};
    char *text;
    size_t bytes;

    assert_ok(file_read_all(path, 100, &text, &bytes, &error));
    assert_string_equal(text, expected);
    mem_free(text);
}

static void test_writes_whole(void **state)
{
    struct shoal_error error = {0};
    struct stat info;
    mode_t mask;
    char path[600];

    (void)state;
    assert_int_equal(mkdir(at("out"), 0755), 0);
    snprintf(path, sizeof path, "%s", at("out/file"));
    mask = umask(022);
    assert_ok(file_write_whole(path, "first", 5, &error));
    assert_content(path, "first");
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0644); /* as any other new file */
    umask(mask);
    assert_ok(file_write_whole(path, "2nd", 3, &error));
    assert_content(path, "2nd");
    assert_ok(file_write_whole(path, "", 0, &error));
    assert_content(path, "");
    assert_int_equal(entries(at("out")), 1);
}

/* A failure leaves what was there, and no temporary file. */
/* A link stays a link; what it points to is replaced. A link to nothing is refused. */
static void test_writes_through_links(void **state)
{
    struct shoal_error error = {0};
    struct stat info;
    char target[PATH_MAX], link[PATH_MAX];

    (void)state;
    snprintf(target, sizeof target, "%s", at("target"));
    snprintf(link, sizeof link, "%s", at("link"));
    assert_ok(file_write_whole(target, "old", 3, &error));
    assert_int_equal(symlink(target, link), 0);
    assert_ok(file_write_whole(link, "longer", 6, &error));
    assert_int_equal(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_int_equal(stat(target, &info), 0);
    assert_int_equal(info.st_size, 6);
    assert_int_equal(unlink(target), 0);
    assert_int_equal(file_write_whole(link, "x", 1, &error), SHOAL_E_IO);
    assert_non_null(strstr(error.text, "link"));
    unlink(link);
}

/* Until the file system's clock, which ticks, has another time than the file's last change. */
static void wait_for_clock(const struct file *file)
{
    struct stat before, now;
    char path[600];

    assert_int_equal(fstat(file->fd, &before), 0);
    snprintf(path, sizeof path, "%s", at("clock"));
    do {
        put_text("clock", "x");
        assert_int_equal(stat(path, &now), 0);
        unlink(path);
    } while (now.st_ctim.tv_sec == before.st_ctim.tv_sec &&
             now.st_ctim.tv_nsec == before.st_ctim.tv_nsec);
}

/* What was rewritten since it was opened is noticed. */
static void test_notices_changes(void **state)
{
    struct shoal_error error = {0};
    struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    struct file file;

    (void)state;
    assert_ok(file_write_whole(at("weights"), "weights", 7, &error));
    assert_ok(file_open(at("weights"), &file, &error));
    assert_ok(file_check_unchanged(&file, &error));
    assert_int_equal(futimens(file.fd, times), 0);
    assert_int_equal(file_check_unchanged(&file, &error), SHOAL_E_IO);
    file_close(&file);
    /* Even if its time is put back; another name, or one less, changes nothing in it. */
    assert_ok(file_open(at("weights"), &file, &error));
    wait_for_clock(&file);
    put_text("weights", "WEIGHTS");
    assert_int_equal(futimens(file.fd, times), 0);
    assert_int_equal(file_check_unchanged(&file, &error), SHOAL_E_IO);
    assert_non_null(strstr(error.text, "weights"));
    file_close(&file);
    assert_ok(file_open(at("weights"), &file, &error));
    wait_for_clock(&file);
    unlink(at("weights"));
    assert_ok(file_check_unchanged(&file, &error));
    file_close(&file);
}

static void test_write_fails_whole(void **state)
{
    uid_t user = geteuid();
    struct shoal_error error = {0};
    char path[600];

    (void)state;
    assert_int_equal(mkdir(at("locked"), 0755), 0);
    snprintf(path, sizeof path, "%s", put_text("locked/file", "old"));
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(chmod(at("locked"), 0555), 0);
    if (!user) assert_int_equal(seteuid(65534), 0);
    assert_int_equal(file_write_whole(path, "new", 3, &error), SHOAL_E_IO);
    assert_int_equal(seteuid(user), 0);
    assert_non_null(strstr(error.text, "locked/file"));
    assert_non_null(strstr(error.text, "Permission denied"));
    assert_int_equal(chmod(at("locked"), 0755), 0);
    assert_content(path, "old");
    assert_int_equal(entries(at("locked")), 1);

    /* The rename fails: a folder that is not empty has the name. */
    assert_int_equal(mkdir(at("locked/folder"), 0755), 0);
    put_text("locked/folder/x", "x");
    assert_int_equal(file_write_whole(at("locked/folder"), "new", 3, &error), SHOAL_E_IO);
    assert_int_equal(entries(at("locked")), 2);
    assert_int_equal(file_write_whole(at("nowhere/file"), "new", 3, &error), SHOAL_E_IO);
    assert_non_null(strstr(error.text, "nowhere/file"));
}

/* However soon another takes its place: times are taken from a clock that ticks in milliseconds. */
static void test_notices_replacements(void **state)
{
    const char *path = put_text("replaced", "0123456789");
    struct shoal_error error = {0};
    struct file before, after;

    (void)state;
    for (int i = 0; i < 1000; i++) {
        assert_ok(file_open(path, &before, &error));
        assert_true(file_same(&before, &before));
        assert_ok(file_write_whole(path, "0123456789", 10, &error));
        assert_ok(file_open(path, &after, &error));
        assert_false(file_same(&before, &after));
        file_close(&after);
        file_close(&before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_lists_many),
        cmocka_unit_test(test_writes_whole),
        cmocka_unit_test(test_writes_through_links),
        cmocka_unit_test(test_notices_changes),
        cmocka_unit_test(test_notices_replacements),
        cmocka_unit_test(test_write_fails_whole),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
