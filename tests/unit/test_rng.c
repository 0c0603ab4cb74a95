/* src/base/rng: the generator's own known answers, and PyTorch's values bit for bit. */
#include "support.h"

#include "base/memory.h"
#include "base/rng.h"
#include "checkpoint/checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void test_words(void **state)
{
    struct rng rng;
    uint32_t word = 0;

    (void)state;
    rng_init(&rng, 5489);
    assert_int_equal(rng_next(&rng), 3499211612u);
    assert_int_equal(rng_next(&rng), 581869302u);
    for (int i = 3; i <= 10000; i++)
        word = rng_next(&rng);
    /* The value that the C++ standard gives for its mt19937. */
    assert_int_equal(word, 4123659995u);
}

static void test_seed_is_32_bits(void **state)
{
    struct rng a, b;

    (void)state;
    rng_init(&a, 7);
    rng_init(&b, (123ull << 32) + 7);
    assert_memory_equal(a.state, b.state, sizeof a.state);
}

/* Draws sizes[0], sizes[1], ... one after the other and compares with the tensor. */
static void check_draws(const struct checkpoint *golden, uint64_t seed, const size_t *sizes,
    size_t size_count, const char *name)
{
    const struct checkpoint_tensor *tensor = checkpoint_find(golden, name);
    struct shoal_error error = {0};
    size_t total = 0, done = 0;
    struct rng rng;
    float *ours, *theirs;

    if (!tensor) fail_msg("%s is missing", name);
    for (size_t i = 0; i < size_count; i++)
        total += sizes[i];
    assert_int_equal(tensor->bytes, total * sizeof *ours);
    ours = mem_alloc(total * sizeof *ours);
    theirs = mem_alloc(total * sizeof *theirs);
    assert_true(ours && theirs);
    assert_ok(checkpoint_read(tensor, theirs, &error));
    rng_init(&rng, seed);
    for (size_t i = 0; i < size_count; done += sizes[i++])
        rng_normal(&rng, ours + done, sizes[i]);
    if (memcmp(ours, theirs, total * sizeof *ours)) fail_msg("%s differs", name);
    mem_free(ours);
    mem_free(theirs);
}

static void test_torch_values(void **state)
{
    static const uint64_t seeds[] = {
        0, 1, 7, 42, 4294967295, 4294967296, 9223372036854775807, 1234567890123};
    static const size_t sizes[] = {1, 5, 15, 16, 17, 24, 31, 1000, 1584};
    static const size_t pairs[][2] = {{1, 1}, {5, 5}, {5, 16}, {16, 16}, {24, 17}};
    struct checkpoint *golden = NULL;
    struct shoal_error error = {0};
    char name[100];

    (void)state;
    assert_ok(checkpoint_open("tests/golden/noise_cpu.safetensors", &golden, &error));
    for (size_t s = 0; s < sizeof seeds / sizeof *seeds; s++) {
        unsigned long long seed = seeds[s];

        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            snprintf(name, sizeof name, "out.s%llu_n%zu", seed, sizes[i]);
            check_draws(golden, seed, &sizes[i], 1, name);
        }
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
            snprintf(name, sizeof name, "out.s%llu_n%zu_then_n%zu", seed, pairs[i][0], pairs[i][1]);
            check_draws(golden, seed, pairs[i], 2, name);
        }
    }
    checkpoint_close(&golden);
}

/* Each picture of a batch has a generator of its own, seeded with seed + i. */
static void test_batch(void **state)
{
    const struct checkpoint_tensor *tensor;
    struct checkpoint *golden = NULL;
    struct shoal_error error = {0};
    float theirs[288], ours[288];
    struct rng rng;

    (void)state;
    assert_ok(checkpoint_open("tests/golden/noise_cpu.safetensors", &golden, &error));
    tensor = checkpoint_find(golden, "out.batch2_generators_s7_s8");
    assert_non_null(tensor);
    assert_int_equal(tensor->bytes, sizeof theirs);
    assert_ok(checkpoint_read(tensor, theirs, &error));
    for (size_t i = 0; i < 2; i++) {
        rng_init(&rng, 7 + i);
        rng_normal(&rng, ours + i * 144, 144);
    }
    assert_memory_equal(ours, theirs, sizeof ours);
    checkpoint_close(&golden);
}

/* A hash of a long draw, so that rare roundings are seen too; from torch.randn(1000000). */
static void test_long_draw(void **state)
{
    static const struct {
        uint64_t seed, hash;
    } known[] = {{0, 0x330d87edee1fda29}, {7, 0xc75ad97090b9ed70}, {42, 0xefa1649158a14580},
        {123456789012345, 0xd60990f7283bf57a}};
    enum { COUNT = 1000000 };
    float *values = mem_alloc(COUNT * sizeof *values);

    (void)state;
    assert_non_null(values);
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        uint64_t hash = 0xcbf29ce484222325; /* FNV-1a over 32-bit words */
        double sum = 0, squares = 0;
        struct rng rng;

        rng_init(&rng, known[k].seed);
        rng_normal(&rng, values, COUNT);
        for (size_t i = 0; i < COUNT; i++) {
            uint32_t bits;

            memcpy(&bits, &values[i], sizeof bits);
            hash = (hash ^ bits) * 0x100000001b3;
            sum += (double)values[i];
            squares += (double)values[i] * (double)values[i];
        }
        assert_true(fabs(sum / COUNT) < 0.005 && fabs(squares / COUNT - 1) < 0.01);
        if (hash != known[k].hash)
            fail_msg(
                "seed %llu: %llx", (unsigned long long)known[k].seed, (unsigned long long)hash);
    }
    mem_free(values);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_seed_is_32_bits),
        cmocka_unit_test(test_torch_values),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_long_draw),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
