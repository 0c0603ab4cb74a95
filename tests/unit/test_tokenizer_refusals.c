/* src/tokenizer: damaged, hostile and unsupported tokenizer.json files, each refused with a reason.
 */
#include "support.h"

#include "base/memory.h"
#include "tokenizer/tokenizer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define BYTES "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define SPLIT(pattern)                                                                             \
    "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","            \
    "\"behavior\":\"Isolated\",\"invert\":false,\"pattern\":{\"Regex\":\"" pattern "\"}}," BYTES   \
    "]}}"
#define TOKEN(id, content) "{\"id\":" #id ",\"content\":\"" content "\"}"

/* A vocabulary of the 256 bytes, "ab" (256) and "abc" (257), with their merges. */
static json_t *make_base(void)
{
    json_t *vocab = json_object();
    int other = 256;

    for (int byte = 0; byte < 256; byte++) {
        bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
        int point = printable ? byte : other++;
        char symbol[3] = {(char)point, 0, 0};

        if (point >= 0x80) {
            symbol[0] = (char)(0xc0 | point >> 6);
            symbol[1] = (char)(0x80 | (point & 0x3f));
        }
        json_object_set_new(vocab, symbol, json_integer(byte));
    }
    json_object_set_new(vocab, "ab", json_integer(256));
    json_object_set_new(vocab, "abc", json_integer(257));
    return json_pack("{s:{s:s, s:b, s:b}, s:{s:s, s:o, s:[[s,s],s]}}", "pre_tokenizer", "type",
        "ByteLevel", "use_regex", 0, "add_prefix_space", 0, "model", "type", "BPE", "vocab", vocab,
        "merges", "a", "b", "ab c");
}

/* The base with the members of `change`, an object, put over its own; so within "model" too, and
 * within its "vocab". */
static char *make_json(const char *change)
{
    json_error_t where;
    json_t *root = make_base(), *patch = json_loads(change, 0, &where), *model, *vocab;
    char *text;

    if (!patch) fail_msg("%s: %s", change, where.text);
    model = json_object_get(root, "model");
    vocab = json_object_get(json_object_get(patch, "model"), "add");
    json_object_update(json_object_get(model, "vocab"), vocab);
    json_object_update(model, json_object_get(patch, "model"));
    json_object_del(patch, "model");
    json_object_update(root, patch);
    text = json_dumps(root, 0);
    json_decref(patch);
    json_decref(root);
    return text;
}

static enum shoal_status parse(
    const char *change, struct tokenizer **tokenizer, struct shoal_error *error)
{
    char *text = make_json(change);
    enum shoal_status status =
        tokenizer_parse(text, strlen(text), "t.json", NULL, tokenizer, error);

    free(text);
    return status;
}

struct refusal {
    const char *change;
    enum shoal_status status;
    const char *says;
};

static void check_refusals(const struct refusal *refusals, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct tokenizer *tokenizer = NULL;
        struct shoal_error error = {0};
        enum shoal_status status = parse(refusals[i].change, &tokenizer, &error);

        if (status != refusals[i].status || !strstr(error.text, refusals[i].says) ||
            strncmp(error.text, "t.json: ", 8))
            fail_msg("%s gives %d: %s", refusals[i].change, (int)status, error.text);
        assert_null(tokenizer);
    }
}

#define CHECK(list) check_refusals(list, sizeof(list) / sizeof *(list))

static void test_accepted(void **state)
{
    struct tokenizer *tokenizer = NULL;
    struct shoal_error error = {0};
    int32_t *ids = NULL;
    size_t count;

    (void)state;
    assert_ok(parse("{}", &tokenizer, &error));
    assert_int_equal(tokenizer_vocab(tokenizer), 258);
    assert_ok(tokenizer_encode(tokenizer, "abcab", &ids, &count, &error));
    assert_int_equal(count, 2);
    assert_int_equal(ids[0], 257);
    assert_int_equal(ids[1], 256);
    mem_free(ids);
    tokenizer_close(&tokenizer);
    /* Bytes that UTF-8 never holds need no token; an added token's id counts. */
    assert_ok(parse("{\"added_tokens\":[" TOKEN(999, "<x>") "]}", &tokenizer, &error));
    assert_int_equal(tokenizer_vocab(tokenizer), 1000);
    assert_ok(tokenizer_encode(tokenizer, "", &ids, &count, &error));
    assert_int_equal(count, 0);
    mem_free(ids);
    tokenizer_close(&tokenizer);
}

