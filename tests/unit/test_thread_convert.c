/* Converting there and back: every tensor's bytes, how packed files are laid out, and failures that
 * leave nothing. */
#include "checkpoint_files.h"

#include "../../tools/make_checkpoint.h"
#include "base/memory.h"
#include "base/size.h"
#include "checkpoint/container.h"
#include "models/family.h"
#include "pipeline/pack.h"
#include "unit/tensor_file.h"
#include "wire_support.h"

#include <signal.h>
#include <sys/resource.h>

static struct checkpoint *open_at(const char *path)
{
    struct shoal_error error = {0};
    struct checkpoint *c = NULL;

    assert_ok(checkpoint_open(path, &c, &error));
    return c;
}

static void *read_tensor(const struct checkpoint_tensor *tensor)
{
    struct shoal_error error = {0};
    void *data = mem_alloc((size_t)tensor->bytes);

    assert_non_null(data);
    assert_ok(checkpoint_read(tensor, data, &error));
    return data;
}

/* Returns how many of b are packed. */
static size_t assert_same_tensors(const char *a_path, const char *b_path)
{
    struct checkpoint *a = open_at(a_path), *b = open_at(b_path);
    size_t packed = 0;

    assert_int_equal(checkpoint_count(a), checkpoint_count(b));
    for (size_t i = 0; i < checkpoint_count(a); i++) {
        const struct checkpoint_tensor *x = checkpoint_at(a, i), *y = checkpoint_at(b, i);
        char *p = read_tensor(x), *q = read_tensor(y);

        assert_string_equal(x->name, y->name);
        assert_int_equal(x->dtype, y->dtype);
        assert_true(shape_equal(&x->shape, &y->shape));
        assert_memory_equal(p, q, x->bytes);
        packed += y->packed;
        mem_free(p);
        mem_free(q);
    }
    checkpoint_close(&a);
    checkpoint_close(&b);
    return packed;
}

static void assert_same_files(const char *a, const char *b)
{
    struct shoal_error error = {0};
    char *x, *y;
    size_t x_bytes, y_bytes;

    assert_ok(file_read_all(a, 1u << 30, &x, &x_bytes, &error));
    assert_ok(file_read_all(b, 1u << 30, &y, &y_bytes, &error));
    assert_int_equal(x_bytes, y_bytes);
    assert_memory_equal(x, y, x_bytes);
    mem_free(x);
    mem_free(y);
}

static void convert(const char *in, const char *out, enum shoal_wire wire)
{
    struct shoal_error error = {0};

    assert_ok(shoal_convert(in, out, wire, false, NULL, &error));
}

static void assert_same_folders(const char *a, const char *b)
{
    struct shoal_error error = {0};
    size_t count = 0;
    char **names;

    assert_ok(file_list(at(a), &names, &count, &error));
    assert_true(count > 2 && files_in(b) == count);
    for (size_t i = 0; i < count; i++) {
        char *x = mem_format("%s/%s/%s", folder, a, names[i]);
        char *y = mem_format("%s/%s/%s", folder, b, names[i]);

        assert_same_files(x, y);
        mem_free(x);
        mem_free(y);
    }
    mem_free(names);
}

static int make_models(void **state)
{
    struct make_options o = {.layout = MAKE_DIFFUSERS,
        .parts = MAKE_DIT | MAKE_TEXT | MAKE_VAE,
        .small = true,
        .dtype = DTYPE_BF16,
        .seed = 7,
        .shard_bytes = 5000000};
    struct shoal_error error = {0};

    if (folder_make(state)) return -1;
    o.out = at("model");
    assert_ok(make_checkpoint(&o, NULL, &error));
    o.layout = MAKE_COMFYUI;
    o.out = at("all.safetensors");
    assert_ok(make_checkpoint(&o, NULL, &error));
    return 0;
}

/* ---- a model's folder ---- */

static bool is_padded(
    const struct checkpoint *c, const struct file *file, uint64_t begin, uint64_t end)
{
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const struct checkpoint_tensor *t = checkpoint_at(c, i);

        if (t->file == file && t->offset < end && t->offset + t->stored_bytes > begin) return false;
    }
    return end - begin < CONTAINER_BLOCK_BYTES;
}

/* The tensors of a block, those in one file: one range that begins on a boundary, and in it nothing
 * but them and padding. */
