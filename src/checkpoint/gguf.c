/*
 * The GGUF header, checked. As in safetensors.c every number is hostile until it has passed here.
 * The header is walked twice: once to find its end and how much there is of everything, and once to
 * list it.
 */
#include "checkpoint/gguf.h"

#include "base/memory.h"
#include "base/size.h"
#include "checkpoint/json.h"
#include "checkpoint/keys.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long ull;

#define MAX_NAME_BYTES 1023
#define DEFAULT_ALIGNMENT 32
/* Both by the format's description; scales of quantised blocks then never lie across a page. */
#define LEAST_ALIGNMENT 8
#define MOST_ALIGNMENT (1u << 30)
#define FIRST_READ_BYTES ((size_t)1 << 18)
#define SHAPE_KEY "comfy.gguf.orig_shape."

static const uint8_t type_bytes[GGUF_TYPES] = {
    [GGUF_U8] = 1,
    [GGUF_I8] = 1,
    [GGUF_U16] = 2,
    [GGUF_I16] = 2,
    [GGUF_U32] = 4,
    [GGUF_I32] = 4,
    [GGUF_F32] = 4,
    [GGUF_BOOL] = 1,
    [GGUF_U64] = 8,
    [GGUF_I64] = 8,
    [GGUF_F64] = 8,
};

/* The format's numbers of tensor types. */
static const struct {
    uint32_t number;
    enum dtype dtype;
} tensor_types[] = {{0, DTYPE_F32}, {1, DTYPE_F16}, {2, DTYPE_Q4_0}, {3, DTYPE_Q4_1},
    {6, DTYPE_Q5_0}, {7, DTYPE_Q5_1}, {8, DTYPE_Q8_0}, {9, DTYPE_Q8_1}, {10, DTYPE_Q2_K},
    {11, DTYPE_Q3_K}, {12, DTYPE_Q4_K}, {13, DTYPE_Q5_K}, {14, DTYPE_Q6_K}, {15, DTYPE_Q8_K},
    {16, DTYPE_IQ2_XXS}, {17, DTYPE_IQ2_XS}, {18, DTYPE_IQ3_XXS}, {19, DTYPE_IQ1_S},
    {20, DTYPE_IQ4_NL}, {21, DTYPE_IQ3_S}, {22, DTYPE_IQ2_S}, {23, DTYPE_IQ4_XS}, {24, DTYPE_I8},
    {25, DTYPE_I16}, {26, DTYPE_I32}, {27, DTYPE_I64}, {28, DTYPE_F64}, {29, DTYPE_IQ1_M},
    {30, DTYPE_BF16}, {34, DTYPE_TQ1_0}, {35, DTYPE_TQ2_0}, {39, DTYPE_MXFP4}, {40, DTYPE_NVFP4},
    {41, DTYPE_Q1_0}};

/* ---- taking bytes ---- */

struct cursor {
    const char *path, *start;
    size_t at, bytes;
    uint64_t file_bytes;
    bool more; /* it failed for want of bytes that the file has */
    struct shoal_error *error;
};

static uint64_t little_endian(const char *data, size_t bytes)
{
    uint64_t value = 0;

    while (bytes-- > 0)
        value = value << 8 | (unsigned char)data[bytes];
    return value;
}

static enum shoal_status take(struct cursor *c, uint64_t bytes, const char **data)
{
    if (bytes > GGUF_MAX_HEADER_BYTES - c->at)
        FAIL(c->error, SHOAL_E_FORMAT,
            "%s: its header goes over %u bytes, the most that is read; the file is damaged",
            c->path, GGUF_MAX_HEADER_BYTES);
    if (bytes > c->file_bytes - c->at)
        FAIL(c->error, SHOAL_E_FORMAT, "%s is truncated within its header; download it again",
            c->path);
    c->more = bytes > c->bytes - c->at;
    if (c->more) FAIL(c->error, SHOAL_E_FORMAT, "%s: its header goes on", c->path);
    *data = c->start + c->at;
    c->at += (size_t)bytes;
    return SHOAL_OK;
}

static enum shoal_status take_number(struct cursor *c, size_t bytes, uint64_t *value)
{
    const char *data = NULL;

    TRY(take(c, bytes, &data));
    *value = little_endian(data, bytes);
    return SHOAL_OK;
}

