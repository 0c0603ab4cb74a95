/*
 * Text to token ids: byte-level BPE and unigram models as a Hugging Face tokenizer.json describes
 * them, and SentencePiece's unigram models.
 *
 * The ids are those of the `tokenizers` library, or of `sentencepiece` for its own models. What a
 * file asks for and this does not do is refused by name when the file is opened. It does not decode
 * ids back to text, and it knows nothing of prompts and roles: see chat.h.
 */
#ifndef TOKENIZER_TOKENIZER_H
#define TOKENIZER_TOKENIZER_H

#include "base/allowance.h"

#include <jansson.h>

#define TOKENIZER_MAX_FILE (128u << 20)
#define TOKENIZER_MAX_TEXT (32u << 10) /* bytes of text to encode */
#define TOKENIZER_MAX_IDS (1 << 22)

struct tokenizer;

/* `path` is a tokenizer.json, a SentencePiece model (told by its content), or the folder that holds
 * either, as tokenizer.json or spiece.model. */
enum shoal_status tokenizer_open(
    const char *path, struct tokenizer **tokenizer, struct shoal_error *error) SHOAL_CHECKED;

/* The same within an allowance, to which it adds what it takes at the most; NULL: without. */
enum shoal_status tokenizer_open_within(const char *path, struct allowance *allowance,
    struct tokenizer **tokenizer, struct shoal_error *error) SHOAL_CHECKED;

/* A tokenizer.json from memory (for models: sentencepiece.h); `label` stands for the path in
 * messages. */
enum shoal_status tokenizer_parse(const char *json, size_t bytes, const char *label,
    struct allowance *allowance, struct tokenizer **tokenizer,
    struct shoal_error *error) SHOAL_CHECKED;

/* The same from parsed JSON, which stays the caller's. */
enum shoal_status tokenizer_from_json(const json_t *root, const char *label,
    struct tokenizer **tokenizer, struct shoal_error *error) SHOAL_CHECKED;

void tokenizer_close(struct tokenizer **tokenizer);

/* One more than the highest id that can come out. */
int32_t tokenizer_vocab(const struct tokenizer *tokenizer);

/*
 * The last id that the tokenizer's own template sets after a text, such as T5's "</s>", or -1: it
 * sets none, as byte-level BPE's here.
 */
int32_t tokenizer_end(const struct tokenizer *tokenizer);

/* Whether `text` can be encoded: valid UTF-8, and not too long. */
enum shoal_status tokenizer_check_text(const char *text, struct shoal_error *error) SHOAL_CHECKED;

/*
 * The ids of `text`, valid UTF-8 of at most TOKENIZER_MAX_TEXT bytes, without any that a template
 * would add. *ids is mem_free'd by the caller. May be called from several threads at once.
 */
enum shoal_status tokenizer_encode(const struct tokenizer *tokenizer, const char *text,
    int32_t **ids, size_t *count, struct shoal_error *error) SHOAL_CHECKED;

/* The same with what the tokenizer's own template adds before and after. */
enum shoal_status tokenizer_encode_with_template(const struct tokenizer *tokenizer,
    const char *text, int32_t **ids, size_t *count, struct shoal_error *error) SHOAL_CHECKED;

#endif
