/* The model builder: packing, and what it refuses. */
#include "unit/checkpoint_files.h"
#include "unit/tensor_file.h"

#include "models/model.h"

struct fixture {
    struct checkpoint *checkpoint;
    struct model_builder builder;
    struct model *model;
    struct shoal_error error;
};

static const struct tensor_spec tensors[] = {
    {"m.a.norm.weight", DTYPE_F32, SHAPE1(8)},
    {"m.a.q.weight", DTYPE_BF16, SHAPE2(4, 8)},
    {"m.a.k.weight", DTYPE_BF16, SHAPE2(2, 8)},
    {"m.a.v.weight", DTYPE_BF16, SHAPE2(2, 8)},
    {"m.a.q.bias", DTYPE_F16, SHAPE1(4)},
    {"m.a.k.bias", DTYPE_F16, SHAPE1(2)},
    {"m.b.qkv.weight", DTYPE_F32, SHAPE2(8, 8)},
    {"m.b.conv.weight", DTYPE_F32, SHAPE4(4, 2, 3, 3)},
    {"m.token", DTYPE_F32, SHAPE2(1, 8)},
    {"m.c.half.weight", DTYPE_F16, SHAPE2(4, 8)},
    {"m.c.byte.weight", DTYPE_I8, SHAPE2(4, 8)},
    {"m.c.eight.weight", DTYPE_F8_E4M3FNUZ, SHAPE2(4, 8)},
    {"m.c.tall.weight", DTYPE_F32, SHAPE2(8, 4)},
};

static void begin(struct fixture *f)
{
    struct shoal_error error = {0};
    const char *path = at("builder.safetensors");

    memset(f, 0, sizeof *f);
    assert_ok(
        tensor_file_write(path, tensors, sizeof tensors / sizeof *tensors, NULL, false, &error));
    assert_ok(checkpoint_open(path, &f->checkpoint, &error));
    builder_begin(&f->builder, "test", NULL, f->checkpoint, "m.", &f->error);
}

static void finish(struct fixture *f)
{
    enum shoal_status status = builder_finish(&f->builder, &f->model);

    assert_int_equal(status, f->error.status);
}

static void end(struct fixture *f)
{
    model_destroy(&f->model);
    checkpoint_close(&f->checkpoint);
}

static void assert_says(const struct fixture *f, const char *part)
{
    if (!strstr(f->error.text, part)) fail_msg("\"%s\" is not in \"%s\"", part, f->error.text);
}

static void test_packing(void **state)
{
    struct fixture f;
    const struct weight *w;

    (void)state;
    begin(&f);
    assert_int_equal(builder_block(&f.builder, NULL, 7, "a", "a."), 0);
    builder_weight(&f.builder, "norm.weight", 1, 8);
    builder_weight(&f.builder, "qkv.weight|q.weight+k.weight+v.weight", 8, 8);
    builder_weight(&f.builder, "q.bias+k.bias", 1, 6);
    builder_weight(&f.builder, "/token", 1, 8);
    assert_int_equal(builder_block(&f.builder, NULL, 8, "b", "b."), 1);
    builder_weight(&f.builder, "q.weight+k.weight+v.weight|qkv.weight", 8, 8);
    builder_weight(&f.builder, "conv.weight", 4, 18);
    builder_pass(&f.builder, (struct pass){.name = "all", .count = 2, .globals = -1});
    finish(&f);
    assert_non_null(f.model);

    assert_int_equal(f.model->block_count, 2);
    assert_int_equal(f.model->pass_count, 1);
    assert_string_equal(f.model->blocks[0].name, "a");
    assert_int_equal(f.model->blocks[0].index, 7);
    assert_int_equal(f.model->blocks[0].weight_count, 4);
    w = f.model->blocks[0].weights;
    assert_int_equal(w[0].offset, 0);
    assert_int_equal(w[0].bytes, 32);
    assert_int_equal(w[0].dtype, DTYPE_F32);
    assert_int_equal(w[1].offset, 256);
    assert_int_equal(w[1].bytes, 8 * 8 * 2);
    assert_int_equal(w[1].piece_count, 3);
    assert_int_equal(w[1].rows, 8);
    assert_int_equal(w[1].dtype, DTYPE_BF16);
    assert_string_equal(w[1].pieces[2]->name, "m.a.v.weight");
    assert_string_equal(w[1].name, "qkv.weight");
    assert_int_equal(w[2].offset, 512);
    assert_int_equal(w[2].bytes, 12);
    assert_int_equal(w[2].dtype, DTYPE_F16);
    assert_string_equal(w[3].name, "token");
    assert_int_equal(f.model->blocks[0].bytes, 1024);
    w = f.model->blocks[1].weights;
    assert_int_equal(w[0].piece_count, 1);
    assert_string_equal(w[0].name, "q.weight+k.weight+v.weight");
    assert_int_equal(w[1].offset, 256);
    assert_int_equal(f.model->blocks[1].bytes, 256 + 512);
    end(&f);
}

