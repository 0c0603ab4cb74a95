/* The unigram model: a sorted vocabulary, and the best path through a text. */
#include "tokenizer/unigram.h"

#include "tokenizer/tokenizer.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define UNKNOWN_PENALTY 10 /* below the lowest score */

/* ---- loading ---- */

enum shoal_status unigram_init(
    struct unigram *unigram, size_t room, bool sentencepiece, struct shoal_error *error)
{
    *unigram = (struct unigram){.sentencepiece = sentencepiece,
        .unknown_id = -1,
        .lowest = sentencepiece ? (double)FLT_MAX : (double)INFINITY,
        .highest = (double)FLT_MIN};
    for (int byte = 0; byte < 256; byte++)
        unigram->byte_ids[byte] = -1;
    if (!room) FAIL(error, SHOAL_E_FORMAT, "the vocabulary is empty");
    if (room > TOKENIZER_MAX_IDS)
        FAIL(
            error, SHOAL_E_FORMAT, "there are %zu pieces; %d are allowed", room, TOKENIZER_MAX_IDS);
    unigram->pieces = mem_calloc(room, sizeof *unigram->pieces);
    if (!unigram->pieces) FAIL_MEMORY(error);
    unigram->room = room;
    return SHOAL_OK;
}

uint64_t unigram_bytes(uint64_t count, uint64_t text_bytes)
{
    return count * sizeof(struct unigram_piece) + 3 * text_bytes + 4096; /* it grows by doubling */
}

static uint64_t head_of(const char *text, size_t bytes)
{
    uint64_t head = 0;

    for (size_t i = 0; i < 8; i++)
        head = head << 8 | (i < bytes ? (unsigned char)text[i] : 0);
    return head;
}

/* The byte that "<0x41>" stands for, or -1. */
static int byte_of(const char *text, size_t bytes)
{
    char again[8];
    unsigned int byte;

    if (bytes != 6 || sscanf(text, "<0x%2X>", &byte) != 1) return -1;
    snprintf(again, sizeof again, "<0x%02X>", byte & 255);
    return memcmp(again, text, 6) ? -1 : (int)byte;
}

/* Pieces that no text is cut into. */
static enum shoal_status add_apart(struct unigram *u, const char *text, size_t bytes, int32_t id,
    enum unigram_type type, struct shoal_error *error)
{
    char copy[8] = "";
    int byte;

    if (type == UNIGRAM_UNKNOWN) {
        if (u->unknown_id >= 0)
            FAIL(error, SHOAL_E_FORMAT, "pieces %d and %d are both of the unknown type",
                u->unknown_id, id);
        u->unknown_id = id;
    }
    if (type != UNIGRAM_BYTE) return SHOAL_OK;
    memcpy(copy, text, bytes < 7 ? bytes : 7);
    byte = byte_of(copy, bytes);
    if (byte < 0 || u->byte_ids[byte] >= 0)
        FAIL(error, SHOAL_E_FORMAT,
            "piece %d, \"%.*s\", is of the byte type and does not name a byte as no other does", id,
            (int)bytes, text);
    u->byte_ids[byte] = id;
    return SHOAL_OK;
}

enum shoal_status unigram_add(struct unigram *u, const char *text, size_t bytes, double score,
    enum unigram_type type, struct shoal_error *error)
{
    struct unigram_piece *piece = &u->pieces[u->count];
    int32_t id = u->id_end;

