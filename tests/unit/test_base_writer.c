/* src/base/writer, tree and checksum: files and folders that appear whole or not at all. */
#include "checkpoint_files.h"

#include "base/checksum.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/tree.h"
#include "base/writer.h"

#include <fcntl.h>

static void assert_holds(const char *name, const char *text)
{
    struct shoal_error error = {0};
    char *data;
    size_t bytes;

    assert_ok(file_read_all(at(name), 1 << 20, &data, &bytes, &error));
    assert_string_equal(data, text);
    mem_free(data);
}

static void test_commit_and_close(void **state)
{
    struct shoal_error error = {0};
    struct writer writer = {0};

    (void)state;
    assert_int_equal(mkdir(at("w"), 0755), 0);
    writer_close(&writer);
    assert_ok(writer_open(at("w/a"), &writer, &error));
    assert_ok(writer_put(&writer, 4, "5678", 4, &error));
    assert_ok(writer_put(&writer, 0, "1234", 4, &error));
    assert_int_equal(file_kind(at("w/a")), FILE_NONE);
    writer_close(&writer);
    writer_close(&writer);
    assert_int_equal(files_in("w"), 0);
    for (int durable = 0; durable < 2; durable++) {
        assert_ok(writer_open(at("w/a"), &writer, &error));
        assert_ok(writer_put(&writer, 0, durable ? "new" : "old", 3, &error));
        assert_ok(writer_commit(&writer, durable != 0, &error));
        writer_close(&writer);
        assert_int_equal(files_in("w"), 1);
        assert_holds("w/a", durable ? "new" : "old");
    }
    assert_int_equal(symlink("a", at("w/link")), 0);
    assert_ok(writer_open(at("w/link"), &writer, &error));
    assert_ok(writer_put(&writer, 0, "through", 7, &error));
    assert_ok(writer_commit(&writer, false, &error));
    assert_holds("w/a", "through");
    assert_int_equal(files_in("w"), 2);
    assert_int_equal(writer_open(at("no/a"), &writer, &error), SHOAL_E_IO);
    assert_non_null(strstr(error.text, "no/a"));
    writer_close(&writer);
}

static void test_locked(void **state)
{
    struct shoal_error error = {0};
    struct writer first, second;
    bool busy;

    (void)state;
    assert_int_equal(mkdir(at("l"), 0755), 0);
    put_text("l/a.part", "left by one that died");
    assert_ok(writer_open_locked(at("l/a"), &first, &busy, &error));
    assert_false(busy);
    assert_ok(writer_open_locked(at("l/a"), &second, &busy, &error));
    assert_true(busy);
    writer_close(&second);
    assert_ok(writer_put(&first, 0, "x", 1, &error));
    assert_ok(writer_commit(&first, true, &error));
    assert_holds("l/a", "x");
    assert_int_equal(files_in("l"), 1);
    assert_ok(writer_open_locked(at("l/a"), &second, &busy, &error));
    assert_false(busy);
    writer_close(&second);
    assert_int_equal(files_in("l"), 1);
}

