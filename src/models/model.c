/* Models as data, and the builder that makes them from a checkpoint's tensors. No weight is read
 * here. */
#include "models/model.h"

#include "base/memory.h"
#include "base/size.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

void model_destroy(struct model **model)
{
    struct model *m = *model;

    if (!m) return;
    for (int32_t i = 0; i < m->block_count; i++) {
        for (int32_t w = 0; w < m->blocks[i].weight_count; w++) {
            mem_free(m->blocks[i].weights[w].name);
            mem_free(m->blocks[i].weights[w].aliases);
        }
        mem_free(m->blocks[i].weights);
    }
    mem_free(m->blocks);
    mem_free(m->config);
    mem_free(m);
    *model = NULL;
}

int32_t block_piece_count(const struct block *block)
{
    int32_t count = 0;

    for (int32_t i = 0; i < block->weight_count; i++)
        count += block->weights[i].piece_count;
    return count;
}

void block_bind(const struct block *block, device_addr base, struct matrix *weights)
{
    for (int32_t i = 0; i < block->weight_count; i++) {
        const struct weight *w = &block->weights[i];

        weights[i] = matrix_at(base + w->offset, w->dtype, w->rows, w->cols);
        weights[i].scale = w->scale;
    }
}

/* Records a failure of the builder's calls, which return nothing. */
#define BUILDER_FAIL(b, code, ...)                                                                 \
    ((b)->status = error_set((b)->error, (code), __FILE__, __LINE__, __VA_ARGS__))

void builder_begin(struct model_builder *b, const char *family, void *config,
    const struct checkpoint *checkpoint, const char *prefix, struct shoal_error *error)
{
    *b = (struct model_builder){.checkpoint = checkpoint, .prefix = prefix, .error = error};
    b->model = mem_calloc(1, sizeof *b->model);
    if (!b->model) {
        mem_free(config);
        BUILDER_FAIL(b, SHOAL_E_MEMORY, "out of memory");
        return;
    }
    b->model->family = family;
    b->model->config = config;
    b->status = scales_open(&b->scales, checkpoint, prefix, error);
}

/* Room for one more of `size` bytes. */
static void *grown(void *array, int32_t count, int32_t *room, size_t size)
{
    void *larger;

    if (count < *room) return array;
    larger = mem_realloc(array, (size_t)*room * 2 + 8, size);
    if (larger) *room = *room * 2 + 8;
    return larger;
}

int32_t builder_block(struct model_builder *b, block_forward *forward, int32_t index,
    const char *name, const char *key_prefix)
{
    struct block *blocks, *block;

    if (b->status) return 0;
    blocks = grown(b->model->blocks, b->model->block_count, &b->block_room, sizeof *blocks);
    if (!blocks) {
        BUILDER_FAIL(b, SHOAL_E_MEMORY, "out of memory");
        return 0;
    }
    b->model->blocks = blocks;
    block = &blocks[b->model->block_count];
    *block = (struct block){.forward = forward, .config = b->model->config, .index = index};
    snprintf(block->name, sizeof block->name, "%s", name);
    builder_key_prefix(b, key_prefix);
    b->weight_room = 0;
    return b->model->block_count++;
}

void builder_key_prefix(struct model_builder *b, const char *key_prefix)
{
    char **list, *own;

    if (b->status) return;
    snprintf(b->key_prefix, sizeof b->key_prefix, "%s", key_prefix);
    if (!*key_prefix) return;
    own = mem_strdup(key_prefix);
    list = grown(b->key_prefixes, b->key_prefix_count, &b->key_prefix_room, sizeof *list);
    if (list) b->key_prefixes = list;
    if (!list || !own) {
        mem_free(own);
        BUILDER_FAIL(b, SHOAL_E_MEMORY, "out of memory");
        return;
    }
    list[b->key_prefix_count++] = own;
}

/* The tensor that `name` (of `length` bytes) means in the current block, or NULL; its full name
 * goes to `full`. */