static void test_models(void **state)
{
    static const struct refusal refusals[] = {
        {"{\"model\":{\"type\":\"WordPiece\"}}", SHOAL_E_UNSUPPORTED, "WordPiece"},
        {"{\"model\":{\"type\":7}}", SHOAL_E_FORMAT, "type"},
        {"{\"model\":{\"vocab\":{}}}", SHOAL_E_FORMAT, "vocab"},
        {"{\"model\":{\"vocab\":[]}}", SHOAL_E_FORMAT, "vocab"},
        {"{\"model\":{\"vocab\":null}}", SHOAL_E_FORMAT, "vocab"},
        {"{\"model\":{\"add\":{\"x1\":-1}}}", SHOAL_E_FORMAT, "\"x1\""},
        {"{\"model\":{\"add\":{\"x1\":1.5}}}", SHOAL_E_FORMAT, "\"x1\""},
        {"{\"model\":{\"add\":{\"x1\":\"3\"}}}", SHOAL_E_FORMAT, "\"x1\""},
        {"{\"model\":{\"add\":{\"x1\":4194304}}}", SHOAL_E_FORMAT, "\"x1\""},
        {"{\"model\":{\"add\":{\"x1\":9223372036854775807}}}", SHOAL_E_FORMAT, "\"x1\""},
        {"{\"model\":{\"add\":{\"x1\":65}}}", SHOAL_E_FORMAT, "id 65"},
        {"{\"model\":{\"merges\":null}}", SHOAL_E_FORMAT, "merges"},
        {"{\"model\":{\"merges\":{}}}", SHOAL_E_FORMAT, "merges"},
        {"{\"model\":{\"merges\":[\"a b\",\"b c\"]}}", SHOAL_E_FORMAT, "merge 1: \"bc\""},
        {"{\"model\":{\"merges\":[\"a zz\"]}}", SHOAL_E_FORMAT, "merge 0: \"zz\""},
        {"{\"model\":{\"merges\":[\"ab\"]}}", SHOAL_E_FORMAT, "merge 0"},
        {"{\"model\":{\"merges\":[\"a b c\"]}}", SHOAL_E_FORMAT, "merge 0"},
        {"{\"model\":{\"merges\":[\" b\"]}}", SHOAL_E_FORMAT, "merge 0: \"\""},
        {"{\"model\":{\"merges\":[\"a \"]}}", SHOAL_E_FORMAT, "merge 0: \"\""},
        {"{\"model\":{\"merges\":[[\"a\"]]}}", SHOAL_E_FORMAT, "merge 0"},
        {"{\"model\":{\"merges\":[[\"a\",\"b\",\"c\"]]}}", SHOAL_E_FORMAT, "merge 0"},
        {"{\"model\":{\"merges\":[[\"a\",1]]}}", SHOAL_E_FORMAT, "merge 0"},
        {"{\"model\":{\"merges\":[7]}}", SHOAL_E_FORMAT, "merge 0"},
        {"{\"model\":{\"dropout\":0.1}}", SHOAL_E_UNSUPPORTED, "dropout"},
        {"{\"model\":{\"dropout\":\"0\"}}", SHOAL_E_UNSUPPORTED, "dropout"},
        {"{\"model\":{\"continuing_subword_prefix\":\"##\"}}", SHOAL_E_UNSUPPORTED, "subword"},
        {"{\"model\":{\"end_of_word_suffix\":\"</w>\"}}", SHOAL_E_UNSUPPORTED, "suffix"},
        {"{\"model\":{\"end_of_word_suffix\":1}}", SHOAL_E_FORMAT, "suffix"},
        {"{\"model\":{\"ignore_merges\":1}}", SHOAL_E_FORMAT, "ignore_merges"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"a\"}}", SHOAL_E_UNSUPPORTED,
            "unk_token"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"byte_fallback\":true}}",
            SHOAL_E_UNSUPPORTED, "byte_fallback"},
    };

    (void)state;
    CHECK(refusals);
}

