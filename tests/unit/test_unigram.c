/* src/tokenizer: unigram models and charsmaps that are damaged, hostile or unusual. */
#include "support.h"

#include "base/file.h"
#include "base/memory.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/gguf_vocab.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/unigram.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MODEL "tests/golden/unigram.model"

/* ---- messages ---- */

struct bytes {
    unsigned char data[4096];
    size_t used;
};

static void put(struct bytes *to, const void *data, size_t count)
{
    assert_true(to->used + count <= sizeof to->data);
    memcpy(to->data + to->used, data, count);
    to->used += count;
}

static void put_varint(struct bytes *to, uint64_t value)
{
    for (; value > 127; value >>= 7)
        put(to, &(unsigned char){(unsigned char)(value | 128)}, 1);
    put(to, &(unsigned char){(unsigned char)value}, 1);
}

static void put_number(struct bytes *to, uint32_t key, uint64_t value)
{
    put_varint(to, (uint64_t)key << 3);
    put_varint(to, value);
}

static void put_bytes(struct bytes *to, uint32_t key, const void *data, size_t count)
{
    put_varint(to, (uint64_t)key << 3 | 2);
    put_varint(to, count);
    put(to, data, count);
}

static void put_piece(struct bytes *to, const char *text, float score, int type)
{
    struct bytes piece = {.used = 0};

    put_bytes(&piece, 1, text, strlen(text));
    put_varint(&piece, 2 << 3 | 5);
    put(&piece, &score, sizeof score);
    if (type) put_number(&piece, 3, (uint64_t)type);
    put_bytes(to, 1, piece.data, piece.used);
}

static struct bytes make_base(void)
{
    struct bytes b = {.used = 0};

    put_piece(&b, "<unk>", 0, 2);
    put_piece(&b, "</s>", 0, 3);
    put_piece(&b, "\xe2\x96\x81", -2, 0);
    put_piece(&b, "a", -3, 0);
    put_piece(&b, "ab", -4, 1);
    return b;
}

static enum shoal_status parse(
    const struct bytes *b, struct tokenizer **tokenizer, struct shoal_error *error)
{
    /* Just as many bytes as there are, so that a read past them is seen. */
    char *copy = mem_alloc(b->used);
    enum shoal_status status;

    memcpy(copy, b->data, b->used);
    status = tokenizer_from_sentencepiece(copy, b->used, "s.model", NULL, tokenizer, error);
    mem_free(copy);
    return status;
}

static void refuse(struct bytes b, enum shoal_status status, const char *says)
{
    struct tokenizer *tokenizer = NULL;
    struct shoal_error error = {0};
    enum shoal_status got = parse(&b, &tokenizer, &error);

    if (got != status || !strstr(error.text, says) || strncmp(error.text, "s.model: ", 9))
        fail_msg("not \"%s\", but %d: %s", says, (int)got, error.text);
    assert_null(tokenizer);
}

static void check_ids(
    const struct tokenizer *tokenizer, const char *text, const int32_t *want, size_t want_count)
{
    struct shoal_error error = {0};
    int32_t *ids = NULL;
    size_t count;

    assert_ok(tokenizer_encode(tokenizer, text, &ids, &count, &error));
    assert_int_equal(count, want_count);
    if (count) assert_memory_equal(ids, want, count * sizeof *ids);
    mem_free(ids);
}

static void test_accepted(void **state)
{
    struct bytes b = make_base(), trainer = {.used = 0};
    struct tokenizer *tokenizer = NULL;
    struct shoal_error error = {0};

    (void)state;
    put_number(&b, 900, 7); /* fields that others may add */
    put_bytes(&b, 901, "xyz", 3);
    assert_ok(parse(&b, &tokenizer, &error));
    assert_int_equal(tokenizer_vocab(tokenizer), 5);
    assert_int_equal(tokenizer_end(tokenizer), 1);
    check_ids(tokenizer, " abaxx", (int32_t[]){2, 4, 3, 0}, 4);
    check_ids(tokenizer, "", NULL, 0);
    tokenizer_close(&tokenizer);
    put_bytes(&trainer, 47, "end", 3); /* eos_piece: none of that name */
    put_bytes(&b, 2, trainer.data, trainer.used);
    assert_ok(parse(&b, &tokenizer, &error));
    assert_int_equal(tokenizer_end(tokenizer), -1);
    tokenizer_close(&tokenizer);
}

