/* src/base: sizes, text, memory, errors and numbers. */
#include "support.h"

#include "base/allowance.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/size.h"
#include "base/text.h"

#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- sizes ---- */

static void test_parses_sizes(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {
        {"0", 0},
        {"4096", 4096},
        {"4096B", 4096},
        {"1k", 1024},
        {"3GiB", 3ull << 30},
        {"3gib", 3ull << 30},
        {"3 GiB", 3ull << 30},
        {"3G", 3ull << 30},
        {"512MiB", 512ull << 20},
        {"2.5GB", 2500000000u},
        {"0.5KiB", 512},
        {"1.9B", 1},
        {"1TB", 1000000000000u},
        {"2TiB", 2ull << 40},
        {"10kb", 10000},
        {"1mb", 1000000},
        {"8000000TiB", 8000000ull << 40},
        {"max", SHOAL_UNLIMITED},
        {"MAX", SHOAL_UNLIMITED},
        {"unlimited", SHOAL_UNLIMITED},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct shoal_error error = {0};
        uint64_t bytes = 77;

        assert_ok(shoal_parse_size(cases[i].text, &bytes, &error));
        if (bytes != cases[i].bytes) fail_msg("%s: %llu", cases[i].text, (unsigned long long)bytes);
    }
}

static void test_refuses_sizes(void **state)
{
    static const char *const cases[] = {"", " ", "GiB", "-1", "+1", "1e3", "1E3", "1e3GiB", "0x10",
        "0X10", "inf", "nan", "1.2.3", "1..2", "3GiBs", "3 Gi B", "3,5GiB", "1PiB", "9000000TiB",
        "99999999999999999999", ".5GiB", "max ", "1GiB "};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct shoal_error error = {0};
        uint64_t bytes;

        if (shoal_parse_size(cases[i], &bytes, &error) != SHOAL_E_INVALID)
            fail_msg("'%s' was taken", cases[i]);
        assert_non_null(strstr(error.text, cases[i]));
        assert_non_null(strstr(error.text, "3GiB")); /* what would do */
    }
}

static void test_formats_sizes(void **state)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {{0, "0 B"}, {999, "999 B"}, {1024, "1.00 KiB"}, {1536, "1.50 KiB"},
        {100 << 10, "100 KiB"}, {3ull << 30, "3.00 GiB"}, {12345678901u, "11.50 GiB"},
        {UINT64_MAX - 1, "16.00 EiB"}, {SHOAL_UNLIMITED, "unlimited"}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[SIZE_TEXT_BYTES];

        assert_string_equal(size_format(text, cases[i].bytes), cases[i].text);
    }
}

static void test_checked_arithmetic(void **state)
{
    uint64_t result;

    (void)state;
    assert_true(size_add(UINT64_MAX - 1, 1, &result));
    assert_true(result == UINT64_MAX);
    assert_false(size_add(UINT64_MAX, 1, &result));
    assert_true(size_mul(1ull << 32, (1ull << 32) - 1, &result));
    assert_false(size_mul(1ull << 32, 1ull << 32, &result));
    assert_int_equal(size_align(0, 256), 0);
    assert_int_equal(size_align(1, 256), 256);
    assert_int_equal(size_align(256, 256), 256);
    assert_int_equal(size_align(257, 256), 512);
}

/* ---- numbers ---- */

/* What the bits mean, straight from the definition of the format. */
static double by_definition(uint32_t bits, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
    double mantissa = (double)(bits & ((1u << mantissa_bits) - 1)) / (1 << mantissa_bits);
    double sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;

    if (exponent == (1 << exponent_bits) - 1) return mantissa != 0 ? NAN : sign * INFINITY;
    if (!exponent) return sign * ldexp(mantissa, 1 - bias);
    return sign * ldexp(1 + mantissa, exponent - bias);
}

static void assert_same_number(uint32_t bits, float got, double expected)
{
    bool same = isnan(expected) ? isnan(got)
                                : (double)got == expected && !signbit(got) == !signbit(expected);

    if (!same) fail_msg("0x%04x gives %a, not %a", bits, (double)got, expected);
}

static void test_half_to_float(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        assert_same_number(bits, f16_to_float((uint16_t)bits), by_definition(bits, 5, 10));
        assert_same_number(bits, bf16_to_float((uint16_t)bits), by_definition(bits, 8, 7));
    }
}

/* Of the two neighbours the nearer one; half-way, the one with an even mantissa. */
static uint16_t bf16_by_definition(float value)
{
    uint16_t down = (uint16_t)(float_to_bits(value) >> 16); /* towards zero */
    double low = fabs(by_definition(down, 8, 7)), exact = fabs((double)value), high;

    /* Beyond the greatest number the next step would be 2^128. */
    high = (down & 0x7fff) == 0x7f7f ? 0x1p128 : fabs(by_definition(down + 1u, 8, 7));
    if (exact - low < high - exact) return down;
    if (exact - low > high - exact) return (uint16_t)(down + 1);
    return (uint16_t)(down + (down & 1));
}