static void test_parts(void **state)
{
    static const struct refusal refusals[] = {
        {"{\"normalizer\":{\"type\":\"BertNormalizer\"}}", SHOAL_E_UNSUPPORTED, "BertNormalizer"},
        {"{\"normalizer\":{}}", SHOAL_E_FORMAT, "type"},
        {"{\"normalizer\":\"NFC\"}", SHOAL_E_FORMAT, "object"},
        {"{\"normalizer\":{\"type\":\"Sequence\"}}", SHOAL_E_FORMAT, "normalizers"},
        {"{\"pre_tokenizer\":null}", SHOAL_E_UNSUPPORTED, "ByteLevel"},
        {"{\"pre_tokenizer\":{\"type\":\"Metaspace\"}}", SHOAL_E_UNSUPPORTED, "Metaspace"},
        {"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" BYTES "," BYTES "]}}",
            SHOAL_E_UNSUPPORTED, "follows ByteLevel"},
        {"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[]}}", SHOAL_E_UNSUPPORTED,
            "ByteLevel"},
        {"{\"pre_tokenizer\":{\"type\":\"Sequence\"}}", SHOAL_E_FORMAT, "pretokenizers"},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":0}}", SHOAL_E_FORMAT,
            "use_regex"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Contiguous\",\"pattern\":{"
         "\"String\":\"a\"}}}",
            SHOAL_E_UNSUPPORTED, "Contiguous"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{}}}",
            SHOAL_E_FORMAT, "pattern"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{"
         "\"String\":\"a\",\"Regex\":\"a\"}}}",
            SHOAL_E_FORMAT, "pattern"},
        {"{\"post_processor\":{\"type\":\"BertProcessing\"}}", SHOAL_E_UNSUPPORTED,
            "BertProcessing"},
        {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
         "\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}]}}",
            SHOAL_E_UNSUPPORTED, "TemplateProcessing"},
        {"{\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"Odd\"}]}}",
            SHOAL_E_UNSUPPORTED, "Odd"},
        {"{\"added_tokens\":{}}", SHOAL_E_FORMAT, "added_tokens"},
        {"{\"added_tokens\":[7]}", SHOAL_E_FORMAT, "content"},
        {"{\"added_tokens\":[" TOKEN(300, "") "]}", SHOAL_E_FORMAT, "content"},
        {"{\"added_tokens\":[{\"content\":\"x1\"}]}", SHOAL_E_FORMAT, "\"x1\""},
        {"{\"added_tokens\":[" TOKEN(-1, "x1") "]}", SHOAL_E_FORMAT, "\"x1\""},
        {"{\"added_tokens\":[" TOKEN(4194304, "x1") "]}", SHOAL_E_FORMAT, "\"x1\""},
        {"{\"added_tokens\":[" TOKEN(65, "x1") "]}", SHOAL_E_FORMAT, "id 65"},
        {"{\"added_tokens\":[" TOKEN(300, "x1") "," TOKEN(300, "x2") "]}", SHOAL_E_FORMAT,
            "id 300"},
        {"{\"added_tokens\":[" TOKEN(300, "ab") "]}", SHOAL_E_FORMAT, "256 in the vocabulary"},
        {"{\"added_tokens\":[" TOKEN(256, "ab") "," TOKEN(256, "ab") "]}", SHOAL_E_FORMAT, "twice"},
        {"{\"added_tokens\":[{\"id\":300,\"content\":\"x1\",\"lstrip\":1}]}", SHOAL_E_FORMAT,
            "lstrip"},
    };

    (void)state;
    CHECK(refusals);
}