static void test_fields(void **state)
{
    struct bytes b, inner = {.used = 0};

    (void)state;
    refuse(inner, SHOAL_E_FORMAT, "no pieces");
    b = make_base();
    put(&b, "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 10); /* a length of 2^63 - 1 */
    refuse(b, SHOAL_E_FORMAT, "cut off");
    b = make_base();
    put(&b, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12); /* a number without end */
    refuse(b, SHOAL_E_FORMAT, "cut off");
    b = make_base();
    put(&b, "\x0b", 1); /* a group */
    refuse(b, SHOAL_E_FORMAT, "cut off");
    b = make_base();
    put_number(&b, 1, 5);
    refuse(b, SHOAL_E_FORMAT, "wire type 0");
    b = make_base();
    put_bytes(&b, 2, "\x18\x02", 2);
    refuse(b, SHOAL_E_UNSUPPORTED, "kind 2");
    b = make_base();
    put_bytes(&b, 2, "\x18", 1);
    refuse(b, SHOAL_E_FORMAT, "trainer_spec");
    b = make_base();
    put_bytes(&b, 3, "\x1a\x00", 2);
    refuse(b, SHOAL_E_FORMAT, "normalizer_spec");
    b = make_base();
    put_bytes(&b, 3, "\x12\x02zz", 4);
    refuse(b, SHOAL_E_FORMAT, "charsmap");
    b = make_base();
    put_bytes(&b, 2, "\x98\x02\x01", 3); /* byte_fallback */
    refuse(b, SHOAL_E_FORMAT, "\"<0x00>\"");
}

static void test_pieces(void **state)
{
    static const struct {
        const char *text;
        float score;
        int type;
        const char *says;
    } bad[] = {{"a", -1, 1, "both \"a\""}, {"b", -1, 2, "unknown type"}, {"b", -1, 7, "type"},
        {"", -1, 1, "0 bytes"}, {"b", NAN, 1, "finite"}, {"b", -INFINITY, 1, "finite"},
        {"<0x41>", 0, 6, "byte type"}};
    struct bytes b = {.used = 0}, piece = {.used = 0};
    char text[UNIGRAM_MAX_PIECE + 1];

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        b = make_base();
        put_piece(&b, bad[i].text, bad[i].score, bad[i].type);
        refuse(b, SHOAL_E_FORMAT, bad[i].says);
    }
    b.used = 0;
    put_piece(&b, "a", -1, 1);
    refuse(b, SHOAL_E_FORMAT, "unknown");
    b.used = 0;
    put_piece(&b, "<unk>", -1, 2);
    refuse(b, SHOAL_E_FORMAT, "no piece to cut");
    b = make_base();
    put_bytes(&piece, 1, "x\0y", 3);
    put_bytes(&b, 1, piece.data, piece.used);
    refuse(b, SHOAL_E_FORMAT, "a 0 among them");
    b = make_base();
    piece.used = 0;
    memset(text, 'z', sizeof text);
    put_bytes(&piece, 1, text, sizeof text);
    put_bytes(&b, 1, piece.data, piece.used);
    refuse(b, SHOAL_E_FORMAT, "513 bytes");
    b = make_base();
    put_number(&b, 2, 1); /* trainer_spec as a number */
    refuse(b, SHOAL_E_FORMAT, "wire type");
    b = make_base();
    put_bytes(&b, 2, "\x98\x02\x01", 3);
    put_piece(&b, "<0x4g>", 0, 6);
    refuse(b, SHOAL_E_FORMAT, "does not name a byte");
}

