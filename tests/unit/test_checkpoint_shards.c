/* Checkpoints of several files, folders, and key prefixes. */
#include "checkpoint_files.h"

#include "checkpoint/checkpoint.h"
#include "checkpoint/keys.h"

#define ONE(name) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"
#define TWO(first, second)                                                                         \
    "{\"__metadata__\":{\"of\":\"" first "\"},"                                                    \
    "\"" first "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"                       \
    "\"" second "\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[4,6]}}"
#define INDEX "model.safetensors.index.json"

static void make_folder(const char *name)
{
    assert_int_equal(mkdir(at(name), 0755), 0);
}

static void refuse(
    const char *path, enum shoal_status status, const char *first, const char *second)
{
    struct checkpoint *checkpoint = NULL;
    struct shoal_error error = {0};

    if (checkpoint_open(path, &checkpoint, &error) != status)
        fail_msg("%s: got %d (%s)", path, (int)error.status, error.text);
    assert_null(checkpoint);
    if (!strstr(error.text, first)) fail_msg("no \"%s\" in: %s", first, error.text);
    if (second && !strstr(error.text, second)) fail_msg("no \"%s\" in: %s", second, error.text);
}

/* ---- shards ---- */

static void test_shards(void **state)
{
    struct checkpoint *checkpoint = NULL;
    struct shoal_error error = {0};
    unsigned char data[4] = {0};
    const char *paths[2];

    (void)state;
    make_folder("shards");
    put_safetensors("shards/m-1.safetensors", TWO("d", "a"), 6);
    put_safetensors("shards/m-2.safetensors", TWO("c", "b"), 6);
    /* "b" is in a shard but not in the map: fine. */
    put_text("shards/" INDEX,
        "{\"metadata\":{\"total_size\":12},\"weight_map\":{\"a\":\"m-1.safetensors\","
        "\"c\":\"m-2.safetensors\",\"d\":\"m-1.safetensors\"}}");
    paths[0] = at("shards/" INDEX);
    paths[1] = at("shards");
    for (int i = 0; i < 2; i++) {
        assert_ok(checkpoint_open(paths[i], &checkpoint, &error));
        assert_string_equal(checkpoint_path(checkpoint), paths[0]);
        assert_int_equal(checkpoint_count(checkpoint), 4);
        for (size_t k = 0; k < 4; k++)
            assert_int_equal(checkpoint_at(checkpoint, k)->name[0], 'a' + (int)k);
        assert_non_null(strstr(checkpoint_find(checkpoint, "a")->file->path, "m-1."));
        assert_non_null(strstr(checkpoint_find(checkpoint, "b")->file->path, "m-2."));
        assert_string_equal(checkpoint_metadata(checkpoint, "of"), "d"); /* the first that has it */
        assert_ok(checkpoint_read(checkpoint_find(checkpoint, "b"), data, &error));
        assert_int_equal(data[0], 4);
        checkpoint_close(&checkpoint);
    }
}

/* ---- two checkpoints ---- */

static void test_beside(void **state)
{
    char path[512];
    const struct checkpoint_beside shards = {.path = path, .prefix = "x."};
    struct allowance reading = {.most_bytes = UINT64_MAX}, alone = reading;
    struct checkpoint *checkpoint = NULL;
    struct shoal_error error = {0};
    unsigned char data[4] = {0};

    (void)state;
    snprintf(path, sizeof path, "%s", at("two/b"));
    make_folder("two");
    make_folder("two/a");
    make_folder("two/b");
    put_safetensors("two/a/m.safetensors", TWO("d", "a"), 6);
    put_safetensors("two/b/m-1.safetensors", TWO("d", "a"), 6);
    put_safetensors("two/b/m-2.safetensors", TWO("c", "b"), 6);
    put_text(
        "two/b/" INDEX, "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"c\":\"m-2.safetensors\"}}");
    assert_ok(checkpoint_open_with(at("two/a"), NULL, &alone, &checkpoint, &error));
    assert_null(checkpoint_beside_path(checkpoint));
    checkpoint_close(&checkpoint);
    assert_ok(checkpoint_open_with(at("two/a"), &shards, &reading, &checkpoint, &error));
    assert_true(reading.bytes > alone.bytes);
    assert_string_equal(checkpoint_path(checkpoint), at("two/a/m.safetensors"));
    assert_string_equal(checkpoint_beside_path(checkpoint), at("two/b/" INDEX));
    assert_int_equal(checkpoint_count(checkpoint), 6);
    assert_int_equal(checkpoint_file_count(checkpoint), 3);
    assert_int_equal(checkpoint_find(checkpoint, "a")->prefix_bytes, 0);
    assert_int_equal(checkpoint_find(checkpoint, "x.a")->prefix_bytes, 2);
    assert_non_null(strstr(checkpoint_find(checkpoint, "x.b")->file->path, "two/b/m-2."));
    assert_null(checkpoint_find(checkpoint, "b"));
    assert_ok(checkpoint_read(checkpoint_find(checkpoint, "x.b"), data, &error));
    assert_int_equal(data[0], 4);
    checkpoint_close(&checkpoint);
}

