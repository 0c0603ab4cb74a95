/* Opening the Wan VAE by shapes and names alone; what is refused; and the memory that strips save.
 */
#include "unit/checkpoint_files.h"
#include "unit/tensor_file.h"

#include "golden/run_model.h"
#include "models/family.h"
#include "models/vae/wanvae.h"

#define SCRATCH_BYTES (256u << 20)

enum { BASE = 8, LATENT = 16, MAX_TENSORS = 128 };

#define SHAPE5(a, b, c, d, e)                                                                      \
    (struct shape)                                                                                 \
    {                                                                                              \
        .rank = 5, .dim = { a, b, c, d, e }                                                        \
    }

/* A decoder with the original's names, levels of 4, 4, 2 and 1 times BASE channels, one resnet more
 * than `blocks` each. */
struct fake {
    struct tensor_spec tensors[MAX_TENSORS];
    char names[MAX_TENSORS][128];
    size_t count;
};

static void put(struct fake *f, const char *key, const char *name, struct shape shape)
{
    assert_true(f->count < MAX_TENSORS);
    snprintf(f->names[f->count], sizeof f->names[0], "%s%s", key, name);
    f->tensors[f->count] = (struct tensor_spec){f->names[f->count], DTYPE_BF16, shape};
    f->count++;
}

static void conv(
    struct fake *f, const char *key, const char *name, int64_t out, int64_t in, int64_t kernel)
{
    char full[32];

    snprintf(full, sizeof full, "%s.weight", name);
    put(f, key, full, SHAPE5(out, in, kernel, kernel, kernel));
    snprintf(full, sizeof full, "%s.bias", name);
    put(f, key, full, (struct shape)SHAPE1(out));
}

static void resnet(struct fake *f, const char *key, int64_t out, int64_t in)
{
    put(f, key, "residual.0.gamma", (struct shape)SHAPE4(in, 1, 1, 1));
    conv(f, key, "residual.2", out, in, 3);
    put(f, key, "residual.3.gamma", (struct shape)SHAPE4(out, 1, 1, 1));
    conv(f, key, "residual.6", out, out, 3);
    if (in != out) conv(f, key, "shortcut", out, in, 1);
}

static void upsampler(struct fake *f, const char *key, int64_t in, bool time)
{
    put(f, key, "resample.1.weight", (struct shape)SHAPE4(in / 2, in, 3, 3));
    put(f, key, "resample.1.bias", (struct shape)SHAPE1(in / 2));
    if (!time) return;
    put(f, key, "time_conv.weight", SHAPE5(2 * in, in, 3, 1, 1));
    put(f, key, "time_conv.bias", (struct shape)SHAPE1(2 * in));
}

static void fill(struct fake *f, int blocks)
{
    static const int64_t channels[] = {4 * BASE, 4 * BASE, 2 * BASE, BASE};
    int64_t in = channels[0];
    int step = 0;

    f->count = 0;
    conv(f, "", "conv2", LATENT, LATENT, 1);
    conv(f, "decoder.", "conv1", in, LATENT, 3);
    resnet(f, "decoder.middle.0.", in, in);
    put(f, "decoder.middle.1.", "norm.gamma", (struct shape){.rank = 3, .dim = {in, 1, 1}});
    put(f, "decoder.middle.1.", "to_qkv.weight", (struct shape)SHAPE4(3 * in, in, 1, 1));
    put(f, "decoder.middle.1.", "to_qkv.bias", (struct shape)SHAPE1(3 * in));
    put(f, "decoder.middle.1.", "proj.weight", (struct shape)SHAPE4(in, in, 1, 1));
    put(f, "decoder.middle.1.", "proj.bias", (struct shape)SHAPE1(in));
    resnet(f, "decoder.middle.2.", in, in);
    for (int level = 0; level < 4; level++) {
        char key[40];

        for (int r = 0; r <= blocks; r++, in = channels[level]) {
            snprintf(key, sizeof key, "decoder.upsamples.%d.", step++);
            resnet(f, key, channels[level], in);
        }
        if (level == 3) break;
        snprintf(key, sizeof key, "decoder.upsamples.%d.", step++);
        upsampler(f, key, in, level < 2);
        in /= 2;
    }
    put(f, "decoder.", "head.0.gamma", (struct shape)SHAPE4(in, 1, 1, 1));
    conv(f, "decoder.", "head.2", 3, in, 3);
}

