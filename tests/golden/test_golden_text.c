/* The text encoders against the reference implementations' hidden states. */
#include "support.h"

#include "golden/devices.h"

#include "base/memory.h"
#include "models/family.h"
#include "models/text/text.h"

#include <stdio.h>

#define SCRATCH_BYTES (64u << 20)

/* In BF16 these models are off by an RMS of 0.35 to 0.75%; by 0.55 to 1.2% in transformers. */
static struct golden_gap limit(void)
{
    return golden_limit((struct golden_gap){.max = 2e-2, .rms = 1e-2});
}

struct stages {
    const struct golden *golden;
    const char *what;
};

static void compare_stage(void *user, struct run *run, const struct block *block, void *lane)
{
    const struct stages *stages = user;
    struct text_lane *l = lane;
    struct shoal_error error = {0};
    char tensor[100];

    snprintf(tensor, sizeof tensor, "out.hidden.%d", (int)block->index + 1);
    exec_download(&run->exec, l->features, l->hidden);
    assert_ok(run->device->ops->stream_synchronize(run->stream, &error));
    golden_compare(stages->what, l->features, stages->golden, tensor, limit());
}

static int32_t *read_ids(const struct golden *golden, int64_t *count)
{
    const struct checkpoint_tensor *tensor = checkpoint_find(golden->checkpoint, "in.ids");
    struct shoal_error error = {0};
    int64_t *wide = mem_alloc(tensor->bytes);
    int32_t *ids = mem_alloc(tensor->bytes);

    assert_int_equal(tensor->dtype, DTYPE_I64);
    assert_ok(checkpoint_read(tensor, wide, &error));
    *count = (int64_t)(tensor->bytes / sizeof *wide);
    for (int64_t i = 0; i < *count; i++)
        ids[i] = (int32_t)wide[i];
    mem_free(wide);
    return ids;
}

/* What a pass leaves is the features of that state. */
static void check_state(struct run *run, const struct golden *golden, const char *what,
    const int32_t *ids, int64_t tokens, enum text_state state)
{
    static const char *const tensors[TEXT_STATES] = {
        [TEXT_BEFORE_LAST] = "out.text", [TEXT_LAST] = "out.last_hidden_state"};
    const int8_t pass = text_config(run->model)->pass[state];
    struct shoal_error error = {0};
    struct text_lane *lane;
    void *lanes[1];

    if (pass < 0) {
        assert_false(golden_has(golden, tensors[state]));
        return;
    }
    assert_ok(text_lane_create(run->model, ids, tokens, &lane, &error));
    golden_compare(what, lane->host_embedded, golden, "out.hidden.0", (struct golden_gap){0, 0});
    lanes[0] = lane;
    assert_ok(run_pass(run, pass, lanes, 1, &error));
    golden_compare(what, lane->features, golden, tensors[state], limit());
    text_lane_destroy(&run->exec, &lane);
    assert_int_equal(region_used(run->region), 0);
}

static void check(const char *name, const char *family, enum run_device device)
{
    struct shoal_error error = {0};
    struct golden golden;
    struct model *model;
    struct run run;
    struct stages stages = {.golden = &golden};
    int64_t tokens;
    int32_t *ids;
    char what[64];

    assert_ok(golden_open(name, &golden, &error));
    assert_ok(family_open(golden.checkpoint, FAMILY_TEXT, golden.config_path, &model, &error));
    assert_string_equal(family_detect(golden.checkpoint, FAMILY_TEXT)->name, family);
    assert_string_equal(model->family, family);
    assert_ok(run_open(&run, model, device, SCRATCH_BYTES, &error));
    ids = read_ids(&golden, &tokens);
    snprintf(what, sizeof what, "%s, %s", name, run_device_name(device));
    stages.what = what;
    run.after = compare_stage;
    run.user = &stages;
    for (int state = 0; state < TEXT_STATES; state++)
        check_state(&run, &golden, what, ids, tokens, (enum text_state)state);
    mem_free(ids);
    run_close(&run);
    model_destroy(&model);
    golden_close(&golden);
}

static void test_text(void **state)
{
    static const struct {
        const char *name, *family;
    } cases[] = {
        {"text_gqa", "qwen3"},
        {"text_hd128", "qwen3"},
        {"text_theta1e4", "qwen3"},
        {"text_vl", "qwen2.5-vl"},
        {"text_t5", "t5"},
        {"text_t5_gated", "t5"},
        {"text_umt5", "umt5"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int d = 0; d < golden_devices.count; d++)
            check(cases[i].name, cases[i].family, golden_devices.list[d]);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_text)};

GOLDEN_MAIN(tests, NULL, NULL)
