/* The VAE's fused block, upsampler and shrinking resnet in pieces of channels, against the same
 * formula computed whole; and the memory that it saves. */
#include "unit/checkpoint_files.h"
#include "unit/gguf_file.h"
#include "unit/tensor_file.h"

#include "base/memory.h"
#include "golden/run_model.h"
#include "models/vae/klvae.h"

#include <math.h>

#define SCRATCH_BYTES (64u << 20)

enum { WIDE = 96, NARROW = 32, SIDE = 6 }; /* 32 groups of 3: pieces of 30, 30, 30 and 6 */

#define RESNET(key, in, out)                                                                       \
    {key "norm1.weight", DTYPE_F32, SHAPE1(in)}, {key "norm1.bias", DTYPE_F32, SHAPE1(in)},        \
        {key "conv1.weight", DTYPE_BF16, SHAPE4(out, in, 3, 3)},                                   \
        {key "conv1.bias", DTYPE_F32, SHAPE1(out)}, {key "norm2.weight", DTYPE_F32, SHAPE1(out)},  \
        {key "norm2.bias", DTYPE_F32, SHAPE1(out)},                                                \
        {key "conv2.weight", DTYPE_F32, SHAPE4(out, out, 3, 3)},                                   \
    {                                                                                              \
        key "conv2.bias", DTYPE_F32, SHAPE1(out)                                                   \
    }

static const struct tensor_spec vae[] = {
    {"decoder.conv_in.weight", DTYPE_F32, SHAPE4(WIDE, 16, 3, 3)},
    {"decoder.conv_in.bias", DTYPE_F32, SHAPE1(WIDE)},
    {"post_quant_conv.weight", DTYPE_F32, SHAPE4(16, 16, 1, 1)},
    {"post_quant_conv.bias", DTYPE_F32, SHAPE1(16)},
    RESNET("decoder.mid_block.resnets.0.", WIDE, WIDE),
    RESNET("decoder.mid_block.resnets.1.", WIDE, WIDE),
    RESNET("decoder.up_blocks.0.resnets.0.", WIDE, WIDE),
    {"decoder.up_blocks.0.upsamplers.0.conv.weight", DTYPE_BF16, SHAPE4(WIDE, WIDE, 3, 3)},
    {"decoder.up_blocks.0.upsamplers.0.conv.bias", DTYPE_BF16, SHAPE1(WIDE)},
    RESNET("decoder.up_blocks.1.resnets.0.", WIDE, NARROW),
    {"decoder.up_blocks.1.resnets.0.conv_shortcut.weight", DTYPE_F32, SHAPE4(NARROW, WIDE, 1, 1)},
    {"decoder.up_blocks.1.resnets.0.conv_shortcut.bias", DTYPE_F32, SHAPE1(NARROW)},
    {"decoder.conv_norm_out.weight", DTYPE_F32, SHAPE1(NARROW)},
    {"decoder.conv_norm_out.bias", DTYPE_F32, SHAPE1(NARROW)},
    {"decoder.conv_out.weight", DTYPE_F32, SHAPE4(3, NARROW, 3, 3)},
    {"decoder.conv_out.bias", DTYPE_F32, SHAPE1(3)},
};

struct fixture {
    struct checkpoint *checkpoint;
    struct model *model;
    struct run run;
    struct matrix weights[16]; /* of the fused block */
    const struct block *fused;
};

static void fixture_open(struct fixture *f, enum run_device device)
{
    struct shoal_error error = {0};
    const char *path = at("vae.safetensors");
    int32_t index = 0;

    memset(f, 0, sizeof *f);
    assert_ok(tensor_file_write(path, vae, sizeof vae / sizeof *vae, NULL, true, &error));
    assert_ok(checkpoint_open(path, &f->checkpoint, &error));
    assert_ok(klvae_open(f->checkpoint, NULL, &f->model, &error));
    assert_true(klvae_config(f->model)->post_quant && !klvae_config(f->model)->attention);
    assert_ok(run_open(&f->run, f->model, device, SCRATCH_BYTES, &error));
    while (!strstr(f->model->blocks[index].name, "upsampler and resnet"))
        index++;
    f->fused = &f->model->blocks[index];
    for (int32_t w = 0; w < f->fused->weight_count; w++)
        f->weights[w] = matrix_at(f->run.block_addr[index] + f->fused->weights[w].offset,
            f->fused->weights[w].dtype, f->fused->weights[w].rows, f->fused->weights[w].cols);
}

