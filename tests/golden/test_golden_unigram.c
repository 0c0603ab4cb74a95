/* Unigram tokenizers against the ids of the sentencepiece and tokenizers libraries. */
#include "support.h"

#include "base/file.h"
#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "tokenizer/gguf_vocab.h"
#include "tokenizer/sentencepiece.h"

#include <stdio.h>

#define FOLDER "tests/golden/"

static json_t *golden;

static int load(void **state)
{
    (void)state;
    golden = json_load_file(FOLDER "unigram_ids.json", 0, NULL);
    return golden ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    json_decref(golden);
    return 0;
}

static void check_ids(const json_t *want, const int32_t *ids, size_t count, const char *text)
{
    if (count != json_array_size(want))
        fail_msg("\"%s\": %zu ids, not %zu", text, count, json_array_size(want));
    for (size_t i = 0; i < count; i++)
        if (ids[i] != json_integer_value(json_array_get(want, i)))
            fail_msg("\"%s\": id %zu is %d", text, i, ids[i]);
}

/* All texts, without and with what the template adds. */
static void check(const struct tokenizer *tokenizer, const json_t *entry)
{
    const json_t *texts = json_object_get(golden, "texts"), *ids = json_object_get(entry, "ids");
    json_int_t end = json_integer_value(json_object_get(entry, "end"));
    struct shoal_error error = {0};
    size_t i, count, more;

    assert_true(json_array_size(texts) > 150);
    assert_int_equal(tokenizer_end(tokenizer), end);
    for (i = 0; i < json_array_size(texts); i++) {
        const char *text = json_string_value(json_array_get(texts, i));
        int32_t *got = NULL, *whole = NULL;

        assert_ok(tokenizer_encode(tokenizer, text, &got, &count, &error));
        check_ids(json_array_get(ids, i), got, count, text);
        assert_ok(tokenizer_encode_with_template(tokenizer, text, &whole, &more, &error));
        assert_int_equal(more, count + 1);
        assert_int_equal(whole[count], end);
        if (count) assert_memory_equal(whole, got, count * sizeof *got);
        mem_free(got);
        mem_free(whole);
    }
}

static void check_vocabulary(const struct tokenizer *tokenizer, const json_t *entry)
{
    assert_int_equal(
        tokenizer_vocab(tokenizer), json_integer_value(json_object_get(entry, "vocabulary")));
}

/* From the file, which is told by its content, and from memory. */
static void test_models(void **state)
{
    const json_t *entry;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(golden, "models"), i, entry)
    {
        struct allowance allowance = {.most_bytes = 1u << 30};
        struct tokenizer *tokenizer = NULL;
        struct shoal_error error = {0};
        char path[200], *data = NULL;
        size_t bytes;

        snprintf(path, sizeof path, FOLDER "%s", json_string_value(json_object_get(entry, "file")));
        assert_ok(tokenizer_open_within(path, &allowance, &tokenizer, &error));
        check(tokenizer, entry);
        check_vocabulary(tokenizer, entry);
        tokenizer_close(&tokenizer);
        assert_ok(file_read_all(path, 1 << 20, &data, &bytes, &error));
        assert_true(allowance.bytes > bytes);
        assert_ok(tokenizer_from_sentencepiece(data, bytes, path, &allowance, &tokenizer, &error));
        mem_free(data);
        check(tokenizer, entry);
        tokenizer_close(&tokenizer);
    }
    assert_int_equal(i, 2);
}

static void test_files(void **state)
{
    json_t *base = json_load_file(FOLDER "unigram.json", 0, NULL);
    const json_t *entry;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(golden, "files"), i, entry)
    {
        json_t *patch = json_deep_copy(json_object_get(entry, "patch")), *root = json_copy(base);
        json_t *model = json_copy(json_object_get(base, "model"));
        struct tokenizer *tokenizer = NULL;
        struct shoal_error error = {0};

        json_object_update(model, json_object_get(patch, "model"));
        json_object_update(root, patch);
        json_object_set_new(root, "model", model);
        assert_ok(tokenizer_from_json(root, "unigram.json", &tokenizer, &error));
        check(tokenizer, entry);
        check_vocabulary(tokenizer, entry);
        tokenizer_close(&tokenizer);
        json_decref(root);
        json_decref(patch);
    }
    assert_true(i > 5);
    json_decref(base);
}

/* The first model in a GGUF file's metadata, with padding. */
static void test_gguf(void **state)
{
    const json_t *entry = json_array_get(json_object_get(golden, "models"), 0);
    struct gguf_vocab vocab = {0};
    struct tokenizer *tokenizer = NULL;
    struct shoal_error error = {0};
    struct checkpoint *c = NULL;

    (void)state;
    assert_ok(checkpoint_open(FOLDER "unigram.gguf", &c, &error));
#define READ_KEY(member, key)                                                                      \
    assert_ok(checkpoint_value(c, "tokenizer.ggml." key, NULL, &vocab.member, &error));
    GGUF_VOCAB_KEYS(READ_KEY)
    checkpoint_close(&c);
    assert_ok(tokenizer_from_gguf(&vocab, "unigram.gguf", &tokenizer, &error));
#define DROP_KEY(member, key) json_decref(vocab.member);
    GGUF_VOCAB_KEYS(DROP_KEY)
    check(tokenizer, entry);
    tokenizer_close(&tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_gguf),
    };

    return cmocka_run_group_tests(tests, load, unload);
}