static const struct checkpoint_tensor *find(
    struct model_builder *b, const char *name, size_t length, char full[MODEL_NAME_BYTES])
{
    const char *key_prefix = b->key_prefix;
    int written;

    if (*name == '/') {
        key_prefix = "";
        name++;
        length--;
    }
    written =
        snprintf(full, MODEL_NAME_BYTES, "%s%s%.*s", b->prefix, key_prefix, (int)length, name);
    if (written < 0 || written >= MODEL_NAME_BYTES) return NULL;
    return checkpoint_find(b->checkpoint, full);
}

/* Fills the weight's pieces from the first alternative that is there whole. False: none is. */
static bool find_pieces(struct model_builder *b, const char *names, struct weight *weight)
{
    const char *at = names;
    char full[MODEL_NAME_BYTES];

    for (;;) {
        size_t length = strcspn(at, "+|");
        const struct checkpoint_tensor *tensor = find(b, at, length, full);

        if (tensor && weight->piece_count < WEIGHT_MAX_PIECES) {
            weight->pieces[weight->piece_count++] = tensor;
            at += length;
            if (*at != '+') return true;
            at++;
            continue;
        }
        if (!b->missing && !*b->first_missing)
            snprintf(b->first_missing, sizeof b->first_missing, "%s", full);
        weight->piece_count = 0;
        at += strcspn(at, "|");
        if (!*at) return false;
        at++;
    }
}

/* Its rows when it is read as rows of `cols` elements; 0: it cannot be. */
static uint64_t rows_of(const struct checkpoint_tensor *tensor, int64_t rows, int64_t cols)
{
    uint64_t count;

    if (!shape_count(&tensor->shape, &count) || !count || count % (uint64_t)cols) return 0;
    /* A matrix stored the other way round has as many elements, but not as many rows. */
    if (rows > 1 &&
        (tensor->shape.rank < 1 || count / (uint64_t)cols != (uint64_t)tensor->shape.dim[0]))
        return 0;
    return count / (uint64_t)cols;
}

/* "[1, 256]+[1, 256]": the pieces' shapes as stored, and their names. */
static void show_pieces(const struct weight *weight, char *text, size_t bytes)
{
    size_t used = 0;

    *text = 0;
    for (int32_t i = 0; i < weight->piece_count && used < bytes; i++) {
        char shape[SHAPE_TEXT_BYTES];
        int n = snprintf(text + used, bytes - used, "%s%s is %s", i ? ", " : "",
            weight->pieces[i]->name, shape_format(shape, &weight->pieces[i]->shape));

        used += n > 0 ? (size_t)n : 0;
    }
}

static void check_shape(struct model_builder *b, const struct weight *weight)
{
    uint64_t rows = 0;
    bool fits = true;

    for (int32_t i = 0; i < weight->piece_count; i++) {
        /* A vector in pieces is one row; each piece is counted in elements. */
        int64_t cols = weight->rows == 1 ? 1 : weight->cols;
        uint64_t own = rows_of(weight->pieces[i], weight->rows, cols);

        fits = fits && own && size_add(rows, own, &rows);
    }
    if (!fits || rows != (uint64_t)(weight->rows == 1 ? weight->cols : weight->rows)) {
        char shown[600];

        show_pieces(weight, shown, sizeof shown);
        BUILDER_FAIL(b, SHOAL_E_FORMAT,
            "%s: %s, but by the model's other tensors it should be [%lld, %lld]",
            weight->pieces[0]->file->path, shown, (long long)weight->rows, (long long)weight->cols);
    }
}

/* The first piece that is of another type than piece 0, or NULL. */
static const struct checkpoint_tensor *other_dtype(const struct weight *weight)
{
    for (int32_t i = 1; i < weight->piece_count; i++)
        if (weight->pieces[i]->dtype != weight->pieces[0]->dtype) return weight->pieces[i];
    return NULL;
}