static void fixture_close(struct fixture *f)
{
    run_close(&f->run);
    model_destroy(&f->model);
    checkpoint_close(&f->checkpoint);
}

static void norm(
    struct exec *x, struct matrix affine, struct matrix of, struct matrix gamma, struct matrix beta)
{
    const struct group_norm all = {.groups = 32, .pixels = of.cols, .run = of.cols, .eps = 1e-6f};
    struct matrix moments = exec_alloc(x, of.rows, 2);

    x->ops->group_moments(x->stream, moments, of, of.cols);
    x->ops->group_fold(x->stream, affine, moments, gamma, beta, &all);
    exec_free(x, &moments);
}

/* The lane's picture through upsampler and resnet, all channels at once. */
static struct matrix whole(struct fixture *f, struct matrix hidden)
{
    struct exec *x = &f->run.exec;
    struct stream *s = x->stream;
    const struct matrix *w = f->weights;
    int64_t pixels = 4 * hidden.cols;
    struct matrix u = exec_alloc(x, WIDE, pixels), inner = exec_alloc(x, NARROW, pixels);
    struct matrix out = exec_alloc(x, NARROW, pixels);
    struct matrix affine1 = exec_alloc(x, 2, WIDE), affine2 = exec_alloc(x, 2, NARROW);
    struct conv conv = {.height = 2 * SIDE, .width = 2 * SIDE, .kernel = 3, .upsample = 2};

    x->ops->conv2d(s, u, hidden, w[0], w[1], &conv);
    conv.upsample = 1;
    conv.kernel = 1;
    x->ops->conv2d(s, out, u, w[10], w[11], &conv);
    conv.kernel = 3;
    conv.activation = ACTIVATION_SILU;
    norm(x, affine1, u, w[2], w[3]);
    conv.affine = affine1;
    x->ops->conv2d(s, inner, u, w[4], w[5], &conv);
    norm(x, affine2, inner, w[6], w[7]);
    conv.affine = affine2;
    conv.accumulate = true;
    x->ops->conv2d(s, out, inner, w[8], w[9], &conv);
    exec_free(x, &affine2);
    exec_free(x, &affine1);
    exec_free(x, &inner);
    exec_free(x, &u);
    return out;
}

static void check_fused(enum run_device device)
{
    struct shoal_error error = {0};
    struct fixture f;
    struct vae_lane lane = {.hidden_height = SIDE, .hidden_width = SIDE};
    float values[WIDE * SIDE * SIDE], *got, *want;
    uint64_t random = 3;
    size_t count = NARROW * 4 * SIDE * SIDE;
    struct matrix out;

    fixture_open(&f, device);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        values[i] = (float)test_random(&random) / 1073741824.0f - 1.0f;
    lane.hidden = exec_alloc(&f.run.exec, WIDE, SIDE * SIDE);
    exec_upload(&f.run.exec, lane.hidden, values);
    out = whole(&f, lane.hidden);
    f.fused->forward(&f.run.exec, f.fused, f.weights, &lane);
    assert_int_equal(lane.hidden.rows, NARROW);
    assert_int_equal(lane.hidden_height, 2 * SIDE);
    got = mem_alloc(count * sizeof *got);
    want = mem_alloc(count * sizeof *want);
    exec_download(&f.run.exec, got, lane.hidden);
    exec_download(&f.run.exec, want, out);
    assert_ok(f.run.device->ops->stream_synchronize(f.run.stream, &error));
    for (size_t i = 0; i < count; i++)
        if (!(fabsf(got[i] - want[i]) < 1e-5f))
            fail_msg("element %zu: %g, not %g", i, (double)got[i], (double)want[i]);
    mem_free(got);
    mem_free(want);
    exec_free(&f.run.exec, &out);
    vae_lane_fini(&f.run.exec, &lane);
    assert_int_equal(region_used(f.run.region), 0);
    fixture_close(&f);
}