static void test_patterns(void **state)
{
    static const struct refusal refusals[] = {
        {SPLIT("("), SHOAL_E_FORMAT, "parenthesis"},
        {SPLIT("a)"), SHOAL_E_FORMAT, "parenthesis"},
        {SPLIT("*"), SHOAL_E_FORMAT, "byte"},
        {SPLIT("\\\\p{Foo}"), SHOAL_E_FORMAT, "property"},
        {SPLIT("(?<=a+)b"), SHOAL_E_FORMAT, "lookbehind"},
        {SPLIT("\\\\pL"), SHOAL_E_UNSUPPORTED, "braces"},
        {SPLIT("\\\\p"), SHOAL_E_UNSUPPORTED, "braces"},
        {SPLIT("\\\\p{L"), SHOAL_E_UNSUPPORTED, "property"},
        {SPLIT("\\\\"), SHOAL_E_UNSUPPORTED, "backslash"},
        {SPLIT("\\\\w+"), SHOAL_E_UNSUPPORTED, "backslash"},
        {SPLIT("\\\\h"), SHOAL_E_UNSUPPORTED, "backslash"},
        {SPLIT("[\\\\w]"), SHOAL_E_UNSUPPORTED, "backslash"},
        {SPLIT("(a)\\\\1"), SHOAL_E_UNSUPPORTED, "backslash"},
        {SPLIT("\\\\C"), SHOAL_E_UNSUPPORTED, "backslash"},
        {SPLIT("[a"), SHOAL_E_UNSUPPORTED, "class"},
        {SPLIT("[]"), SHOAL_E_UNSUPPORTED, "class"},
        {SPLIT("[^]]"), SHOAL_E_UNSUPPORTED, "class"},
        {SPLIT("[[:alpha:]]"), SHOAL_E_UNSUPPORTED, "class"},
        {SPLIT("[a-z&&b]"), SHOAL_E_UNSUPPORTED, "&&"},
        {SPLIT("(?R)"), SHOAL_E_UNSUPPORTED, "group"},
        {SPLIT("(?<n>a)"), SHOAL_E_UNSUPPORTED, "group"},
        {SPLIT("(?m)a"), SHOAL_E_UNSUPPORTED, "group"},
        {SPLIT("(*LIMIT_MATCH=1)a"), SHOAL_E_UNSUPPORTED, "(*"},
        {SPLIT("a{2}+"), SHOAL_E_UNSUPPORTED, "count"},
        {SPLIT("a{,2}"), SHOAL_E_UNSUPPORTED, "brace"},
        {SPLIT("a{"), SHOAL_E_UNSUPPORTED, "brace"},
        {SPLIT("(?i:straSSe)"), SHOAL_E_UNSUPPORTED, "caseless"},
    };

    (void)state;
    CHECK(refusals);
}

static void test_json(void **state)
{
    static const char *const texts[] = {"", "{", "nonsense", "[]", "7", "{}", "{\"model\":null}",
        "{\"model\":[]}", "{\"a\":1,\"a\":2}", "\xff\xfe",
        "{\"model\":{\"vocab\":{\"\\u0000\":1}}}"};
    enum { DEPTH = 1000000 };
    struct tokenizer *tokenizer = NULL;
    struct shoal_error error = {0};
    char *deep = mem_alloc(DEPTH);

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(
            tokenizer_parse(texts[i], strlen(texts[i]), "t.json", NULL, &tokenizer, &error),
            SHOAL_E_FORMAT);
        assert_true(!strncmp(error.text, "t.json: ", 8));
    }
    memset(deep, '[', DEPTH);
    assert_int_equal(
        tokenizer_parse(deep, DEPTH, "t.json", NULL, &tokenizer, &error), SHOAL_E_FORMAT);
    assert_non_null(strstr(error.text, "depth"));
    mem_free(deep);
}