static enum shoal_status take_string(struct cursor *c, const char **text, uint64_t *bytes)
{
    TRY(take_number(c, 8, bytes));
    return take(c, *bytes, text);
}

/* ---- names ---- */

static bool is_plain(char c)
{
    return c >= 0x20 && c < 0x7f;
}

/* `text` cut to fit, with question marks for all that is not plain. */
static char *show(char shown[JSON_SHOWN_BYTES], const char *text, uint64_t bytes)
{
    size_t used = bytes < JSON_SHOWN_BYTES ? (size_t)bytes : JSON_SHOWN_BYTES - 1;

    for (size_t i = 0; i < used; i++)
        shown[i] = is_plain(text[i]) ? text[i] : '?';
    shown[used] = 0;
    return shown;
}

/* A key or a tensor's name: the format wants ASCII in keys, and nobody writes other names. */
static enum shoal_status take_name(
    struct cursor *c, const char *what, const char **name, uint64_t *bytes)
{
    char shown[JSON_SHOWN_BYTES];

    TRY(take_string(c, name, bytes));
    if (!*bytes || *bytes > MAX_NAME_BYTES)
        FAIL(c->error, SHOAL_E_FORMAT, "%s: a %s has a name of %llu bytes; 1 to %d are allowed",
            c->path, what, (ull)*bytes, MAX_NAME_BYTES);
    for (uint64_t i = 0; i < *bytes; i++)
        if (!is_plain((*name)[i]))
            FAIL(c->error, SHOAL_E_FORMAT,
                "%s: %s '%s' has other than plain ASCII characters in its name", c->path, what,
                show(shown, *name, *bytes));
    return SHOAL_OK;
}

/* ---- one metadata value, one tensor's description ---- */

struct raw_pair {
    const char *key, *data;
    uint64_t key_bytes, data_bytes, count;
    enum gguf_type type;
    bool is_array;
};

#define FAIL_PAIR(c, pair, status, ...)                                                            \
    do {                                                                                           \
        char shown_[JSON_SHOWN_BYTES];                                                             \
                                                                                                   \
        error_set((c)->error, (status), __FILE__, __LINE__, __VA_ARGS__);                          \
        error_prefix((c)->error, "%s: metadata value '%s' ", (c)->path,                            \
            show(shown_, (pair)->key, (pair)->key_bytes));                                         \
        return (status);                                                                           \
    } while (0)

static enum shoal_status take_type(struct cursor *c, struct raw_pair *pair)
{
    uint64_t type;

    TRY(take_number(c, 4, &type));
    if (type >= GGUF_TYPES)
        FAIL_PAIR(
            c, pair, SHOAL_E_FORMAT, "is of type %llu, which the format does not have", (ull)type);
    pair->type = (enum gguf_type)type;
    return SHOAL_OK;
}

static enum shoal_status check_bools(struct cursor *c, const struct raw_pair *pair)
{
    for (uint64_t i = 0; pair->type == GGUF_BOOL && i < pair->count; i++)
        if (pair->data[i] & ~1)
            FAIL_PAIR(c, pair, SHOAL_E_FORMAT, "is a truth value other than 0 and 1");
    return SHOAL_OK;
}

static enum shoal_status take_pair(struct cursor *c, struct raw_pair *pair)
{
    size_t begin;

    TRY(take_name(c, "metadata value", &pair->key, &pair->key_bytes));
    TRY(take_type(c, pair));
    pair->count = 1;
    pair->is_array = pair->type == GGUF_ARRAY;
    if (pair->is_array) {
        TRY(take_type(c, pair));
        TRY(take_number(c, 8, &pair->count));
        if (pair->type == GGUF_ARRAY)
            FAIL_PAIR(
                c, pair, SHOAL_E_UNSUPPORTED, "is an array of arrays, which is supported nowhere");
    }
    begin = c->at;
    pair->data = c->start + begin;
    if (pair->type != GGUF_STRING) {
        const char *data = NULL;
        uint64_t bytes;

        if (!size_mul(pair->count, type_bytes[pair->type], &bytes)) bytes = UINT64_MAX;
        TRY(take(c, bytes, &data));
    }
    /* Each string takes 8 bytes at least, so that no count can keep this going. */
    for (uint64_t i = 0; pair->type == GGUF_STRING && i < pair->count; i++) {
        const char *text;
        uint64_t bytes;

        TRY(take_string(c, &text, &bytes));
    }
    pair->data_bytes = c->at - begin;
    return check_bools(c, pair);
}

