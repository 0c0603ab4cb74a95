/* The VAE's encoder against the reference implementation's latent. */
#include "support.h"

#include "golden/devices.h"

#include "base/memory.h"
#include "models/vae/klvae.h"
#include "unit/tensor_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SCRATCH_BYTES (64u << 20)

/* As of the decoder. */
static struct golden_gap limit(void)
{
    return golden_limit((struct golden_gap){.max = 4e-2, .rms = 2e-2});
}

struct stages {
    const struct golden *golden;
    const char *what;
};

static void compare_stage(void *user, struct run *run, const struct block *block, void *lane)
{
    const struct stages *stages = user;
    struct vae_lane *l = lane;
    const char *tensor = NULL;
    float *values;

    if (strcmp(block->name, "level 0 downsampler") == 0) tensor = "out.down_blocks.0";
    if (strcmp(block->name, "middle resnet 1") == 0) tensor = "out.mid_block";
    if (!tensor) return;
    values = run_values(run, l->hidden);
    golden_compare(stages->what, values, stages->golden, tensor, limit());
    mem_free(values);
}

/* The name that the original files give to diffusers' encoder tensor. */
static void original_name(const char *name, char to[128])
{
    static const char *const pairs[][2] = {
        {"encoder.mid_block.resnets.0.", "encoder.mid.block_1."},
        {"encoder.mid_block.resnets.1.", "encoder.mid.block_2."},
        {"encoder.mid_block.attentions.0.group_norm.", "encoder.mid.attn_1.norm."},
        {"encoder.mid_block.attentions.0.to_q.", "encoder.mid.attn_1.q."},
        {"encoder.mid_block.attentions.0.to_k.", "encoder.mid.attn_1.k."},
        {"encoder.mid_block.attentions.0.to_v.", "encoder.mid.attn_1.v."},
        {"encoder.mid_block.attentions.0.to_out.0.", "encoder.mid.attn_1.proj_out."},
        {"encoder.conv_norm_out.", "encoder.norm_out."},
    };
    int level, resnet, at = 0;

    name += strlen("weights.");
    snprintf(to, 128, "vae.%s", name);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (strncmp(name, pairs[i][0], strlen(pairs[i][0])) == 0)
            snprintf(to, 128, "vae.%s%s", pairs[i][1], name + strlen(pairs[i][0]));
    if (sscanf(name, "encoder.down_blocks.%d.resnets.%d.%n", &level, &resnet, &at) == 2 && at) {
        bool shortcut = strncmp(name + at, "conv_shortcut", 13) == 0;

        snprintf(to, 128, "vae.encoder.down.%d.block.%d.%s%s", level, resnet, shortcut ? "nin" : "",
            name + at + (shortcut ? 4 : 0));
    }
    at = 0;
    if (sscanf(name, "encoder.down_blocks.%d.downsamplers.0.%n", &level, &at) == 1 && at)
        snprintf(to, 128, "vae.encoder.down.%d.downsample.%s", level, name + at);
}

/* Opens the golden's weights from a file that names them as the original files do. */
static struct checkpoint *renamed(const struct golden *golden)
{
    static char names[128][128];
    static struct tensor_spec specs[128];
    static void *data[128];
    char path[] = "/tmp/shoal-golden-encoder-XXXXXX.safetensors";
    struct shoal_error error = {0};
    struct checkpoint *checkpoint;
    size_t count = 0;
    int fd = mkstemps(path, 12);

    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < checkpoint_count(golden->checkpoint); i++) {
        const struct checkpoint_tensor *tensor = checkpoint_at(golden->checkpoint, i);

        if (strncmp(tensor->name, "weights.", 8) != 0) continue;
        data[count] = mem_alloc(tensor->bytes);
        assert_ok(checkpoint_read(tensor, data[count], &error));
        original_name(tensor->name, names[count]);
        specs[count] = (struct tensor_spec){names[count], tensor->dtype, tensor->shape};
        count++;
        assert_true(count < 128);
    }
    assert_ok(tensor_file_write(path, specs, count, (const void *const *)data, false, &error));
    for (size_t i = 0; i < count; i++)
        mem_free(data[i]);
    assert_ok(checkpoint_open(path, &checkpoint, &error));
    unlink(path);
    return checkpoint;
}