static void assert_one_range(
    const struct checkpoint *c, const struct block *block, const struct file *file)
{
    uint64_t begin = UINT64_MAX, end = 0, bytes = 0;
    bool packed = false;

    for (int32_t w = 0; w < block->weight_count; w++)
        for (int32_t p = 0; p < block->weights[w].piece_count; p++) {
            const struct checkpoint_tensor *t = block->weights[w].pieces[p];

            if (t->file != file) continue;
            if (t->packed) assert_int_equal(t->offset % WIRE_ALIGNMENT, 0);
            if (t->bytes >= WIRE_LEAST_BYTES) assert_true(t->packed);
            if (t->offset < begin) begin = t->offset;
            if (t->offset + t->stored_bytes > end) end = t->offset + t->stored_bytes;
            bytes += t->stored_bytes;
            packed = packed || t->packed;
        }
    /* What has nothing packed lies behind the others. */
    if (!packed) return;
    assert_int_equal(begin % CONTAINER_BLOCK_BYTES, 0);
    assert_true(end - begin - bytes < CONTAINER_BLOCK_BYTES);
    assert_true(is_padded(c, file, end, size_align(end, CONTAINER_BLOCK_BYTES)));
}

static void assert_blocks(const char *path, enum family_kind kind)
{
    struct shoal_error error = {0};
    struct checkpoint *c = open_at(path);
    struct model *model = NULL;
    char *config = NULL;

    assert_ok(family_config_beside(path, &config, &error));
    assert_ok(family_open(c, kind, config, &model, &error));
    for (int32_t p = 0; p < model->pass_count; p++)
        for (int32_t b = 0; b < model->passes[p].count; b++)
            for (size_t f = 0; f < checkpoint_file_count(c); f++)
                assert_one_range(
                    c, &model->blocks[model->passes[p].first + b], checkpoint_file(c, f));
    model_destroy(&model);
    checkpoint_close(&c);
    mem_free(config);
}

static void test_folder_there_and_back(void **state)
{
    static const char *const parts[] = {"transformer", "text_encoder", "vae"};
    char names[3][3][512];

    (void)state;
    put_text("model/README.md", "hello");
    put_text("model/.hidden", "not to be copied");
    convert(at("model"), at("packed"), SHOAL_WIRE_PACKED);
    convert(at("packed"), at("back"), SHOAL_WIRE_RAW);
    for (int i = 0; i < 3; i++) {
        static const char *const tops[] = {"model", "packed", "back"};

        for (int k = 0; k < 3; k++)
            snprintf(names[i][k], sizeof names[i][k], "%s/%s/%s", folder, tops[k], parts[i]);
        assert_true(assert_same_tensors(names[i][0], names[i][1]) > 0);
        assert_int_equal(assert_same_tensors(names[i][0], names[i][2]), 0);
        assert_blocks(names[i][1], i == 0 ? FAMILY_DIT : i == 1 ? FAMILY_TEXT : FAMILY_VAE);
    }
    assert_same_files(at("model/README.md"), at("back/README.md"));
    assert_same_files(at("model/transformer/config.json"), at("packed/transformer/config.json"));
    assert_same_files(at("model/transformer/diffusion_pytorch_model.safetensors.index.json"),
        at("back/transformer/diffusion_pytorch_model.safetensors.index.json"));
    assert_int_equal(file_kind(at("packed/.hidden")), FILE_NONE);
    assert_int_equal(files_in("packed"), files_in("model") - 1);
    assert_int_equal(files_in("packed/transformer"), files_in("model/transformer"));
    /* Packed again, from the packed or the plain, it is the same file. */
    convert(at("packed/transformer"), at("again"), SHOAL_WIRE_PACKED);
    convert(at("back/transformer"), at("third"), SHOAL_WIRE_PACKED);
    assert_same_folders("packed/transformer", "again");
    assert_same_folders("packed/transformer", "third");
}

static bool go_on(void *user, uint64_t read_bytes, uint64_t written_bytes)
{
    (void)user, (void)read_bytes, (void)written_bytes;
    return true;
}