static void check_dtype(struct model_builder *b, const struct weight *weight)
{
    const struct checkpoint_tensor *first = weight->pieces[0], *other = other_dtype(weight);

    if (!dtype_computes(first->dtype)) {
        BUILDER_FAIL(b, SHOAL_E_UNSUPPORTED,
            "%s: tensor %s is %s, which this build does not compute with: use a file of the same "
            "model in one of " DTYPES_COMPUTED_TEXT,
            first->file->path, first->name, dtype_name(first->dtype));
        return;
    }
    if (other)
        BUILDER_FAIL(b, SHOAL_E_UNSUPPORTED,
            "%s: tensors %s (%s) and %s (%s) must be of one type: use a file that stores them so",
            first->file->path, first->name, dtype_name(first->dtype), other->name,
            dtype_name(other->dtype));
    else if (weight->cols % dtype_block_elements(first->dtype))
        BUILDER_FAIL(b, SHOAL_E_FORMAT,
            "%s: tensor %s has rows of %lld, which are no whole blocks of its type %s",
            first->file->path, first->name, (long long)weight->cols, dtype_name(first->dtype));
}

/* The pieces' scales, of which there must be one in the end. False: there are several. */
static bool read_scales(struct model_builder *b, const struct weight *weight, float *scales)
{
    bool one = true;

    for (int32_t i = 0; i < weight->piece_count && !b->status; i++) {
        b->status = scales_find(&b->scales, weight->pieces[i], &scales[i], b->error);
        one = one && scales[i] == scales[0];
    }
    return one;
}

static void refuse_scales(struct model_builder *b, const struct weight *weight)
{
    BUILDER_FAIL(b, SHOAL_E_UNSUPPORTED,
        "%s: tensors %s and %s are one matrix and must have one scale: use a file that stores them "
        "so, or in one of " DTYPES_COMPUTED_TEXT,
        weight->pieces[0]->file->path, weight->pieces[0]->name,
        weight->pieces[weight->piece_count - 1]->name);
}

/* Appends the checked weight to the current block's bytes. */
static void place(struct model_builder *b, struct block *block, struct weight weight)
{
    struct weight *weights =
        grown(block->weights, block->weight_count, &b->weight_room, sizeof *weights);
    uint64_t total = 0;

    if (!weights) {
        BUILDER_FAIL(b, SHOAL_E_MEMORY, "out of memory");
        mem_free(weight.name);
        mem_free(weight.aliases);
        return;
    }
    /* Each piece's bytes lie within a file, so their sum does not overflow; the block's might. */
    for (int32_t i = 0; i < weight.piece_count; i++)
        total += weight.pieces[i]->bytes;
    weight.dtype = weight.piece_count ? weight.pieces[0]->dtype : DTYPE_F32;
    weight.offset = block->bytes;
    weight.bytes = total;
    if (total > UINT64_MAX / 4 || block->bytes > UINT64_MAX / 4)
        BUILDER_FAIL(b, SHOAL_E_FORMAT, "block %s is too large", block->name);
    else
        block->bytes = size_align(block->bytes + total, BLOCK_WEIGHT_ALIGNMENT);
    block->weights = weights;
    weights[block->weight_count++] = weight;
}

/* The weight's name: of its part if it has several, the first alternative's. Owned by the caller.
 */
static char *name_of(const char *names, int32_t part, bool whole)
{
    while (!whole && part-- > 0 && names[strcspn(names, "+|")] == '+')
        names += strcspn(names, "+|") + 1;
    names += *names == '/';
    return mem_format("%.*s", (int)strcspn(names, whole ? "|" : "+|"), names);
}

/* The names with the current block's prefix, but for those that begin with '/'. Owned by the
 * caller. */
