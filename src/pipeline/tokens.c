/*
 * A model's tokenizers: named, in the model's folder, near the text encoder, or inside it. Some
 * DiTs take a prompt in two.
 */
#include "pipeline/tokens.h"

#include "base/file.h"
#include "base/memory.h"
#include "models/source.h"
#include "tokenizer/gguf_vocab.h"
#include "tokenizer/sentencepiece.h"

#include <string.h>

#define CHAT_MARK "<|im_start|>"
#define MOST_PIECES_BYTES (64ull << 20) /* of a SentencePiece model; UMT5's has 4.5 MB */

static const struct dit_text *text_of(const struct shoal_model *model)
{
    return &dit_config(model->parts[FAMILY_DIT])->family->text;
}

/* ---- finding ---- */

/* Folders that hold a tokenizer.json or a spiece.model, in a model's folder or the encoder's. */
static const char *const folders[MODEL_TOKENIZERS][6] = {{"tokenizer", ".", "../tokenizer"},
    {"t5_tokenizer", "tokenizer_2", "../t5_tokenizer", "../tokenizer_2"}};
static const char *const files[] = {"tokenizer.json", "spiece.model"};

enum shoal_status tokens_find(const char *folder, int which, char **path, struct shoal_error *error)
{
    *path = NULL;
    for (int i = 0; folders[which][i]; i++)
        for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
            *path = strcmp(folders[which][i], ".")
                        ? mem_format("%s/%s/%s", folder, folders[which][i], files[k])
                        : mem_format("%s/%s", folder, files[k]);
            if (!*path) FAIL_MEMORY(error);
            if (file_kind(*path) != FILE_NONE) return SHOAL_OK;
            mem_free(*path);
            *path = NULL;
        }
    return SHOAL_OK;
}

static enum shoal_status find(
    const struct shoal_model_paths *paths, int which, char **path, struct shoal_error *error)
{
    const char *given = which ? paths->second_tokenizer : paths->tokenizer;
    const char *near[2] = {paths->model, paths->text_encoder};

    *path = given ? mem_strdup(given) : NULL;
    if (given && !*path) FAIL_MEMORY(error);
    for (int i = 0; i < 2 && !*path; i++)
        if (near[i] && file_kind(near[i]) == FILE_FOLDER)
            TRY(tokens_find(near[i], which, path, error));
    return SHOAL_OK;
}

/* ---- the text encoder's own ---- */

/* The vocabulary in a GGUF file's metadata. */
static enum shoal_status open_vocab(const struct checkpoint *text, struct allowance *reading,
    struct tokenizer **tokenizer, struct shoal_error *error)
{
    struct gguf_vocab vocab = {0};
    enum shoal_status status;

#define READ_KEY(member, key)                                                                      \
    TRY_OR_FAIL(checkpoint_value(text, "tokenizer.ggml." key, reading, &vocab.member, error));
#define DROP_KEY(member, key) json_decref(vocab.member);
    GGUF_VOCAB_KEYS(READ_KEY)
    status = tokenizer_from_gguf(&vocab, checkpoint_path(text), tokenizer, error);
fail:
    GGUF_VOCAB_KEYS(DROP_KEY)
    return status;
}

/* The SentencePiece model that ComfyUI's files of T5 and UMT5 hold as a tensor of bytes. */
static enum shoal_status open_pieces(const struct checkpoint_tensor *tensor,
    struct allowance *reading, struct tokenizer **tokenizer, struct shoal_error *error)
{
    const uint64_t bytes = (uint64_t)tensor->bytes;
    enum shoal_status status;
    char *pieces;

    if (bytes > MOST_PIECES_BYTES)
        FAIL(error, SHOAL_E_FORMAT,
            "%s: tensor %s has %llu bytes: a tokenizer has %llu at the most", tensor->file->path,
            tensor->name, (unsigned long long)bytes, MOST_PIECES_BYTES);
    TRY(allowance_take(reading, tensor->file->path, bytes, error));
    pieces = mem_alloc((size_t)bytes);
    if (!pieces) FAIL_MEMORY(error);
    status = file_read_at(tensor->file, tensor->offset, pieces, bytes, error);
    if (!status)
        status = tokenizer_from_sentencepiece(
            pieces, (size_t)bytes, tensor->file->path, reading, tokenizer, error);
    mem_free(pieces);
    return status;
}

#define KEY_JSON "tokenizer.huggingface.json"
#define KEY_VOCAB "tokenizer.ggml.model"
#define PIECES "spiece_model"

bool tokens_within(const struct checkpoint *text)
{
    return checkpoint_metadata(text, KEY_JSON) || checkpoint_metadata(text, KEY_VOCAB) ||
           source_probe(text, PIECES);
}

/* What a text encoder's file brings: a whole tokenizer.json, a vocabulary, a SentencePiece model.
 */
static enum shoal_status open_own(struct allowance *reading, const struct shoal_model *model,
    struct tokenizer **tokenizer, struct shoal_error *error)
{
    const struct checkpoint *text = model->checkpoints[FAMILY_TEXT];
    const char *json = checkpoint_metadata(text, KEY_JSON);
    const struct checkpoint_tensor *pieces = source_probe(text, PIECES);

    if (json)
        return tokenizer_parse(
            json, strlen(json), checkpoint_path(text), reading, tokenizer, error);
    if (checkpoint_metadata(text, KEY_VOCAB)) return open_vocab(text, reading, tokenizer, error);
    if (pieces) return open_pieces(pieces, reading, tokenizer, error);
    FAIL(error, SHOAL_E_MISSING,
        "no tokenizer: neither tokenizer.json nor spiece.model is in the model's folder or in its "
        "tokenizer/, and the text encoder brings none; name one with --tokenizer: the folder "
        "tokenizer/ of the model's original repository has it");
}