static void refuse_beside(
    const char *path, const char *beside, enum shoal_status status, const char *words)
{
    struct checkpoint *checkpoint = NULL;
    struct shoal_error error = {0};

    if (checkpoint_open_with(path, &(struct checkpoint_beside){.path = beside, .prefix = "x."},
            NULL, &checkpoint, &error) != status)
        fail_msg("%s: got %d (%s)", path, (int)error.status, error.text);
    assert_null(checkpoint);
    if (!strstr(error.text, words)) fail_msg("no \"%s\" in: %s", words, error.text);
}

static void test_refuses_bad_besides(void **state)
{
    (void)state;
    put_safetensors("one.safetensors", TWO("x.a", "y"), 6);
    put_safetensors("other.safetensors", ONE("a"), 4);
    refuse_beside(at("one.safetensors"), at("other.safetensors"), SHOAL_E_FORMAT, "and as 'a' in");
    refuse_beside(at("one.safetensors"), at("none.safetensors"), SHOAL_E_IO, "none.");
    make_folder("bad_two");
    refuse_beside(
        at("one.safetensors"), at("bad_two"), SHOAL_E_MISSING, "bad_two holds no checkpoint");
    put_safetensors("bad_two/m-1.safetensors", ONE("a"), 4);
    put_text("bad_two/" INDEX, "{\"weight_map\":{\"b\":\"m-1.safetensors\"}}");
    refuse_beside(at("other.safetensors"), at("bad_two"), SHOAL_E_FORMAT, "says that tensor 'b'");
}

/* An index given by a bare name has its shards in the working directory. */
static void test_index_in_working_directory(void **state)
{
    struct checkpoint *checkpoint = NULL;
    struct shoal_error error = {0};
    char *back = getcwd(NULL, 0);

    (void)state;
    make_folder("here");
    put_safetensors("here/x.safetensors", ONE("a"), 4);
    put_text("here/" INDEX, "{\"weight_map\":{\"a\":\"x.safetensors\"}}");
    assert_int_equal(chdir(at("here")), 0);
    assert_ok(checkpoint_open(INDEX, &checkpoint, &error));
    checkpoint_close(&checkpoint);
    assert_ok(checkpoint_open(".", &checkpoint, &error));
    checkpoint_close(&checkpoint);
    assert_int_equal(chdir(back), 0);
    free(back);
}

static void test_refuses_bad_shards(void **state)
{
    static const char map[] =
        "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"c\":\"m-2.safetensors\"}}";

    (void)state;
    make_folder("bad");
    put_text("bad/" INDEX, map);
    put_safetensors("bad/m-1.safetensors", TWO("d", "a"), 6);
    refuse(at("bad"), SHOAL_E_MISSING, "needs the shard m-2.safetensors", "download it");
    refuse(at("bad"), SHOAL_E_MISSING, INDEX, NULL);

    assert_int_equal(mkdir(at("bad/m-2.safetensors"), 0755), 0);
    refuse(at("bad"), SHOAL_E_IO, "m-2.safetensors", "a folder");
    assert_int_equal(rmdir(at("bad/m-2.safetensors")), 0);
    assert_int_equal(mkfifo(at("bad/m-2.safetensors"), 0600), 0);
    refuse(at("bad"), SHOAL_E_IO, "m-2.safetensors", "a FIFO");
    assert_int_equal(unlink(at("bad/m-2.safetensors")), 0);

    put_safetensors("bad/m-2.safetensors", TWO("x", "y"), 6);
    refuse(at("bad"), SHOAL_E_FORMAT, "tensor 'c' is in the shard m-2.safetensors", INDEX);
    put_safetensors("bad/m-2.safetensors", TWO("c", "a"), 6);
    refuse(at("bad"), SHOAL_E_FORMAT, "tensor 'a' is in two shards", "m-1.safetensors");
    put_safetensors("bad/m-2.safetensors", TWO("c", "e"), 5);
    refuse(at("bad"), SHOAL_E_FORMAT, "m-2.safetensors is truncated", "'e'");
    /* In a shard, but not in the one that the map says. */
    put_safetensors("bad/m-1.safetensors", ONE("c"), 4);
    put_safetensors("bad/m-2.safetensors", ONE("a"), 4);
    refuse(at("bad"), SHOAL_E_FORMAT, "tensor 'a' is in the shard m-1.safetensors", INDEX);
}