static void test_fused(void **state)
{
    (void)state;
    check_fused(RUN_REFERENCE);
    check_fused(RUN_FAST);
}

/* The whole decoder's peak: the last fused block's input, its two pictures and one piece. In strips
 * one of the pictures and the piece are there ten rows of 128 at a time. */
static void test_peak(void **state)
{
    struct shoal_error error = {0};
    struct fixture f;
    struct vae_lane lane = {.height = 64, .width = 64};
    struct vae_lane strips = {.height = 64, .width = 64, .whole_bytes = 1};
    void *lanes[1] = {&lane};
    uint64_t pixel = sizeof(float) * 64 * 64, strip = sizeof(float) * 10 * 128, whole;

    (void)state;
    fixture_open(&f, RUN_COUNT);
    lane.latent = exec_alloc_float(&f.run.exec, 16, 64 * 64);
    assert_ok(run_pass(&f.run, 0, lanes, 1, &error));
    assert_in_range(region_high_water(f.run.region), 1,
        pixel * (16 + WIDE + 4 * (NARROW + NARROW + 30)) + 16384);
    assert_int_equal(lane.strip_blocks, 0);
    whole = region_high_water(f.run.region);
    region_reset_high_water(f.run.region);
    strips.latent = lane.latent;
    lanes[0] = &strips;
    assert_ok(run_pass(&f.run, 0, lanes, 1, &error));
    assert_in_range(region_high_water(f.run.region), 1,
        pixel * (16 + WIDE + 4 * NARROW) + strip * (NARROW + 30) + 16384);
    assert_int_equal(strips.strip_blocks, 4); /* three resnets and this one */
    assert_true(whole > region_high_water(f.run.region) / 10 * 17);
    exec_free(&f.run.exec, &lane.latent);
    fixture_close(&f);
}

/* z = conv_in(post_quant_conv(latent / scaling + shift)), zero outside: channel 5 at one pixel. */
static double conv_in_at(const float *latent, const float *const w[4], int64_t row, int64_t column)
{
    const struct {
        double scaling, shift;
    } c = {0.3611, 0.1159};
    double sum = w[3][5];

    for (int64_t k = 0; k < 9; k++) {
        int64_t y = row + k / 3 - 1, x = column + k % 3 - 1;

        if (y < 0 || x < 0 || y >= SIDE || x >= SIDE) continue;
        for (int64_t channel = 0; channel < 16; channel++) {
            double quant = w[1][channel];

            for (int64_t i = 0; i < 16; i++)
                quant += w[0][channel * 16 + i] *
                         (latent[i * SIDE * SIDE + y * SIDE + x] / c.scaling + c.shift);
            sum += w[2][(5 * 16 + channel) * 9 + k] * quant;
        }
    }
    return sum;
}