static char *aliases_of(const struct model_builder *b, const char *names)
{
    const bool diffusers = !strncmp(b->key_prefix, MODEL_ALIAS_LESS, strlen(MODEL_ALIAS_LESS));
    const char *prefix = b->key_prefix + (diffusers ? strlen(MODEL_ALIAS_LESS) : 0);
    struct text text = {0};

    for (;;) {
        size_t length = strcspn(names, "+|");

        text_append(&text, "%s%.*s", *names == '/' ? "" : prefix, (int)(length - (*names == '/')),
            names + (*names == '/'));
        names += length;
        if (!*names) break;
        text_append(&text, "%c", *names++);
    }
    if (!text.failed) return text.data;
    mem_free(text.data);
    return NULL;
}

/* Adds one weight whose pieces are known; of none it is missing or an empty part. */
static void add_weight(struct model_builder *b, struct weight weight, char *name)
{
    weight.name = name;
    if (!name || (weight.rows && !weight.aliases)) {
        mem_free(name);
        mem_free(weight.aliases);
        BUILDER_FAIL(b, SHOAL_E_MEMORY, "out of memory");
        return;
    }
    if (!b->status && weight.piece_count) check_dtype(b, &weight);
    if (!b->status && weight.piece_count) check_shape(b, &weight);
    place(b, &b->model->blocks[b->model->block_count - 1], weight);
}

void builder_stack(
    struct model_builder *b, const char *names, const int64_t *rows, int32_t parts, int64_t cols)
{
    struct weight whole = {.cols = cols, .scale = 1.0f, .parts = parts, .part = -1};
    float scales[WEIGHT_MAX_PIECES] = {1.0f};
    bool apart, one;

    if (b->status) return;
    for (int32_t i = 0; i < parts; i++) {
        if (rows[i] < 1 || cols < 1) {
            BUILDER_FAIL(b, SHOAL_E_FORMAT, "%s%s: a size of %lld x %lld", b->prefix, names,
                (long long)rows[i], (long long)cols);
            return;
        }
        whole.rows += rows[i];
        whole.part_rows[i] = rows[i];
    }
    if (!find_pieces(b, names, &whole))
        b->missing++;
    else if (!b->missing)
        *b->first_missing = 0;
    one = read_scales(b, &whole, scales);
    apart = parts > 1 && whole.piece_count == parts && (other_dtype(&whole) || !one);
    if (!one && !apart && !b->status) refuse_scales(b, &whole);
    whole.scale = scales[0];
    for (int32_t i = 0; i < parts; i++) {
        struct weight weight = whole;

        if (apart) {
            weight.rows = rows[i];
            weight.pieces[0] = whole.pieces[i];
            weight.scale = scales[i];
            weight.piece_count = 1;
            weight.part = i;
        } else if (i) {
            weight.rows = 0;
            weight.piece_count = 0;
        }
        if (weight.rows) weight.aliases = aliases_of(b, names);
        add_weight(b, weight, name_of(names, i, !apart && !i));
    }
}

void builder_weight(struct model_builder *b, const char *names, int64_t rows, int64_t cols)
{
    builder_stack(b, names, &rows, 1, cols);
}

void builder_pieces(struct model_builder *b, int64_t cols)
{
    const struct block *block;
    const struct weight *weight;
    int64_t elements;

    if (b->status) return;
    block = &b->model->blocks[b->model->block_count - 1];
    weight = &block->weights[block->weight_count - 1];
    elements = dtype_block_elements(weight->dtype);
    if (weight->cols <= cols || cols % elements == 0) return;
    BUILDER_FAIL(b, SHOAL_E_UNSUPPORTED,
        "%s: tensor %s is %s, in blocks of %lld, but its columns are used %lld at a time; F32, F16 "
        "or BF16 would do",
        weight->pieces[0]->file->path, weight->pieces[0]->name, dtype_name(weight->dtype),
        (long long)elements, (long long)cols);
}

void builder_on_host(struct model_builder *b)
{
    const struct block *block;

    if (b->status) return;
    block = &b->model->blocks[b->model->block_count - 1];
    block->weights[block->weight_count - 1].on_host = true;
}

