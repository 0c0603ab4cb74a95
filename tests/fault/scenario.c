/* What the fault tests do over and over. */
#include "fault/scenario.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct shoal_request scenario_request(const struct shoal_model *model)
{
    struct shoal_request r;

    shoal_request_init(&r, model);
    r.prompt = "a cat";
    r.width = r.height = 16;
    r.steps = 1;
    r.cfg = 2;
    r.seed = 7;
    r.threads = 2;
    return r;
}

static struct shoal_plan_summary summary_of(
    const struct shoal_model *model, const struct shoal_request *request)
{
    struct shoal_plan *plan = scenario_plan(model, request);
    struct shoal_plan_summary summary;

    shoal_plan_summarise(plan, &summary);
    shoal_plan_destroy(&plan);
    return summary;
}

void scenario_least(const struct shoal_model *model, struct shoal_request *request)
{
    request->vram_bytes = summary_of(model, request).least_vram_bytes;
    request->ram_bytes = summary_of(model, request).least_ram_bytes;
}

struct shoal_model *scenario_model(void)
{
    struct shoal_error error = {0};
    struct shoal_model *model = NULL;

    assert_ok(
        shoal_model_open(&(struct shoal_model_paths){.model = SCENARIO_MODEL}, &model, &error));
    return model;
}

struct shoal_plan *scenario_plan(
    const struct shoal_model *model, const struct shoal_request *request)
{
    struct shoal_error error = {0};
    struct shoal_plan *plan = NULL;

    assert_ok(shoal_plan_create(model, request, &plan, &error));
    return plan;
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const uint8_t *byte = data;

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ byte[i]) * 0x100000001b3u;
    return hash;
}

uint64_t scenario_hash(const struct shoal_result *result)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (int32_t i = 0; i < shoal_result_count(result); i++) {
        struct shoal_image image;

        shoal_result_image(result, i, &image);
        hash = hash_bytes(hash, image.latents, image.latent_count * sizeof(float));
        hash = hash_bytes(hash, image.rgb, (size_t)image.width * (size_t)image.height * 3);
    }
    return hash;
}

void assert_clean_failure(enum shoal_status status, const struct shoal_error *error)
{
    assert_int_not_equal(status, SHOAL_OK);
    assert_int_equal(error->status, status);
    assert_true(strlen(error->text) > 8);
    assert_non_null(error->file);
}

/* ---- the watchdog ---- */

static char message[300];

static void bark(int signal)
{
    ssize_t written = write(STDERR_FILENO, message, strlen(message));

    (void)signal, (void)written;
    abort();
}

void watchdog_set(const char *what, unsigned seconds)
{
    signal(SIGALRM, bark);
    snprintf(message, sizeof message, "hangs: %s: no end after %u s\n", what, seconds);
    alarm(seconds);
}

void watchdog_clear(void)
{
    alarm(0);
}
