/* The cache on disk: used when the original is what it was, filled once, and cleaned up. */
#include "checkpoint_files.h"

#include "../../tools/make_checkpoint.h"
#include "base/memory.h"
#include "base/thread.h"
#include "base/writer.h"
#include "pipeline/parts.h"

#include <fcntl.h>

static struct shoal_model_paths paths(const char *model, const char *dir)
{
    static char names[2][512];

    snprintf(names[0], sizeof names[0], "%s", at(model));
    snprintf(names[1], sizeof names[1], "%s", at(dir));
    return (struct shoal_model_paths){.model = names[0], .disk_cache = names[1]};
}

static struct shoal_cache_state look(const char *model, const char *dir)
{
    struct shoal_model_paths p = paths(model, dir);
    struct shoal_cache_state state;
    struct shoal_error error = {0};

    assert_ok(shoal_cache_look(&p, p.disk_cache, &state, &error));
    return state;
}

static void prepare(const char *model, const char *dir)
{
    struct shoal_model_paths p = paths(model, dir);
    struct shoal_error error = {0};

    assert_ok(shoal_cache_prepare(&p, p.disk_cache, NULL, &error));
}

/* How many of a part's tensors are packed, as the model was opened. */
static size_t packed_tensors(const char *model, const char *dir, enum family_kind kind)
{
    struct shoal_model_paths p = paths(model, dir);
    struct shoal_error error = {0};
    struct shoal_model *m = NULL;
    size_t packed = 0;

    assert_ok(shoal_model_open(&p, &m, &error));
    for (size_t i = 0; i < checkpoint_count(m->checkpoints[kind]); i++)
        packed += checkpoint_at(m->checkpoints[kind], i)->packed;
    shoal_model_close(&m);
    return packed;
}

static void assert_listed(const char *dir, const char *text, bool there)
{
    struct shoal_error error = {0};
    char *list = NULL;

    assert_ok(shoal_cache_list(at(dir), false, &list, &error));
    if (!strstr(list, text) == there) fail_msg("\"%s\" in \"%s\"", text, list);
    shoal_text_free(&list);
}

static int make_model(void **state)
{
    struct make_options o = {.layout = MAKE_DIFFUSERS,
        .parts = MAKE_DIT | MAKE_TEXT | MAKE_VAE,
        .small = true,
        .dtype = DTYPE_BF16,
        .seed = 7,
        .shard_bytes = 5000000,
        .tokenizer = "models/shoal-mini/tokenizer"};
    struct shoal_error error = {0};

    if (folder_make(state)) return -1;
    o.out = at("model");
    assert_ok(make_checkpoint(&o, NULL, &error));
    return 0;
}

static void test_filled_and_used(void **state)
{
    struct shoal_cache_state before = look("model", "cache"), after;

    (void)state;
    assert_int_equal(before.parts, 2);
    assert_int_equal(before.present, 0);
    assert_true(before.missing_bytes > 1000000);
    assert_int_equal(file_kind(at("cache")), FILE_NONE);
    assert_int_equal(packed_tensors("model", "cache", FAMILY_DIT), 0);
    prepare("model", "cache");
    after = look("model", "cache");
    assert_int_equal(after.present, 2);
    assert_int_equal(after.missing_bytes, 0);
    assert_int_equal(files_in("cache"), 2);
    assert_true(packed_tensors("model", "cache", FAMILY_DIT) > 0);
    assert_true(packed_tensors("model", "cache", FAMILY_TEXT) > 0);
    assert_int_equal(packed_tensors("model", "cache", FAMILY_VAE), 0);
    prepare("model", "cache");
    assert_int_equal(files_in("cache"), 2);
    assert_listed("cache", "current", true);
    assert_listed("cache", "model/text_encoder", true);
}

/* A model that is packed needs no copies. */
static void test_packed_model(void **state)
{
    char in[512];
    struct shoal_error error = {0};

    (void)state;
    snprintf(in, sizeof in, "%s", at("model"));
    assert_ok(shoal_convert(in, at("packed"), SHOAL_WIRE_PACKED, false, NULL, &error));
    assert_int_equal(look("packed", "cache").parts, 0);
    prepare("packed", "nowhere");
    assert_int_equal(file_kind(at("nowhere")), FILE_NONE);
    assert_true(packed_tensors("packed", "nowhere", FAMILY_DIT) > 0);
}