struct raw_tensor {
    const char *name;
    uint64_t name_bytes, offset;
    struct shape shape; /* as stored: columns first */
    enum dtype dtype;
};

#define FAIL_TENSOR(c, tensor, status, ...)                                                        \
    do {                                                                                           \
        char shown_[JSON_SHOWN_BYTES];                                                             \
                                                                                                   \
        error_set((c)->error, (status), __FILE__, __LINE__, __VA_ARGS__);                          \
        error_prefix((c)->error, "%s: tensor '%s' ", (c)->path,                                    \
            show(shown_, (tensor)->name, (tensor)->name_bytes));                                   \
        return (status);                                                                           \
    } while (0)

static enum shoal_status take_dtype(struct cursor *c, struct raw_tensor *tensor)
{
    uint64_t number;

    TRY(take_number(c, 4, &number));
    for (size_t i = 0; i < sizeof tensor_types / sizeof *tensor_types; i++) {
        if (tensor_types[i].number != number) continue;
        tensor->dtype = tensor_types[i].dtype;
        return SHOAL_OK;
    }
    FAIL_TENSOR(c, tensor, SHOAL_E_UNSUPPORTED,
        "is of type number %llu, which this build does not know: newer than it, or one that was "
        "given up",
        (ull)number);
}

static enum shoal_status take_tensor(struct cursor *c, struct raw_tensor *tensor)
{
    uint64_t rank;

    TRY(take_name(c, "tensor", &tensor->name, &tensor->name_bytes));
    TRY(take_number(c, 4, &rank));
    if (rank > SHAPE_MAX_RANK)
        FAIL_TENSOR(c, tensor, SHOAL_E_UNSUPPORTED,
            "has a shape of %llu dimensions; at most %d are supported", (ull)rank, SHAPE_MAX_RANK);
    tensor->shape.rank = (int32_t)rank;
    for (int32_t i = 0; i < tensor->shape.rank; i++) {
        uint64_t dim;

        TRY(take_number(c, 8, &dim));
        if (!dim || dim > INT64_MAX)
            FAIL_TENSOR(c, tensor, SHOAL_E_FORMAT, "has a dimension of %llu", (ull)dim);
        tensor->shape.dim[i] = (int64_t)dim;
    }
    TRY(take_dtype(c, tensor));
    return take_number(c, 8, &tensor->offset);
}

/* ---- the beginning, and the first walk ---- */

struct counts {
    uint64_t tensors, pairs, text_bytes;
};

bool gguf_is(const void *start, size_t count)
{
    return count >= GGUF_MAGIC_BYTES && !memcmp(start, "GGUF", GGUF_MAGIC_BYTES);
}

static enum shoal_status take_counts(struct cursor *c, struct counts *counts)
{
    const char *magic = NULL;
    uint64_t version;

    *counts = (struct counts){0};
    TRY(take(c, GGUF_MAGIC_BYTES, &magic));
    if (!gguf_is(magic, GGUF_MAGIC_BYTES))
        FAIL(c->error, SHOAL_E_FORMAT, "%s is not a GGUF file: it does not begin with \"GGUF\"",
            c->path);
    TRY(take_number(c, 4, &version));
    if (version && !(version & 0xffff))
        FAIL(c->error, SHOAL_E_UNSUPPORTED,
            "%s is a big-endian GGUF file; only little-endian ones are read: use one of those",
            c->path);
    if (version != 2 && version != 3)
        FAIL(c->error, SHOAL_E_UNSUPPORTED,
            "%s is a GGUF file of version %llu; 2 and 3 are read: %s", c->path, (ull)version,
            version < 2 ? "convert the model anew" : "use an older conversion of the model");
    TRY(take_number(c, 8, &counts->tensors));
    return take_number(c, 8, &counts->pairs);
}

/* Walks over everything. Counts are believed once there are so many: each takes some bytes. */
static enum shoal_status walk(struct cursor *c, struct counts *counts)
{
    struct raw_pair pair;
    struct raw_tensor tensor;