/* A model cut off anywhere, and with any byte changed: refused or good, never worse. */
static void test_damage(void **state)
{
    static const char text[] =
        "The cat's 2 HATS,  \u00e9e\u0301 \uff76\uff9e\r\n <sep> \ufb01 \u0e2a";
    struct shoal_error error = {0};
    struct tokenizer *tokenizer = NULL;
    char *data = NULL, *copy;
    size_t bytes, count, refused = 0;

    (void)state;
    assert_ok(file_read_all(MODEL, 1 << 20, &data, &bytes, &error));
    srand(7);
    for (size_t i = 0; i < bytes; i += 5) {
        size_t kept = i % 2 ? bytes : i;
        int32_t *ids = NULL;

        copy = mem_alloc(kept);
        memcpy(copy, data, kept);
        if (kept == bytes) copy[i] = (char)(copy[i] ^ 1 << rand() % 8);
        error = (struct shoal_error){0};
        if (tokenizer_from_sentencepiece(copy, kept, "s.model", NULL, &tokenizer, &error)) {
            assert_true(strstr(error.text, "s.model: ") == error.text);
            assert_null(tokenizer);
            refused++;
        } else {
            assert_ok(tokenizer_encode_with_template(tokenizer, text, &ids, &count, &error));
            for (size_t j = 0; j < count; j++)
                assert_true(ids[j] >= 0 && ids[j] < tokenizer_vocab(tokenizer));
            mem_free(ids);
            tokenizer_close(&tokenizer);
        }
        mem_free(copy);
    }
    assert_true(refused > bytes / 20);
    mem_free(data);
}

static void test_allowance(void **state)
{
    struct allowance little = {.most_bytes = 1};
    struct tokenizer *tokenizer = NULL;
    struct shoal_error error = {0};
    char *data = NULL;
    size_t bytes;

    (void)state;
    little.bytes = 16u << 20; /* what always may be taken is */
    assert_ok(file_read_all(MODEL, 1 << 20, &data, &bytes, &error));
    assert_int_equal(tokenizer_from_sentencepiece(data, bytes, MODEL, &little, &tokenizer, &error),
        SHOAL_E_BUDGET);
    assert_non_null(strstr(error.text, MODEL));
    mem_free(data);
}

/* ---- charsmaps ---- */

#define UNITS 512

/* "a" becomes "bc". The root's children are in the second block. */
static void make_map(uint32_t *units, char *replacements)
{
    memset(units, 0, UNITS * sizeof *units);
    units[0] = 256u << 10;
    units[256 + 'a'] = 'a' | 1u << 8 | 0x80u << 10;
    units[(256 + 'a') ^ 0x80] = 1u << 31 | 1;
    memcpy(replacements, "\0bc\0", 4);
}

static enum shoal_status open_map(struct charsmap *map, const uint32_t *units, uint32_t said,
    const char *replacements, size_t count, struct shoal_error *error)
{
    size_t bytes = 4 + UNITS * sizeof *units + count;
    char *blob = mem_alloc(bytes);
    enum shoal_status status;

    memcpy(blob, &said, 4);
    memcpy(blob + 4, units, UNITS * sizeof *units);
    memcpy(blob + 4 + UNITS * sizeof *units, replacements, count);
    status = charsmap_init(map, blob, bytes, error);
    mem_free(blob);
    return status;
}

static void refuse_map(
    const uint32_t *units, uint32_t said, const char *replacements, size_t count, const char *says)
{
    struct charsmap map;
    struct shoal_error error = {0};

    if (open_map(&map, units, said, replacements, count, &error) != SHOAL_E_FORMAT)
        fail_msg("not refused: \"%s\"", says);
    if (!strstr(error.text, says)) fail_msg("not \"%s\": %s", says, error.text);
    assert_null(map.units);
}

static void test_charsmap(void **state)
{
    const uint32_t said = UNITS * 4;
    uint32_t units[UNITS];
    char replacements[4];
    const char *made = NULL;
    struct charsmap map;
    struct shoal_error error = {0};

    (void)state;
    make_map(units, replacements);
    assert_ok(open_map(&map, units, said, replacements, 4, &error));
    assert_int_equal(charsmap_match(&map, "ax", 2, true, &made), 1);
    assert_string_equal(made, "bc");
    assert_int_equal(charsmap_match(&map, "xa", 2, true, &made), 0);
    assert_int_equal(charsmap_match(&map, "a", 0, true, &made), 0);
    charsmap_fini(&map);
    refuse_map(units, said + 4, replacements, 4, "do not hold");
    refuse_map(units, said - 2, replacements, 4, "do not hold");
    refuse_map(units, 0, replacements, 4, "do not hold");
    refuse_map(units, UINT32_MAX, replacements, 4, "do not hold");
    refuse_map(units, said, "\0bcd", 4, "no end");
    refuse_map(units, said, "\0\xff\0", 3, "UTF-8");
    refuse_map(units, said, "\0", 1, "where none begins");
    refuse_map(units, said, "\xc3\xa9\0", 3, "where none begins");
    units[300] = 0x1fffffu << 10 | 1u << 9;
    refuse_map(units, said, replacements, 4, "points outside");
    units[300] = 512u << 10;
    refuse_map(units, said, replacements, 4, "points outside");
}

