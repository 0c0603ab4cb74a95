/* SentencePiece models: the protobuf message, and a tokenizer from it. */
#include "tokenizer/sentencepiece.h"

#include "base/memory.h"
#include "tokenizer/inside.h"

/* ---- protobuf ---- */

enum { WIRE_VARINT, WIRE_64, WIRE_BYTES, WIRE_32 = 5 };

/* What is left of a message. */
struct message {
    const uint8_t *at;
    size_t left;
};

/* A field: `number` for varints and 32 bits, `data` for bytes. */
struct field {
    uint32_t key, wire;
    uint64_t number;
    struct message data;
};

static bool read_varint(struct message *m, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 70 && m->left; shift += 7) {
        uint8_t byte = *m->at++;

        m->left--;
        if (shift < 64) *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return true;
    }
    return false;
}

static bool read_fixed(struct message *m, size_t bytes, uint64_t *value)
{
    if (m->left < bytes) return false;
    *value = 0;
    for (size_t i = 0; i < bytes; i++)
        *value |= (uint64_t)m->at[i] << 8 * i;
    m->at += bytes;
    m->left -= bytes;
    return true;
}

/* The next field of a message that is not at its end; false: there is none that is whole. */
static bool read_field(struct message *m, struct field *field)
{
    uint64_t tag, bytes;

    *field = (struct field){0};
    if (!read_varint(m, &tag) || tag >> 3 == 0 || tag >> 3 > 0x1fffffff) return false;
    field->key = (uint32_t)(tag >> 3);
    field->wire = tag & 7;
    switch (field->wire) {
    case WIRE_VARINT:
        return read_varint(m, &field->number);
    case WIRE_64:
        return read_fixed(m, 8, &field->number);
    case WIRE_32:
        return read_fixed(m, 4, &field->number);
    case WIRE_BYTES:
        if (!read_varint(m, &bytes) || bytes > m->left) return false;
        field->data = (struct message){m->at, (size_t)bytes};
        m->at += bytes;
        m->left -= (size_t)bytes;
        return true;
    default: /* groups, which the format has none of */
        return false;
    }
}

/* Reads a message's fields one by one: until the end, or with `broken` set. */
static bool next_field(struct message *m, struct field *field, bool *broken)
{
    if (!m->left) return false;
    *broken = !read_field(m, field);
    return !*broken;
}

#define FAIL_BROKEN(error, what)                                                                   \
    FAIL(error, SHOAL_E_FORMAT, "the model's %s is cut off or no protobuf message", what)

/* ---- the model ---- */

/* Keys of the fields that are read. */
enum { MODEL_PIECE = 1, MODEL_TRAINER, MODEL_NORMALIZER };
enum { PIECE_TEXT = 1, PIECE_SCORE, PIECE_TYPE };
enum { TRAINER_TYPE = 3, TRAINER_SUFFIX = 24, TRAINER_BYTES = 35, TRAINER_END = 47 };
enum { NORMALIZER_MAP = 2, NORMALIZER_DUMMY, NORMALIZER_FOLD, NORMALIZER_MARK };

#define TYPE_UNIGRAM 1

/* A model's settings, as they are where it does not say. */
struct model {
    size_t pieces, piece_bytes;
    uint64_t type;
    bool suffix, bytes, dummy, fold, mark;
    struct message map, end; /* the charsmap; the text of the piece that ends a text */
};

static const struct model unsaid = {.type = TYPE_UNIGRAM,
    .dummy = true,
    .fold = true,
    .mark = true,
    .end = {(const uint8_t *)"</s>", 4}};

static enum shoal_status wrong_wire(
    const struct field *field, const char *what, struct shoal_error *error)
{
    FAIL(error, SHOAL_E_FORMAT, "field %u of the model's %s is of the wire type %u, not its own",
        field->key, what, field->wire);
}

/* Takes the field for `*flag`. */
static enum shoal_status read_flag(
    const struct field *field, const char *what, bool *flag, struct shoal_error *error)
{
    if (field->wire != WIRE_VARINT) return wrong_wire(field, what, error);
    *flag = field->number != 0;
    return SHOAL_OK;
}

static enum shoal_status read_bytes(
    const struct field *field, const char *what, struct message *data, struct shoal_error *error)
{
    if (field->wire != WIRE_BYTES) return wrong_wire(field, what, error);
    *data = field->data;
    return SHOAL_OK;
}

static enum shoal_status read_trainer(
    struct message m, struct model *model, struct shoal_error *error)
{
    static const char what[] = "trainer_spec";
    bool broken = false;
    struct field field;

    while (next_field(&m, &field, &broken)) {
        if (field.key == TRAINER_TYPE) {
            if (field.wire != WIRE_VARINT) return wrong_wire(&field, what, error);
            model->type = field.number;
        }
        if (field.key == TRAINER_SUFFIX) TRY(read_flag(&field, what, &model->suffix, error));
        if (field.key == TRAINER_BYTES) TRY(read_flag(&field, what, &model->bytes, error));
        if (field.key == TRAINER_END) TRY(read_bytes(&field, what, &model->end, error));
    }
    if (broken) FAIL_BROKEN(error, what);
    return SHOAL_OK;
}

static enum shoal_status read_normalizer(
    struct message m, struct model *model, struct shoal_error *error)
{
    static const char what[] = "normalizer_spec";
    bool broken = false;
    struct field field;