    TRY(take_counts(c, counts));
    for (uint64_t i = 0; i < counts->pairs; i++) {
        TRY(take_pair(c, &pair));
        counts->text_bytes += pair.key_bytes + 1;
        if (pair.type == GGUF_STRING && !pair.is_array) counts->text_bytes += pair.data_bytes + 1;
    }
    for (uint64_t i = 0; i < counts->tensors; i++) {
        TRY(take_tensor(c, &tensor));
        counts->text_bytes += tensor.name_bytes + KEYS_CANONICAL_GROWTH + 1;
    }
    return SHOAL_OK;
}

enum shoal_status gguf_header_bytes(const char *path, const char *start, size_t bytes,
    uint64_t file_bytes, size_t *header_bytes, bool *more, struct shoal_error *error)
{
    struct shoal_error problem = {0};
    struct cursor c = {
        .path = path, .start = start, .bytes = bytes, .file_bytes = file_bytes, .error = &problem};
    struct counts counts;
    enum shoal_status status = walk(&c, &counts);

    *header_bytes = c.at;
    *more = status && c.more;
    if (*more) return SHOAL_OK;
    if (status && error) *error = problem;
    return status;
}

/* ---- the second walk ---- */

/* Copies to the pool and ends with a 0. */
static const char *put(char **to, const char *text, uint64_t bytes)
{
    char *at = memcpy(*to, text, (size_t)bytes);

    at[bytes] = 0;
    *to += bytes + 1;
    return at;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct gguf_pair *)a)->key, ((const struct gguf_pair *)b)->key);
}

static enum shoal_status list_pairs(
    struct cursor *c, const struct counts *counts, struct gguf *parsed, char **to)
{
    for (uint64_t i = 0; i < counts->pairs; i++) {
        struct gguf_pair *pair = &parsed->pairs[i];
        struct raw_pair raw;

        TRY(take_pair(c, &raw));
        *pair = (struct gguf_pair){
            .type = raw.type, .is_array = raw.is_array, .count = raw.count, .data = raw.data};
        pair->key = put(to, raw.key, raw.key_bytes);
        if (raw.type == GGUF_STRING && !raw.is_array)
            pair->text = put(to, raw.data + 8, raw.data_bytes - 8);
        parsed->pair_count++;
    }
    qsort(parsed->pairs, parsed->pair_count, sizeof *parsed->pairs, by_key);
    for (size_t i = 1; i < parsed->pair_count; i++)
        if (!by_key(&parsed->pairs[i - 1], &parsed->pairs[i])) {
            char shown[JSON_SHOWN_BYTES];

            FAIL(c->error, SHOAL_E_FORMAT, "%s: metadata value '%s' is there twice", c->path,
                json_show(shown, parsed->pairs[i].key));
        }
    return SHOAL_OK;
}

/* What the metadata say about the file itself. */
static enum shoal_status read_layout(
    struct cursor *c, const struct gguf *parsed, uint64_t *alignment)
{
    const struct gguf_pair *pair = gguf_find(parsed, "general.alignment");
    const struct gguf_pair *split = gguf_find(parsed, "split.count");

    *alignment = DEFAULT_ALIGNMENT;
    if (pair) {
        bool number = pair->type == GGUF_U32 && !pair->is_array;

        *alignment = number ? little_endian(pair->data, 4) : 0;
        if (*alignment < LEAST_ALIGNMENT || *alignment > MOST_ALIGNMENT ||
            *alignment & (*alignment - 1))
            FAIL(c->error, SHOAL_E_FORMAT,
                "%s: metadata value 'general.alignment' is no power of two from %d to %u", c->path,
                LEAST_ALIGNMENT, MOST_ALIGNMENT);
    }
    if (split && !split->is_array && type_bytes[split->type] &&
        little_endian(split->data, type_bytes[split->type]) > 1)
        FAIL(c->error, SHOAL_E_UNSUPPORTED,
            "%s is one of several parts of a split GGUF file: merge them first, e.g. with "
            "llama-gguf-split --merge",
            c->path);
    return SHOAL_OK;
}

/* The shape that a converter took from the tensor to be able to quantise it. */
static enum shoal_status read_original_shape(
    struct cursor *c, const struct gguf *parsed, const struct raw_tensor *raw, struct shape *shape)
{
    char key[sizeof SHAPE_KEY + MAX_NAME_BYTES];
    const struct gguf_pair *pair;
    uint64_t stored, count;