    if ((size_t)id >= u->room)
        FAIL(error, SHOAL_E_FORMAT, "there are more pieces than the %zu counted", u->room);
    if (!bytes || bytes > UNIGRAM_MAX_PIECE || memchr(text, 0, bytes))
        FAIL(error, SHOAL_E_FORMAT,
            "piece %d has %zu bytes or a 0 among them; 1 to %d others are allowed", id, bytes,
            UNIGRAM_MAX_PIECE);
    if (!isfinite(score))
        FAIL(error, SHOAL_E_FORMAT, "the score of piece %d, \"%.*s\", is not finite", id,
            (int)bytes, text);
    u->id_end = id + 1;
    switch (type) {
    case UNIGRAM_UNUSED:
        return SHOAL_OK;
    case UNIGRAM_UNKNOWN:
    case UNIGRAM_CONTROL:
    case UNIGRAM_BYTE:
        return add_apart(u, text, bytes, id, type, error);
    case UNIGRAM_NORMAL:
        if (score < u->lowest) u->lowest = score;
        if (score > u->highest) u->highest = score;
        break;
    case UNIGRAM_USER_DEFINED:
        u->user_defined++;
        break;
    default:
        FAIL(error, SHOAL_E_FORMAT, "piece %d, \"%.*s\", is of the type %d; 1 to 6 are known", id,
            (int)bytes, text, (int)type);
    }
    if (u->text.used + bytes > UINT32_MAX)
        FAIL(error, SHOAL_E_FORMAT, "the pieces have too much text");
    *piece = (struct unigram_piece){.head = head_of(text, bytes),
        .score = score,
        .at = (uint32_t)u->text.used,
        .bytes = (uint16_t)bytes,
        .user_defined = type == UNIGRAM_USER_DEFINED,
        .id = id};
    u->count++;
    return buffer_append(&u->text, text, bytes, error);
}

/* The vocabulary's text while it is sorted, as qsort has no word for it. */
static _Thread_local const char *sorted_text;