static void test_post_quant(void **state)
{
    struct shoal_error error = {0};
    struct fixture f;
    struct vae_lane lane = {.height = SIDE, .width = SIDE};
    static float latent[16 * SIDE * SIDE], hidden[WIDE * SIDE * SIDE], values[4][WIDE * 16 * 9];
    const float *const w[4] = {values[0], values[1], values[2], values[3]};
    struct matrix weights[4];
    const struct block *block;

    (void)state;
    fixture_open(&f, RUN_FAST);
    block = &f.model->blocks[0];
    assert_int_equal(block->weight_count, 4);
    for (int i = 0; i < 4; i++) {
        weights[i] = matrix_at(f.run.block_addr[0] + block->weights[i].offset,
            block->weights[i].dtype, block->weights[i].rows, block->weights[i].cols);
        exec_download(&f.run.exec, values[i], weights[i]);
    }
    for (int i = 0; i < 16 * SIDE * SIDE; i++)
        latent[i] = (float)(i % 7) - 3.0f;
    lane.latent = exec_alloc_float(&f.run.exec, 16, SIDE * SIDE);
    exec_upload(&f.run.exec, lane.latent, latent);
    block->forward(&f.run.exec, block, weights, &lane);
    exec_download(&f.run.exec, hidden, lane.hidden);
    assert_ok(f.run.device->ops->stream_synchronize(f.run.stream, &error));
    for (int64_t pixel = 0; pixel < SIDE * SIDE; pixel++) {
        double want = conv_in_at(latent, w, pixel / SIDE, pixel % SIDE);

        if (!(fabs(hidden[5 * SIDE * SIDE + pixel] - want) < 1e-5))
            fail_msg(
                "pixel %d: %g, not %g", (int)pixel, (double)hidden[5 * SIDE * SIDE + pixel], want);
    }
    exec_free(&f.run.exec, &lane.latent);
    vae_lane_fini(&f.run.exec, &lane);
    fixture_close(&f);
}

/* ---- quantised weights ---- */

/* The VAE with one tensor of that type and shape; what opening says of it. */
static enum shoal_status open_with(
    const char *name, enum dtype dtype, struct shape shape, struct shoal_error *error)
{
    struct gguf_file f = {0};
    struct checkpoint *checkpoint;
    struct model *model;
    enum shoal_status status;

    for (size_t i = 0; i < sizeof vae / sizeof *vae; i++) {
        bool other = strcmp(vae[i].name, name) == 0;
        enum dtype type = other ? dtype : vae[i].dtype;

        gguf_file_tensor(
            &f, vae[i].name, gguf_number(type), type, other ? shape : vae[i].shape, NULL);
    }
    assert_int_equal(gguf_file_write(&f, at("vae.gguf"), error), SHOAL_OK);
    assert_int_equal(checkpoint_open(at("vae.gguf"), &checkpoint, error), SHOAL_OK);
    status = klvae_open(checkpoint, NULL, &model, error);
    if (!status) model_destroy(&model);
    checkpoint_close(&checkpoint);
    return status;
}

/* Weights whose columns are used in pieces must have whole blocks in each. */
static void test_quantised_pieces(void **state)
{
    static const struct {
        const char *name;
        struct shape shape;
    } cut[] = {
        {"decoder.up_blocks.0.upsamplers.0.conv.bias", SHAPE1(WIDE)},
        {"decoder.up_blocks.1.resnets.0.norm1.weight", SHAPE1(WIDE)},
        {"decoder.up_blocks.1.resnets.0.norm1.bias", SHAPE1(WIDE)},
        {"decoder.up_blocks.1.resnets.0.conv1.weight", SHAPE2(NARROW, WIDE * 9)},
        {"decoder.up_blocks.1.resnets.0.conv_shortcut.weight", SHAPE2(NARROW, WIDE)},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
        struct shoal_error error = {0};
        char words[128];

        assert_int_equal(
            open_with(cut[i].name, DTYPE_Q8_0, cut[i].shape, &error), SHOAL_E_UNSUPPORTED);
        snprintf(words, sizeof words, "vae.gguf: tensor %s is Q8_0, in blocks of 32", cut[i].name);
        if (!strstr(error.text, words) || !strstr(error.text, "F32, F16 or BF16 would do"))
            fail_msg("%s: \"%s\"", cut[i].name, error.text);
        error = (struct shoal_error){0};
        assert_ok(open_with(cut[i].name, DTYPE_F16, cut[i].shape, &error));
    }
    for (int i = 0; i < 2; i++) {
        struct shoal_error error = {0};

        assert_ok(open_with(i ? "decoder.mid_block.resnets.1.norm1.weight"
                              : "decoder.up_blocks.0.resnets.0.conv1.bias",
            DTYPE_Q8_0, (struct shape)SHAPE1(WIDE), &error));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fused),
        cmocka_unit_test(test_peak),
        cmocka_unit_test(test_post_quant),
        cmocka_unit_test(test_quantised_pieces),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