static void touch(const char *path, int64_t seconds)
{
    const struct timespec times[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};

    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void test_stale(void **state)
{
    uint64_t removed;
    struct shoal_error error = {0};

    (void)state;
    prepare("model", "stale");
    put_text("stale/mine.safetensors", "not of the cache");
    put_text("stale/shoal-0123456789abcdef.safetensors", "damaged");
    put_text("stale/shoal-0123456789abcdef.safetensors.part", "left over");
    put_text("stale/shoal-0123456789abcdeg.safetensors", "not of the cache either");
    assert_listed("stale", "unusable", true);
    assert_listed("stale", "unfinished", true);
    assert_listed("stale", "mine", false);
    assert_listed("stale", "abcdeg", false);
    touch(at("model/text_encoder/model.safetensors"), 1);
    assert_listed("stale", "original changed", true);
    assert_int_equal(look("model", "stale").present, 1);
    assert_int_equal(packed_tensors("model", "stale", FAMILY_TEXT), 0);
    assert_ok(shoal_cache_remove_stale(at("stale"), NULL, &removed, &error));
    assert_true(removed > 100000);
    assert_int_equal(files_in("stale"), 3);
    assert_listed("stale", "current", true);
    prepare("model", "stale");
    assert_int_equal(files_in("stale"), 4);
    assert_int_equal(shoal_cache_remove(at("stale"), (const char *[]){"mine.safetensors"}, 1, NULL,
                         &removed, &error),
        SHOAL_E_MISSING);
    assert_int_equal(removed, 0);
    assert_ok(shoal_cache_remove(at("stale"), NULL, 0, NULL, &removed, &error));
    assert_int_equal(files_in("stale"), 2);
    assert_int_equal(
        shoal_cache_remove_stale(at("nowhere"), NULL, &removed, &error), SHOAL_E_MISSING);
}

static void count_failure(void *user, const struct shoal_error *error)
{
    assert_int_equal(error->status, SHOAL_E_IO);
    ++*(int *)user;
}

/* The first failure is the error, and all are told; what can be removed is. */
static void test_not_removable(void **state)
{
    int failures = 0;
    const struct shoal_cache_callbacks callbacks = {&failures, count_failure};
    struct shoal_error error = {0};
    uint64_t removed;

    (void)state;
    assert_int_equal(mkdir(at("kept"), 0755), 0);
    assert_int_equal(mkdir(at("kept/shoal-1111111111111111.safetensors"), 0755), 0);
    assert_int_equal(mkdir(at("kept/shoal-3333333333333333.safetensors"), 0755), 0);
    for (int i = 0; i < 3; i++) {
        enum shoal_status status;

        put_text("kept/shoal-2222222222222222.safetensors", "x");
        put_text("kept/shoal-4444444444444444.safetensors.part", "x");
        if (i == 0)
            status = shoal_cache_remove(at("kept"), NULL, 0, &callbacks, &removed, &error);
        else
            status = shoal_cache_remove_stale(
                at("kept"), i == 1 ? &callbacks : NULL, &removed, i == 1 ? &error : NULL);
        assert_int_equal(status, SHOAL_E_IO);
        assert_non_null(strstr(error.text, "1111111111111111"));
        assert_int_equal(removed, 2);
        assert_int_equal(files_in("kept"), 2);
        assert_int_equal(failures, i == 0 ? 2 : 4);
    }
}

static void test_original_gone(void **state)
{
    char in[512];
    struct shoal_error error = {0};

    (void)state;
    snprintf(in, sizeof in, "%s", at("model"));
    assert_ok(shoal_convert(in, at("moved"), SHOAL_WIRE_RAW, false, NULL, &error));
    prepare("moved", "gone");
    assert_int_equal(rename(at("moved"), at("elsewhere")), 0);
    assert_listed("gone", "original gone", true);
    assert_listed("gone", "current", false);
}

/* A copy that was damaged is named, with what to do. */
static void test_damaged_copy(void **state)
{
    struct shoal_model_paths p = paths("model", "damaged");
    struct shoal_error error = {0};
    struct shoal_model *m = NULL;
    char **names;
    size_t count;

    (void)state;
    prepare("model", "damaged");
    assert_ok(file_list(p.disk_cache, &names, &count, &error));
    for (size_t i = 0; i < count; i++) {
        char *path = mem_format("%s/%s", p.disk_cache, names[i]);

        assert_int_equal(truncate(path, 100000), 0);
        mem_free(path);
    }
    mem_free(names);
    assert_int_equal(shoal_model_open(&p, &m, &error), SHOAL_E_FORMAT);
    assert_non_null(strstr(error.text, "--remove"));
    assert_null(m);
}

/* ---- two at once ---- */

struct filler {
    struct thread thread;
    char dir[512];
    enum shoal_status status;
    int written;
};

static void count_part(void *user, const struct shoal_packed_part *part)
{
    (void)part;
    ((struct filler *)user)->written++;
}

static void fill(void *arg)
{
    struct filler *f = arg;
    char model[512];
    struct shoal_model_paths p = {.model = model};
    struct shoal_pack_callbacks callbacks = {.user = f, .written = count_part};

    snprintf(model, sizeof model, "%s/model", folder);
    f->status = shoal_cache_prepare(&p, f->dir, &callbacks, NULL);
}

static void test_two_at_once(void **state)
{
    struct shoal_error error = {0};

    (void)state;
    for (int round = 0; round < 3; round++) {
        struct filler fillers[3] = {0};
        char name[32];
        int written = 0;

        snprintf(name, sizeof name, "both-%d", round);
        for (int i = 0; i < 3; i++) {
            snprintf(fillers[i].dir, sizeof fillers[i].dir, "%s", at(name));
            assert_ok(thread_start(&fillers[i].thread, fill, &fillers[i], &error));
        }
        for (int i = 0; i < 3; i++) {
            thread_join(&fillers[i].thread);
            assert_int_equal(fillers[i].status, SHOAL_OK);
            written += fillers[i].written;
        }
        assert_int_equal(written, 2);
        assert_int_equal(files_in(name), 2);
    }
}

static bool always(void *user)
{
    (void)user;
    return true;
}

static void test_busy_and_cancelled(void **state)
{
    struct shoal_model_paths p = paths("model", "busy");
    struct shoal_pack_callbacks callbacks = {.cancelled = always};
    struct shoal_error error = {0};
    struct writer writer, other;
    char **names, *path;
    uint64_t removed;
    size_t count;
    bool busy;

    (void)state;
    assert_int_equal(shoal_cache_prepare(&p, p.disk_cache, &callbacks, &error), SHOAL_E_CANCELLED);
    assert_int_equal(file_kind(at("busy")), FILE_NONE);
    prepare("model", "busy");
    assert_ok(file_list(p.disk_cache, &names, &count, &error));
    path = mem_format("%s/%s", p.disk_cache, names[0]);
    mem_free(names);
    assert_int_equal(unlink(path), 0);
    /* Somebody writes it: it is waited for, and not removed. */
    assert_ok(writer_open_locked(path, &writer, &busy, &error));
    assert_false(busy);
    assert_ok(writer_open_locked(path, &other, &busy, &error));
    assert_true(busy);
    assert_int_equal(shoal_cache_prepare(&p, p.disk_cache, &callbacks, &error), SHOAL_E_CANCELLED);
    assert_ok(shoal_cache_remove_stale(p.disk_cache, NULL, &removed, &error));
    assert_int_equal(files_in("busy"), 2);
    writer_close(&writer);
    assert_int_equal(files_in("busy"), 1);
    mem_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_filled_and_used),
        cmocka_unit_test(test_packed_model),
        cmocka_unit_test(test_stale),
        cmocka_unit_test(test_not_removable),
        cmocka_unit_test(test_original_gone),
        cmocka_unit_test(test_damaged_copy),
        cmocka_unit_test(test_two_at_once),
        cmocka_unit_test(test_busy_and_cancelled),
    };

    return cmocka_run_group_tests(tests, make_model, folder_remove);
}
