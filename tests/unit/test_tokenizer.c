/* src/tokenizer: real tokenizers, the chat form, opening, and texts that are refused or long. */
#include "support.h"

#include "base/file.h"
#include "base/memory.h"
#include "tokenizer/chat.h"

#include <jansson.h>
#include <stdlib.h>
#include <time.h>

#define SYNTH "tests/golden/synth_tokenizer.json"
#define MINI "models/shoal-mini/tokenizer"

static void check_ids(
    const json_t *expected, const int32_t *ids, size_t count, const char *text, const char *what)
{
    if (count != json_array_size(expected))
        fail_msg("%s of \"%s\": %zu ids, not %zu", what, text, count, json_array_size(expected));
    for (size_t i = 0; i < count; i++)
        if (ids[i] != json_integer_value(json_array_get(expected, i)))
            fail_msg("%s of \"%s\": id %zu is %d", what, text, i, ids[i]);
}

static const struct chat template = {.before = "<|im_start|>user\n",
    .after = "<|im_end|>\n<|im_start|>assistant\n",
    .most = SIZE_MAX};

static void check_golden(const char *path, const char *golden)
{
    json_error_t where;
    json_t *root = json_load_file(golden, JSON_ALLOW_NUL, &where), *entry;
    struct tokenizer *tokenizer = NULL;
    struct shoal_error error = {0};
    struct chat_tokens tokens;
    size_t i, count;
    int32_t *ids = NULL;

    if (!root) fail_msg("%s: %s", golden, where.text);
    assert_ok(tokenizer_open(path, &tokenizer, &error));
    assert_true(json_array_size(json_object_get(root, "cases")) > 50);
    json_array_foreach(json_object_get(root, "cases"), i, entry)
    {
        const char *text = json_string_value(json_object_get(entry, "text"));
        const json_t *chat = json_object_get(entry, "chat");

        /* A 0 character cannot be in a C string. */
        if (strlen(text) != json_string_length(json_object_get(entry, "text"))) continue;
        assert_ok(tokenizer_encode(tokenizer, text, &ids, &count, &error));
        check_ids(json_object_get(entry, "ids"), ids, count, text, "ids");
        mem_free(ids);
        if (!chat) continue;
        assert_ok(chat_encode(tokenizer, &template, text, &tokens, &error));
        check_ids(chat, tokens.ids, tokens.count, text, "chat");
        assert_int_equal(tokens.dropped, 0);
        mem_free(tokens.ids);
    }
    tokenizer_close(&tokenizer);
    json_decref(root);
}

static void test_mini(void **state)
{
    (void)state;
    check_golden(MINI, "tests/golden/tokenizer_mini.json");
}

static void test_synth(void **state)
{
    (void)state;
    check_golden(SYNTH, "tests/golden/tokenizer_synth.json");
}

static void test_chat_limit(void **state)
{
    struct tokenizer *tokenizer = NULL;
    struct shoal_error error = {0};
    struct chat limited = template;
    struct chat_tokens all, some;

    (void)state;
    assert_ok(tokenizer_open(SYNTH, &tokenizer, &error));
    assert_ok(chat_encode(tokenizer, &template, "a red apple", &all, &error));
    for (limited.most = 0; limited.most <= all.count + 1; limited.most++) {
        assert_ok(chat_encode(tokenizer, &limited, "a red apple", &some, &error));
        assert_int_equal(some.count, limited.most < all.count ? limited.most : all.count);
        assert_int_equal(some.count + some.dropped, all.count);
        assert_memory_equal(some.ids, all.ids, some.count * sizeof *all.ids);
        mem_free(some.ids);
    }
    assert_int_equal(chat_encode(tokenizer, &limited, "\xff", &some, &error), SHOAL_E_INVALID);
    assert_non_null(strstr(error.text, "UTF-8"));
    mem_free(all.ids);
    tokenizer_close(&tokenizer);
}