static void test_bf16_from_float(void **state)
{
    static const uint32_t lower[] = {
        0, 1, 2, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0x8002, 0xc000, 0xfffe, 0xffff};

    (void)state;
    for (uint32_t upper = 0; upper < 65536; upper++)
        for (size_t i = 0; i < sizeof lower / sizeof *lower; i++) {
            float value = float_from_bits(upper << 16 | lower[i]);
            uint16_t got = bf16_from_float(value);

            if (isnan(value)) {
                assert_true(isnan(bf16_to_float(got)));
                assert_int_equal(got >> 15, upper >> 15);
            } else if (isinf(value)) {
                assert_int_equal(got, upper);
            } else if (got != bf16_by_definition(value)) {
                fail_msg("%a gives 0x%04x", (double)value, got);
            }
        }
}

/* What is a bf16 already stays the same. */
static void test_bf16_round_trip(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float value = bf16_to_float((uint16_t)bits);

        if (!isnan(value)) assert_int_equal(bf16_from_float(value), bits);
    }
}

/* ---- text, memory, errors ---- */

static void test_text_grows(void **state)
{
    struct text text = {0};

    (void)state;
    text_append(&text, "%s", "");
    assert_string_equal(text.data, "");
    for (int i = 0; i < 5000; i++)
        text_append(&text, "%d,", i % 10);
    assert_int_equal(text.length, 10000);
    assert_int_equal(strlen(text.data), 10000);
    for (size_t i = 0; i < 10000; i += 2)
        assert_int_equal(text.data[i], '0' + (char)(i / 2 % 10));
    assert_false(text.failed);
    mem_free(text.data);
}

static void test_memory(void **state)
{
    unsigned char *zeroed = mem_calloc(10, 10), *pages = pages_alloc(10000);
    char *text = mem_format("%s-%05d", "shard", 7), *copy = mem_strdup(text);

    (void)state;
    for (int i = 0; i < 100; i++)
        assert_int_equal(zeroed[i], 0);
    for (int i = 0; i < 10000; i++)
        assert_int_equal(pages[i], 0);
    assert_int_equal((uintptr_t)pages % 4096, 0);
    assert_string_equal(copy, "shard-00007");
    assert_null(mem_realloc(NULL, SIZE_MAX / 2, 3));
    zeroed = mem_realloc(zeroed, 200, 1);
    assert_int_equal(zeroed[99], 0);
    mem_free(zeroed);
    mem_free(text);
    mem_free(copy);
    mem_free(NULL);
    pages_free(pages, 10000);
    pages_free(NULL, 1);
    mem_free(mem_alloc(0));
    mem_free(mem_calloc(0, 8));
}

static void test_errors(void **state)
{
    struct shoal_error error = {0};
    char longer[2 * sizeof error.text];

    (void)state;
    assert_int_equal(error_set(&error, SHOAL_E_FORMAT, "f.c", 7, "no %s", "good"), SHOAL_E_FORMAT);
    assert_string_equal(error.text, "no good");
    assert_int_equal(error.status, SHOAL_E_FORMAT);
    assert_int_equal(error.line, 7);
    error_prefix(&error, "%s: ", "file");
    assert_string_equal(error.text, "file: no good");
    assert_int_equal(error_set(NULL, SHOAL_E_IO, "f.c", 7, "x"), SHOAL_E_IO);
    error_prefix(NULL, "x");

    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    error_set(&error, SHOAL_E_IO, "f.c", 7, "%s", longer);
    assert_int_equal(strlen(error.text), sizeof error.text - 1);
    error_prefix(&error, "y");
    assert_int_equal(strlen(error.text), sizeof error.text - 1);
    assert_int_equal(error.text[0], 'y');
    error_prefix(&error, "%s", longer);
    assert_int_equal(strlen(error.text), sizeof error.text - 1);
}

static void test_status_texts(void **state)
{
    (void)state;
    for (int i = SHOAL_OK; i <= SHOAL_E_CANCELLED; i++)
        assert_true(strlen(shoal_status_text((enum shoal_status)i)) > 3);
    assert_string_equal(shoal_status_text((enum shoal_status)99), "unknown status");
    assert_string_equal(shoal_status_text((enum shoal_status) - 1), "unknown status");
    assert_string_equal(shoal_version(), SHOAL_VERSION);
}

static void test_clock(void **state)
{
    uint64_t before = clock_ns();

    (void)state;
    for (int i = 0; i < 1000; i++) {
        uint64_t now = clock_ns();

        assert_true(now >= before);
        before = now;
    }
}

/* ---- what parsing takes ---- */

#define MALLOC_BYTES 8 /* glibc's own, of every block */

static size_t held, most_held;

static void *count_alloc(size_t bytes)
{
    void *block = malloc(bytes);

    held += malloc_usable_size(block) + MALLOC_BYTES;
    if (held > most_held) most_held = held;
    return block;
}