/* A sequence in a sequence in a ... and more steps than there is room for. */
static void test_nesting(void **state)
{
    static const char *const parts[][3] = {
        {"normalizer", "normalizers", "{\"type\":\"NFC\"}"},
        {"pre_tokenizer", "pretokenizers",
            "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"String\":\"a\"}}"},
        {"post_processor", "processors", "{\"type\":\"ByteLevel\"}"},
    };
    char text[8000];

    (void)state;
    for (size_t p = 0; p < 3; p++) {
        struct tokenizer *tokenizer = NULL;
        struct shoal_error error = {0};
        size_t used = (size_t)snprintf(text, sizeof text, "{\"%s\":", parts[p][0]);

        for (int i = 0; i < 100; i++)
            used += (size_t)snprintf(
                text + used, sizeof text - used, "{\"type\":\"Sequence\",\"%s\":[", parts[p][1]);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s", parts[p][2]);
        for (int i = 0; i < 100; i++)
            used += (size_t)snprintf(text + used, sizeof text - used, "]}");
        snprintf(text + used, sizeof text - used, "}");
        assert_int_not_equal(parse(text, &tokenizer, &error), SHOAL_OK);
        assert_null(tokenizer);
        if (p == 2) continue;
        used = (size_t)snprintf(
            text, sizeof text, "{\"%s\":{\"type\":\"Sequence\",\"%s\":[", parts[p][0], parts[p][1]);
        for (int i = 0; i < 20; i++)
            used += (size_t)snprintf(
                text + used, sizeof text - used, "%s%s", i ? "," : "", parts[p][2]);
        snprintf(text + used, sizeof text - used, "]}}");
        assert_int_equal(parse(text, &tokenizer, &error), SHOAL_E_UNSUPPORTED);
        assert_non_null(strstr(error.text, "16"));
    }
}

/* Patterns that backtrack for ever: an error, soon. */
static void test_slow_patterns(void **state)
{
    static const char *const slow[] = {SPLIT("(a*)*b"), SPLIT("(?:a|aa)+b"), SPLIT("(?=.*x)a"),
        SPLIT("(a|b|ab)*c"), SPLIT("(?:(?:(?:a?){50}){50})b")};
    char *text = mem_calloc(TOKENIZER_MAX_TEXT + 1, 1);

    (void)state;
    memset(text, 'a', TOKENIZER_MAX_TEXT);
    for (size_t i = 0; i < sizeof slow / sizeof *slow; i++) {
        struct tokenizer *tokenizer = NULL;
        struct shoal_error error = {0};
        int32_t *ids = NULL;
        clock_t begin = clock();
        size_t count;

        assert_ok(parse(slow[i], &tokenizer, &error));
        assert_int_equal(
            tokenizer_encode(tokenizer, text, &ids, &count, &error), SHOAL_E_UNSUPPORTED);
        assert_non_null(strstr(error.text, "pattern"));
        assert_null(ids);
        assert_true((clock() - begin) / CLOCKS_PER_SEC < 20);
        tokenizer_close(&tokenizer);
    }
    mem_free(text);
}

/* Without a token for a byte the model loads, but a text with that byte is refused. */
static void test_missing_byte(void **state)
{
    struct tokenizer *tokenizer = NULL;
    struct shoal_error error = {0};
    int32_t *ids = NULL;
    size_t count;

    (void)state;
    assert_ok(parse(
        "{\"model\":{\"vocab\":{\"a\":0,\"aa\":9},\"merges\":[\"a a\"]}}", &tokenizer, &error));
    assert_ok(tokenizer_encode(tokenizer, "aaa", &ids, &count, &error));
    assert_int_equal(count, 2);
    mem_free(ids);
    assert_int_equal(tokenizer_encode(tokenizer, "aaab", &ids, &count, &error), SHOAL_E_FORMAT);
    assert_non_null(strstr(error.text, "0x62"));
    tokenizer_close(&tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_slow_patterns),
        cmocka_unit_test(test_missing_byte),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
