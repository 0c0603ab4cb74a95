/* Running a text through a tokenizer's parts. */
#include "tokenizer/inside.h"

#include <utf8proc.h>

/* A stretch of text with what patterns see in its place: the same number of bytes. */
struct piece {
    const char *text, *subject;
    size_t bytes;
};

struct encoder {
    const struct tokenizer *t;
    struct buffer normal, subject; /* of the stretch at hand */
    struct split_budget budget;
    struct bpe_scratch scratch;
    struct unigram_scratch nodes;
    const char *begin; /* where the whole text begins, or what became of its first stretch */
    int32_t *ids;
    size_t count, room;
    struct shoal_error *error;
};

static enum shoal_status reserve_ids(struct encoder *e, size_t more)
{
    if (more > e->room - e->count) {
        size_t room = 2 * e->room + more;
        int32_t *grown = mem_realloc(e->ids, room, sizeof *grown);

        if (!grown) FAIL_MEMORY(e->error);
        e->ids = grown;
        e->room = room;
    }
    return SHOAL_OK;
}

static enum shoal_status encode_piece(struct encoder *e, int32_t step, struct piece piece);

static struct piece slice(struct piece piece, size_t begin, size_t end)
{
    return (struct piece){piece.text + begin, piece.subject + begin, end - begin};
}

/* Cuts the piece and hands on its words. */
static enum shoal_status split_piece(struct encoder *e, int32_t step, struct piece piece)
{
    const struct split *split = &e->t->steps[step].split;
    struct split_cursor cursor = {
        .split = split, .subject = piece.subject, .bytes = piece.bytes, .last_end = SIZE_MAX};
    size_t done = 0, begin, end;
    bool found;

    for (;;) {
        TRY(split_next(&cursor, &e->budget, &found, &begin, &end, e->error));
        if (!found) begin = end = piece.bytes;
        if (!(split->remove && split->invert))
            TRY(encode_piece(e, step + 1, slice(piece, done, begin)));
        if (!found) return SHOAL_OK;
        if (!split->remove || split->invert)
            TRY(encode_piece(e, step + 1, slice(piece, begin, end)));
        done = end;
    }
}

static enum shoal_status prefix_piece(struct encoder *e, int32_t step, struct piece piece)
{
    bool cut = e->t->steps[step].split.code != NULL;
    char *copy = mem_alloc(2 * (piece.bytes + 1));
    enum shoal_status status;

    if (!copy) FAIL_MEMORY(e->error);
    copy[0] = copy[piece.bytes + 1] = ' ';
    memcpy(copy + 1, piece.text, piece.bytes);
    memcpy(copy + piece.bytes + 2, piece.subject, piece.bytes);
    piece = (struct piece){copy, copy + piece.bytes + 1, piece.bytes + 1};
    status = cut ? split_piece(e, step, piece) : encode_piece(e, step + 1, piece);
    mem_free(copy);
    return status;
}

/* The ids of a word, which is not empty. */
static enum shoal_status encode_word(struct encoder *e, const char *text, size_t bytes)
{
    const struct tokenizer *t = e->t;
    size_t count;

    TRY(reserve_ids(e, bytes));
    if (t->kind == TOKENIZER_BPE)
        TRY(bpe_encode(&t->bpe, &e->scratch, text, bytes, e->ids + e->count, &count, e->error));
    else
        TRY(unigram_encode(
            &t->unigram, &e->nodes, text, bytes, e->ids + e->count, &count, e->error));
    e->count += count;
    return SHOAL_OK;
}

/* Words begin at marks, each at one of its own. */
static enum shoal_status cut_at_marks(
    struct encoder *e, const struct metaspace *m, const char *text, size_t bytes)
{
    size_t mark_bytes = strlen(m->mark), begin = 0;

    for (size_t at = 1; m->cut && at + mark_bytes <= bytes; at++) {
        if (memcmp(text + at, m->mark, mark_bytes) != 0) continue;
        TRY(encode_word(e, text + begin, at - begin));
        begin = at;
    }
    return encode_word(e, text + begin, bytes - begin);
}

static enum shoal_status metaspace_piece(
    struct encoder *e, const struct metaspace *m, struct piece piece)
{
    size_t mark_bytes = strlen(m->mark);
    struct buffer marked = {0};
    bool prepend =
        m->prepend == PREPEND_ALWAYS || (m->prepend == PREPEND_FIRST && piece.text == e->begin);
    enum shoal_status status = SHOAL_OK;

    if (piece.text[0] == ' ' ||
        (piece.bytes >= mark_bytes && !memcmp(piece.text, m->mark, mark_bytes)))
        prepend = false;
    if (prepend) status = buffer_append(&marked, m->mark, mark_bytes, e->error);
    for (size_t i = 0; i < piece.bytes && !status; i++) {
        bool space = piece.text[i] == ' ';

        status = buffer_append(
            &marked, space ? m->mark : piece.text + i, space ? mark_bytes : 1, e->error);
    }
    if (!status) status = cut_at_marks(e, m, marked.data, marked.used);
    mem_free(marked.data);
    return status;
}

/* From pre-tokenizer `step` on; past the last one the piece is a word. */
static enum shoal_status encode_piece(struct encoder *e, int32_t step, struct piece piece)
{
    const struct tokenizer *t = e->t;