/* Parts of one type are one weight, and parts of several are as many. */
static void test_stack(void **state)
{
    const int64_t rows[] = {4, 2, 2};
    struct fixture f;
    const struct weight *w;

    (void)state;
    begin(&f);
    builder_block(&f.builder, NULL, 0, "a", "");
    builder_stack(&f.builder, "a.q.weight+a.k.weight+a.v.weight|b.qkv.weight", rows, 3, 8);
    builder_stack(&f.builder, "b.qkv.weight", rows, 3, 8);
    builder_stack(&f.builder, "c.half.weight+/a.k.weight+a.v.weight|b.qkv.weight", rows, 3, 8);
    finish(&f);
    assert_non_null(f.model);
    assert_int_equal(f.model->blocks[0].weight_count, 9);
    w = f.model->blocks[0].weights;
    assert_int_equal(w[0].rows, 8);
    assert_int_equal(w[0].piece_count, 3);
    assert_int_equal(w[0].bytes, 128);
    assert_string_equal(w[0].name, "a.q.weight+a.k.weight+a.v.weight");
    for (int i = 1; i < 6; i += i == 2 ? 2 : 1) {
        assert_int_equal(w[i].rows, 0);
        assert_int_equal(w[i].bytes, 0);
        assert_int_equal(w[i].piece_count, 0);
    }
    assert_string_equal(w[1].name, "a.k.weight");
    assert_int_equal(w[3].rows, 8);
    assert_int_equal(w[3].dtype, DTYPE_F32);
    for (int i = 6; i < 9; i++) {
        assert_int_equal(w[i].rows, rows[i - 6]);
        assert_int_equal(w[i].piece_count, 1);
        assert_int_equal(w[i].offset, 512 + 256 * (i - 6));
        assert_int_equal(w[i].dtype, i == 6 ? DTYPE_F16 : DTYPE_BF16);
    }
    assert_string_equal(w[6].name, "c.half.weight");
    assert_string_equal(w[8].name, "a.v.weight");
    assert_string_equal(w[8].pieces[0]->name, "m.a.v.weight");
    assert_int_equal(f.model->blocks[0].bytes, 512 + 3 * 256);
    end(&f);

    begin(&f);
    builder_block(&f.builder, NULL, 0, "a", "");
    builder_stack(
        &f.builder, "c.half.weight+a.k.weight+a.v.weight", (const int64_t[]){4, 1, 3}, 3, 8);
    finish(&f);
    assert_int_equal(f.error.status, SHOAL_E_FORMAT);
    assert_says(&f, "m.a.k.weight is [2, 8]");
    end(&f);
}

