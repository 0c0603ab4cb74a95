/* Byte-pair encoding: the model's tables, and the merge loop over a heap. */
#include "tokenizer/bpe.h"

#include "base/memory.h"
#include "tokenizer/json_field.h"
#include "tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- loading ---- */

/*
 * The character that stands for a byte in a byte-level vocabulary: itself where it is printable in
 * Latin-1, else one of 256, 257, ... in turn.
 */
static int32_t byte_symbol(int byte)
{
    int32_t other = 256;

    for (int b = 0; b <= byte; b++) {
        bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b != 0xad);

        if (b == byte) return printable ? b : other;
        if (!printable) other++;
    }
    return other;
}

/* Bytes that no UTF-8 text holds need no token. */
static bool byte_occurs(int byte)
{
    return byte != 0xc0 && byte != 0xc1 && byte < 0xf5;
}

static enum shoal_status load_ids(struct bpe *bpe, json_t *vocab, struct shoal_error *error)
{
    uint8_t *seen;
    const char *token;
    json_t *value;

    if (!json_is_object(vocab) || !json_object_size(vocab))
        FAIL(error, SHOAL_E_FORMAT, "the model has no \"vocab\"");
    seen = mem_calloc(TOKENIZER_MAX_IDS / 8, 1);
    if (!seen) FAIL_MEMORY(error);
    json_object_foreach(vocab, token, value)
    {
        json_int_t id = json_integer_value(value);

        if (!json_is_integer(value) || id < 0 || id >= TOKENIZER_MAX_IDS) {
            mem_free(seen);
            FAIL(error, SHOAL_E_FORMAT,
                "the id of the token \"%.100s\" is not a whole number from 0 to %d", token,
                TOKENIZER_MAX_IDS - 1);
        }
        if (seen[id / 8] >> id % 8 & 1) {
            mem_free(seen);
            FAIL(error, SHOAL_E_FORMAT, "the token \"%.100s\" has the id %d, as another one has",
                token, (int)id);
        }
        seen[id / 8] = (uint8_t)(seen[id / 8] | 1 << id % 8);
        if (id >= bpe->id_end) bpe->id_end = (int32_t)id + 1;
    }
    mem_free(seen);
    return SHOAL_OK;
}

static enum shoal_status load_bytes(
    struct bpe *bpe, const json_t *vocab, const json_t *model, struct shoal_error *error)
{
    int missing = -1;
    bool fallback;
    const char *unknown;

    for (int byte = 0; byte < 256; byte++) {
        char symbol[8] = {0};
        const json_t *id;

        utf8proc_encode_char(byte_symbol(byte), (utf8proc_uint8_t *)symbol);
        id = json_object_get(vocab, symbol);
        bpe->byte_ids[byte] = id ? (int32_t)json_integer_value(id) : -1;
        if (!id && byte_occurs(byte) && missing < 0) missing = byte;
    }
    /* Where every byte has a token, nothing is ever unknown and these have no effect. */
    TRY(json_field_bool(model, "byte_fallback", false, &fallback, error));
    TRY(json_field_string(model, "unk_token", &unknown, error));
    if (missing >= 0 && (fallback || unknown))
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "the model has no token for byte 0x%02x but has \"%s\", which is not supported",
            missing, fallback ? "byte_fallback" : "unk_token");
    return SHOAL_OK;
}

static enum shoal_status find_token(const json_t *vocab, const char *token, size_t bytes,
    int32_t *id, size_t rank, struct shoal_error *error)
{
    const json_t *value = json_object_getn(vocab, token, bytes);

    if (!value)
        FAIL(error, SHOAL_E_FORMAT, "merge %zu: \"%.*s\" is not in the vocabulary", rank,
            (int)(bytes < 100 ? bytes : 100), token);
    *id = (int32_t)json_integer_value(value);
    return SHOAL_OK;
}

/* `joined` has room for both sides together. */
static enum shoal_status load_merge(const json_t *vocab, const char *left, size_t left_bytes,
    const char *right, size_t right_bytes, char *joined, struct bpe_merge *merge,
    struct shoal_error *error)
{
    size_t rank = (size_t)merge->rank;

