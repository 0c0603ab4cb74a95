/* src/sampling: the model's schedule and Euler steps against diffusers' own, bit for bit; the other
 * schedules and all samplers against ComfyUI's (tools/golden/samplers.py). */
#include "support.h"

#include "base/memory.h"
#include "models/dit/zimage.h"
#include "sampling/sampler.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

static json_t *load_golden(const char *path)
{
    json_error_t where;
    json_t *root = json_load_file(path, 0, &where);

    if (!root) fail_msg("%s: %s", path, where.text);
    return root;
}

static struct noise_levels flow(double shift)
{
    return (struct noise_levels){.shift = shift};
}

/* Of an entry of samplers.json: a shift of 0 stands for EDM, e^1.15 for Qwen-Image's. */
static struct noise_levels levels_of(const json_t *entry)
{
    double shift = json_number_value(json_object_get(entry, "shift"));

    return (struct noise_levels){
        .edm = shift == 0, .shift = shift, .table = shift > 3.1 ? 10000 : 0};
}

/* The model's own schedule. */
static enum shoal_status make(
    struct schedule *schedule, int32_t steps, struct noise_levels levels, struct shoal_error *error)
{
    return schedule_make(&schedule_model, steps, &levels, false, schedule, error);
}

static void check_floats(const json_t *list, const float *values, size_t count, const char *what)
{
    assert_int_equal(json_array_size(list), count);
    for (size_t i = 0; i < count; i++) {
        float expected = (float)json_number_value(json_array_get(list, i));

        if (memcmp(&expected, &values[i], sizeof expected))
            fail_msg("%s[%zu] is %.9g, not %.9g", what, i, (double)values[i], (double)expected);
    }
}

static void test_schedules(void **state)
{
    static struct schedule schedule;
    static float times[SCHEDULE_MAX_STEPS];
    struct shoal_error error = {0};
    json_t *root = load_golden("tests/golden/scheduler.json"), *entry;
    size_t i;

    (void)state;
    assert_true(json_array_size(json_object_get(root, "cases")) > 10);
    json_array_foreach(json_object_get(root, "cases"), i, entry)
    {
        int32_t steps = (int32_t)json_integer_value(json_object_get(entry, "steps"));

        double terminal = json_number_value(json_object_get(entry, "terminal"));
        struct noise_levels levels;

        if (json_is_true(json_object_get(entry, "dynamic"))) {
            double mu = json_number_value(json_object_get(entry, "mu"));
            json_int_t tokens = json_integer_value(json_object_get(entry, "image_seq_len"));

            if (terminal > 0)
                assert_true(schedule_mu(tokens, 256, 8192, 0.5, 0.9) == mu);
            else
                assert_true(schedule_mu(tokens, 256, 4096, 0.5, 1.15) == mu);
            levels =
                (struct noise_levels){.shift = 1, .dynamic = true, .mu = mu, .terminal = terminal};
        } else {
            levels = flow(json_number_value(json_object_get(entry, "shift")));
        }
        assert_ok(make(&schedule, steps, levels, &error));
        assert_int_equal(schedule.steps, steps);
        check_floats(json_object_get(entry, "sigmas"), schedule.sigmas, (size_t)steps + 1, "sigma");
        for (int32_t k = 0; k < steps; k++)
            times[k] = zimage_time(schedule.sigmas[k]);
        check_floats(json_object_get(entry, "model_t"), times, (size_t)steps, "time");
    }
    json_decref(root);
}

static void test_euler(void **state)
{
    static struct schedule schedule;
    const struct sampler *sampler = NULL;
    struct shoal_error error = {0};
    json_t *root = load_golden("tests/golden/scheduler.json"), *toy, *row;
    size_t t, i, j;

    (void)state;
    assert_ok(sampler_find(NULL, &sampler, &error));
    assert_string_equal(sampler->name, "euler");
    assert_true(json_array_size(json_object_get(root, "toys")) > 0);
    json_array_foreach(json_object_get(root, "toys"), t, toy)
    {
        int32_t steps = (int32_t)json_integer_value(json_object_get(toy, "steps"));
        const json_t *latents = json_object_get(toy, "latents");
        float x[64];

        assert_ok(
            make(&schedule, steps, flow(json_number_value(json_object_get(toy, "shift"))), &error));
        json_array_foreach(json_array_get(latents, 0), j, row) x[j] = (float)json_number_value(row);
        json_array_foreach(json_object_get(toy, "model_output"), i, row)
        {
            struct sampler_call call = sampler_call_at(sampler, &schedule, (int32_t)i);

            assert_int_equal(call.count, 1);
            assert_int_equal(call.level, i);
            for (j = 0; j < json_array_size(row); j++) {
                float v = (float)json_number_value(json_array_get(row, j));

                x[j] = call.moves[0].keep * x[j] + call.moves[0].add * v;
            }
            check_floats(json_array_get(latents, i + 1), x, json_array_size(row), "latent");
        }
    }
    json_decref(root);
}