/* Units that lead to each other for ever: a text ends all the same. */
static void test_cycles(void **state)
{
    uint32_t units[UNITS] = {0};
    char text[1000];
    const char *made = NULL;
    struct charsmap map;
    struct shoal_error error = {0};

    (void)state;
    /* 'a' leads to the unit of that index, whose children begin at 0 again. */
    units['a'] = 'a' | 1u << 8 | 'a' << 10;
    memset(text, 'a', sizeof text);
    assert_ok(open_map(&map, units, UNITS * 4, "\0", 1, &error));
    assert_int_equal(charsmap_match(&map, text, sizeof text, true, &made), sizeof text);
    assert_string_equal(made, "");
    charsmap_fini(&map);
}

static void test_base64(void **state)
{
    static const char *const bad[] = {"A", "AB=C", "AAA", "A===", "AA*A", "====", "AAAAA==="};
    struct charsmap map;
    struct shoal_error error = {0};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(charsmap_from_base64(&map, bad[i], &error), SHOAL_E_FORMAT);
        assert_non_null(strstr(error.text, "base64"));
        error = (struct shoal_error){0};
    }
    assert_int_equal(charsmap_from_base64(&map, "", &error), SHOAL_E_FORMAT);
    assert_non_null(strstr(error.text, "charsmap"));
}

/* ---- a tokenizer.json ---- */

#define UNIGRAM(members, more)                                                                     \
    "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"a\",-1],"           \
    "[\"\xe2\x96\x81\",-2]]" members "}" more "}"
#define NORMALIZER(text) UNIGRAM("", ",\"normalizer\":" text)
#define STEP(text) UNIGRAM("", ",\"pre_tokenizer\":" text)
#define AROUND(text) UNIGRAM("", ",\"post_processor\":{\"type\":\"TemplateProcessing\"," text "}")
#define SPACE "{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\"}"

