/*
 * Fuzz target: the input is a tokenizer.json, then a 0 byte and a text to encode with it. Without
 * a 0 byte a text that has a bit of everything is taken, and so with a SentencePiece model, which
 * is told by its first bytes.
 *
 * Built as fuzz_safetensors.c says, with src/tokenizer and its libraries, and the corpus in
 * tests/fuzz/corpus/tokenizer.
 */
#include "base/memory.h"
#include "tokenizer/sentencepiece.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) abort();
}

static void check_failure(enum shoal_status status, const struct shoal_error *error)
{
    require(error->status == status && error->text[0]);
}

/* Ids of `text` are in range and always the same. */
static void check_encoding(const struct tokenizer *tokenizer, const char *text)
{
    struct shoal_error error = {0};
    int32_t *ids = NULL, *again = NULL;
    size_t count = 0, count_again = 0;
    enum shoal_status status =
        tokenizer_encode_with_template(tokenizer, text, &ids, &count, &error);

    if (status) {
        check_failure(status, &error);
        return;
    }
    for (size_t i = 0; i < count; i++)
        require(ids[i] >= 0 && ids[i] < tokenizer_vocab(tokenizer));
    require(
        tokenizer_encode_with_template(tokenizer, text, &again, &count_again, NULL) == SHOAL_OK);
    require(count == count_again && (!count || !memcmp(ids, again, count * sizeof *ids)));
    mem_free(ids);
    mem_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char fallback[] =
        "The cat's 2 HATS,  \u00e9e\u0301 \u4e2d\u6587\r\n\U0001f34e <|im_end|>";
    bool model = sentencepiece_begins((const char *)data, size);
    const uint8_t *zero = size && !model ? memchr(data, 0, size) : NULL;
    size_t json_bytes = zero ? (size_t)(zero - data) : size;
    struct tokenizer *tokenizer = NULL;
    struct shoal_error error = {0};
    enum shoal_status status;

    if (model)
        status = tokenizer_from_sentencepiece(data, size, "f", NULL, &tokenizer, &error);
    else
        status = tokenizer_parse((const char *)data, json_bytes, "f", NULL, &tokenizer, &error);
    if (status) {
        check_failure(status, &error);
        require(!tokenizer);
        return 0;
    }
    if (zero) {
        size_t text_bytes = size - json_bytes - 1;
        char *text = mem_alloc(text_bytes + 1);

        require(text != NULL);
        memcpy(text, zero + 1, text_bytes);
        text[text_bytes] = 0;
        check_encoding(tokenizer, text);
        mem_free(text);
    } else {
        check_encoding(tokenizer, fallback);
    }
    tokenizer_close(&tokenizer);
    require(!tokenizer);
    return 0;
}