static void test_every_count(void **state)
{
    static struct schedule schedule;
    struct shoal_error error = {0};

    (void)state;
    for (int32_t steps = 1; steps <= SCHEDULE_MAX_STEPS; steps++) {
        assert_ok(make(&schedule, steps, flow(3), &error));
        assert_true(schedule.sigmas[0] == 1 && schedule.sigmas[steps] == 0);
        for (int32_t i = 0; i < steps; i++)
            assert_true(schedule.sigmas[i] > schedule.sigmas[i + 1]);
    }
}

static void check_close(
    const json_t *list, const float *values, size_t count, double tolerance, const char *what)
{
    if (json_array_size(list) != count)
        fail_msg("%s: %zu values, not %zu", what, count, json_array_size(list));
    for (size_t i = 0; i < count; i++) {
        double expected = json_number_value(json_array_get(list, i));

        if (!(fabs((double)values[i] - expected) <= tolerance))
            fail_msg("%s: value %zu is %.9g, not %.9g", what, i, (double)values[i], expected);
    }
}

static const char *text_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static void test_levels(void **state)
{
    static struct schedule schedule;
    const struct schedule_kind *kind = NULL;
    struct shoal_error error = {0};
    json_t *root = load_golden("tests/golden/samplers.json"), *entry;
    size_t i;

    (void)state;
    assert_int_equal(json_array_size(json_object_get(root, "levels")), 5 * 6 * 5);
    json_array_foreach(json_object_get(root, "levels"), i, entry)
    {
        int32_t steps = (int32_t)json_integer_value(json_object_get(entry, "steps"));
        const struct noise_levels levels = levels_of(entry);
        char what[100];

        snprintf(what, sizeof what, "%s, %d steps, shift %g", text_of(entry, "schedule"),
            (int)steps, levels.shift);
        assert_ok(schedule_find(text_of(entry, "schedule"), &kind, &error));
        assert_ok(schedule_make(kind, steps, &levels, false, &schedule, &error));
        check_close(json_object_get(entry, "sigmas"), schedule.sigmas, (size_t)steps + 1,
            levels.edm ? 1e-4 : 1e-6, what);
    }
    json_decref(root);
}

#define TOY 4 /* values of a latent */

/* As tools/golden/samplers.py has it. */
static void toy_answer(float *v, const float *x, float sigma)
{
    for (int i = 0; i < TOY; i++)
        v[i] = tanhf(0.7f * x[i] + sigma / 2) + x[i] / 4;
}

static void toy_run(const struct sampler *sampler, const struct schedule *schedule,
    const json_t *root, float slots[SAMPLER_SLOTS][TOY])
{
    size_t draws = 0;

    for (int i = 0; i < TOY; i++)
        slots[SAMPLER_LATENT][i] =
            (float)json_number_value(json_array_get(json_object_get(root, "start"), (size_t)i));
    for (int32_t index = 0; index < sampler_calls(sampler, schedule->steps); index++) {
        struct sampler_call call = sampler_call_at(sampler, schedule, index);

        assert_in_range(call.level, 0, schedule->steps - 1);
        toy_answer(slots[SAMPLER_ANSWER], slots[SAMPLER_LATENT], schedule->sigmas[call.level]);
        assert_true(!call.draws || sampler->noisy);
        for (size_t i = 0; call.draws && i < TOY; i++)
            slots[SAMPLER_NOISE][i] = (float)json_number_value(
                json_array_get(json_array_get(json_object_get(root, "noise"), draws), i));
        draws += call.draws;
        for (int32_t k = 0; k < call.count; k++) {
            const struct sampler_move *m = &call.moves[k];

            assert_true((int)m->to < SAMPLER_KEPT + sampler->kept && m->to != m->from);
            for (int i = 0; i < TOY; i++)
                slots[m->to][i] = m->keep == 0 && m->add == 1
                                      ? slots[m->from][i]
                                      : m->add * slots[m->from][i] + m->keep * slots[m->to][i];
        }
    }
}

