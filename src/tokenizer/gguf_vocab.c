/* A GGUF file's tokenizer: BPE put into the form of a tokenizer.json, unigram pieces as they are.
 */
#include "tokenizer/gguf_vocab.h"

#include "base/memory.h"
#include "tokenizer/inside.h"

/* The format's types of tokens. */
enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER_DEFINED, TOKEN_UNUSED };

/* What a name in tokenizer.ggml.pre means: Qwen2's tokenizer.json, which Qwen3 has too. */
#define QWEN2_PATTERN                                                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+"      \
    "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static enum shoal_status check_kind(const struct gguf_vocab *v, struct shoal_error *error)
{
    const char *model = json_string_value(v->model), *pre = json_string_value(v->pre);
    const struct {
        const json_t *value;
        const char *key;
    } additions[] = {{v->add_bos, "add_bos_token"}, {v->add_eos, "add_eos_token"},
        {v->add_space, "add_space_prefix"}};

    if (!model || strcmp(model, "gpt2") != 0)
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "tokenizer.ggml.model is \"%.60s\"; only \"gpt2\", byte-level BPE, and \"t5\", "
            "unigram, are supported: name a tokenizer.json with --tokenizer",
            model ? model : "not there");
    if (!pre || strcmp(pre, "qwen2") != 0)
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "tokenizer.ggml.pre is \"%.60s\"; only \"qwen2\" is known: name a tokenizer.json with "
            "--tokenizer",
            pre ? pre : "not there");
    for (size_t i = 0; i < sizeof additions / sizeof *additions; i++)
        if (json_is_true(additions[i].value))
            FAIL(error, SHOAL_E_UNSUPPORTED,
                "tokenizer.ggml.%s is true, which adds to the text and is not supported",
                additions[i].key);
    return SHOAL_OK;
}

/* Puts token `id` where it belongs: into the vocabulary or among the added tokens. */
static enum shoal_status add_token(json_t *vocab, json_t *added, const json_t *token,
    json_int_t type, size_t id, struct shoal_error *error)
{
    const char *text = json_string_value(token);
    size_t bytes = json_string_length(token);
    int failed;

    switch (type) {
    case TOKEN_NORMAL:
    case TOKEN_UNKNOWN:
        if (json_object_getn(vocab, text, bytes))
            FAIL(error, SHOAL_E_FORMAT, "the token \"%.100s\" is there twice", text);
        failed = json_object_setn_new(vocab, text, bytes, json_integer((json_int_t)id));
        break;
    case TOKEN_CONTROL:
    case TOKEN_USER_DEFINED:
        failed = json_array_append_new(
            added, json_pack("{s:s%, s:I, s:b, s:b}", "content", text, bytes, "id", (json_int_t)id,
                       "special", type == TOKEN_CONTROL, "normalized", 0));
        break;
    case TOKEN_UNUSED: /* fills the embedding up; no text gives it */
        return SHOAL_OK;
    default:
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "the token \"%.100s\" is of type %lld, which byte-level BPE does not have", text,
            (long long)type);
    }
    if (failed) FAIL_MEMORY(error);
    return SHOAL_OK;
}

static enum shoal_status add_tokens(
    const struct gguf_vocab *v, json_t *vocab, json_t *added, struct shoal_error *error)
{
    size_t count = json_array_size(v->tokens);

    if (!count || json_array_size(v->types) != count || !json_is_array(v->merges))
        FAIL(error, SHOAL_E_FORMAT,
            "tokenizer.ggml.tokens, .token_type and .merges must be arrays, the first two of one "
            "length");
    if (count > TOKENIZER_MAX_IDS)
        FAIL(error, SHOAL_E_FORMAT, "there are %zu tokens; %d are allowed", count,
            TOKENIZER_MAX_IDS);
    for (size_t i = 0; i < count; i++) {
        const json_t *token = json_array_get(v->tokens, i), *type = json_array_get(v->types, i);

        if (!json_is_string(token) || !json_is_integer(type))
            FAIL(error, SHOAL_E_FORMAT, "token %zu has no text or no type that is a whole number",
                i);
        TRY(add_token(vocab, added, token, json_integer_value(type), i, error));
    }
    return SHOAL_OK;
}

/* As a tokenizer.json: *root, the caller's to json_decref. */
static enum shoal_status make_json(const struct gguf_vocab *v, json_t *vocab, json_t *added,
    json_t **root, struct shoal_error *error)
{
    json_t *cut, *bytes, *model;

    TRY(check_kind(v, error));
    TRY(add_tokens(v, vocab, added, error));
    cut = json_pack("{s:s, s:s, s:{s:s}}", "type", "Split", "behavior", "Isolated", "pattern",
        "Regex", QWEN2_PATTERN);
    bytes =
        json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 0);
    model = json_pack("{s:s, s:O, s:O}", "type", "BPE", "vocab", vocab, "merges", v->merges);
    /* Takes the new ones, also when it fails. */
    *root = json_pack("{s:{s:s}, s:{s:s, s:[o, o]}, s:o, s:O}", "normalizer", "type", "NFC",
        "pre_tokenizer", "type", "Sequence", "pretokenizers", cut, bytes, "model", model,
        "added_tokens", added);
    if (!*root) FAIL_MEMORY(error);
    return SHOAL_OK;
}