static struct tensor_spec *find(struct fake *f, const char *name)
{
    for (size_t i = 0; i < f->count; i++)
        if (strcmp(f->names[i], name) == 0) return &f->tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static enum shoal_status open_file(const struct fake *f, const char *config,
    struct checkpoint **checkpoint, struct model **model, struct shoal_error *error)
{
    const char *path = at("wan.safetensors");

    assert_int_equal(tensor_file_write(path, f->tensors, f->count, NULL, true, error), SHOAL_OK);
    assert_int_equal(checkpoint_open(path, checkpoint, error), SHOAL_OK);
    return family_open(
        *checkpoint, FAMILY_VAE, config ? put_text("config.json", config) : NULL, model, error);
}

static void assert_refused(
    const struct fake *f, const char *config, enum shoal_status status, const char *says)
{
    struct shoal_error error = {0};
    struct checkpoint *checkpoint;
    struct model *model;

    assert_int_equal(open_file(f, config, &checkpoint, &model, &error), status);
    assert_null(model);
    if (!strstr(error.text, says)) fail_msg("\"%s\" is not in \"%s\"", says, error.text);
    checkpoint_close(&checkpoint);
}

static void test_shapes(void **state)
{
    struct shoal_error error = {0};
    const struct wanvae_config *c;
    struct checkpoint *checkpoint;
    struct model *model;
    struct fake f;

    (void)state;
    fill(&f, 2);
    assert_ok(open_file(&f, NULL, &checkpoint, &model, &error));
    c = model->config;
    assert_int_equal(c->levels, 4);
    assert_int_equal(c->resnets, 3);
    assert_int_equal(c->channels[1], 4 * BASE);
    assert_int_equal(c->channels[3], BASE);
    assert_int_equal(c->base.factor, 8);
    assert_int_equal(c->base.latent_channels, LATENT);
    assert_true(c->original_names && c->mean[7] == 1.5508f && c->deviation[15] == 1.9160f);
    assert_int_equal(model->block_count, 1 + 3 + 4 * 3 + 3 + 1);
    model_destroy(&model);
    checkpoint_close(&checkpoint);
    assert_ok(open_file(&f,
        "{\"_class_name\": \"AutoencoderKLQwenImage\", \"base_dim\": 8, \"z_dim\": 16, "
        "\"dim_mult\": [1, 2, 4, 4], \"num_res_blocks\": 2, \"attn_scales\": [], "
        "\"latents_mean\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16], "
        "\"latents_std\": [2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,3]}",
        &checkpoint, &model, &error));
    c = model->config;
    assert_true(c->mean[7] == 8 && c->deviation[15] == 3);
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

static void test_config(void **state)
{
    static const struct {
        const char *config;
        enum shoal_status status;
        const char *says;
    } refused[] = {
        {"{\"_class_name\": \"AutoencoderKL\"}", SHOAL_E_FORMAT, "of a AutoencoderKLWan"},
        {"{\"z_dim\": 48}", SHOAL_E_FORMAT, "z_dim"},
        {"{\"base_dim\": 96}", SHOAL_E_FORMAT, "base_dim"},
        {"{\"decoder_base_dim\": 96}", SHOAL_E_FORMAT, "decoder_base_dim"},
        {"{\"num_res_blocks\": 1}", SHOAL_E_FORMAT, "num_res_blocks"},
        {"{\"dim_mult\": [1, 2, 4]}", SHOAL_E_FORMAT, "\"dim_mult\" has 3 entries"},
        {"{\"dim_mult\": [1, 2, 2, 4]}", SHOAL_E_FORMAT, "the next 2"},
        {"{\"attn_scales\": [0.5]}", SHOAL_E_FORMAT, "attn_scales"},
        {"{\"input_channels\": 4}", SHOAL_E_FORMAT, "input_channels"},
        {"{\"is_residual\": true}", SHOAL_E_UNSUPPORTED, "is_residual"},
        {"{\"patch_size\": 2}", SHOAL_E_UNSUPPORTED, "patch_size"},
        {"{\"latents_mean\": [1, 2]}", SHOAL_E_FORMAT, "an array of 16 numbers"},
        {"{\"latents_mean\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}", SHOAL_E_MISSING,
            "that says both"},
        {"{\"latents_std\": [0,2,2,2,2,2,2,2,2,2,2,2,2,2,2,3]}", SHOAL_E_FORMAT, "latents_std"},
    };
    struct fake f;

    (void)state;
    fill(&f, 2);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        assert_refused(&f, refused[i].config, refused[i].status, refused[i].says);
}

static void test_variants(void **state)
{
    struct fake f;

    (void)state;
    /* Transparent pictures; four pixels at a time; other latents; an attention in a level. */
    fill(&f, 1);
    find(&f, "decoder.head.2.weight")->shape.dim[0] = 4;
    assert_refused(&f, NULL, SHOAL_E_UNSUPPORTED, "pictures of 4 channels");
    find(&f, "decoder.head.2.weight")->shape.dim[0] = 12;
    assert_refused(&f, NULL, SHOAL_E_UNSUPPORTED, "pictures of 12 channels");
    fill(&f, 1);
    find(&f, "decoder.conv1.weight")->shape.dim[1] = 48;
    assert_refused(&f, NULL, SHOAL_E_MISSING, "latents_mean");
    find(&f, "decoder.conv1.weight")->shape.dim[1] = 80;
    assert_refused(&f, NULL, SHOAL_E_UNSUPPORTED, "80 latent channels");
    fill(&f, 1);
    put(&f, "decoder.upsamples.0.", "to_qkv.weight", (struct shape)SHAPE4(3, 3, 1, 1));
    assert_refused(&f, NULL, SHOAL_E_UNSUPPORTED, "decoder.upsamples.0.to_qkv.weight is no part");
    fill(&f, 1);
    put(&f, "decoder.upsamples.0.upsamples.0.", "residual.2.weight", (struct shape)SHAPE1(3));
    assert_refused(&f, NULL, SHOAL_E_UNSUPPORTED, "is Wan 2.2 VAE");
    /* Kernels without planes; one step more than levels have. */
    fill(&f, 1);
    find(&f, "decoder.middle.0.residual.2.weight")->shape =
        (struct shape)SHAPE4(4 * BASE, 4 * BASE, 3, 3);
    assert_refused(
        &f, NULL, SHOAL_E_FORMAT, "decoder.middle.0.residual.2.weight is [32, 32, 3, 3]");
    fill(&f, 1);
    put(&f, "decoder.upsamples.11.", "other.weight", (struct shape)SHAPE1(3));
    assert_refused(&f, NULL, SHOAL_E_MISSING, "decoder.upsamples.12.residual.2.weight is missing");
}

/* 512 x 512. Whole, a resnet of full size holds three pictures; in strips one, and what takes most
 * is the upsampler before it, with its input of half the size and twice the channels. */
static void test_peak(void **state)
{
    const uint64_t picture = (uint64_t)sizeof(float) * BASE * 512 * 512;
    struct shoal_error error = {0};
    struct vae_lane lane = {.height = 64, .width = 64}, strips = {.height = 64, .width = 64};
    struct checkpoint *checkpoint;
    struct model *model;
    struct fake f;
    struct run run;
    void *lanes[1] = {&lane};

    (void)state;
    fill(&f, 2);
    assert_ok(open_file(&f, NULL, &checkpoint, &model, &error));
    assert_ok(run_open(&run, model, RUN_COUNT, SCRATCH_BYTES, &error));
    strips.latent = lane.latent = exec_alloc_float(&run.exec, LATENT, 64 * 64);
    assert_ok(run_pass(&run, 0, lanes, 1, &error));
    assert_in_range(region_high_water(run.region), 3 * picture, 3 * picture + (1 << 20));
    assert_int_equal(lane.largest_bytes, 3 * picture);
    region_reset_high_water(run.region);
    strips.whole_bytes = 1;
    lanes[0] = &strips;
    assert_ok(run_pass(&run, 0, lanes, 1, &error));
    assert_in_range(region_high_water(run.region), 3 * picture / 2, 3 * picture / 2 + (1 << 20));
    assert_int_equal(strips.strip_blocks, 2 + 4 * 3);
    exec_free(&run.exec, &lane.latent);
    run_close(&run);
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_peak),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