static void test_refuses_bad_indexes(void **state)
{
    static const struct {
        const char *text, *first, *second;
    } cases[] = {
        {"", "not valid JSON", NULL},
        {"[]", "not a JSON object", NULL},
        {"{\"weight_map\":{\"a\":\"1\",\"a\":\"2\"}}", "duplicate", NULL},
        {"{\"weight_map\":{\"\xff\":\"1\"}}", "UTF-8", NULL},
        {"{}", "weight_map", NULL},
        {"{\"weight_map\":[]}", "weight_map", NULL},
        {"{\"weight_map\":{}}", "weight_map is empty", NULL},
        {"{\"weight_map\":{\"t.w\":7}}", "no file name", "'t.w'"},
        {"{\"weight_map\":{\"t.w\":\"\"}}", "not the name of a file", "'t.w'"},
        {"{\"weight_map\":{\"t.w\":\"..\"}}", "not the name of a file", "'..'"},
        {"{\"weight_map\":{\"t.w\":\"../x.safetensors\"}}", "not the name of a file", "'t.w'"},
        {"{\"weight_map\":{\"t.w\":\"/dev/zero\"}}", "not the name of a file", "'/dev/zero'"},
        {"{\"weight_map\":{\"t.w\":\"x\\u001b\"}}", "not the name of a file", "'x?'"},
        {"{\"weight_map\":{\"t\\u001b\":\"x\"}}", "control characters", "'t?'"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = put_text("bad.safetensors.index.json", cases[i].text);

        refuse(path, SHOAL_E_FORMAT, cases[i].first, cases[i].second);
        refuse(path, SHOAL_E_FORMAT, cases[i].first, "bad.safetensors.index.json");
    }
}

/* ---- folders ---- */

static void test_folders(void **state)
{
    struct checkpoint *checkpoint = NULL;
    struct shoal_error error = {0};
    char slash[600];

    (void)state;
    make_folder("f");
    refuse(at("f"), SHOAL_E_MISSING, "holds no checkpoint", "/f");
    put_text("f/config.json", "{}");
    put_safetensors("f/.hidden.safetensors", ONE("h"), 4);
    refuse(at("f"), SHOAL_E_MISSING, "holds no checkpoint", ".safetensors");

    put_safetensors("f/one.safetensors", ONE("a"), 4);
    assert_ok(checkpoint_open(at("f"), &checkpoint, &error));
    assert_string_equal(checkpoint_path(checkpoint), at("f/one.safetensors"));
    checkpoint_close(&checkpoint);
    snprintf(slash, sizeof slash, "%s/", at("f"));
    assert_ok(checkpoint_open(slash, &checkpoint, &error));
    assert_string_equal(checkpoint_path(checkpoint), at("f/one.safetensors"));
    checkpoint_close(&checkpoint);

    put_safetensors("f/two.safetensors", ONE("b"), 4);
    refuse(at("f"), SHOAL_E_INVALID, "one.safetensors, two.safetensors", "index");
    /* An index wins over loose files. */
    put_text("f/" INDEX, "{\"weight_map\":{\"b\":\"two.safetensors\"}}");
    assert_ok(checkpoint_open(at("f"), &checkpoint, &error));
    assert_int_equal(checkpoint_count(checkpoint), 1);
    assert_non_null(checkpoint_find(checkpoint, "b"));
    checkpoint_close(&checkpoint);
    put_text("f/model.fp16.safetensors.index.json", "{}");
    refuse(at("f"), SHOAL_E_INVALID, "model.fp16.safetensors.index.json, " INDEX, "several");
}

static void test_refuses_unreadable_folder(void **state)
{
    uid_t user = geteuid();

    (void)state;
    make_folder("locked");
    assert_int_equal(chmod(at("locked"), 0), 0);
    if (!user) assert_int_equal(seteuid(65534), 0);
    refuse(at("locked"), SHOAL_E_IO, "cannot list", "Permission denied");
    assert_int_equal(seteuid(user), 0);
    assert_int_equal(chmod(at("locked"), 0755), 0);
}

/* ---- prefixes ---- */

static const char *prefix_of(const char *tensor, const char *const *candidates, const char *probe)
{
    struct checkpoint *checkpoint = NULL;
    struct shoal_error error = {0};
    const char *prefix;
    char header[300];

    snprintf(header, sizeof header,
        "{\"%s\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
        "\"other\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
        tensor);
    assert_ok(checkpoint_open(put_safetensors("p.safetensors", header, 4), &checkpoint, &error));
    prefix = keys_prefix(checkpoint, candidates, probe);
    checkpoint_close(&checkpoint);
    return prefix;
}

static void test_prefixes(void **state)
{
    static const struct {
        const char *tensor, *const *candidates, *probe, *prefix;
    } cases[] = {
        {"model.diffusion_model.x.weight", keys_dit_prefixes, "x.weight", "model.diffusion_model."},
        {"model.model.x.weight", keys_dit_prefixes, "x.weight", "model.model."},
        {"net.x.weight", keys_dit_prefixes, "x.weight", "net."},
        {"model.x.weight", keys_dit_prefixes, "x.weight", "model."},
        {"x.weight", keys_dit_prefixes, "x.weight", ""},
        {"x.weight2", keys_dit_prefixes, "x.weight", NULL},
        {"x.weigh", keys_dit_prefixes, "x.weight", NULL},
        {"model.diffusion_model.model.x", keys_dit_prefixes, "x", NULL},
        {"first_stage_model.x", keys_vae_prefixes, "x", "first_stage_model."},
        {"vae.x", keys_vae_prefixes, "x", "vae."},
        {"x", keys_vae_prefixes, "x", ""},
        {"text_encoders.qwen3_4b.transformer.model.x", keys_text_prefixes, "x",
            "text_encoders.qwen3_4b.transformer.model."},
        {"text_encoders.qwen3_4b.transformer.x", keys_text_prefixes, "x",
            "text_encoders.qwen3_4b.transformer."},
        {"text_encoder.x", keys_text_prefixes, "x", "text_encoder."},
        {"model.x", keys_text_prefixes, "x", "model."},
        {"x", keys_text_prefixes, "x", ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *prefix = prefix_of(cases[i].tensor, cases[i].candidates, cases[i].probe);

        if (cases[i].prefix)
            assert_string_equal(prefix, cases[i].prefix);
        else
            assert_null(prefix);
    }
}

/* Where several prefixes fit, the earlier candidate wins; and every name is found. */
static void test_finds_under_prefixes(void **state)
{
    static const char header[] =
        "{\"model.diffusion_model.x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
        "\"model.x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]},"
        "\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]},"
        "\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[3,4]}}";
    struct checkpoint *checkpoint = NULL;
    struct shoal_error error = {0};

    (void)state;
    assert_ok(checkpoint_open(put_safetensors("p.safetensors", header, 4), &checkpoint, &error));
    assert_string_equal(keys_prefix(checkpoint, keys_dit_prefixes, "x"), "model.diffusion_model.");
    assert_string_equal(keys_prefix(checkpoint, keys_text_prefixes, "x"), "model.");
    for (size_t i = 0; i < checkpoint_count(checkpoint); i++) {
        const struct checkpoint_tensor *tensor = checkpoint_at(checkpoint, i);

        for (size_t cut = 0; cut <= strlen(tensor->name); cut++) {
            char prefix[64];

            snprintf(prefix, sizeof prefix, "%.*s", (int)cut, tensor->name);
            assert_ptr_equal(keys_find(checkpoint, prefix, tensor->name + cut), tensor);
        }
        assert_null(keys_find(checkpoint, tensor->name, "y"));
    }
    checkpoint_close(&checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_index_in_working_directory),
        cmocka_unit_test(test_beside),
        cmocka_unit_test(test_refuses_bad_besides),
        cmocka_unit_test(test_refuses_bad_shards),
        cmocka_unit_test(test_refuses_bad_indexes),
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_refuses_unreadable_folder),
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_finds_under_prefixes),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