static enum shoal_status open_bpe(const struct gguf_vocab *v, const char *label,
    struct tokenizer **tokenizer, struct shoal_error *error)
{
    json_t *vocab = json_object(), *added = json_array(), *root = NULL;
    enum shoal_status status = make_json(v, vocab, added, &root, error);

    if (status)
        error_prefix(error, "%s: ", label);
    else
        status = tokenizer_from_json(root, label, tokenizer, error);
    json_decref(root);
    json_decref(vocab);
    json_decref(added);
    return status;
}

/* ---- unigram ---- */

/* The flag's value; `missing` where there is none. */
static enum shoal_status read_flag(
    const json_t *flag, const char *key, bool missing, bool *value, struct shoal_error *error)
{
    if (flag && !json_is_boolean(flag))
        FAIL(error, SHOAL_E_FORMAT, "tokenizer.ggml.%s is not true or false", key);
    *value = flag ? json_is_true(flag) : missing;
    return SHOAL_OK;
}

static enum shoal_status read_charsmap(
    struct charsmap *map, const json_t *list, struct shoal_error *error)
{
    size_t count = json_array_size(list), i;
    uint8_t *bytes;
    const json_t *item;
    enum shoal_status status = SHOAL_OK;

    if (!count) return SHOAL_OK;
    bytes = mem_alloc(count);
    if (!bytes) FAIL_MEMORY(error);
    json_array_foreach(list, i, item)
    {
        json_int_t value = json_integer_value(item);

        if (!json_is_integer(item) || value < -128 || value > 255) {
            status = error_set(error, SHOAL_E_FORMAT, __FILE__, __LINE__,
                "item %zu of tokenizer.ggml.precompiled_charsmap is not a byte", i);
            break;
        }
        bytes[i] = (uint8_t)value;
    }
    if (!status) status = charsmap_init(map, bytes, count, error);
    mem_free(bytes);
    return status;
}

static enum shoal_status read_pieces(
    struct unigram *unigram, const struct gguf_vocab *v, struct shoal_error *error)
{
    size_t count = json_array_size(v->tokens), i;
    const json_t *token;

    if (!count || json_array_size(v->types) != count || json_array_size(v->scores) != count)
        FAIL(error, SHOAL_E_FORMAT,
            "tokenizer.ggml.tokens, .token_type and .scores must be arrays of one length");
    TRY(unigram_init(unigram, count, true, error));
    json_array_foreach(v->tokens, i, token)
    {
        const json_t *type = json_array_get(v->types, i), *score = json_array_get(v->scores, i);
        json_int_t number = json_integer_value(type);

        if (!json_is_string(token) || !json_is_integer(type) || !json_is_number(score))
            FAIL(error, SHOAL_E_FORMAT, "token %zu has no text, no type or no score", i);
        if (number < UNIGRAM_NORMAL || number > UNIGRAM_BYTE) number = 0;
        if (number == UNIGRAM_BYTE) unigram->byte_fallback = true;
        TRY(unigram_add(unigram, json_string_value(token), json_string_length(token),
            json_number_value(score), (enum unigram_type)number, error));
    }
    return unigram_finish(unigram, error);
}

static enum shoal_status read_unigram(
    struct tokenizer *t, const struct gguf_vocab *v, struct shoal_error *error)
{
    json_int_t end = json_integer_value(v->end);
    bool begins = false, ends = false;

    t->kind = TOKENIZER_SENTENCEPIECE;
    t->spaces.mark = true;
    TRY(read_flag(v->add_space, "add_space_prefix", true, &t->spaces.extra_begin, error));
    TRY(read_flag(v->fold_spaces, "remove_extra_whitespaces", true, &t->spaces.fold, error));
    TRY(read_flag(v->add_bos, "add_bos_token", false, &begins, error));
    TRY(read_flag(v->add_eos, "add_eos_token", true, &ends, error));
    if (begins)
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "tokenizer.ggml.add_bos_token is true, which unigram models do not have here");
    TRY(read_charsmap(&t->spaces.map, v->charsmap, error));
    TRY(read_pieces(&t->unigram, v, error));
    if (!ends) return SHOAL_OK;
    if (!json_is_integer(v->end) || end < 0 || end >= t->unigram.id_end)
        FAIL(error, SHOAL_E_FORMAT,
            "tokenizer.ggml.eos_token_id, which ends a text, is not an id of the vocabulary");
    t->around.after[t->around.after_count++] = (int32_t)end;
    return SHOAL_OK;
}

static enum shoal_status open_unigram(const struct gguf_vocab *v, const char *label,
    struct tokenizer **tokenizer, struct shoal_error *error)
{
    struct tokenizer *t = mem_calloc(1, sizeof *t);
    enum shoal_status status;

    if (!t) FAIL_MEMORY(error);
    status = read_unigram(t, v, error);
    if (status) {
        error_prefix(error, "%s: ", label);
        tokenizer_close(&t);
        return status;
    }
    *tokenizer = t;
    return SHOAL_OK;
}

enum shoal_status tokenizer_from_gguf(const struct gguf_vocab *v, const char *label,
    struct tokenizer **tokenizer, struct shoal_error *error)
{
    const char *model = json_string_value(v->model);

    if (model && !strcmp(model, "t5")) return open_unigram(v, label, tokenizer, error);
    return open_bpe(v, label, tokenizer, error);
}