/* Rows are read from the table one by one, so a packed one is refused. */
static void test_packed_embedding(void **state)
{
    struct checkpoint *c = open_at(at("model/text_encoder"));
    struct pack_work work = {.packed = true, .go_on = go_on};
    struct shoal_error error = {0};
    struct model *model = NULL;
    struct pack_list list = {0};
    struct pack_result result;
    struct writer writer;

    (void)state;
    assert_ok(pack_list_init(&list, c, NULL, &error));
    for (size_t i = 0; i < list.count; i++)
        if (strstr(list.items[i].tensor->name, "embed_tokens")) list.items[i].packs = true;
    assert_ok(writer_open(at("table.safetensors"), &writer, &error));
    assert_ok(pack_write(&list, NULL, &work, &writer, &result, &error));
    assert_ok(writer_commit(&writer, false, &error));
    assert_int_equal(result.tensors, checkpoint_count(c));
    pack_list_fini(&list);
    checkpoint_close(&c);
    c = open_at(at("table.safetensors"));
    assert_int_equal(family_open(c, FAMILY_TEXT, NULL, &model, &error), SHOAL_E_UNSUPPORTED);
    assert_non_null(strstr(error.text, "embed_tokens.weight is packed"));
    checkpoint_close(&c);
}

/* Of a file with everything in it the blocks of all parts are packed, and the table is not. */
static void test_one_file(void **state)
{
    struct checkpoint *c;
    const struct checkpoint_tensor *table = NULL;

    (void)state;
    convert(at("all.safetensors"), at("all-packed.safetensors"), SHOAL_WIRE_PACKED);
    assert_true(assert_same_tensors(at("all.safetensors"), at("all-packed.safetensors")) > 0);
    c = open_at(at("all-packed.safetensors"));
    for (size_t i = 0; i < checkpoint_count(c); i++)
        if (strstr(checkpoint_at(c, i)->name, "embed_tokens")) table = checkpoint_at(c, i);
    assert_non_null(table);
    assert_true(table->bytes >= WIRE_LEAST_BYTES && !table->packed && table->has_checksum);
    checkpoint_close(&c);
    for (int kind = 0; kind < FAMILY_KINDS; kind++)
        assert_blocks(at("all-packed.safetensors"), (enum family_kind)kind);
}

/* ---- files of no known family ---- */

#define OTHERS 7

static const struct tensor_spec others[OTHERS] = {
    {"b.10.w", DTYPE_BF16, SHAPE2(200, 300)},
    {"b.2.w", DTYPE_BF16, SHAPE2(200, 300)},
    {"b.2.scale", DTYPE_F32, SHAPE2(200, 300)},
    {"f16", DTYPE_F16, SHAPE2(300, 301)},
    {"fp8", DTYPE_F8_E4M3, SHAPE2(1000, 301)},
    {"noise", DTYPE_BF16, SHAPE2(200, 300)},
    {"small", DTYPE_BF16, SHAPE1(77)},
};

static const char *put_others(const char *name)
{
    void *data[OTHERS];
    struct shoal_error error = {0};

    for (int i = 0; i < OTHERS; i++) {
        uint64_t count, bytes;

        assert_true(shape_count(&others[i].shape, &count));
        assert_true(shape_bytes(&others[i].shape, others[i].dtype, &bytes));
        data[i] = calloc(1, bytes);
        assert_non_null(data[i]);
        if (wire_packs(others[i].dtype))
            wire_fill(others[i].dtype, data[i], 0, count, i == 5 ? FILL_BITS : FILL_GAUSSIAN);
    }
    assert_ok(
        tensor_file_write(at(name), others, OTHERS, (const void *const *)data, false, &error));
    for (int i = 0; i < OTHERS; i++)
        free(data[i]);
    return at(name);
}

static void test_unknown_family(void **state)
{
    struct checkpoint *c;

    (void)state;
    put_others("others.safetensors");
    convert(at("others.safetensors"), at("o.safetensors"), SHOAL_WIRE_PACKED);
    convert(at("o.safetensors"), at("o-back.safetensors"), SHOAL_WIRE_RAW);
    assert_int_equal(assert_same_tensors(at("others.safetensors"), at("o.safetensors")), 4);
    assert_int_equal(assert_same_tensors(at("others.safetensors"), at("o-back.safetensors")), 0);
    c = open_at(at("o.safetensors"));
    assert_true(checkpoint_find(c, "b.2.w")->offset < checkpoint_find(c, "b.10.w")->offset);
    assert_false(checkpoint_find(c, "noise")->packed);
    assert_int_equal(checkpoint_find(c, "b.2.scale")->offset % 4, 0);
    assert_int_equal(checkpoint_find(c, "noise")->offset % 2, 0);
    for (size_t i = 0; i < checkpoint_count(c); i++)
        assert_true(checkpoint_at(c, i)->has_checksum);
    checkpoint_close(&c);
    c = open_at(at("o-back.safetensors"));
    assert_false(checkpoint_at(c, 0)->has_checksum);
    assert_null(checkpoint_metadata(c, CONTAINER_KEY));
    checkpoint_close(&c);
}