/* ---- opening ---- */

static enum shoal_status open_one(const struct shoal_model_paths *paths, int which,
    struct allowance *reading, struct shoal_model *model, struct shoal_error *error)
{
    struct model_tokenizer *to = &model->tokenizers[which];
    const uint64_t before = reading->bytes;
    enum shoal_status status;

    TRY(find(paths, which, &to->path, error));
    if (to->path)
        status = tokenizer_open_within(to->path, reading, &to->tokenizer, error);
    else if (!which)
        status = open_own(reading, model, &to->tokenizer, error);
    else
        FAIL(error, SHOAL_E_MISSING,
            "no second tokenizer: %s takes the prompt as T5's tokens too, and there is no "
            "t5_tokenizer/ in the model's folder; name T5's tokenizer.json or spiece.model with "
            "--tokenizer-2: the folder tokenizer/ of T5 v1's repositories has it",
            model->parts[FAMILY_DIT]->family);
    to->bytes = reading->bytes - before;
    return status;
}

/* What the template is made of must be a token of its own: another family's tokenizer has none. */
static enum shoal_status check_mark(
    const struct model_tokenizer *t, const char *path, const char *mark, struct shoal_error *error)
{
    int32_t *ids = NULL;
    size_t count;

    TRY(tokenizer_encode(t->tokenizer, mark, &ids, &count, error));
    mem_free(ids);
    if (count != 1)
        FAIL(error, SHOAL_E_INVALID,
            "%s: the tokenizer has no token \"%s\", which this model's prompts need: it is another "
            "model's; name the text encoder's own with --tokenizer",
            path, mark);
    return SHOAL_OK;
}

static enum shoal_status check(
    const struct shoal_model *model, int which, bool ends, struct shoal_error *error)
{
    const struct model_tokenizer *t = &model->tokenizers[which];
    const struct checkpoint *text = model->checkpoints[FAMILY_TEXT];
    const char *path = t->path ? t->path : checkpoint_path(text);
    const struct dit_text *wanted = text_of(model);
    int64_t vocabulary = text_config(model->parts[FAMILY_TEXT])->vocabulary;

    if (!which && (int64_t)tokenizer_vocab(t->tokenizer) > vocabulary)
        FAIL(error, SHOAL_E_INVALID,
            "the tokenizer has %lld tokens, but the text encoder %s only %lld: they are not of the "
            "same model",
            (long long)tokenizer_vocab(t->tokenizer), checkpoint_path(text), (long long)vocabulary);
    if (!which && strstr(wanted->before, CHAT_MARK)) TRY(check_mark(t, path, CHAT_MARK, error));
    if (!which && wanted->empty) TRY(check_mark(t, path, wanted->empty, error));
    if (ends && tokenizer_end(t->tokenizer) < 0)
        FAIL(error, SHOAL_E_INVALID,
            "%s: the tokenizer ends no text, as T5's, which is needed here, does: name that with "
            "%s",
            path, which ? "--tokenizer-2" : "--tokenizer");
    return SHOAL_OK;
}

enum shoal_status tokens_open(const struct shoal_model_paths *paths, struct allowance *reading,
    struct shoal_model *model, struct shoal_error *error)
{
    const struct dit_text *text = text_of(model);

    TRY(open_one(paths, 0, reading, model, error));
    TRY(check(model, 0, text->ends, error));
    if (!text->second && paths->second_tokenizer)
        FAIL(error, SHOAL_E_INVALID,
            "--tokenizer-2: %s takes prompts in one tokenizer; leave it out",
            model->parts[FAMILY_DIT]->family);
    if (!text->second) return SHOAL_OK;
    TRY(open_one(paths, 1, reading, model, error));
    return check(model, 1, true, error);
}

void tokens_close(struct shoal_model *model)
{
    for (int i = 0; i < MODEL_TOKENIZERS; i++) {
        tokenizer_close(&model->tokenizers[i].tokenizer);
        mem_free(model->tokenizers[i].path);
        model->tokenizers[i].path = NULL;
    }
}

/* ---- encoding ---- */

enum shoal_status tokens_encode(const struct shoal_model *model, const char *prompt,
    struct chat_tokens tokens[MODEL_TOKENIZERS], struct shoal_error *error)
{
    const struct dit_text *text = text_of(model);
    const struct chat chat = {.before = text->before,
        .after = text->after,
        .ends = text->ends,
        .most = (size_t)(model->defaults.max_tokens + text->skip)};
    const struct chat second = {
        .before = "", .after = "", .ends = true, .most = (size_t)text->second_most};

    TRY(chat_encode(model->tokenizers[0].tokenizer, &chat, prompt, &tokens[0], error));
    if (!tokens[0].count && text->empty) {
        mem_free(tokens[0].ids);
        tokens[0].ids = NULL;
        TRY(chat_encode(model->tokenizers[0].tokenizer, &chat, text->empty, &tokens[0], error));
    }
    if (tokens[0].count <= (size_t)text->skip)
        FAIL(error, SHOAL_E_FORMAT,
            "the tokenizer makes %zu tokens of the chat template, which has more than %d: it is "
            "not this model's",
            tokens[0].count, (int)text->skip);
    if (!text->second) return SHOAL_OK;
    return chat_encode(model->tokenizers[1].tokenizer, &second, prompt, &tokens[1], error);
}