    memcpy(key, SHAPE_KEY, sizeof SHAPE_KEY - 1);
    memcpy(key + sizeof SHAPE_KEY - 1, raw->name, (size_t)raw->name_bytes);
    key[sizeof SHAPE_KEY - 1 + raw->name_bytes] = 0;
    pair = gguf_find(parsed, key);
    if (!pair) return SHOAL_OK;
    if (!pair->is_array || pair->type != GGUF_I32 || pair->count > SHAPE_MAX_RANK)
        FAIL_TENSOR(c, raw, SHOAL_E_FORMAT,
            "has an original shape ('%s*') that is no array of up to %d 32-bit integers", SHAPE_KEY,
            SHAPE_MAX_RANK);
    if (!shape_count(shape, &stored)) stored = 0; /* shape_bytes has refused that */
    shape->rank = (int32_t)pair->count;
    for (int32_t i = 0; i < shape->rank; i++)
        shape->dim[i] = (int32_t)little_endian(pair->data + 4 * i, 4);
    if (!shape_count(shape, &count) || count != stored)
        FAIL_TENSOR(c, raw, SHOAL_E_FORMAT,
            "has an original shape ('%s*') of other than its %llu elements", SHAPE_KEY,
            (ull)stored);
    return SHOAL_OK;
}

/* Leaves the offset relative to the first byte of data. */
static enum shoal_status read_tensor(struct cursor *c, const struct gguf *parsed,
    uint64_t alignment, struct checkpoint_tensor *tensor, char **to)
{
    char text[SHAPE_TEXT_BYTES];
    struct raw_tensor raw;

    TRY(take_tensor(c, &raw));
    tensor->dtype = raw.dtype;
    tensor->offset = raw.offset;
    tensor->shape.rank = raw.shape.rank;
    for (int32_t i = 0; i < raw.shape.rank; i++)
        tensor->shape.dim[i] = raw.shape.dim[raw.shape.rank - 1 - i];
    if ((raw.shape.rank ? raw.shape.dim[0] : 1) % dtype_block_elements(raw.dtype))
        FAIL_TENSOR(c, &raw, SHOAL_E_FORMAT, "of shape %s has rows that are no whole blocks of %s",
            shape_format(text, &tensor->shape), dtype_name(raw.dtype));
    if (!shape_bytes(&tensor->shape, raw.dtype, &tensor->bytes))
        FAIL_TENSOR(c, &raw, SHOAL_E_FORMAT, "of shape %s and type %s is too big",
            shape_format(text, &tensor->shape), dtype_name(raw.dtype));
    tensor->stored_bytes = tensor->bytes;
    if (raw.offset % alignment)
        FAIL_TENSOR(c, &raw, SHOAL_E_FORMAT,
            "has the offset %llu, which is no multiple of the alignment %llu", (ull)raw.offset,
            (ull)alignment);
    TRY(read_original_shape(c, parsed, &raw, &tensor->shape));
    tensor->name = *to;
    *to += keys_canonical(raw.name, (size_t)raw.name_bytes, *to) + 1;
    return SHOAL_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct checkpoint_tensor *x = a, *y = b;

    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(
        ((const struct checkpoint_tensor *)a)->name, ((const struct checkpoint_tensor *)b)->name);
}

/*
 * Tensors follow each other with no more between them than the alignment takes: the reference
 * implementation loads no other files. What comes after the last one it does not look at.
 */
static enum shoal_status check_coverage(const char *path, const struct checkpoint_tensor *tensors,
    size_t count, uint64_t alignment, uint64_t data_bytes, struct shoal_error *error)
{
    char name[JSON_SHOWN_BYTES], before[JSON_SHOWN_BYTES];
    uint64_t at = 0;

    for (size_t i = 0; i < count; i++) {
        const struct checkpoint_tensor *tensor = &tensors[i];

        if (tensor->offset < at)
            FAIL(error, SHOAL_E_FORMAT, "%s: tensor '%s' overlaps '%s' in the file", path,
                json_show(name, tensor->name), json_show(before, tensors[i - 1].name));
        if (tensor->offset > size_align(at, alignment))
            FAIL(error, SHOAL_E_FORMAT,
                "%s: a hole of %llu bytes that belong to no tensor lies before '%s'; the file is "
                "damaged",
                path, (ull)(tensor->offset - at), json_show(name, tensor->name));
        if (tensor->offset > data_bytes || tensor->bytes > data_bytes - tensor->offset)
            FAIL(error, SHOAL_E_FORMAT,
                "%s is truncated: tensor '%s' goes beyond its end; download it again", path,
                json_show(name, tensor->name));
        at = tensor->offset + tensor->bytes;
    }
    return SHOAL_OK;
}