    if (!piece.bytes) return SHOAL_OK;
    if (step < t->step_count) {
        if (t->steps[step].metaspace.mark[0])
            return metaspace_piece(e, &t->steps[step].metaspace, piece);
        if (t->steps[step].prefix_space && piece.text[0] != ' ')
            return prefix_piece(e, step, piece);
        if (t->steps[step].split.code) return split_piece(e, step, piece);
        return encode_piece(e, step + 1, piece);
    }
    return encode_word(e, piece.text, piece.bytes);
}

/* Text without added tokens of any kind. */
static enum shoal_status encode_words(struct encoder *e, const char *text, size_t bytes)
{
    const char *subject;

    TRY(split_subject(text, bytes, &e->subject, &subject, e->error));
    return encode_piece(e, 0, (struct piece){text, subject, bytes});
}

static enum shoal_status encode_stretch(struct encoder *e, const char *text, size_t bytes);

/* Takes out the tokens of `set`, and gives what lies between them to `rest`. */
static enum shoal_status encode_around(struct encoder *e, const struct added_set *set,
    const char *text, size_t bytes,
    enum shoal_status (*rest)(struct encoder *e, const char *text, size_t bytes))
{
    struct added_match match = {.resume = 0};
    size_t done = 0;

    while (added_find(set, text, bytes, match.resume, done, &match)) {
        if (done < match.begin) TRY(rest(e, text + done, match.begin - done));
        TRY(reserve_ids(e, 1));
        e->ids[e->count++] = match.id;
        done = match.end;
    }
    return done < bytes ? rest(e, text + done, bytes - done) : SHOAL_OK;
}

/* Text without the added tokens that are sought before normalisation. */
static enum shoal_status encode_stretch(struct encoder *e, const char *text, size_t bytes)
{
    bool first = text == e->begin;

    TRY(normalizer_apply(&e->t->normalizer, text, bytes, &e->normal, e->error));
    e->begin = first ? e->normal.data : NULL;
    return encode_around(e, &e->t->added.normalized, e->normal.data, e->normal.used, encode_words);
}

enum shoal_status tokenizer_check_text(const char *text, struct shoal_error *error)
{
    size_t bytes = strlen(text);

    if (bytes > TOKENIZER_MAX_TEXT)
        FAIL(error, SHOAL_E_INVALID, "the text has %zu bytes; at most %u are allowed", bytes,
            TOKENIZER_MAX_TEXT);
    for (size_t at = 0; at < bytes;) {
        utf8proc_int32_t point;
        utf8proc_ssize_t length = utf8proc_iterate(
            (const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(bytes - at), &point);

        if (length <= 0)
            FAIL(error, SHOAL_E_INVALID, "the text is not valid UTF-8 at byte %zu (0x%02x)", at,
                (unsigned char)text[at]);
        at += (size_t)length;
    }
    return SHOAL_OK;
}

/* A text as SentencePiece has it: whole, whatever stands in it. */
static enum shoal_status encode_whole(struct encoder *e, const char *text, size_t bytes)
{
    TRY(spaces_apply(&e->t->spaces, &e->t->unigram, text, bytes, &e->normal, e->error));
    return e->normal.used ? encode_word(e, e->normal.data, e->normal.used) : SHOAL_OK;
}

static enum shoal_status append_ids(struct encoder *e, const int32_t *ids, size_t count)
{
    TRY(reserve_ids(e, count));
    for (size_t i = 0; i < count; i++)
        e->ids[e->count++] = ids[i];
    return SHOAL_OK;
}

static enum shoal_status encode_text(struct encoder *e, const char *text, bool around)
{
    const struct tokenizer_template *template = &e->t->around;
    size_t bytes = strlen(text);

    TRY(tokenizer_check_text(text, e->error));
    TRY(split_budget_init(&e->budget, e->error));
    TRY(reserve_ids(e, bytes + 1));
    if (around) TRY(append_ids(e, template->before, template->before_count));
    if (e->t->kind == TOKENIZER_SENTENCEPIECE)
        TRY(encode_whole(e, text, bytes));
    else
        TRY(encode_around(e, &e->t->added.plain, text, bytes, encode_stretch));
    return around ? append_ids(e, template->after, template->after_count) : SHOAL_OK;
}

static enum shoal_status encode(const struct tokenizer *tokenizer, const char *text, bool around,
    int32_t **ids, size_t *count, struct shoal_error *error)
{
    struct encoder e = {.t = tokenizer, .begin = text, .error = error};
    enum shoal_status status = encode_text(&e, text, around);

    if (!status) {
        *ids = e.ids;
        *count = e.count;
        e.ids = NULL;
    }
    mem_free(e.ids);
    mem_free(e.normal.data);
    mem_free(e.subject.data);
    bpe_scratch_fini(&e.scratch);
    unigram_scratch_fini(&e.nodes);
    split_budget_fini(&e.budget);
    return status;
}

enum shoal_status tokenizer_encode(const struct tokenizer *tokenizer, const char *text,
    int32_t **ids, size_t *count, struct shoal_error *error)
{
    return encode(tokenizer, text, false, ids, count, error);
}

enum shoal_status tokenizer_encode_with_template(const struct tokenizer *tokenizer,
    const char *text, int32_t **ids, size_t *count, struct shoal_error *error)
{
    return encode(tokenizer, text, true, ids, count, error);
}