/* Damage in a packed file is found when it is converted, too. */
static void test_damaged_source(void **state)
{
    struct shoal_error error = {0};
    struct checkpoint *c;
    static const char *const names[] = {"f16", "noise"};

    (void)state;
    put_others("others.safetensors");
    for (int i = 0; i < 2; i++) {
        uint64_t offset;
        FILE *file;

        put_text("damaged.safetensors", "");
        assert_ok(shoal_convert(at("others.safetensors"), at("damaged.safetensors"),
            SHOAL_WIRE_PACKED, true, NULL, &error));
        c = open_at(at("damaged.safetensors"));
        offset = checkpoint_find(c, names[i])->offset + 1000;
        checkpoint_close(&c);
        file = fopen(at("damaged.safetensors"), "r+b");
        assert_non_null(file);
        assert_int_equal(fseek(file, (long)offset, SEEK_SET), 0);
        fwrite("damage", 1, 6, file);
        assert_int_equal(fclose(file), 0);
        assert_int_equal(shoal_convert(at("damaged.safetensors"), at("no.safetensors"),
                             SHOAL_WIRE_RAW, false, NULL, &error),
            SHOAL_E_FORMAT);
        assert_non_null(strstr(error.text, "checksum differs"));
        assert_non_null(strstr(error.text, names[i]));
        assert_int_equal(file_kind(at("no.safetensors")), FILE_NONE);
    }
}

/* ---- what is refused ---- */

static void test_refusals(void **state)
{
    static const struct {
        const char *in, *out, *word;
        enum shoal_status status;
        bool replace;
    } cases[] = {
        {"nothing", "x", "no such file or folder", SHOAL_E_MISSING, false},
        {"others.safetensors", "others.safetensors", "are the same", SHOAL_E_INVALID, true},
        {"link.safetensors", "others.safetensors", "are the same", SHOAL_E_INVALID, true},
        {"others.safetensors", "there", "--force", SHOAL_E_INVALID, false},
        {"others.safetensors", "model", "is a folder", SHOAL_E_INVALID, true},
        {"others.safetensors", "no/x", "No such file", SHOAL_E_IO, false},
        {"model", "model", "are the same", SHOAL_E_INVALID, true},
        {"model", "model/", "are the same", SHOAL_E_INVALID, true},
        {"model", "model/packed", "lies in", SHOAL_E_INVALID, false},
        {"model", "model/transformer", "lies in", SHOAL_E_INVALID, true},
        {"model/transformer", "model", "--force", SHOAL_E_INVALID, false},
        {"model", "there", "is a file", SHOAL_E_INVALID, true},
        {"x.gguf", "x", "packed already", SHOAL_E_UNSUPPORTED, false},
        {"there", "x", "safetensors", SHOAL_E_FORMAT, false},
        {"empty", "x", "no checkpoint", SHOAL_E_MISSING, false},
    };
    struct shoal_error error = {0};
    size_t before;

    (void)state;
    put_others("others.safetensors");
    put_text("there", "12345678 and more");
    put_text("x.gguf", "GGUF and more of it");
    assert_int_equal(mkdir(at("empty"), 0755), 0);
    assert_int_equal(symlink("others.safetensors", at("link.safetensors")), 0);
    before = files_in(".");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum shoal_status status = shoal_convert(
            at(cases[i].in), at(cases[i].out), SHOAL_WIRE_PACKED, cases[i].replace, NULL, &error);

        if (status != cases[i].status || !strstr(error.text, cases[i].word))
            fail_msg("%s -> %s: %s", cases[i].in, cases[i].out, error.text);
        assert_int_equal(files_in("."), before);
    }
    assert_int_equal(shoal_convert("", "x", SHOAL_WIRE_RAW, false, NULL, &error), SHOAL_E_INVALID);
    assert_int_equal(
        shoal_convert(at("model"), at("y"), SHOAL_WIRE_AUTO, false, NULL, &error), SHOAL_E_INVALID);
}