void builder_ignore(struct model_builder *b, const char *names)
{
    char full[MODEL_NAME_BYTES];

    while (!b->status && *names) {
        size_t length = strcspn(names, "|");
        const struct checkpoint_tensor *tensor = find(b, names, length, full), **list;

        names += length + (names[length] == '|');
        if (!tensor) continue;
        list = grown(b->ignored, b->ignored_count, &b->ignored_room, sizeof *list);
        if (!list) {
            BUILDER_FAIL(b, SHOAL_E_MEMORY, "out of memory");
            return;
        }
        b->ignored = list;
        list[b->ignored_count++] = tensor;
    }
}

void builder_pass(struct model_builder *b, struct pass pass)
{
    if (b->status) return;
    if (b->model->pass_count == MODEL_MAX_PASSES) {
        BUILDER_FAIL(b, SHOAL_E_UNSUPPORTED, "too many passes");
        return;
    }
    b->model->passes[b->model->pass_count++] = pass;
}

/* Whether `tensor` is a parameter that lies where the model's own do. */
static bool is_among(const struct model_builder *b, const struct checkpoint_tensor *tensor)
{
    size_t length = strlen(tensor->name), prefix_bytes = strlen(b->prefix);
    const char *name = tensor->name + prefix_bytes;

    if (strncmp(tensor->name, b->prefix, prefix_bytes) != 0) return false;
    if (!(length > 7 && strcmp(tensor->name + length - 7, ".weight") == 0) &&
        !(length > 5 && strcmp(tensor->name + length - 5, ".bias") == 0))
        return false;
    for (int32_t i = 0; i < b->key_prefix_count; i++)
        if (strncmp(name, b->key_prefixes[i], strlen(b->key_prefixes[i])) == 0) return true;
    return false;
}

/* Or ignored. */
static bool is_used(const struct model_builder *b, const struct checkpoint_tensor *tensor)
{
    const struct model *model = b->model;

    for (int32_t i = 0; i < b->ignored_count; i++)
        if (b->ignored[i] == tensor) return true;
    for (int32_t i = 0; i < model->block_count; i++)
        for (int32_t w = 0; w < model->blocks[i].weight_count; w++)
            for (int32_t p = 0; p < model->blocks[i].weights[w].piece_count; p++)
                if (model->blocks[i].weights[w].pieces[p] == tensor) return true;
    return false;
}

static void check_unused(struct model_builder *b)
{
    for (size_t i = 0; i < checkpoint_count(b->checkpoint); i++) {
        const struct checkpoint_tensor *tensor = checkpoint_at(b->checkpoint, i);

        if (!is_among(b, tensor) || is_used(b, tensor)) continue;
        BUILDER_FAIL(b, SHOAL_E_UNSUPPORTED,
            "%s: tensor %s is no part of %s as this build knows it: it is of another variant",
            tensor->file->path, tensor->name, b->model->family);
        return;
    }
}

static void check_missing(struct model_builder *b)
{
    if (b->missing == 1)
        BUILDER_FAIL(b, SHOAL_E_MISSING, "%s: tensor %s is missing", checkpoint_path(b->checkpoint),
            b->first_missing);
    else if (b->missing)
        BUILDER_FAIL(b, SHOAL_E_MISSING, "%s: %d tensors are missing, the first of them %s",
            checkpoint_path(b->checkpoint), (int)b->missing, b->first_missing);
}

enum shoal_status builder_finish(struct model_builder *b, struct model **model)
{
    *model = NULL;
    if (!b->status) check_missing(b);
    if (!b->status) check_unused(b);
    if (b->status)
        model_destroy(&b->model);
    else
        *model = b->model;
    if (*model) (*model)->input_scales = scales_of_inputs(b->checkpoint, b->prefix);
    b->model = NULL;
    scales_close(&b->scales);
    for (int32_t i = 0; i < b->key_prefix_count; i++)
        mem_free(b->key_prefixes[i]);
    mem_free(b->key_prefixes);
    mem_free(b->ignored);
    b->key_prefixes = NULL;
    b->ignored = NULL;
    b->key_prefix_count = b->ignored_count = 0;
    return b->status;
}