    TRY(find_token(vocab, left, left_bytes, &merge->left, rank, error));
    TRY(find_token(vocab, right, right_bytes, &merge->right, rank, error));
    memcpy(joined, left, left_bytes);
    memcpy(joined + left_bytes, right, right_bytes);
    return find_token(vocab, joined, left_bytes + right_bytes, &merge->result, rank, error);
}

/* "a b", or ["a", "b"]. */
static enum shoal_status split_merge(const json_t *entry, size_t rank, const char **left,
    size_t *left_bytes, const char **right, size_t *right_bytes, struct shoal_error *error)
{
    const json_t *first = json_array_get(entry, 0), *second = json_array_get(entry, 1);

    if (json_is_string(entry)) {
        const char *space = strchr(json_string_value(entry), ' ');

        *left = json_string_value(entry);
        if (space && !strchr(space + 1, ' ')) {
            *left_bytes = (size_t)(space - *left);
            *right = space + 1;
            *right_bytes = strlen(*right);
            return SHOAL_OK;
        }
    } else if (json_array_size(entry) == 2 && json_is_string(first) && json_is_string(second)) {
        *left = json_string_value(first);
        *left_bytes = json_string_length(first);
        *right = json_string_value(second);
        *right_bytes = json_string_length(second);
        return SHOAL_OK;
    }
    FAIL(error, SHOAL_E_FORMAT, "merge %zu is not two tokens", rank);
}