static void test_replacing(void **state)
{
    struct shoal_error error = {0};

    (void)state;
    put_others("others.safetensors");
    put_text("old", "old");
    assert_ok(
        shoal_convert(at("others.safetensors"), at("old"), SHOAL_WIRE_PACKED, true, NULL, &error));
    assert_true(assert_same_tensors(at("others.safetensors"), at("old")) > 0);
    convert(at("model"), at("twice"), SHOAL_WIRE_RAW);
    put_text("twice/mine", "mine");
    put_text("twice/transformer/config.json", "{}");
    assert_ok(shoal_convert(at("model"), at("twice"), SHOAL_WIRE_PACKED, true, NULL, &error));
    assert_true(assert_same_tensors(at("model/vae"), at("twice/vae")) > 0);
    assert_same_files(at("model/transformer/config.json"), at("twice/transformer/config.json"));
    assert_int_equal(file_kind(at("twice/mine")), FILE_REGULAR);
    /* model has .hidden, twice has mine; nothing else is left. */
    assert_int_equal(files_in("twice"), files_in("model"));
}

/* ---- being stopped ---- */

struct stop {
    int calls, at;
    uint64_t last_bytes;
    double last_seconds;
};

static bool stop_at(void *user)
{
    struct stop *stop = user;

    return stop->calls++ == stop->at;
}

static void check_progress(void *user, const struct shoal_pack_progress *progress)
{
    struct stop *stop = user;

    assert_true(progress->done_bytes >= stop->last_bytes);
    assert_true(progress->done_bytes <= progress->bytes);
    assert_true(progress->seconds >= stop->last_seconds);
    stop->last_bytes = progress->done_bytes;
    stop->last_seconds = progress->seconds;
}

static void check_part(void *user, const struct shoal_packed_part *part)
{
    (void)user;
    assert_true(part->packed_tensors > 0 && part->packed_tensors < part->tensors);
    assert_true(part->written_bytes < part->bytes);
}

static void test_cancel_anywhere(void **state)
{
    size_t before;
    struct stop stop = {0};
    struct shoal_pack_callbacks callbacks = {&stop, check_progress, check_part, stop_at, NULL};
    struct shoal_error error = {0};
    bool done = false;

    (void)state;
    put_others("others.safetensors");
    before = files_in(".");
    for (int i = 0; !done; i++) {
        enum shoal_status status;

        stop = (struct stop){.at = i};
        status = shoal_convert(at("others.safetensors"), at("c.safetensors"), SHOAL_WIRE_PACKED,
            false, &callbacks, &error);
        done = status == SHOAL_OK;
        if (!done) assert_int_equal(status, SHOAL_E_CANCELLED);
        if (!done) assert_int_equal(files_in("."), before);
    }
    assert_true(stop.calls > 5);
    /* A folder, with growing steps. */
    before = files_in(".");
    done = false;
    for (int i = 0; !done; i += 1 + i / 2) {
        enum shoal_status status;

        stop = (struct stop){.at = i};
        status = shoal_convert(
            at("model"), at("cancelled"), SHOAL_WIRE_PACKED, false, &callbacks, &error);
        done = status == SHOAL_OK;
        if (!done) assert_int_equal(status, SHOAL_E_CANCELLED);
        if (!done) assert_int_equal(files_in("."), before);
    }
    assert_int_equal(stop.last_bytes > 0, 1);
}

/* A full disk, as far as this process can tell. */
static void test_full_disk(void **state)
{
    static const rlim_t limits[] = {0, 4096, 100000, 400000};
    struct rlimit old, limit;
    struct shoal_error error = {0};
    size_t before;

    (void)state;
    put_others("others.safetensors");
    before = files_in(".");
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        enum shoal_status status[2];

        limit = (struct rlimit){.rlim_cur = limits[i], .rlim_max = old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        status[0] = shoal_convert(at("others.safetensors"), at("full.safetensors"),
            SHOAL_WIRE_PACKED, false, NULL, &error);
        status[1] = shoal_convert(at("model"), at("full"), SHOAL_WIRE_PACKED, false, NULL, &error);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(status[0], SHOAL_E_IO);
        assert_int_equal(status[1], SHOAL_E_IO);
        assert_non_null(strstr(error.text, "cannot write"));
        assert_int_equal(files_in("."), before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folder_there_and_back),
        cmocka_unit_test(test_packed_embedding),
        cmocka_unit_test(test_one_file),
        cmocka_unit_test(test_unknown_family),
        cmocka_unit_test(test_damaged_source),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_replacing),
        cmocka_unit_test(test_cancel_anywhere),
        cmocka_unit_test(test_full_disk),
    };

    return cmocka_run_group_tests(tests, make_models, folder_remove);
}
