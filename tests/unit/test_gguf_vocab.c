/* Tokenizers from GGUF metadata: the ids of the tokenizer.json that they were made from. */
#include "support.h"

#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "tokenizer/gguf_vocab.h"

#include <stdlib.h>

#define VOCAB "tests/golden/tokenizer_mini.gguf"
#define MINI "models/shoal-mini/tokenizer/tokenizer.json"

static void read_vocab(struct gguf_vocab *vocab)
{
    struct shoal_error error = {0};
    struct checkpoint *c = NULL;

    assert_ok(checkpoint_open(VOCAB, &c, &error));
#define READ_KEY(member, key)                                                                      \
    assert_ok(checkpoint_value(c, "tokenizer.ggml." key, NULL, &vocab->member, &error));
    GGUF_VOCAB_KEYS(READ_KEY)
    checkpoint_close(&c);
}

static void drop_vocab(struct gguf_vocab *vocab)
{
#define DROP_KEY(member, key) json_decref(vocab->member);
    GGUF_VOCAB_KEYS(DROP_KEY)
}

/* shoal-mini's, but for lower case, which GGUF has no word for. */
static struct tokenizer *without_lowercase(void)
{
    json_t *root = json_load_file(MINI, 0, NULL);
    struct shoal_error error = {0};
    struct tokenizer *tokenizer = NULL;

    assert_non_null(root);
    json_object_set_new(root, "normalizer", json_pack("{s:s}", "type", "NFC"));
    assert_ok(tokenizer_from_json(root, MINI, &tokenizer, &error));
    json_decref(root);
    return tokenizer;
}

static void compare(const struct tokenizer *got, const struct tokenizer *want, const char *golden)
{
    json_t *root = json_load_file(golden, JSON_ALLOW_NUL, NULL), *entry;
    size_t i;

    assert_non_null(root);
    assert_true(json_array_size(json_object_get(root, "cases")) > 50);
    json_array_foreach(json_object_get(root, "cases"), i, entry)
    {
        const char *text = json_string_value(json_object_get(entry, "text"));
        struct shoal_error error = {0};
        int32_t *a = NULL, *b = NULL;
        size_t count, want_count;

        assert_ok(tokenizer_encode(got, text, &a, &count, &error));
        assert_ok(tokenizer_encode(want, text, &b, &want_count, &error));
        if (count != want_count || (count && memcmp(a, b, count * sizeof *a) != 0))
            fail_msg("\"%s\" gives other ids", text);
        mem_free(a);
        mem_free(b);
    }
    json_decref(root);
}

static void test_same_ids(void **state)
{
    struct tokenizer *got = NULL, *want = without_lowercase();
    struct gguf_vocab vocab = {0};
    struct shoal_error error = {0};

    (void)state;
    read_vocab(&vocab);
    assert_ok(tokenizer_from_gguf(&vocab, VOCAB, &got, &error));
    assert_int_equal(tokenizer_vocab(got), tokenizer_vocab(want));
    compare(got, want, "tests/golden/tokenizer_mini.json");
    compare(got, want, "tests/golden/tokenizer_synth.json");
    tokenizer_close(&got);
    tokenizer_close(&want);
    drop_vocab(&vocab);
}