    while (next_field(&m, &field, &broken)) {
        if (field.key == NORMALIZER_MAP) TRY(read_bytes(&field, what, &model->map, error));
        if (field.key == NORMALIZER_DUMMY) TRY(read_flag(&field, what, &model->dummy, error));
        if (field.key == NORMALIZER_FOLD) TRY(read_flag(&field, what, &model->fold, error));
        if (field.key == NORMALIZER_MARK) TRY(read_flag(&field, what, &model->mark, error));
    }
    if (broken) FAIL_BROKEN(error, what);
    return SHOAL_OK;
}

/* The settings, and how many pieces there are. */
static enum shoal_status read_model(
    struct message m, struct model *model, struct shoal_error *error)
{
    bool broken = false;
    struct message data = {0};
    struct field field;

    *model = unsaid;
    while (next_field(&m, &field, &broken)) {
        if (field.key < MODEL_PIECE || field.key > MODEL_NORMALIZER) continue;
        TRY(read_bytes(&field, "message", &data, error));
        if (field.key == MODEL_TRAINER) TRY(read_trainer(data, model, error));
        if (field.key == MODEL_NORMALIZER) TRY(read_normalizer(data, model, error));
        if (field.key != MODEL_PIECE) continue;
        model->pieces++;
        model->piece_bytes += data.left;
    }
    if (broken) FAIL_BROKEN(error, "message");
    if (!model->pieces) FAIL(error, SHOAL_E_FORMAT, "the model has no pieces");
    if (model->type != TYPE_UNIGRAM)
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "the model is of SentencePiece's kind %llu; only 1, unigram, is supported: name a "
            "tokenizer.json",
            (unsigned long long)model->type);
    return SHOAL_OK;
}

static double float_of(uint64_t bits)
{
    uint32_t low = (uint32_t)bits;
    float value;

    memcpy(&value, &low, sizeof value);
    return (double)value;
}

static enum shoal_status read_piece(
    struct message m, const struct model *model, struct tokenizer *t, struct shoal_error *error)
{
    uint64_t type = UNIGRAM_NORMAL;
    struct message text = {0};
    int32_t id = t->unigram.id_end;
    double score = 0;
    bool broken = false;
    struct field field;

    while (next_field(&m, &field, &broken)) {
        if (field.key == PIECE_TEXT) TRY(read_bytes(&field, "piece", &text, error));
        if (field.key == PIECE_SCORE) {
            if (field.wire != WIRE_32) return wrong_wire(&field, "piece", error);
            score = float_of(field.number);
        }
        if (field.key == PIECE_TYPE) {
            if (field.wire != WIRE_VARINT) return wrong_wire(&field, "piece", error);
            type = field.number < 100 ? field.number : 100;
        }
    }
    if (broken) FAIL_BROKEN(error, "piece");
    if (type == UNIGRAM_BYTE && !model->bytes)
        FAIL(error, SHOAL_E_FORMAT,
            "piece %d is of the byte type, though the model does not fall back to bytes", id);
    if (type == UNIGRAM_CONTROL && text.left == model->end.left &&
        !memcmp(text.at, model->end.at, text.left)) {
        t->around.after[0] = id;
        t->around.after_count = 1;
    }
    return unigram_add(&t->unigram, text.at ? (const char *)text.at : "", text.left, score,
        (enum unigram_type)type, error);
}

static enum shoal_status read_all(struct tokenizer *t, struct message m, const char *path,
    struct allowance *allowance, struct shoal_error *error)
{
    struct message rest = m;
    bool broken = false;
    struct model model;
    struct field field;

    TRY(read_model(m, &model, error));
    TRY(allowance_take(
        allowance, path, unigram_bytes(model.pieces, model.piece_bytes) + model.map.left, error));
    t->kind = TOKENIZER_SENTENCEPIECE;
    t->spaces.extra_begin = model.dummy && !model.suffix;
    t->spaces.extra_end = model.dummy && model.suffix;
    t->spaces.fold = model.fold;
    t->spaces.mark = model.mark;
    if (model.map.left) TRY(charsmap_init(&t->spaces.map, model.map.at, model.map.left, error));
    TRY(unigram_init(&t->unigram, model.pieces, true, error));
    t->unigram.byte_fallback = model.bytes;
    while (next_field(&rest, &field, &broken))
        if (field.key == MODEL_PIECE) TRY(read_piece(field.data, &model, t, error));
    return unigram_finish(&t->unigram, error);
}

bool sentencepiece_begins(const char *bytes, size_t count)
{
    /* The first piece, whose score or lengths hold bytes that no text has. */
    if (!count || bytes[0] != (MODEL_PIECE << 3 | WIRE_BYTES)) return false;
    for (size_t i = 1; i < count && i < 64; i++) {
        unsigned char c = (unsigned char)bytes[i];

        if (c < ' ' && c != '\t' && c != '\n' && c != '\r') return true;
    }
    return false;
}

enum shoal_status tokenizer_from_sentencepiece(const void *bytes, size_t count, const char *path,
    struct allowance *allowance, struct tokenizer **tokenizer, struct shoal_error *error)
{
    struct tokenizer *t = mem_calloc(1, sizeof *t);
    enum shoal_status status;

    if (!t) FAIL_MEMORY(error);
    status = read_all(t, (struct message){bytes, count}, path, allowance, error);
    if (status) {
        if (status != SHOAL_E_BUDGET) error_prefix(error, "%s: ", path);
        tokenizer_close(&t);
        return status;
    }
    *tokenizer = t;
    return SHOAL_OK;
}