static enum shoal_status list_tensors(
    struct cursor *c, const struct counts *counts, struct gguf *parsed, char **to)
{
    uint64_t alignment = 0, data_offset;
    char shown[JSON_SHOWN_BYTES];

    TRY(read_layout(c, parsed, &alignment));
    for (uint64_t i = 0; i < counts->tensors; i++) {
        TRY(read_tensor(c, parsed, alignment, &parsed->tensors[i], to));
        parsed->count++;
    }
    data_offset = size_align(c->at, alignment);
    qsort(parsed->tensors, parsed->count, sizeof *parsed->tensors, by_offset);
    TRY(check_coverage(c->path, parsed->tensors, parsed->count, alignment,
        c->file_bytes > data_offset ? c->file_bytes - data_offset : 0, c->error));
    qsort(parsed->tensors, parsed->count, sizeof *parsed->tensors, by_name);
    for (size_t i = 0; i < parsed->count; i++) {
        if (i && !by_name(&parsed->tensors[i - 1], &parsed->tensors[i]))
            FAIL(c->error, SHOAL_E_FORMAT, "%s: tensor '%s' is there twice", c->path,
                json_show(shown, parsed->tensors[i].name));
        parsed->tensors[i].offset += data_offset;
    }
    return SHOAL_OK;
}

static enum shoal_status list_all(struct cursor *c, struct gguf *parsed)
{
    struct counts counts;
    char *to;

    TRY(walk(c, &counts));
    parsed->tensors = mem_calloc((size_t)counts.tensors, sizeof *parsed->tensors);
    parsed->pairs = mem_calloc((size_t)counts.pairs, sizeof *parsed->pairs);
    parsed->text = to = mem_alloc((size_t)counts.text_bytes);
    if (!parsed->tensors || !parsed->pairs || !to)
        FAIL(c->error, SHOAL_E_MEMORY, "out of memory for the header of %s", c->path);
    c->at = 0;
    TRY(take_counts(c, &counts));
    TRY(list_pairs(c, &counts, parsed, &to));
    return list_tensors(c, &counts, parsed, &to);
}

enum shoal_status gguf_parse(const char *path, const char *header, size_t bytes,
    uint64_t file_bytes, struct gguf *parsed, struct shoal_error *error)
{
    struct cursor c = {
        .path = path, .start = header, .bytes = bytes, .file_bytes = file_bytes, .error = error};
    enum shoal_status status;

    *parsed = (struct gguf){0};
    status = list_all(&c, parsed);
    if (status) gguf_fini(parsed);
    return status;
}

/* ---- from a file ---- */

/* Reads more and more of the file until the header is there whole. */
static enum shoal_status read_header(const struct file *file, struct allowance *allowance,
    char **header, size_t *bytes, struct shoal_error *error)
{
    const uint64_t most = file->bytes < GGUF_MAX_HEADER_BYTES ? file->bytes : GGUF_MAX_HEADER_BYTES;
    size_t room = 0, wanted = FIRST_READ_BYTES;
    bool more = true;

    while (more) {
        char *grown;

        if (wanted > most) wanted = (size_t)most;
        TRY(allowance_take(allowance, file->path, wanted - room, error));
        grown = mem_realloc(*header, wanted, 1);
        if (!grown) FAIL(error, SHOAL_E_MEMORY, "out of memory for the header of %s", file->path);
        *header = grown;
        TRY(file_read_at(file, room, *header + room, wanted - room, error));
        room = wanted;
        TRY(gguf_header_bytes(file->path, *header, room, file->bytes, bytes, &more, error));
        wanted *= 2;
    }
    return SHOAL_OK;
}