/* Texts in lower case have shoal-mini's very ids, which the reference library gave. */
static void test_golden_ids(void **state)
{
    json_t *root = json_load_file("tests/golden/tokenizer_mini.json", JSON_ALLOW_NUL, NULL), *entry;
    struct gguf_vocab vocab = {0};
    struct shoal_error error = {0};
    struct tokenizer *t = NULL;
    size_t i, compared = 0;

    (void)state;
    read_vocab(&vocab);
    assert_ok(tokenizer_from_gguf(&vocab, VOCAB, &t, &error));
    json_array_foreach(json_object_get(root, "cases"), i, entry)
    {
        const char *text = json_string_value(json_object_get(entry, "text"));
        const json_t *ids = json_object_get(entry, "ids");
        bool lower = strlen(text) == json_string_length(json_object_get(entry, "text"));
        int32_t *got = NULL;
        size_t count;

        for (const char *c = text; *c; c++) /* in plain ASCII that is easily told */
            lower = lower && !(*c >= 'A' && *c <= 'Z') && (unsigned char)*c < 0x80;
        if (!lower) continue;
        assert_ok(tokenizer_encode(t, text, &got, &count, &error));
        assert_int_equal(count, json_array_size(ids));
        for (size_t k = 0; k < count; k++)
            assert_int_equal(got[k], json_integer_value(json_array_get(ids, k)));
        mem_free(got);
        compared++;
    }
    assert_true(compared > 60);
    tokenizer_close(&t);
    drop_vocab(&vocab);
    json_decref(root);
}

/* ---- what is refused ---- */

/* With one value replaced; NULL: taken out. */
static void refuse(json_t **member, struct gguf_vocab *vocab, json_t *value,
    enum shoal_status status, const char *says)
{
    struct shoal_error error = {0};
    struct tokenizer *t = NULL;
    json_t *old = *member;

    *member = value;
    assert_int_equal(tokenizer_from_gguf(vocab, "file.gguf", &t, &error), status);
    assert_null(t);
    if (!strstr(error.text, says) || !strstr(error.text, "file.gguf"))
        fail_msg("\"%s\" does not say \"%s\"", error.text, says);
    json_decref(value);
    *member = old;
}

/* The array with item `index` replaced. */
static json_t *replaced(const json_t *array, size_t index, json_t *value)
{
    json_t *copy = json_copy((json_t *)(uintptr_t)array);

    json_array_set_new(copy, index, value);
    return copy;
}

static void test_refusals(void **state)
{
    struct gguf_vocab v = {0};

    (void)state;
    read_vocab(&v);
    refuse(&v.model, &v, json_string("llama"), SHOAL_E_UNSUPPORTED, "\"llama\"");
    refuse(&v.model, &v, NULL, SHOAL_E_UNSUPPORTED, "tokenizer.ggml.model");
    refuse(&v.pre, &v, json_string("llama-bpe"), SHOAL_E_UNSUPPORTED, "\"llama-bpe\"");
    refuse(&v.pre, &v, NULL, SHOAL_E_UNSUPPORTED, "--tokenizer");
    refuse(&v.add_bos, &v, json_true(), SHOAL_E_UNSUPPORTED, "add_bos_token");
    refuse(&v.add_space, &v, json_true(), SHOAL_E_UNSUPPORTED, "add_space_prefix");
    refuse(&v.tokens, &v, json_array(), SHOAL_E_FORMAT, "must be arrays");
    refuse(&v.types, &v, NULL, SHOAL_E_FORMAT, "must be arrays");
    refuse(&v.merges, &v, json_integer(3), SHOAL_E_FORMAT, "must be arrays");
    refuse(&v.tokens, &v, replaced(v.tokens, 9, json_integer(1)), SHOAL_E_FORMAT, "token 9");
    refuse(&v.types, &v, replaced(v.types, 9, json_real(1)), SHOAL_E_FORMAT, "token 9");
    refuse(&v.types, &v, replaced(v.types, 9, json_integer(6)), SHOAL_E_UNSUPPORTED, "type 6");
    refuse(&v.tokens, &v, replaced(v.tokens, 90, json_incref(json_array_get(v.tokens, 91))),
        SHOAL_E_FORMAT, "twice");
    refuse(&v.merges, &v, replaced(v.merges, 7, json_string("nospace")), SHOAL_E_FORMAT, "merge 7");
    refuse(&v.merges, &v, replaced(v.merges, 7, json_string("no such")), SHOAL_E_FORMAT, "merge 7");
    drop_vocab(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_ids),
        cmocka_unit_test(test_golden_ids),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
