/* src/sampling: schedules and Euler steps against diffusers' own. */
#include "support.h"

#include "base/memory.h"
#include "sampling/sampler.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

static json_t *load_golden(void)
{
    json_error_t where;
    json_t *root = json_load_file("tests/golden/scheduler.json", 0, &where);

    if (!root) fail_msg("tests/golden/scheduler.json: %s", where.text);
    return root;
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
    struct shoal_error error = {0};
    json_t *root = load_golden(), *entry;
    size_t i;

    (void)state;
    assert_true(json_array_size(json_object_get(root, "cases")) > 10);
    json_array_foreach(json_object_get(root, "cases"), i, entry)
    {
        int32_t steps = (int32_t)json_integer_value(json_object_get(entry, "steps"));

        if (json_is_true(json_object_get(entry, "dynamic"))) {
            double mu = json_number_value(json_object_get(entry, "mu"));
            json_int_t tokens = json_integer_value(json_object_get(entry, "image_seq_len"));

            assert_true(schedule_mu(tokens, 256, 4096, 0.5, 1.15) == mu);
            assert_ok(schedule_init_dynamic(&schedule, steps, mu, &error));
        } else {
            double shift = json_number_value(json_object_get(entry, "shift"));

            assert_ok(schedule_init(&schedule, steps, shift, &error));
        }
        assert_int_equal(schedule.steps, steps);
        check_floats(json_object_get(entry, "sigmas"), schedule.sigmas, (size_t)steps + 1, "sigma");
        check_floats(json_object_get(entry, "model_t"), schedule.times, (size_t)steps, "time");
    }
    json_decref(root);
}

static void test_euler(void **state)
{
    static struct schedule schedule;
    const struct sampler *sampler = NULL;
    struct shoal_error error = {0};
    json_t *root = load_golden(), *toy, *row;
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

        assert_ok(schedule_init(
            &schedule, steps, json_number_value(json_object_get(toy, "shift")), &error));
        json_array_foreach(json_array_get(latents, 0), j, row) x[j] = (float)json_number_value(row);
        json_array_foreach(json_object_get(toy, "model_output"), i, row)
        {
            struct sampler_step step = sampler->step(&schedule, (int32_t)i);

            for (j = 0; j < json_array_size(row); j++) {
                float v = (float)json_number_value(json_array_get(row, j));

                x[j] = step.sample * x[j] + step.velocity * v;
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
        assert_ok(schedule_init(&schedule, steps, 3, &error));
        assert_true(schedule.sigmas[0] == 1 && schedule.sigmas[steps] == 0);
        for (int32_t i = 0; i < steps; i++)
            assert_true(schedule.sigmas[i] > schedule.sigmas[i + 1]);
    }
}

static void test_refusals(void **state)
{
    static struct schedule schedule;
    const struct sampler *sampler = NULL;
    struct shoal_error error = {0};

    (void)state;
    assert_int_equal(schedule_init(&schedule, 0, 1, &error), SHOAL_E_INVALID);
    assert_non_null(strstr(error.text, "1000"));
    assert_int_equal(schedule_init(&schedule, 1001, 1, &error), SHOAL_E_INVALID);
    assert_int_equal(schedule_init(&schedule, 4, 0, &error), SHOAL_E_INVALID);
    assert_non_null(strstr(error.text, "shift"));
    assert_int_equal(schedule_init(&schedule, 4, -1, &error), SHOAL_E_INVALID);
    assert_int_equal(schedule_init(&schedule, 4, (double)NAN, &error), SHOAL_E_INVALID);
    assert_int_equal(schedule_init_dynamic(&schedule, 4, (double)NAN, &error), SHOAL_E_INVALID);
    assert_int_equal(schedule_init_dynamic(&schedule, 4, 800, &error), SHOAL_E_INVALID);
    assert_int_equal(sampler_find("dpmpp_2m", &sampler, &error), SHOAL_E_INVALID);
    assert_non_null(strstr(error.text, "dpmpp_2m"));
    assert_non_null(strstr(error.text, "euler"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_euler),
        cmocka_unit_test(test_every_count),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