/* The reference is in double precision, so what differs is rounding. */
static void test_samplers(void **state)
{
    static struct schedule schedule;
    const struct sampler *sampler = NULL;
    const struct schedule_kind *kind = NULL;
    struct shoal_error error = {0};
    json_t *root = load_golden("tests/golden/samplers.json"), *entry;
    size_t i;

    (void)state;
    assert_int_equal(
        json_array_size(json_object_get(root, "runs")), 3 * SAMPLER_COUNT * SCHEDULE_COUNT);
    json_array_foreach(json_object_get(root, "runs"), i, entry)
    {
        int32_t steps = (int32_t)json_integer_value(json_object_get(entry, "steps"));
        const struct noise_levels levels = levels_of(entry);
        double largest = 0;
        const json_t *latent = json_object_get(entry, "latent");
        float slots[SAMPLER_SLOTS][TOY];
        char what[100];

        for (size_t k = 0; k < SAMPLER_SLOTS * TOY; k++)
            slots[k / TOY][k % TOY] = NAN; /* what was not written must not be read */
        snprintf(what, sizeof what, "%s, %s, %d steps, shift %g", text_of(entry, "sampler"),
            text_of(entry, "schedule"), (int)steps, levels.shift);
        assert_ok(sampler_find(text_of(entry, "sampler"), &sampler, &error));
        assert_ok(schedule_find(text_of(entry, "schedule"), &kind, &error));
        assert_ok(schedule_make(kind, steps, &levels, sampler->skips, &schedule, &error));
        check_close(json_object_get(entry, "sigmas"), schedule.sigmas, (size_t)steps + 1,
            levels.edm ? 1e-4 : 1e-6, what);
        toy_run(sampler, &schedule, root, slots);
        for (size_t k = 0; k < TOY; k++)
            largest = fmax(largest, fabs(json_number_value(json_array_get(latent, k))));
        check_close(latent, slots[SAMPLER_LATENT], TOY, 1e-5 * largest, what);
    }
    json_decref(root);
}

/* Numbers come out of every sampler after any count of steps, the least and the most included. */
static void test_every_sampler(void **state)
{
    static struct schedule schedule;
    static const int32_t counts[] = {1, 2, 3, 4, 5, 60, 999};
    const struct noise_levels three = flow(3);
    struct shoal_error error = {0};
    json_t *root = load_golden("tests/golden/samplers.json");

    (void)state;
    for (int i = 0; i < SAMPLER_COUNT; i++)
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
            float slots[SAMPLER_SLOTS][TOY];

            assert_ok(schedule_make(
                &schedule_model, counts[k], &three, samplers[i]->skips, &schedule, &error));
            if (samplers[i]->noisy && counts[k] > 16) continue; /* more noise than there is */
            toy_run(samplers[i], &schedule, root, slots);
            for (int j = 0; j < TOY; j++)
                if (!(fabsf(slots[SAMPLER_LATENT][j]) < 10))
                    fail_msg("%s, %d steps: %g", samplers[i]->name, (int)counts[k],
                        (double)slots[SAMPLER_LATENT][j]);
        }
    json_decref(root);
}

/* The end of a longer schedule: its levels and what the model is told of them. */
static void test_the_end_of_a_schedule(void **state)
{
    static struct schedule whole, end;
    struct shoal_error error = {0};

    (void)state;
    assert_ok(make(&whole, 13, flow(3), &error));
    end = whole;
    schedule_keep_last(&end, 8);
    assert_int_equal(end.steps, 8);
    assert_memory_equal(end.sigmas, whole.sigmas + 5, 9 * sizeof *end.sigmas);
}

static void test_refusals(void **state)
{
    static struct schedule schedule;
    const struct sampler *sampler = NULL;
    const struct schedule_kind *kind = NULL;
    struct noise_levels levels = {.shift = 1, .dynamic = true};
    const struct noise_levels three = flow(3);
    struct shoal_error error = {0};

    (void)state;
    assert_int_equal(make(&schedule, 0, flow(1), &error), SHOAL_E_INVALID);
    assert_non_null(strstr(error.text, "1000"));
    assert_int_equal(make(&schedule, 1001, flow(1), &error), SHOAL_E_INVALID);
    assert_int_equal(make(&schedule, 4, flow(0), &error), SHOAL_E_INVALID);
    assert_non_null(strstr(error.text, "shift"));
    assert_int_equal(make(&schedule, 4, flow(-1), &error), SHOAL_E_INVALID);
    assert_int_equal(make(&schedule, 4, flow((double)NAN), &error), SHOAL_E_INVALID);
    levels.mu = (double)NAN;
    assert_int_equal(make(&schedule, 4, levels, &error), SHOAL_E_INVALID);
    levels.mu = 800;
    assert_int_equal(make(&schedule, 4, levels, &error), SHOAL_E_INVALID);
    assert_int_equal(sampler_find("lcm", &sampler, &error), SHOAL_E_INVALID);
    assert_non_null(strstr(error.text, "lcm"));
    assert_non_null(strstr(error.text, "euler, euler_ancestral, heun"));
    assert_int_equal(schedule_find("sgm", &kind, &error), SHOAL_E_INVALID);
    assert_non_null(strstr(error.text, "sgm"));
    assert_non_null(strstr(error.text, "model, simple, normal"));
    /* A beta distribution's ends are flat: two of so many steps would be of one level. */
    assert_ok(schedule_find("beta", &kind, &error));
    assert_int_equal(schedule_make(kind, 1000, &three, false, &schedule, &error), SHOAL_E_INVALID);
    assert_non_null(strstr(error.text, "1000 are too many for schedule \"beta\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_euler),
        cmocka_unit_test(test_every_count),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_samplers),
        cmocka_unit_test(test_every_sampler),
        cmocka_unit_test(test_the_end_of_a_schedule),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