static void test_json(void **state)
{
    static const struct {
        const char *json;
        enum shoal_status status;
        const char *says;
    } bad[] = {
        {"{\"model\":{\"type\":\"Unigram\"}}", SHOAL_E_FORMAT, "empty"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[7]}}", SHOAL_E_FORMAT, "entry 0"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}", SHOAL_E_FORMAT, "entry 0"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[1,2]]}}", SHOAL_E_FORMAT, "entry 0"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"\",2]]}}", SHOAL_E_FORMAT, "0 bytes"},
        {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":1,\"vocab\":[[\"a\",2]]}}", SHOAL_E_FORMAT,
            "unk_id"},
        {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":-1,\"vocab\":[[\"a\",2]]}}", SHOAL_E_FORMAT,
            "unk_id"},
        {UNIGRAM(",\"byte_fallback\":1", ""), SHOAL_E_FORMAT, "byte_fallback"},
        {NORMALIZER("{\"type\":\"Precompiled\"}"), SHOAL_E_FORMAT, "precompiled_charsmap"},
        {NORMALIZER("{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"}"), SHOAL_E_FORMAT,
            "charsmap"},
        {NORMALIZER("{\"type\":\"Replace\",\"content\":\"\"}"), SHOAL_E_FORMAT, "pattern"},
        {NORMALIZER("{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"}}"), SHOAL_E_FORMAT,
            "content"},
        {NORMALIZER("{\"type\":\"Strip\",\"strip_left\":2}"), SHOAL_E_FORMAT, "strip_left"},
        {NORMALIZER("{\"type\":\"Nmt\"}"), SHOAL_E_UNSUPPORTED, "Nmt"},
        {STEP("{\"type\":\"Metaspace\"}"), SHOAL_E_FORMAT, "replacement"},
        {STEP("{\"type\":\"Metaspace\",\"replacement\":\"ab\"}"), SHOAL_E_FORMAT, "replacement"},
        {STEP("{\"type\":\"Metaspace\",\"replacement\":\"a\",\"prepend_scheme\":\"odd\"}"),
            SHOAL_E_FORMAT, "odd"},
        {STEP("{\"type\":\"Metaspace\",\"replacement\":\"a\",\"prepend_scheme\":\"first\","
              "\"add_prefix_space\":false}"),
            SHOAL_E_FORMAT, "add_prefix_space"},
        {STEP("{\"type\":\"ByteLevel\"}"), SHOAL_E_UNSUPPORTED, "ByteLevel"},
        {STEP("{\"type\":\"Sequence\",\"pretokenizers\":[" SPACE "," SPACE "]}"),
            SHOAL_E_UNSUPPORTED, "the last"},
        {STEP("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},"
              "{\"type\":\"Metaspace\",\"replacement\":\"a\",\"prepend_scheme\":\"first\"}]}"),
            SHOAL_E_UNSUPPORTED, "first"},
        {AROUND("\"single\":[]"), SHOAL_E_FORMAT, "no text"},
        {AROUND("\"single\":[7]"), SHOAL_E_FORMAT, "special token"},
        {AROUND("\"single\":[{\"Sequence\":{}},{\"Sequence\":{}}]"), SHOAL_E_FORMAT, "one"},
        {AROUND("\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]"), SHOAL_E_FORMAT, "\"x\""},
        {AROUND("\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}],"
                "\"special_tokens\":{\"x\":{\"ids\":[3]}}"),
            SHOAL_E_FORMAT, "vocabulary"},
        {AROUND("\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}],"
                "\"special_tokens\":{\"x\":{\"ids\":[0,0,0,0,0,0,0,0,0]}}"),
            SHOAL_E_UNSUPPORTED, "more than 8"},
        {UNIGRAM("", ",\"added_tokens\":[{\"id\":2,\"content\":\"a\"}]"), SHOAL_E_FORMAT,
            "1 in the vocabulary"},
        {UNIGRAM("", ",\"added_tokens\":[{\"id\":2,\"content\":\"b\"}]"), SHOAL_E_FORMAT, "id 2"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct tokenizer *tokenizer = NULL;
        struct shoal_error error = {0};
        enum shoal_status status =
            tokenizer_parse(bad[i].json, strlen(bad[i].json), "t.json", NULL, &tokenizer, &error);

        if (status != bad[i].status || !strstr(error.text, bad[i].says) ||
            strncmp(error.text, "t.json: ", 8))
            fail_msg("%s gives %d: %s", bad[i].json, (int)status, error.text);
        assert_null(tokenizer);
    }
}

static struct tokenizer *open_json(const char *json)
{
    struct tokenizer *tokenizer = NULL;
    struct shoal_error error = {0};

    assert_ok(tokenizer_parse(json, strlen(json), "t.json", NULL, &tokenizer, &error));
    return tokenizer;
}

/* Before and after a text; no unknown piece; normalizers that make too much of a text. */
static void test_json_texts(void **state)
{
    static const char around[] =
        AROUND("\"single\":[{\"SpecialToken\":{\"id\":\"x\"}},{\"Sequence\":{}},{\"SpecialToken\":{"
               "\"id\":\"x\"}}],\"special_tokens\":{\"x\":{\"ids\":[1,2]}}");
    struct tokenizer *tokenizer = open_json(around);
    struct shoal_error error = {0};
    int32_t *ids = NULL;
    size_t count;
    char *json, *text;

    (void)state;
    assert_ok(tokenizer_encode_with_template(tokenizer, "a", &ids, &count, &error));
    assert_int_equal(count, 5);
    assert_memory_equal(ids, ((int32_t[]){1, 2, 1, 1, 2}), 5 * sizeof *ids);
    assert_int_equal(tokenizer_end(tokenizer), 2);
    mem_free(ids);
    tokenizer_close(&tokenizer);

    tokenizer = open_json("{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1]]}}");
    assert_int_equal(tokenizer_end(tokenizer), -1);
    check_ids(tokenizer, "aa", (int32_t[]){0, 0}, 2);
    assert_int_equal(tokenizer_encode(tokenizer, "ab", &ids, &count, &error), SHOAL_E_FORMAT);
    assert_non_null(strstr(error.text, "\"b\""));
    tokenizer_close(&tokenizer);

    text = mem_calloc(TOKENIZER_MAX_TEXT + 1, 1);
    memset(text, 'a', TOKENIZER_MAX_TEXT);
    json =
        mem_format("{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1]]},\"normalizer\":{"
                   "\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"%.1000s\"}}",
            text);
    tokenizer = open_json(json);
    error = (struct shoal_error){0};
    assert_int_equal(tokenizer_encode(tokenizer, text, &ids, &count, &error), SHOAL_E_UNSUPPORTED);
    assert_non_null(strstr(error.text, "normalizer"));
    tokenizer_close(&tokenizer);
    mem_free(json);
    mem_free(text);
}