static int by_text(const void *a, const void *b)
{
    const struct unigram_piece *x = a, *y = b;
    int order;

    if (x->head != y->head) return x->head < y->head ? -1 : 1;
    order =
        memcmp(sorted_text + x->at, sorted_text + y->at, x->bytes < y->bytes ? x->bytes : y->bytes);
    if (order) return order;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static bool same_text(
    const struct unigram *u, const struct unigram_piece *a, const struct unigram_piece *b)
{
    return a->head == b->head && a->bytes == b->bytes &&
           !memcmp(u->text.data + a->at, u->text.data + b->at, a->bytes);
}

/* Of pieces of one text the last counts in a tokenizer.json; in a model there is but one. */
static enum shoal_status sort_pieces(struct unigram *u, struct shoal_error *error)
{
    size_t kept = 0;

    sorted_text = u->text.data;
    qsort(u->pieces, u->count, sizeof *u->pieces, by_text);
    for (size_t i = 0; i < u->count; i++) {
        const struct unigram_piece *piece = &u->pieces[i];

        if (kept && same_text(u, &u->pieces[kept - 1], piece)) {
            if (u->sentencepiece)
                FAIL(error, SHOAL_E_FORMAT, "pieces %d and %d are both \"%.*s\"",
                    u->pieces[kept - 1].id, piece->id, (int)piece->bytes, u->text.data + piece->at);
            kept--;
        }
        u->pieces[kept++] = *piece;
    }
    u->count = kept;
    for (size_t i = 0; i < kept; i++)
        u->starts[(u->pieces[i].head >> 56) + 1] = (uint32_t)i + 1;
    for (size_t b = 1; b < 257; b++)
        if (!u->starts[b]) u->starts[b] = u->starts[b - 1];
    return SHOAL_OK;
}

enum shoal_status unigram_finish(struct unigram *u, struct shoal_error *error)
{
    if (!u->count) FAIL(error, SHOAL_E_FORMAT, "the vocabulary has no piece to cut a text into");
    TRY(sort_pieces(u, error));
    if (u->sentencepiece && u->unknown_id < 0)
        FAIL(error, SHOAL_E_FORMAT, "no piece is of the unknown type");
    if (u->unknown_id >= u->id_end)
        FAIL(error, SHOAL_E_FORMAT, "\"unk_id\" is %d; there are %d pieces", u->unknown_id,
            u->id_end);
    for (int byte = 0; byte < 256 && u->byte_fallback; byte++) {
        char text[8];

        snprintf(text, sizeof text, "<0x%02X>", (unsigned int)byte);
        if (!u->sentencepiece) u->byte_ids[byte] = unigram_find(u, text, 6);
        if (u->sentencepiece && u->byte_ids[byte] < 0)
            FAIL(error, SHOAL_E_FORMAT,
                "there is no piece \"%s\", though unknown characters are to become bytes", text);
    }
    return SHOAL_OK;
}

void unigram_fini(struct unigram *unigram)
{
    mem_free(unigram->pieces);
    mem_free(unigram->text.data);
    *unigram = (struct unigram){0};
}

/* ---- looking up ---- */

/* Pieces that the text may begin with, as one byte after another is taken. */
struct search {
    size_t low, high; /* they share the first `depth` bytes */
    size_t depth;
};

static struct search search_begin(const struct unigram *u, unsigned char byte)
{
    return (struct search){u->starts[byte], u->starts[byte + 1], 1};
}

static unsigned char byte_at(const struct unigram *u, size_t piece, size_t depth)
{
    return (unsigned char)u->text.data[u->pieces[piece].at + depth];
}

/* The piece that is just what was taken, or NULL. It leaves the search. */
static const struct unigram_piece *search_take(const struct unigram *u, struct search *s)
{
    if (s->low == s->high || u->pieces[s->low].bytes != s->depth) return NULL;
    return &u->pieces[s->low++];
}

/* The first of [low, high) whose byte at `depth` is above `limit`. */
static size_t first_above(const struct unigram *u, const struct search *s, int limit)
{
    size_t low = s->low, high = s->high;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (byte_at(u, middle, s->depth) <= limit)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* After search_take: those left are longer than what was taken. */
static void search_step(const struct unigram *u, struct search *s, unsigned char byte)
{
    s->low = first_above(u, s, byte - 1);
    s->high = first_above(u, s, byte);
    s->depth++;
}

int32_t unigram_find(const struct unigram *u, const char *text, size_t bytes)
{
    struct search s;

    if (!bytes) return -1;
    s = search_begin(u, (unsigned char)text[0]);
    for (;;) {
        const struct unigram_piece *piece = search_take(u, &s);

        if (s.depth == bytes) return piece ? piece->id : -1;
        if (s.low == s.high) return -1;
        search_step(u, &s, (unsigned char)text[s.depth]);
    }
}

size_t unigram_user_defined(const struct unigram *u, const char *text, size_t bytes)
{
    size_t longest = 0;
    struct search s;

    if (!u->user_defined || !bytes) return 0;
    s = search_begin(u, (unsigned char)text[0]);
    for (;;) {
        const struct unigram_piece *piece = search_take(u, &s);

        if (piece && piece->user_defined) longest = s.depth;
        if (s.depth == bytes || s.low == s.high) return longest;
        search_step(u, &s, (unsigned char)text[s.depth]);
    }
}

/* ---- encoding ---- */

/* Of the pieces that end here, the one that the best path to here ends with. */
struct unigram_node {
    double score;  /* of the whole path */
    int32_t begin; /* of that piece; -1: there is no path to here */
    int32_t id;
};

void unigram_scratch_fini(struct unigram_scratch *scratch)
{
    mem_free(scratch->nodes);
    *scratch = (struct unigram_scratch){0};
}

static enum shoal_status scratch_reserve(
    struct unigram_scratch *scratch, size_t bytes, struct shoal_error *error)
{
    if (bytes > INT32_MAX - 1) FAIL(error, SHOAL_E_INVALID, "the text has %zu bytes", bytes);
    if (bytes + 1 > scratch->room) {
        unigram_scratch_fini(scratch);
        scratch->nodes = mem_calloc(bytes + 1, sizeof *scratch->nodes);
        if (!scratch->nodes) FAIL_MEMORY(error);
        scratch->room = bytes + 1;
    }
    scratch->nodes[0] = (struct unigram_node){.begin = -1};
    for (size_t i = 1; i <= bytes; i++)
        scratch->nodes[i].begin = -1;
    return SHOAL_OK;
}

static size_t character_bytes(char first)
{
    unsigned char c = (unsigned char)first;

    return c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

/* The path to `begin` and on by a piece to `end`, if it is better than what is there. */
static void offer(const struct unigram *u, struct unigram_node *nodes, size_t begin, size_t end,
    double score, int32_t id)
{
    double sum = score + nodes[begin].score;
    struct unigram_node *node = &nodes[end];

    if (u->sentencepiece) sum = (double)(float)sum;
    if (node->begin >= 0 && !(sum > node->score)) return;
    *node = (struct unigram_node){.score = sum, .begin = (int32_t)begin, .id = id};
}

/* SentencePiece favours pieces that a user asked for, whatever their score. */
static double score_of(const struct unigram *u, const struct unigram_piece *piece)
{
    if (!piece->user_defined) return piece->score;
    return (double)(float)((double)((float)piece->bytes * (float)u->highest) - 0.1);
}

static void find_paths(
    const struct unigram *u, struct unigram_node *nodes, const char *text, size_t bytes)
{
    double unknown = u->lowest - UNKNOWN_PENALTY;

    if (u->sentencepiece) unknown = (double)((float)u->lowest - (float)UNKNOWN_PENALTY);
    for (size_t begin = 0, length; begin < bytes; begin += length) {
        struct search s = search_begin(u, (unsigned char)text[begin]);
        bool single = false; /* whether the character alone is a piece */

        length = character_bytes(text[begin]);
        if (length > bytes - begin) length = bytes - begin;
        while (s.low < s.high) {
            const struct unigram_piece *piece = search_take(u, &s);

            if (piece) {
                offer(u, nodes, begin, begin + s.depth, score_of(u, piece), piece->id);
                if (s.depth == length) single = true;
            }
            if (begin + s.depth == bytes) break;
            search_step(u, &s, (unsigned char)text[begin + s.depth]);
        }
        if (!single) offer(u, nodes, begin, begin + length, unknown, u->unknown_id);
    }
}

/* Whether these bytes become bytes' pieces. */
static bool become_bytes(const struct unigram *u, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes && u->byte_fallback; i++)
        if (u->byte_ids[(unsigned char)text[i]] < 0) return false;
    return u->byte_fallback;
}

/* Ids of a run of unknown characters, last first, as the path is followed from its end. */
static enum shoal_status encode_unknown(const struct unigram *u, const char *text, size_t bytes,
    int32_t *ids, size_t *count, struct shoal_error *error)
{
    /* Here alone a run that has a score too low to be taken may be a piece. */
    int32_t id = u->sentencepiece ? -1 : unigram_find(u, text, bytes);

    if (id < 0 && become_bytes(u, text, bytes)) {
        while (bytes)
            ids[(*count)++] = u->byte_ids[(unsigned char)text[--bytes]];
        return SHOAL_OK;
    }
    if (id < 0) id = u->unknown_id;
    if (id < 0)
        FAIL(error, SHOAL_E_FORMAT,
            "the tokenizer's vocabulary has no piece for \"%.*s\" and none for what is unknown",
            (int)(bytes < 64 ? bytes : character_bytes(*text)), text);
    ids[(*count)++] = id;
    return SHOAL_OK;
}

enum shoal_status unigram_encode(const struct unigram *u, struct unigram_scratch *scratch,
    const char *text, size_t bytes, int32_t *ids, size_t *count, struct shoal_error *error)
{
    size_t used = 0;

    TRY(scratch_reserve(scratch, bytes, error));
    find_paths(u, scratch->nodes, text, bytes);
    for (size_t end = bytes; end;) {
        const struct unigram_node *node = &scratch->nodes[end];
        size_t begin = (size_t)node->begin;

        if (node->id != u->unknown_id) {
            ids[used++] = node->id;
        } else {
            while (begin && scratch->nodes[begin].id == u->unknown_id)
                begin = (size_t)scratch->nodes[begin].begin;
            TRY(encode_unknown(u, text + begin, end - begin, ids, &used, error));
        }
        end = begin;
    }
    for (size_t i = 0; i < used / 2; i++) {
        int32_t other = ids[i];

        ids[i] = ids[used - 1 - i];
        ids[used - 1 - i] = other;
    }
    *count = used;
    return SHOAL_OK;
}