static struct klvae_config decoder_config(bool small)
{
    return (struct klvae_config){
        .base = {.latent_channels = small ? 4 : 16, .factor = small ? 2 : 8},
        .groups = 8,
        .scaling = 0.3611f,
        .shift = 0.1159f};
}

/* One run, with what blocks may take; the latent, which the caller frees. */
static float *encode(struct run *run, struct vae_lane *lane, uint64_t bytes, int64_t rows)
{
    struct shoal_error error = {0};
    void *lanes[1] = {lane};

    lane->whole_bytes = bytes;
    lane->strip_rows = rows;
    assert_ok(run_pass(run, 0, lanes, 1, &error));
    return run_values(run, lane->latent);
}

static void check(const char *name, bool small, enum run_device device, bool original)
{
    struct shoal_error error = {0};
    struct klvae_config config = decoder_config(small);
    const struct model decoder = {.config = &config};
    struct golden golden;
    struct checkpoint *checkpoint;
    struct model *model;
    struct run run;
    struct vae_lane lane = {0};
    struct stages stages = {.golden = &golden};
    float *whole, *strips;
    size_t bytes;
    char what[64];

    assert_ok(golden_open(name, &golden, &error));
    checkpoint = original ? renamed(&golden) : golden.checkpoint;
    assert_ok(klvae_encoder_open(checkpoint, &decoder, &model, &error));
    assert_ok(run_open(&run, model, device, SCRATCH_BYTES, &error));
    lane.image = golden_values(&golden, "in.image", NULL);
    lane.height = golden_dim(&golden, "in.image", 1) / config.base.factor;
    lane.width = golden_dim(&golden, "in.image", 2) / config.base.factor;
    lane.latent =
        exec_alloc_float(&run.exec, config.base.latent_channels, lane.height * lane.width);
    bytes = (size_t)(config.base.latent_channels * lane.height * lane.width) * sizeof(float);
    snprintf(
        what, sizeof what, "%s%s, %s", name, original ? " renamed" : "", run_device_name(device));
    stages.what = what;
    run.after = compare_stage;
    run.user = &stages;
    whole = encode(&run, &lane, 0, 0);
    golden_compare(what, whole, &golden, "out.latent", limit());
    assert_int_equal(lane.strip_blocks, 0);
    run.after = NULL;
    for (int64_t rows = 0; rows <= 16; rows += 8) {
        lane.strip_blocks = 0;
        strips = encode(&run, &lane, 1, rows);
        assert_true(lane.strip_blocks > 0);
        assert_memory_equal(strips, whole, bytes);
        mem_free(strips);
    }
    mem_free(whole);
    exec_free(&run.exec, &lane.latent);
    assert_int_equal(region_used(run.region), 0);
    mem_free(lane.image);
    run_close(&run);
    model_destroy(&model);
    if (original) checkpoint_close(&checkpoint);
    golden_close(&golden);
}

static void test_encoder(void **state)
{
    static const char *const names[] = {"vae_e1", "vae_e2"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        for (int d = 0; d < golden_devices.count; d++)
            check(names[i], i == 1, golden_devices.list[d], false);
        if (!golden_devices.card) check(names[i], i == 1, RUN_FAST, true);
    }
}

/* A file with a decoder alone, and an encoder that is another VAE's. */
static void test_refusals(void **state)
{
    struct klvae_config config = decoder_config(true);
    const struct model decoder = {.config = &config};
    struct shoal_error error = {0};
    struct model *model = NULL;
    struct golden golden;

    (void)state;
    assert_ok(golden_open("vae_l1", &golden, &error));
    assert_int_equal(
        klvae_encoder_open(golden.checkpoint, &decoder, &model, &error), SHOAL_E_MISSING);
    assert_non_null(strstr(error.text, "vae_l1"));
    assert_non_null(strstr(error.text, "encoder"));
    assert_null(model);
    golden_close(&golden);
    assert_ok(golden_open("vae_e1", &golden, &error));
    assert_int_equal(
        klvae_encoder_open(golden.checkpoint, &decoder, &model, &error), SHOAL_E_FORMAT);
    assert_non_null(strstr(error.text, "16 latent channels"));
    assert_null(model);
    golden_close(&golden);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_encoder), cmocka_unit_test(test_refusals)};

GOLDEN_MAIN(tests, NULL, NULL)