static int by_pair(const void *a, const void *b)
{
    const struct bpe_merge *x = a, *y = b;

    if (x->left != y->left) return x->left < y->left ? -1 : 1;
    if (x->right != y->right) return x->right < y->right ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* Sorts, drops all but the last of equal pairs, and fills `first`. */
static void index_merges(struct bpe *bpe, size_t count)
{
    struct bpe_merge *m = bpe->merges;
    size_t kept = 0;

    if (count) qsort(m, count, sizeof *m, by_pair);
    for (size_t i = 0; i < count; i++) {
        if (kept && m[kept - 1].left == m[i].left && m[kept - 1].right == m[i].right)
            m[kept - 1] = m[i];
        else
            m[kept++] = m[i];
    }
    for (size_t i = 0; i < kept; i++)
        bpe->first[m[i].left + 1]++;
    for (int32_t id = 0; id < bpe->id_end; id++)
        bpe->first[id + 1] += bpe->first[id];
}

static enum shoal_status load_merges(
    struct bpe *bpe, const json_t *vocab, const json_t *merges, struct shoal_error *error)
{
    size_t count = json_array_size(merges), used = 0, room = 0;
    enum shoal_status status = SHOAL_OK;
    char *joined = NULL;

    if (!json_is_array(merges)) FAIL(error, SHOAL_E_FORMAT, "the model has no \"merges\"");
    if (count > TOKENIZER_MAX_IDS)
        FAIL(error, SHOAL_E_FORMAT, "the model has %zu merges; %d are allowed", count,
            TOKENIZER_MAX_IDS);
    bpe->merges = mem_calloc(count, sizeof *bpe->merges);
    bpe->first = mem_calloc((size_t)bpe->id_end + 1, sizeof *bpe->first);
    if (!bpe->merges || !bpe->first) FAIL_MEMORY(error);
    for (size_t i = 0; i < count && !status; i++) {
        const json_t *entry = json_array_get(merges, i);
        const char *left = NULL, *right = NULL;
        size_t left_bytes = 0, right_bytes = 0;

        /* A line that some merges.txt begin with. */
        if (json_is_string(entry) && !strncmp(json_string_value(entry), "#version", 8)) continue;
        status = split_merge(entry, i, &left, &left_bytes, &right, &right_bytes, error);
        if (status) break;
        if (left_bytes + right_bytes > room) {
            mem_free(joined);
            room = 2 * (left_bytes + right_bytes);
            joined = mem_alloc(room);
            if (!joined) FAIL_MEMORY(error);
        }
        bpe->merges[used].rank = (int32_t)i;
        status = load_merge(
            vocab, left, left_bytes, right, right_bytes, joined, &bpe->merges[used++], error);
    }
    mem_free(joined);
    if (!status) index_merges(bpe, used);
    return status;
}

/* Options that change ids and are not done here. */
static enum shoal_status check_options(const json_t *model, struct shoal_error *error)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *dropout = json_field(model, "dropout");
    const char *type, *affix;

    TRY(json_field_string(model, "type", &type, error));
    if (type && strcmp(type, "BPE"))
        FAIL(error, SHOAL_E_UNSUPPORTED, "the model is \"%.100s\"; only BPE is supported", type);
    if (dropout && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        FAIL(error, SHOAL_E_UNSUPPORTED, "the model has \"dropout\", which is not supported");
    for (size_t i = 0; i < 2; i++) {
        TRY(json_field_string(model, affixes[i], &affix, error));
        if (affix && *affix)
            FAIL(error, SHOAL_E_UNSUPPORTED, "the model has \"%s\", which is not supported",
                affixes[i]);
    }
    return SHOAL_OK;
}

enum shoal_status bpe_init(struct bpe *bpe, const json_t *model, struct shoal_error *error)
{
    json_t *vocab = json_object_get(model, "vocab");
    enum shoal_status status;
    bool whole;

    *bpe = (struct bpe){0};
    TRY_OR_FAIL(check_options(model, error));
    TRY_OR_FAIL(load_ids(bpe, vocab, error));
    TRY_OR_FAIL(load_bytes(bpe, vocab, model, error));
    TRY_OR_FAIL(load_merges(bpe, vocab, json_object_get(model, "merges"), error));
    TRY_OR_FAIL(json_field_bool(model, "ignore_merges", false, &whole, error));
    if (whole) bpe->words = json_incref(vocab);
    return SHOAL_OK;
fail:
    bpe_fini(bpe);
    return status;
}

void bpe_fini(struct bpe *bpe)
{
    mem_free(bpe->merges);
    mem_free(bpe->first);
    json_decref(bpe->words);
    *bpe = (struct bpe){0};
}

/* ---- encoding ---- */

/* A symbol of the word; `gone` once it has been merged into the one before. */
struct bpe_symbol {
    int32_t id;
    int32_t previous, next; /* -1 at the ends */
    bool gone;
};

/* A merge that was possible when it was queued: of the symbol at `position` and its next. */
struct bpe_pair {
    int32_t rank, position, result;
};

void bpe_scratch_fini(struct bpe_scratch *scratch)
{
    mem_free(scratch->symbols);
    mem_free(scratch->heap);
    *scratch = (struct bpe_scratch){0};
}

static enum shoal_status scratch_reserve(
    struct bpe_scratch *scratch, size_t bytes, struct shoal_error *error)
{
    if (bytes <= scratch->room) return SHOAL_OK;
    bpe_scratch_fini(scratch);
    scratch->symbols = mem_calloc(bytes, sizeof *scratch->symbols);
    /* Each byte but one begins a pair, and each merge, of which there are fewer, queues two. */
    scratch->heap = mem_calloc(3 * bytes, sizeof *scratch->heap);
    if (!scratch->symbols || !scratch->heap) FAIL_MEMORY(error);
    scratch->room = bytes;
    return SHOAL_OK;
}

static const struct bpe_merge *find_merge(const struct bpe *bpe, int32_t left, int32_t right)
{
    int32_t low = bpe->first[left], high = bpe->first[left + 1];

    while (low < high) {
        int32_t middle = low + (high - low) / 2;

        if (bpe->merges[middle].right < right)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == bpe->first[left + 1] || bpe->merges[low].right != right) return NULL;
    return &bpe->merges[low];
}

static bool comes_before(const struct bpe_pair *a, const struct bpe_pair *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->position < b->position;
}

static void heap_push(struct bpe_pair *heap, size_t *count, struct bpe_pair pair)
{
    size_t i = (*count)++;

    for (; i && comes_before(&pair, &heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = pair;
}

static struct bpe_pair heap_pop(struct bpe_pair *heap, size_t *count)
{
    struct bpe_pair top = heap[0], last = heap[--*count];
    size_t i = 0;

    for (size_t child; (child = 2 * i + 1) < *count; i = child) {
        if (child + 1 < *count && comes_before(&heap[child + 1], &heap[child])) child++;
        if (!comes_before(&heap[child], &last)) break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return top;
}

/* Queues the merge of `position` and its next symbol, if there is one. */
static void queue_pair(
    const struct bpe *bpe, struct bpe_scratch *scratch, size_t *queued, int32_t position)
{
    const struct bpe_symbol *s = scratch->symbols;
    const struct bpe_merge *merge;

    if (position < 0 || s[position].next < 0) return;
    merge = find_merge(bpe, s[position].id, s[s[position].next].id);
    if (merge)
        heap_push(scratch->heap, queued,
            (struct bpe_pair){.rank = merge->rank, .position = position, .result = merge->result});
}

static void merge_all(const struct bpe *bpe, struct bpe_scratch *scratch, int32_t bytes)
{
    struct bpe_symbol *s = scratch->symbols;
    size_t queued = 0;

    for (int32_t i = 0; i + 1 < bytes; i++)
        queue_pair(bpe, scratch, &queued, i);
    while (queued) {
        struct bpe_pair pair = heap_pop(scratch->heap, &queued);
        struct bpe_symbol *left = &s[pair.position], *right;
        const struct bpe_merge *merge;

        /* What was queued may have changed since: it still counts if it still gives the same. */
        if (left->gone || left->next < 0) continue;
        right = &s[left->next];
        merge = find_merge(bpe, left->id, right->id);
        if (!merge || merge->result != pair.result) continue;
        left->id = pair.result;
        left->next = right->next;
        right->gone = true;
        if (left->next >= 0) s[left->next].previous = pair.position;
        queue_pair(bpe, scratch, &queued, left->previous);
        queue_pair(bpe, scratch, &queued, pair.position);
    }
}

/* Whether the whole word is in the vocabulary, written in the symbols of its bytes. */
static enum shoal_status find_word(const struct bpe *bpe, const char *word, size_t bytes,
    int32_t *id, bool *found, struct shoal_error *error)
{
    const json_t *value;
    size_t used = 0;
    char *symbols = mem_alloc(2 * bytes);

    if (!symbols) FAIL_MEMORY(error);
    for (size_t i = 0; i < bytes; i++)
        used += (size_t)utf8proc_encode_char(
            byte_symbol((unsigned char)word[i]), (utf8proc_uint8_t *)symbols + used);
    value = json_object_getn(bpe->words, symbols, used);
    mem_free(symbols);
    *found = value != NULL;
    if (value) *id = (int32_t)json_integer_value(value);
    return SHOAL_OK;
}

enum shoal_status bpe_encode(const struct bpe *bpe, struct bpe_scratch *scratch, const char *word,
    size_t bytes, int32_t *ids, size_t *count, struct shoal_error *error)
{
    bool found = false;

    *count = 0;
    if (!bytes) return SHOAL_OK;
    if (bpe->words) {
        TRY(find_word(bpe, word, bytes, ids, &found, error));
        *count = found;
        if (found) return SHOAL_OK;
    }
    TRY(scratch_reserve(scratch, bytes, error));
    for (size_t i = 0; i < bytes; i++) {
        unsigned char byte = (unsigned char)word[i];

        if (bpe->byte_ids[byte] < 0)
            FAIL(error, SHOAL_E_FORMAT, "the vocabulary has no token for byte 0x%02x", byte);
        scratch->symbols[i] = (struct bpe_symbol){.id = bpe->byte_ids[byte],
            .previous = (int32_t)i - 1,
            .next = i + 1 < bytes ? (int32_t)i + 1 : -1};
    }
    merge_all(bpe, scratch, (int32_t)bytes);
    for (size_t i = 0; i < bytes; i++)
        if (!scratch->symbols[i].gone) ids[(*count)++] = scratch->symbols[i].id;
    return SHOAL_OK;
}
