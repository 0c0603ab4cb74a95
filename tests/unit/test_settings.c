/*
 * What a model's folder says beside its weights: shoal.json and the scheduler's configuration. What
 * is not done is refused by name; what cannot be read is not taken for absent.
 */
#include "support.h"

#include "base/file.h"
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define MINI "models/shoal-mini"

static char folder[] = "/tmp/shoal-settings.XXXXXX";

/* A folder of links to shoal-mini's parts, with settings of its own. */
static int set_up(void **state)
{
    static const char *const parts[] = {"transformer", "text_encoder", "vae", "tokenizer"};
    char here[512];

    (void)state;
    if (!mkdtemp(folder) || !getcwd(here, sizeof here)) return -1;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char *target = mem_format("%s/" MINI "/%s", here, parts[i]);
        char *link = mem_format("%s/%s", folder, parts[i]);

        if (symlink(target, link)) return -1;
        mem_free(target);
        mem_free(link);
    }
    return 0;
}

static int tear_down(void **state)
{
    char *command = mem_format("rm -rf %s", folder);
    int code = system(command);

    (void)state;
    mem_free(command);
    return code;
}

static enum shoal_status open_with(
    const char *name, const char *text, struct shoal_request *request, struct shoal_error *problem)
{
    struct shoal_error error = {0};
    char *path = mem_format("%s/%s", folder, name);
    char *scheduler = mem_format("%s/scheduler", folder);
    struct shoal_model *model = NULL;
    enum shoal_status status;

    mkdir(scheduler, 0755);
    assert_ok(file_write_whole(path, text, strlen(text), &error));
    status = shoal_model_open(&(struct shoal_model_paths){.model = folder}, &model, problem);
    if (!status) shoal_request_init(request, model);
    shoal_model_close(&model);
    unlink(path);
    mem_free(path);
    mem_free(scheduler);
    return status;
}

static void test_settings_are_taken(void **state)
{
    struct shoal_error error = {0};
    struct shoal_request r;

    (void)state;
    assert_ok(open_with(
        "shoal.json", "{\"width\": 64, \"height\": 32, \"steps\": 3, \"cfg\": 2.5}", &r, &error));
    assert_int_equal(r.width, 64);
    assert_int_equal(r.height, 32);
    assert_int_equal(r.steps, 3);
    assert_true(r.cfg == 2.5f);
    assert_ok(open_with("scheduler/scheduler_config.json",
        "{\"shift\": 6.0, \"use_dynamic_shifting\": false, \"num_train_timesteps\": 1000}", &r,
        &error));
    assert_true(r.shift == 6.0f);
    /* By the picture's size: no one number. */
    assert_ok(open_with("scheduler/scheduler_config.json",
        "{\"use_dynamic_shifting\": true, \"shift_terminal\": 0.02}", &r, &error));
    assert_true(r.shift == 0);
}

static void test_others_are_refused(void **state)
{
    static const struct {
        const char *file, *text, *names;
    } cases[] = {
        {"shoal.json", "{\"guidance\": 1}", "guidance"},
        {"shoal.json", "{\"width\": \"wide\"}", "width"},
        {"shoal.json", "{\"steps\": 0}", "steps"},
        {"shoal.json", "[1]", "shoal.json"},
        {"shoal.json", "{", "shoal.json"},
        {"scheduler/scheduler_config.json",
            "{\"use_dynamic_shifting\": true, \"time_shift_type\": \"linear\"}", "time_shift_type"},
        {"scheduler/scheduler_config.json",
            "{\"use_dynamic_shifting\": true, \"base_image_seq_len\": 4096}", "base_image_seq_len"},
        {"scheduler/scheduler_config.json", "{\"use_karras_sigmas\": true}", "use_karras_sigmas"},
        {"scheduler/scheduler_config.json", "{\"_class_name\": \"UniPCMultistepScheduler\"}",
            "--sampler"},
        {"scheduler/scheduler_config.json", "{\"num_train_timesteps\": 500}",
            "num_train_timesteps"},
        {"scheduler/scheduler_config.json", "{\"shift_terminal\": 0.9}", "shift_terminal"},
        {"scheduler/scheduler_config.json", "{\"shift\": -1}", "shift"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct shoal_error error = {0};
        struct shoal_request r;

        assert_int_not_equal(open_with(cases[i].file, cases[i].text, &r, &error), SHOAL_OK);
        assert_non_null(strstr(error.text, cases[i].names));
        assert_non_null(strstr(error.text, folder));
    }
}

/* A FIFO there is no absent file: defaults in its place would paint another picture. */
static void test_special_files_are_refused(void **state)
{
    struct shoal_error error = {0};
    struct shoal_model *model = NULL;
    char *path = mem_format("%s/shoal.json", folder);

    (void)state;
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(
        shoal_model_open(&(struct shoal_model_paths){.model = folder}, &model, &error), SHOAL_E_IO);
    assert_non_null(strstr(error.text, "FIFO"));
    unlink(path);
    mem_free(path);
}

/* A path that is not UTF-8 is a path like any other. */
static void test_odd_paths(void **state)
{
    struct shoal_error error = {0};
    struct shoal_model *model = NULL;
    struct shoal_plan *plan = NULL;
    struct shoal_request r;
    char *odd = mem_format("%s-\xff", folder), *text = NULL;

    (void)state;
    assert_int_equal(symlink(folder, odd), 0);
    assert_ok(shoal_model_open(&(struct shoal_model_paths){.model = odd}, &model, &error));
    shoal_request_init(&r, model);
    r.prompt = "a red apple";
    r.width = r.height = 64;
    assert_ok(shoal_plan_create(model, &r, &plan, &error));
    assert_non_null(strstr(shoal_plan_json(plan), "-?"));
    shoal_plan_destroy(&plan);
    shoal_model_close(&model);
    assert_ok(shoal_inspect(odd, true, &text, NULL, &error));
    assert_null(strstr(text, "problem"));
    shoal_text_free(&text);
    unlink(odd);
    mem_free(odd);
}

/* A text encoder of a family that this DiT was not made for, whatever its features' width. */
static void test_other_text_encoder(void **state)
{
    struct shoal_model_paths paths = {
        .model = MINI, .text_encoder = "tests/golden/text_t5.safetensors"};
    struct shoal_error error = {0};
    struct shoal_model *model;

    (void)state;
    assert_int_equal(shoal_model_open(&paths, &model, &error), SHOAL_E_INVALID);
    assert_null(model);
    assert_non_null(strstr(error.text, "text_t5.safetensors is a text encoder of the family t5"));
    assert_non_null(strstr(error.text, "was made for qwen3"));
}

/* A VAE of another family, whose latents are of as many channels. */
static void test_other_vae(void **state)
{
    struct shoal_model_paths paths = {.model = MINI, .vae = "tests/golden/wan_vae_d1.safetensors"};
    struct shoal_error error = {0};
    struct shoal_model *model;

    (void)state;
    assert_int_equal(shoal_model_open(&paths, &model, &error), SHOAL_E_INVALID);
    assert_null(model);
    assert_non_null(strstr(error.text, "wan_vae_d1.safetensors is a VAE of the family wan-vae"));
    assert_non_null(strstr(error.text, "was made for kl-vae"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_settings_are_taken),
        cmocka_unit_test(test_others_are_refused),
        cmocka_unit_test(test_special_files_are_refused),
        cmocka_unit_test(test_odd_paths),
        cmocka_unit_test(test_other_text_encoder),
        cmocka_unit_test(test_other_vae),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
