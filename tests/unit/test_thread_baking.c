/*
 * Baking: a block's weights, patched chunk by chunk as they are read, are those that are patched
 * whole; whatever the chunks cut: rows, runs of rows with the same terms, blocks of quantised
 * types.
 */
#include "unit/checkpoint_files.h"

#include "base/reader.h"
#include "base/size.h"
#include "device/cpu/patch.h"
#include "memory/packing.h"

enum { WEIGHTS = 5, RANK = 3, RUNS = 2 * WEIGHTS + 1 };

static const struct {
    enum dtype dtype;
    int64_t rows, cols;
} shapes[WEIGHTS] = {{DTYPE_Q8_0, 1500, 1024}, {DTYPE_F32, 1, 300000}, {DTYPE_Q6_K, 1200, 2048},
    {DTYPE_BF16, 700, 1000}, {DTYPE_F8_E4M3, 3, 700001}};

struct fixture {
    struct file file;
    struct checkpoint_tensor tensors[WEIGHTS];
    struct weight weights[WEIGHTS];
    struct block block;
    struct model model;
    char *stored[WEIGHTS];
    /* The patch, of two runs a weight, the second without a term; what is left out is not patched.
     */
    struct patch_run runs[RUNS];
    struct patch_recipe terms[WEIGHTS];
    struct block_patch patch;
    struct patches patches;
    float *factors;
};

static uint64_t seed = 5;

static uint64_t size_of(int i)
{
    return (uint64_t)dtype_bytes(shapes[i].dtype, shapes[i].rows * shapes[i].cols);
}

/* Bytes with bits of 0xb3 only make no scale infinite and no code a NaN. */
static char *random_bytes(uint64_t bytes)
{
    char *data = malloc(bytes);

    assert_non_null(data);
    for (uint64_t i = 0; i < bytes; i++)
        data[i] = (char)(test_random(&seed) & 0xb3);
    return data;
}

/* Tensors at multiples of their elements' size, but at no others. */
static void write_file(struct fixture *f)
{
    struct shoal_error error = {0};
    const char *path = at("weights");
    FILE *file = fopen(path, "wb");
    uint64_t offset = 0;

    assert_non_null(file);
    for (int i = 0; i < WEIGHTS; i++) {
        const uint64_t begin = size_align(offset, 4) + 4;

        for (; offset < begin; offset++)
            fputc(7, file);
        f->stored[i] = random_bytes(size_of(i));
        assert_int_equal(fwrite(f->stored[i], 1, size_of(i), file), size_of(i));
        f->tensors[i] = (struct checkpoint_tensor){.name = "tensor",
            .dtype = shapes[i].dtype,
            .bytes = size_of(i),
            .stored_bytes = size_of(i),
            .offset = begin,
            .file = &f->file};
        offset += size_of(i);
    }
    assert_int_equal(fclose(file), 0);
    assert_ok(file_open(path, &f->file, &error));
}

/* Weight i is patched in rows (a vector in columns) before a third of them, but weight 3 is not. */
static void make_patch(struct fixture *f)
{
    uint64_t count = 0, used = 0;

    for (int i = 0; i < WEIGHTS; i++)
        count += (uint64_t)(RANK * (shapes[i].rows + shapes[i].cols));
    f->factors = malloc(count * sizeof *f->factors);
    assert_non_null(f->factors);
    for (uint64_t i = 0; i < count; i++)
        f->factors[i] = (float)test_random(&seed) * 0x1p-30f - 1;
    f->patch = (struct block_patch){.runs = f->runs,
        .terms = f->terms,
        .sources = {{(const char *)f->factors, count * sizeof *f->factors, 0}},
        .source_count = 1};
    for (int i = 0; i < WEIGHTS; i++) {
        const bool vector = shapes[i].rows == 1;
        const int64_t extent = vector ? shapes[i].cols : shapes[i].rows, cut = extent / 3;
        struct adapter_factor *term = &f->terms[i].factors[0];

        if (i == 3) continue;
        term->b = (struct adapter_matrix){used, DTYPE_F32, shapes[i].rows, RANK};
        used += (uint64_t)(shapes[i].rows * RANK) * sizeof(float);
        term->a = (struct adapter_matrix){used, DTYPE_F32, RANK, shapes[i].cols};
        used += (uint64_t)(shapes[i].cols * RANK) * sizeof(float);
        f->terms[i].scale = 0.25f;
        f->runs[f->patch.run_count++] = (struct patch_run){i, 0, cut, i, 1};
        f->runs[f->patch.run_count++] = (struct patch_run){i, cut, extent - cut, i, 0};
    }
}

static void open_fixture(struct fixture *f)
{
    memset(f, 0, sizeof *f);
    write_file(f);
    make_patch(f);
    for (int i = 0; i < WEIGHTS; i++) {
        f->weights[i] = (struct weight){.dtype = shapes[i].dtype,
            .scale = dtype_is_f8(shapes[i].dtype) ? 0.37f : 1.0f,
            .rows = shapes[i].rows,
            .cols = shapes[i].cols,
            .offset = f->block.bytes,
            .bytes = size_of(i),
            .pieces = {&f->tensors[i]},
            .piece_count = 1};
        f->block.bytes = size_align(f->block.bytes + size_of(i), BLOCK_WEIGHT_ALIGNMENT);
    }
    f->block.weights = f->weights;
    f->block.weight_count = WEIGHTS;
    f->model = (struct model){.blocks = &f->block,
        .block_count = 1,
        .passes = {{.name = "walk", .count = 1, .globals = -1}},
        .pass_count = 1};
    f->patches.models[0] = (struct model_patches){&f->model, &f->patch};
}