/* Nothing but a file is opened, and nothing is waited for. */
static void test_locked_no_file(void **state)
{
    struct shoal_error error = {0};
    struct writer writer;
    bool busy;
    int reader;

    (void)state;
    assert_int_equal(mkdir(at("s"), 0755), 0);
    assert_int_equal(mkfifo(at("s/fifo.part"), 0600), 0);
    assert_int_equal(mkfifo(at("s/read.part"), 0600), 0);
    assert_int_equal(mkdir(at("s/folder.part"), 0755), 0);
    assert_int_equal(symlink("/dev/null", at("s/link.part")), 0);
    assert_int_equal(symlink("nothing", at("s/dangling.part")), 0);
    reader = open(at("s/read.part"), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    assert_true(reader >= 0);
    alarm(60); /* rather than for ever */
    for (int i = 0; i < 5; i++) {
        const char *const names[] = {"s/fifo", "s/read", "s/folder", "s/link", "s/dangling"};

        assert_int_equal(writer_open_locked(at(names[i]), &writer, &busy, &error), SHOAL_E_IO);
        assert_false(busy);
        if (!strstr(error.text, names[i]) || !strstr(error.text, ".part is no regular file"))
            fail_msg("%s", error.text);
        writer_close(&writer);
    }
    alarm(0);
    close(reader);
    assert_int_equal(files_in("s"), 5);
}

static void test_nameless(void **state)
{
    struct shoal_error error = {0};
    struct writer writer;
    struct file file;
    char text[8];

    (void)state;
    assert_int_equal(mkdir(at("n"), 0755), 0);
    assert_ok(writer_open_nameless(at("n"), "what", &writer, &file, &error));
    assert_int_equal(files_in("n"), 0);
    assert_ok(writer_put(&writer, 5, "later", 5, &error));
    assert_ok(writer_put(&writer, 0, "first", 5, &error));
    assert_int_equal(file.bytes, 0);
    assert_ok(writer_commit_nameless(&writer, &file, &error));
    assert_int_equal(file.bytes, 10);
    assert_ok(file_check_unchanged(&file, &error));
    assert_ok(file_read_at(&file, 3, text, 4, &error));
    assert_memory_equal(text, "stla", 4);
    writer_close(&writer);
    file_close(&file);
    assert_int_equal(writer_open_nameless(at("no"), "what", &writer, &file, &error), SHOAL_E_IO);
    assert_non_null(strstr(error.text, "no/what"));
    writer_close(&writer);
    file_close(&file);
    assert_true(file_free_bytes(at("n")) > 0);
    assert_int_equal(file_free_bytes(at("no")), UINT64_MAX);
}

static void test_appending(void **state)
{
    enum { PIECE = 1000003, PIECES = 13 };
    char *piece = malloc(PIECE), *data;
    struct shoal_error error = {0};
    struct appender appender = {0};
    struct writer writer;
    size_t bytes;

    (void)state;
    appender_fini(&appender);
    assert_ok(writer_open(at("appended"), &writer, &error));
    assert_ok(appender_init(&appender, &writer, 8192, &error));
    for (int i = 0; i < PIECES; i++) {
        memset(piece, 'a' + i, PIECE);
        assert_ok(appender_put(&appender, piece, PIECE, &error));
    }
    assert_ok(appender_finish(&appender, &error));
    appender_fini(&appender);
    assert_ok(writer_put(&writer, 0, "header", 6, &error));
    assert_ok(writer_commit(&writer, true, &error));
    assert_ok(file_read_all(at("appended"), 1 << 25, &data, &bytes, &error));
    assert_int_equal(bytes, 8192 + PIECE * PIECES);
    assert_memory_equal(data, "header", 6);
    for (size_t i = 8192; i < bytes; i++)
        if (data[i] != (char)('a' + (i - 8192) / PIECE)) fail_msg("byte %zu", i);
    mem_free(data);
    free(piece);
}

static void test_trees(void **state)
{
    struct shoal_error error = {0};
    char to[512], *temporary;
    bool made;

    (void)state;
    assert_ok(tree_make(at("t"), &made, &error));
    assert_true(made);
    assert_ok(tree_make(at("t"), &made, &error));
    assert_false(made);
    assert_int_equal(tree_make(at("no/t"), NULL, &error), SHOAL_E_IO);
    put_text("file", "x");
    assert_int_equal(tree_make(at("file"), NULL, &error), SHOAL_E_IO);
    assert_ok(tree_make(at("t/sub"), NULL, &error));
    put_text("t/sub/kept", "kept");
    put_text("t/sub/both", "old");
    assert_ok(tree_make_temporary(at("t/.new"), &temporary, &error));
    assert_non_null(strstr(temporary, "t/.new."));
    snprintf(to, sizeof to, "%s/sub", temporary);
    assert_ok(tree_make(to, NULL, &error));
    snprintf(to, sizeof to, "%s/sub/both", temporary);
    assert_ok(file_write_whole(to, "new", 3, &error));
    assert_ok(tree_move(temporary, at("t"), &error));
    mem_free(temporary);
    assert_holds("t/sub/kept", "kept");
    assert_holds("t/sub/both", "new");
    assert_int_equal(files_in("t"), 1);
    snprintf(to, sizeof to, "%s", at("u"));
    assert_ok(tree_move(at("t"), to, &error));
    assert_holds("u/sub/both", "new");
    assert_int_equal(symlink(at("file"), at("u/link")), 0);
    tree_remove(at("u"));
    assert_int_equal(file_kind(at("u")), FILE_NONE);
    assert_holds("file", "x");
}

static void test_same_and_holds(void **state)
{
    struct shoal_error error = {0};

    (void)state;
    assert_ok(tree_make(at("h"), NULL, &error));
    assert_ok(tree_make(at("h2"), NULL, &error));
    assert_int_equal(symlink("h", at("way")), 0);
    assert_true(tree_same(at("h"), at("way")));
    assert_false(tree_same(at("h"), at("h2")));
    assert_false(tree_same(at("h"), at("nothing")));
    assert_true(tree_holds(at("h"), at("h/new")));
    assert_true(tree_holds(at("h"), at("way/new")));
    assert_true(tree_holds(at("way"), at("h/new//")));
    assert_true(tree_holds("/", at("h")));
    assert_false(tree_holds(at("h"), at("h2")));
    assert_false(tree_holds(at("h"), at("h2/new")));
    assert_false(tree_holds(at("h"), at("hnew")));
}

/* The published value of no bytes, and pieces that come to the whole. */
static void test_checksums(void **state)
{
    static unsigned char data[5000];
    struct checksum sum;

    (void)state;
    assert_true(checksum_of("", 0) == 0x2d06800538d394c2u);
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 31);
    checksum_begin(&sum);
    for (size_t at_byte = 0, piece = 1; at_byte < sizeof data; at_byte += piece, piece += 7) {
        if (piece > sizeof data - at_byte) piece = sizeof data - at_byte;
        checksum_add(&sum, data + at_byte, piece);
    }
    assert_true(checksum_value(&sum) == checksum_of(data, sizeof data));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commit_and_close),
        cmocka_unit_test(test_locked),
        cmocka_unit_test(test_locked_no_file),
        cmocka_unit_test(test_nameless),
        cmocka_unit_test(test_appending),
        cmocka_unit_test(test_trees),
        cmocka_unit_test(test_same_and_holds),
        cmocka_unit_test(test_checksums),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