static void test_missing(void **state)
{
    struct fixture f;

    (void)state;
    begin(&f);
    builder_block(&f.builder, NULL, 0, "a", "a.");
    builder_weight(&f.builder, "norm.weight", 1, 8);
    builder_weight(&f.builder, "out.weight|proj.weight", 8, 8);
    finish(&f);
    assert_int_equal(f.error.status, SHOAL_E_MISSING);
    assert_says(&f, "m.a.out.weight is missing");
    assert_says(&f, "builder.safetensors");
    assert_null(f.model);
    end(&f);

    begin(&f);
    builder_block(&f.builder, NULL, 0, "a", "a.");
    builder_weight(&f.builder, "q.weight+nothing.weight", 8, 8);
    builder_weight(&f.builder, "more.weight", 8, 8);
    finish(&f);
    assert_int_equal(f.error.status, SHOAL_E_MISSING);
    assert_says(&f, "2 tensors are missing");
    assert_says(&f, "m.a.nothing.weight");
    end(&f);
}

/* A weight that is refused. */
static void refuse(
    const char *names, int64_t rows, int64_t cols, enum shoal_status status, const char *says)
{
    struct fixture f;

    begin(&f);
    builder_block(&f.builder, NULL, 0, "block", "");
    builder_weight(&f.builder, names, rows, cols);
    builder_weight(&f.builder, "missing.too", 1, 1); /* the first failure stays */
    finish(&f);
    assert_null(f.model);
    assert_int_equal(f.error.status, status);
    assert_says(&f, says);
    end(&f);
}

static void test_refusals(void **state)
{
    (void)state;
    refuse("c.eight.weight", 4, 8, SHOAL_E_UNSUPPORTED, "m.c.eight.weight is F8_E4M3FNUZ");
    refuse("c.byte.weight", 4, 8, SHOAL_E_UNSUPPORTED, "m.c.byte.weight is I8");
    refuse("a.q.weight+c.half.weight", 8, 8, SHOAL_E_UNSUPPORTED,
        "m.a.q.weight (BF16) and m.c.half.weight (F16)");
    refuse("a.q.weight", 4, 9, SHOAL_E_FORMAT, "m.a.q.weight is [4, 8]");
    refuse("a.q.weight", 4, 9, SHOAL_E_FORMAT, "[4, 9]");
    refuse("a.q.weight+a.k.weight", 8, 8, SHOAL_E_FORMAT, "m.a.k.weight is [2, 8]");
    /* The same number of elements, but the other way round. */
    refuse("c.tall.weight", 4, 8, SHOAL_E_FORMAT, "m.c.tall.weight is [8, 4]");
    refuse("a.norm.weight", 2, 4, SHOAL_E_FORMAT, "m.a.norm.weight is [8]");
    refuse("b.conv.weight", 4, 9, SHOAL_E_FORMAT, "m.b.conv.weight is [4, 2, 3, 3]");
    refuse("a.norm.weight", 1, 9, SHOAL_E_FORMAT, "[1, 9]");
    refuse("a.norm.weight", 0, 9, SHOAL_E_FORMAT, "0 x 9");
}

/* Tensors under a block's key prefix are used, or ignored by name, or of another variant. */
static void test_ignore(void **state)
{
    static const char *const ignored[] = {"byte.weight", "byte.weight|none.bias|eight.weight",
        "tall.weight|eight.weight|byte.weight"};

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct fixture f;

        begin(&f);
        builder_block(&f.builder, NULL, 0, "block 0", "c.");
        builder_weight(&f.builder, "half.weight", 4, 8);
        builder_ignore(&f.builder, ignored[i]);
        finish(&f);
        if (i < 2)
            assert_says(&f, i ? "m.c.tall.weight is no part" : "m.c.eight.weight is no part");
        assert_int_equal(f.model != NULL, i == 2);
        end(&f);
    }
}

static void test_too_many_passes(void **state)
{
    struct fixture f;

    (void)state;
    begin(&f);
    for (int i = 0; i <= MODEL_MAX_PASSES; i++)
        builder_pass(&f.builder, (struct pass){.globals = -1});
    finish(&f);
    assert_int_equal(f.error.status, SHOAL_E_UNSUPPORTED);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packing),
        cmocka_unit_test(test_stack),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_ignore),
        cmocka_unit_test(test_too_many_passes),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