/* As many pieces as UMT5 has, and texts that have many ways through them. */
static void test_large(void **state)
{
    enum { COUNT = 256384 };
    struct unigram u;
    struct unigram_scratch scratch = {0};
    struct shoal_error error = {0};
    int32_t *ids = mem_calloc(TOKENIZER_MAX_TEXT, sizeof *ids);
    char *text = mem_calloc(TOKENIZER_MAX_TEXT, 1), piece[UNIGRAM_MAX_PIECE + 1];
    clock_t begin = clock();
    size_t count;

    (void)state;
    memset(piece, 'a', sizeof piece);
    memset(text, 'a', TOKENIZER_MAX_TEXT);
    assert_ok(unigram_init(&u, COUNT, true, &error));
    assert_ok(unigram_add(&u, "<unk>", 5, 0, UNIGRAM_UNKNOWN, &error));
    for (size_t i = 1; i <= UNIGRAM_MAX_PIECE; i++)
        assert_ok(unigram_add(&u, piece, i, -1, UNIGRAM_NORMAL, &error));
    for (size_t i = UNIGRAM_MAX_PIECE + 1; i < COUNT; i++) {
        snprintf(piece, sizeof piece, "%zx", i * 2654435761u % (1u << 30) + (1u << 30));
        assert_ok(unigram_add(&u, piece, strlen(piece), -2, UNIGRAM_NORMAL, &error));
    }
    assert_ok(unigram_finish(&u, &error));
    assert_ok(unigram_encode(&u, &scratch, text, TOKENIZER_MAX_TEXT, ids, &count, &error));
    assert_int_equal(count, TOKENIZER_MAX_TEXT / UNIGRAM_MAX_PIECE);
    assert_true((clock() - begin) / CLOCKS_PER_SEC < 20);
    unigram_scratch_fini(&scratch);
    unigram_fini(&u);
    mem_free(text);
    mem_free(ids);
}

static void test_gguf(void **state)
{
    struct gguf_vocab v = {.model = json_string("t5"),
        .tokens = json_pack("[s, s]", "<unk>", "a"),
        .types = json_pack("[i, i]", 2, 1),
        .scores = json_pack("[f, f]", 0.0, -1.0)};
    const struct {
        json_t **member, *value;
        const char *says;
    } bad[] = {{&v.scores, json_pack("[f]", 0.0), "one length"},
        {&v.scores, json_pack("[f, s]", 0.0, "x"), "token 1"},
        {&v.types, json_pack("[i, i]", 2, 9), "type"},
        {&v.types, json_pack("[i, i]", 2, 6), "byte type"},
        {&v.tokens, json_pack("[s, s]", "<unk>", ""), "0 bytes"},
        {&v.add_bos, json_true(), "add_bos_token"}, {&v.add_space, json_integer(1), "add_space"},
        {&v.charsmap, json_pack("[i, i]", 1, 256), "item 1"},
        {&v.charsmap, json_pack("[i, i]", 1, 2), "charsmap"},
        {&v.end, json_integer(2), "eos_token_id"}, {&v.end, NULL, "eos_token_id"}};
    struct tokenizer *tokenizer = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct shoal_error error = {0};
        json_t *own = *bad[i].member;
        enum shoal_status status;

        *bad[i].member = bad[i].value;
        status = tokenizer_from_gguf(&v, "f.gguf", &tokenizer, &error);
        if (!status || !strstr(error.text, bad[i].says) || strncmp(error.text, "f.gguf: ", 8))
            fail_msg("not \"%s\", but %d: %s", bad[i].says, (int)status, error.text);
        assert_null(tokenizer);
        json_decref(bad[i].value);
        *bad[i].member = own;
    }
#define DROP_KEY(member, key) json_decref(v.member);
    GGUF_VOCAB_KEYS(DROP_KEY)
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_allowance),
        cmocka_unit_test(test_charsmap),
        cmocka_unit_test(test_cycles),
        cmocka_unit_test(test_base64),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_json_texts),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_gguf),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