static void test_open(void **state)
{
    struct tokenizer *tokenizer = NULL;
    struct shoal_error error = {0};

    (void)state;
    assert_int_equal(tokenizer_open("tests/unit", &tokenizer, &error), SHOAL_E_MISSING);
    assert_non_null(strstr(error.text, "tests/unit"));
    assert_int_equal(tokenizer_open("tests/no-such", &tokenizer, &error), SHOAL_E_IO);
    assert_int_equal(
        tokenizer_open("tests/golden/noise_cpu.safetensors", &tokenizer, &error), SHOAL_E_FORMAT);
    assert_non_null(strstr(error.text, "noise_cpu.safetensors"));
    assert_null(tokenizer);
    tokenizer_close(&tokenizer);
    assert_ok(tokenizer_open(SYNTH, &tokenizer, &error));
    assert_int_equal(tokenizer_vocab(tokenizer), 600);
    tokenizer_close(&tokenizer);
    assert_null(tokenizer);
}

static void test_bad_text(void **state)
{
    static const char *const bad[] = {"\xff", "a\x80", "\xc0\xaf", "\xed\xa0\x80",
        "\xf4\x90\x80\x80", "\xe2\x82", "abc\xf0\x9f\x8d", "\xe0\x80\x80", "\xf8\x88\x80\x80\x80"};
    struct tokenizer *tokenizer = NULL;
    struct shoal_error error = {0};
    int32_t *ids = NULL;
    size_t count;
    char *text;

    (void)state;
    assert_ok(tokenizer_open(SYNTH, &tokenizer, &error));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(
            tokenizer_encode(tokenizer, bad[i], &ids, &count, &error), SHOAL_E_INVALID);
        assert_non_null(strstr(error.text, "UTF-8"));
    }
    text = mem_calloc(TOKENIZER_MAX_TEXT + 2, 1);
    memset(text, 'a', TOKENIZER_MAX_TEXT);
    assert_ok(tokenizer_encode(tokenizer, text, &ids, &count, &error));
    mem_free(ids);
    text[TOKENIZER_MAX_TEXT] = 'a';
    assert_int_equal(tokenizer_encode(tokenizer, text, &ids, &count, &error), SHOAL_E_INVALID);
    mem_free(text);
    tokenizer_close(&tokenizer);
}

/* Texts whose words are as long as they can be: the square of their length would take minutes. */
static void test_long_words(void **state)
{
    static const char *const units[] = {
        "a", "ab", " ", "\xcd\x85\xcc\xb4", "\xcd\x85", "\xe1\x84\x80", "a\xcc\x81", "\n", "<|im_"};
    struct tokenizer *tokenizer = NULL;
    struct shoal_error error = {0};
    char *text = mem_calloc(TOKENIZER_MAX_TEXT + 1, 1);
    clock_t begin = clock();

    (void)state;
    assert_ok(tokenizer_open(SYNTH, &tokenizer, &error));
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t length = strlen(units[u]), used = 0, count;
        int32_t *ids = NULL;

        for (; used + length <= TOKENIZER_MAX_TEXT; used += length)
            memcpy(text + used, units[u], length);
        text[used] = 0;
        assert_ok(tokenizer_encode(tokenizer, text, &ids, &count, &error));
        mem_free(ids);
    }
    /* Two marks, the whole first half of one class above the second's. */
    for (size_t i = 0; i < TOKENIZER_MAX_TEXT; i += 2)
        memcpy(text + i, i < TOKENIZER_MAX_TEXT / 2 ? "\xcd\x85" : "\xcc\xb4", 2);
    {
        int32_t *ids = NULL;
        size_t count;

        assert_ok(tokenizer_encode(tokenizer, text, &ids, &count, &error));
        mem_free(ids);
    }
    assert_true((clock() - begin) / CLOCKS_PER_SEC < 20);
    mem_free(text);
    tokenizer_close(&tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mini),
        cmocka_unit_test(test_synth),
        cmocka_unit_test(test_chat_limit),
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_bad_text),
        cmocka_unit_test(test_long_words),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
