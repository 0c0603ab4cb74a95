/*
 * src/tokenizer: many kinds of tokenizer.json against the ids that the `tokenizers` package gives;
 * tokenizer_cases.json is written by make_tokenizer_cases.py.
 */
#include "support.h"

#include "base/memory.h"
#include "tokenizer/tokenizer.h"

#include <jansson.h>
#include <stdlib.h>

/* The base tokenizer with the case's members in place of its own. */
static struct tokenizer *make_tokenizer(const json_t *base, const json_t *change, const char *name)
{
    json_t *root = json_deep_copy(base), *copy = json_deep_copy(change), *model;
    struct tokenizer *tokenizer = NULL;
    struct shoal_error error = {0};
    char *text;

    model = json_object_get(root, "model");
    json_object_update(model, json_object_get(copy, "model"));
    json_object_del(copy, "model");
    json_object_update(root, copy);
    text = json_dumps(root, 0);
    assert_ok(tokenizer_parse(text, strlen(text), name, NULL, &tokenizer, &error));
    free(text);
    json_decref(copy);
    json_decref(root);
    return tokenizer;
}

static void check_text(const struct tokenizer *tokenizer, const char *text, const json_t *expected,
    const char *name, size_t index)
{
    struct shoal_error error = {0};
    int32_t *ids = NULL;
    size_t count;

    assert_ok(tokenizer_encode(tokenizer, text, &ids, &count, &error));
    if (count != json_array_size(expected))
        fail_msg("%s, text %zu: %zu ids, not %zu", name, index, count, json_array_size(expected));
    for (size_t i = 0; i < count; i++) {
        json_int_t id = json_integer_value(json_array_get(expected, i));

        if (ids[i] != id)
            fail_msg("%s, text %zu: id %zu is %d, not %d", name, index, i, ids[i], (int)id);
        assert_true(ids[i] < tokenizer_vocab(tokenizer));
    }
    mem_free(ids);
}

static void test_cases(void **state)
{
    json_error_t where;
    json_t *root = json_load_file("tests/unit/tokenizer_cases.json", 0, &where), *entry, *text;
    size_t i, j;

    (void)state;
    if (!root) fail_msg("tests/unit/tokenizer_cases.json: %s", where.text);
    assert_true(json_array_size(json_object_get(root, "cases")) > 40);
    json_array_foreach(json_object_get(root, "cases"), i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        const json_t *ids = json_object_get(entry, "ids");
        struct tokenizer *tokenizer =
            make_tokenizer(json_object_get(root, "base"), json_object_get(entry, "change"), name);

        json_array_foreach(json_object_get(entry, "texts"), j, text)
            check_text(tokenizer, json_string_value(text), json_array_get(ids, j), name, j);
        tokenizer_close(&tokenizer);
    }
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