enum shoal_status gguf_read(const struct file *file, struct allowance *allowance,
    struct gguf *parsed, struct shoal_error *error)
{
    enum shoal_status status;
    char *header = NULL, *fitted;
    size_t bytes = 0;

    *parsed = (struct gguf){0};
    TRY_OR_FAIL(read_header(file, allowance, &header, &bytes, error));
    /* What was read beyond the header goes back. */
    fitted = mem_realloc(header, bytes, 1);
    if (fitted) header = fitted;
    TRY_OR_FAIL(gguf_parse(file->path, header, bytes, file->bytes, parsed, error));
    parsed->header = header;
    header = NULL;
    TRY_OR_FAIL(allowance_take(
        allowance, file->path, bytes + parsed->pair_count * sizeof *parsed->pairs, error));
    parsed->bytes = bytes;
    for (size_t i = 0; i < parsed->count; i++)
        parsed->tensors[i].file = file;
    return SHOAL_OK;
fail:
    mem_free(header);
    if (status) gguf_fini(parsed);
    return status;
}

void gguf_fini(struct gguf *parsed)
{
    mem_free(parsed->tensors);
    mem_free(parsed->pairs);
    mem_free(parsed->text);
    mem_free(parsed->header);
    *parsed = (struct gguf){0};
}

/* ---- metadata ---- */

const struct gguf_pair *gguf_find(const struct gguf *parsed, const char *key)
{
    const struct gguf_pair wanted = {.key = key};

    if (!parsed->pair_count) return NULL;
    return bsearch(&wanted, parsed->pairs, parsed->pair_count, sizeof *parsed->pairs, by_key);
}

/* Of an item, with its place in the array: measured as in base/json.c. */
#define ITEM_BYTES 56
#define STRING_BYTES 48 /* more, without its characters */

uint64_t gguf_value_bytes(const struct gguf_pair *pair)
{
    const char *at = pair->data;
    uint64_t taken = ITEM_BYTES * (pair->count + 1), bytes;

    for (uint64_t i = 0; pair->type == GGUF_STRING && i < pair->count; i++) {
        bytes = little_endian(at, 8);
        at += 8 + bytes;
        taken += STRING_BYTES + bytes;
    }
    return taken;
}

/* NULL: not UTF-8, not finite, or out of memory. */
static json_t *item_json(enum gguf_type type, const char *data, size_t bytes)
{
    uint64_t bits = type == GGUF_STRING ? 0 : little_endian(data, bytes);
    uint32_t half = (uint32_t)bits;
    double number;
    float single;

    switch (type) {
    case GGUF_STRING:
        return json_stringn(data, bytes);
    case GGUF_BOOL:
        return json_boolean(bits != 0);
    case GGUF_F32:
        memcpy(&single, &half, sizeof single);
        return json_real((double)single);
    case GGUF_F64:
        memcpy(&number, &bits, sizeof number);
        return json_real(number);
    case GGUF_I8:
        return json_integer((int8_t)bits);
    case GGUF_I16:
        return json_integer((int16_t)bits);
    case GGUF_I32:
        return json_integer((int32_t)bits);
    default:
        return bits > INT64_MAX && type == GGUF_U64 ? json_real((double)bits)
                                                    : json_integer((json_int_t)bits);
    }
}

enum shoal_status gguf_value(
    const char *path, const struct gguf_pair *pair, json_t **value, struct shoal_error *error)
{
    json_t *array = pair->is_array ? json_array() : NULL, *item = NULL;
    const char *at = pair->data;
    char shown[JSON_SHOWN_BYTES];

    for (uint64_t i = 0; i < pair->count; i++) {
        size_t bytes = type_bytes[pair->type];

        if (pair->type == GGUF_STRING) {
            bytes = (size_t)little_endian(at, 8);
            at += 8;
        }
        item = item_json(pair->type, at, bytes);
        at += bytes;
        /* Takes the item, also when it fails. */
        if (!item || (pair->is_array && json_array_append_new(array, item))) {
            json_decref(array);
            FAIL(error, SHOAL_E_FORMAT,
                "%s: metadata value '%s' is not UTF-8 or not finite, or memory has run out", path,
                json_show(shown, pair->key));
        }
    }
    *value = pair->is_array ? array : item;
    if (!*value) FAIL_MEMORY(error);
    return SHOAL_OK;
}