static void count_free(void *block)
{
    if (block) held -= malloc_usable_size(block) + MALLOC_BYTES;
    free(block);
}

/* Of no text does jansson hold more than was said before, and of none is far too much said. */
static void test_json_load_bytes(void **state)
{
    static const char *const items[] = {"0", "1.5", "\"\"", "\"a longer text that is a value\"",
        "{}", "[]", "[0]", "{\"a\":{}}", "[\"ab\",\"cd\"]", "\"\\\"{[:,\\\\\"",
        "{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[0,4]}"};

    (void)state;
    json_set_alloc_funcs(count_alloc, count_free);
    for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
        for (int pairs = 0; pairs < 2; pairs++) {
            struct text text = {0};
            json_error_t cause;
            json_t *json;
            uint64_t said;

            text_append(&text, pairs ? "{" : "[");
            for (int n = 0; n < 70000; n++) {
                if (n) text_append(&text, ",");
                if (pairs) text_append(&text, "\"%x\":", n);
                text_append(&text, "%s", items[i]);
            }
            text_append(&text, pairs ? "}" : "]");
            said = json_load_bytes(text.data, text.length);
            held = most_held = 0;
            json = json_loadb(text.data, text.length, JSON_REJECT_DUPLICATES, &cause);
            assert_non_null(json);
            if (most_held > said || said > 2 * most_held)
                fail_msg(
                    "%s: %zu bytes, said were %llu", items[i], most_held, (unsigned long long)said);
            json_decref(json);
            assert_int_equal(held, 0);
            mem_free(text.data);
        }
    }
    json_set_alloc_funcs(malloc, free);
}

/* Cut anywhere, it is only less. */
static void test_json_load_bytes_of_a_cut_text(void **state)
{
    const char text[] = "{\"a\\\"\": [1, \"b\\\\\"]}";

    (void)state;
    for (size_t bytes = 0; bytes < sizeof text; bytes++) {
        char *copy = malloc(bytes + !bytes);

        memcpy(copy, text, bytes);
        assert_true(json_load_bytes(copy, bytes) <= json_load_bytes(text, sizeof text - 1));
        free(copy);
    }
}

#define MIB ((uint64_t)1 << 20)

/* Who is refused is not always who took the most: both are named, and what would do does. */
static void test_allowance(void **state)
{
    struct allowance allowance = {.most_bytes = 50 * MIB, .bytes = 8 * MIB}, again;
    struct shoal_error error = {0};
    char path[300], least[64];

    (void)state;
    assert_ok(allowance_take(NULL, "all", UINT64_MAX, &error));
    for (int i = 0; i < 20; i++) {
        snprintf(path, sizeof path, "%0250d/shard%02d", 7, i);
        assert_ok(allowance_take(&allowance, path, 4096, &error));
    }
    assert_ok(allowance_take(&allowance, "a/model.gguf", 30 * MIB, &error));
    assert_ok(allowance_take(&allowance, "b/vae.gguf", 2 * MIB, &error));
    assert_ok(allowance_take(&allowance, "a/model.gguf", 8 * MIB, &error));
    again = allowance;
    assert_int_equal(allowance_take(&allowance, "tokenizer.json", 3 * MIB, &error), SHOAL_E_BUDGET);
    assert_non_null(strstr(error.text, "tokenizer.json: reading it takes 3.00 MiB more"));
    assert_non_null(strstr(error.text, "48.08 MiB are taken already (38.00 MiB of it by a/model."));
    assert_non_null(strstr(error.text, "--ram 52428800 (50.00 MiB)"));
    snprintf(least, sizeof least, "Give --ram %llu (51.08 MiB) or more",
        (unsigned long long)(51 * MIB + (uint64_t)20 * 4096));
    assert_non_null(strstr(error.text, least));
    again.most_bytes = 51 * MIB + (uint64_t)20 * 4096;
    assert_ok(allowance_take(&again, "tokenizer.json", 3 * MIB, &error));
    assert_int_equal(allowance_take(&again, "a/model.gguf", 1, &error), SHOAL_E_BUDGET);
    assert_non_null(strstr(error.text, "(38.00 MiB of it by this file)"));
    assert_int_equal(allowance_take(&again, path, UINT64_MAX, &error), SHOAL_E_BUDGET);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parses_sizes),
        cmocka_unit_test(test_refuses_sizes),
        cmocka_unit_test(test_formats_sizes),
        cmocka_unit_test(test_checked_arithmetic),
        cmocka_unit_test(test_half_to_float),
        cmocka_unit_test(test_bf16_from_float),
        cmocka_unit_test(test_bf16_round_trip),
        cmocka_unit_test(test_text_grows),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_status_texts),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_json_load_bytes),
        cmocka_unit_test(test_json_load_bytes_of_a_cut_text),
        cmocka_unit_test(test_allowance),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