static void close_fixture(struct fixture *f)
{
    file_close(&f->file);
    for (int i = 0; i < WEIGHTS; i++)
        free(f->stored[i]);
    free(f->factors);
}

/* The weight patched in one piece. */
static void check_weight(const struct fixture *f, int i, const struct matrix *got)
{
    const struct weight *w = &f->weights[i];
    const bool vector = w->rows == 1, patched = i != 3;
    const enum dtype dtype = patched ? patch_dtype(w->dtype) : w->dtype;
    const uint64_t bytes = (uint64_t)dtype_bytes(dtype, w->rows * w->cols);
    struct matrix x = matrix_at((uintptr_t)f->stored[i], w->dtype, w->rows, w->cols), y = x;
    char *want = malloc(bytes);

    assert_non_null(want);
    assert_int_equal(got->dtype, dtype);
    x.scale = w->scale;
    y.addr = (uintptr_t)want;
    y.dtype = dtype;
    y.scale = 1;
    if (!patched) memcpy(want, f->stored[i], bytes);
    for (int32_t r = 0; r < f->patch.run_count; r++) {
        const struct patch_run *run = &f->runs[r];
        struct patch terms;

        if (run->weight != i) continue;
        block_patch_terms(&f->patch, run, vector, run->first, 0, &terms);
        if (vector)
            patch_on_host(NULL, matrix_cols(y, run->first, run->count),
                matrix_cols(x, run->first, run->count), &terms);
        else
            patch_on_host(NULL, matrix_rows(y, run->first, run->count),
                matrix_rows(x, run->first, run->count), &terms);
    }
    assert_memory_equal((const void *)(uintptr_t)got->addr, want, bytes);
    free(want);
}

static void test_chunks(void **state)
{
    struct cargo_packer packer = {0};
    struct packing packing;
    struct shoal_error error = {0};
    struct matrix bound[WEIGHTS];
    struct checksum sum;
    struct cargo_size size;
    struct cargo cargo;
    struct fixture f;
    char *image, *chunk = aligned_alloc(READER_ALIGNMENT, CARGO_CHUNK_BYTES);

    (void)state;
    open_fixture(&f);
    assert_ok(packing_init_widening(&packing, &f.model, &f.model.passes[0], &f.patches, &error));
    assert_ok(cargo_init(&cargo, &f.block, packing_rooms(&packing, 0), &f.patch, &error));
    assert_ok(cargo_measure(&f.block, packing_rooms(&packing, 0), &f.patch, &size, &error));
    assert_true(cargo.packs && !cargo.opens && cargo.chunk_count > 5);
    assert_int_equal(size.bytes, cargo.bytes);
    assert_int_equal(size.image_bytes, cargo.image_bytes);
    assert_int_equal(cargo.bytes, cargo.open_bytes);
    image = aligned_alloc(READER_ALIGNMENT, cargo.image_bytes);
    assert_non_null(image);
    assert_non_null(chunk);
    for (int threads = 0; threads <= 3; threads += 3) {
        if (threads) assert_ok(pool_create(&packer.pool, threads, &error));
        memset(image, 0x5a, cargo.image_bytes);
        for (int32_t i = 0; i < cargo.chunk_count; i++) {
            const struct cargo_chunk *c = &cargo.chunks[i];

            assert_ok(file_read_at(c->file, c->offset, chunk, c->least, &error));
            assert_ok(cargo_check(&cargo, c, chunk, &sum, &error));
            assert_ok(cargo_pack(&cargo, c, chunk, &packer, image, &error));
        }
        cargo_bind(&cargo, (uintptr_t)image, bound);
        for (int i = 0; i < WEIGHTS; i++)
            check_weight(&f, i, &bound[i]);
    }
    pool_destroy(&packer.pool);
    free(image);
    free(chunk);
    cargo_fini(&cargo);
    packing_fini(&packing);
    close_fixture(&f);
}

/* On a device the block crosses as it is stored, with the factors behind. */
static void test_sizes(void **state)
{
    struct shoal_error error = {0};
    struct cargo_size plain, patched;
    struct fixture f;

    (void)state;
    open_fixture(&f);
    f.patch.factor_bytes = 512;
    assert_ok(cargo_measure(&f.block, NULL, NULL, &plain, &error));
    assert_ok(cargo_measure(&f.block, NULL, &f.patch, &patched, &error));
    assert_false(plain.opens);
    assert_int_equal(plain.bytes, f.block.bytes);
    assert_int_equal(plain.open_bytes, f.block.bytes);
    assert_true(patched.opens && !patched.packed);
    assert_int_equal(patched.bytes, f.block.bytes + 512);
    assert_int_equal(patched.image_bytes, plain.image_bytes);
    assert_true(patched.open_bytes > plain.bytes); /* BF16 of what is quantised */
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_sizes),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
