/* SentencePiece's normalisation. */
#include "tokenizer/spaces.h"

#include "tokenizer/normalize.h"

#include <utf8proc.h>

/* How many bytes the next thing takes, and what it becomes. */
static size_t take(const struct spaces *spaces, const struct unigram *unigram, const char *text,
    size_t bytes, const char **made, size_t *made_bytes)
{
    size_t length = unigram_user_defined(unigram, text, bytes);
    utf8proc_int32_t point;

    *made = text;
    if (!length) {
        length = charsmap_match(&spaces->map, text, bytes, true, made);
        if (length) {
            *made_bytes = strlen(*made);
            return length;
        }
        length = (size_t)utf8proc_iterate(
            (const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, &point);
    }
    *made_bytes = length;
    return length;
}

static enum shoal_status append_space(
    const struct spaces *spaces, struct buffer *out, struct shoal_error *error)
{
    return spaces->mark ? buffer_append(out, SPACES_MARK, strlen(SPACES_MARK), error)
                        : buffer_append(out, " ", 1, error);
}

static enum shoal_status append_marked(const struct spaces *spaces, const char *text, size_t bytes,
    struct buffer *out, struct shoal_error *error)
{
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == ' ')
            TRY(append_space(spaces, out, error));
        else
            TRY(buffer_append(out, text + i, 1, error));
    }
    return normalizer_check_length(out, error);
}

static void drop_last_spaces(const struct spaces *spaces, struct buffer *out)
{
    const char *space = spaces->mark ? SPACES_MARK : " ";
    size_t bytes = strlen(space);

    while (out->used >= bytes && !memcmp(out->data + out->used - bytes, space, bytes))
        out->used -= bytes;
}

enum shoal_status spaces_apply(const struct spaces *spaces, const struct unigram *unigram,
    const char *text, size_t bytes, struct buffer *out, struct shoal_error *error)
{
    bool after_space = spaces->fold, begun = false;
    const char *made;
    size_t count;

    out->used = 0;
    while (bytes) {
        size_t taken = take(spaces, unigram, text, bytes, &made, &count);

        text += taken;
        bytes -= taken;
        /* The added one comes only if something else than spaces does. */
        if (!begun && spaces->fold && count == 1 && *made == ' ') continue;
        if (!begun && spaces->extra_begin) TRY(append_space(spaces, out, error));
        begun = true;
        while (after_space && count && *made == ' ') {
            made++;
            count--;
        }
        TRY(append_marked(spaces, made, count, out, error));
        if (count) after_space = spaces->fold && made[count - 1] == ' ';
        if (!spaces->fold) after_space = false;
    }
    if (!begun) return SHOAL_OK;
    if (spaces->fold) drop_last_spaces(spaces, out);
    return spaces->extra_end ? append_space(spaces, out, error) : SHOAL_OK;
}
