/* Opening an adapter: its modules are matched, checked, laid out by block, and read. */
#include "adapter/adapter.h"

#include "adapter/entries.h"
#include "adapter/settings.h"
#include "base/memory.h"
#include "base/size.h"
#include "checkpoint/json.h"
#include "tensor/quant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FACTOR_ALIGNMENT 16

/* What is being opened. */
struct opening {
    struct adapter *adapter;
    const struct adapter_targets *targets;
    const struct checkpoint *checkpoint;
    struct adapter_settings settings;
    /* Of items[i]: the tensors of factors[f].b and .a. */
    const struct checkpoint_tensor *(*tensors)[4];
    int32_t room;
    struct shoal_error *error;
};

/* A difference as the file has it, before it is known whose. */
struct difference {
    const struct checkpoint_tensor *tensors[4]; /* b and a of the factors; NULL: none */
    struct adapter_item item;
    int64_t rows, cols; /* of one dimension: one row */
};

/* The module's name, for messages. */
static char *show_key(char shown[JSON_SHOWN_BYTES], const struct adapter_entry *entry)
{
    json_show(shown, entry->key);
    if (entry->key_bytes < JSON_SHOWN_BYTES) shown[entry->key_bytes] = 0;
    return shown;
}

/* ---- what the file says ---- */

static enum shoal_status check_type(const struct checkpoint_tensor *t, struct shoal_error *error)
{
    char shown[JSON_SHOWN_BYTES];

    if (t->packed || (t->dtype != DTYPE_F32 && t->dtype != DTYPE_F16 && t->dtype != DTYPE_BF16))
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "%s: tensor %s is %s%s: adapters are read in F32, F16 and BF16", t->file->path,
            json_show(shown, t->name), t->packed ? "packed " : "", dtype_name(t->dtype));
    return SHOAL_OK;
}

static enum shoal_status take_matrix(
    const struct checkpoint_tensor *t, struct adapter_matrix *m, struct shoal_error *error)
{
    char shown[JSON_SHOWN_BYTES], shape[SHAPE_TEXT_BYTES];

    TRY(check_type(t, error));
    *m = (struct adapter_matrix){.dtype = t->dtype};
    entry_matrix(t, &m->rows, &m->cols);
    if (m->rows < 1 || m->cols < 1)
        FAIL(error, SHOAL_E_FORMAT, "%s: tensor %s is empty: %s", t->file->path,
            json_show(shown, t->name), shape_format(shape, &t->shape));
    return SHOAL_OK;
}

/* b and, if there is one, a; the rank of both must be the same. */
static enum shoal_status take_factor(struct difference *d, int index,
    const struct checkpoint_tensor *b, const struct checkpoint_tensor *a, struct shoal_error *error)
{
    struct adapter_factor *f = &d->item.factors[index];
    char first[JSON_SHOWN_BYTES], second[JSON_SHOWN_BYTES];
    char one[SHAPE_TEXT_BYTES], other[SHAPE_TEXT_BYTES];

    d->tensors[2 * index] = b;
    d->tensors[2 * index + 1] = a;
    TRY(take_matrix(b, &f->b, error));
    if (!a) return SHOAL_OK;
    TRY(take_matrix(a, &f->a, error));
    if (b->shape.rank < 2 || a->shape.rank < 2 || f->b.cols != f->a.rows)
        FAIL(error, SHOAL_E_FORMAT, "%s: tensors %s (%s) and %s (%s) have no rank in common",
            b->file->path, json_show(first, b->name), shape_format(one, &b->shape),
            json_show(second, a->name), shape_format(other, &a->shape));
    return SHOAL_OK;
}

static int64_t factor_rows(const struct adapter_factor *f)
{
    return f->b.rows;
}

static int64_t factor_cols(const struct adapter_factor *f)
{
    return f->a.rows ? f->a.cols : f->b.cols;
}

/* SHOAL_E_FORMAT unless both roles are there, or neither. */
static enum shoal_status check_pair(const struct adapter_entry *entry, enum adapter_role one,
    enum adapter_role other, struct shoal_error *error)
{
    const struct checkpoint_tensor *alone =
        entry->tensors[one] ? entry->tensors[one] : entry->tensors[other];
    char shown[JSON_SHOWN_BYTES];

    if (!entry->tensors[one] == !entry->tensors[other]) return SHOAL_OK;
    FAIL(error, SHOAL_E_FORMAT, "%s: tensor %s is alone: the other factor of its module is missing",
        alone->file->path, json_show(shown, alone->name));
}

/* alpha / rank. */
static enum shoal_status take_scale(struct opening *o, const struct adapter_entry *entry,
    int64_t rank, struct difference *d, struct shoal_error *error)
{
    const struct checkpoint_tensor *t = entry->tensors[ROLE_ALPHA];
    char shown[JSON_SHOWN_BYTES];
    uint32_t bits = 0;
    double alpha = 0;
    float value;
    bool said = t != NULL;

    d->item.scale = 1;
    if (!rank) return SHOAL_OK;
    if (t) {
        TRY(check_type(t, error));
        if (checkpoint_elements(t) != 1)
            FAIL(error, SHOAL_E_FORMAT, "%s: tensor %s must be one number", t->file->path,
                json_show(shown, t->name));
        TRY(checkpoint_read(t, &bits, error));
        quant_widen(&value, &bits, t->dtype, 1.0f, 0, 1);
        alpha = (double)value;
        if (!isfinite(alpha))
            FAIL(error, SHOAL_E_FORMAT, "%s: tensor %s is not finite", t->file->path,
                json_show(shown, t->name));
        o->adapter->read_bytes += t->bytes;
    } else if (entry->tensors[ROLE_UP]) {
        TRY(settings_alpha(&o->settings, entry->key, &said, &alpha, error));
    }
    if (said) d->item.scale = alpha / (double)rank;
    return SHOAL_OK;
}

static enum shoal_status take_hada(struct opening *o, const struct adapter_entry *e,
    struct difference *d, struct shoal_error *error)
{
    const struct checkpoint_tensor *const *t = e->tensors;
    const struct adapter_factor *f = d->item.factors;
    char shown[JSON_SHOWN_BYTES];

    for (int role = ROLE_HADA_W1_A; role <= ROLE_HADA_W2_B; role++)
        TRY(check_pair(e, ROLE_HADA_W1_A, (enum adapter_role)role, error));
    TRY(take_factor(d, 0, t[ROLE_HADA_W1_A], t[ROLE_HADA_W1_B], error));
    TRY(take_factor(d, 1, t[ROLE_HADA_W2_A], t[ROLE_HADA_W2_B], error));
    d->rows = factor_rows(&f[0]);
    d->cols = factor_cols(&f[0]);
    if (factor_rows(&f[1]) != d->rows || factor_cols(&f[1]) != d->cols)
        FAIL(error, SHOAL_E_FORMAT,
            "%s: of module %s, hada_w1 gives [%lld, %lld] and hada_w2 [%lld, %lld]",
            t[ROLE_HADA_W1_A]->file->path, json_show(shown, t[ROLE_HADA_W1_A]->name),
            (long long)d->rows, (long long)d->cols, (long long)factor_rows(&f[1]),
            (long long)factor_cols(&f[1]));
    return take_scale(o, e, f[0].a.rows, d, error);
}

/* One of LoKr's factors, whole or decomposed. */
static enum shoal_status take_lokr_factor(struct opening *o, const struct adapter_entry *e,
    struct difference *d, int index, enum adapter_role whole, struct shoal_error *error)
{
    const struct checkpoint_tensor *const *t = e->tensors;
    const enum adapter_role a = (enum adapter_role)(whole + 1), b = (enum adapter_role)(whole + 2);
    char shown[JSON_SHOWN_BYTES];

    TRY(check_pair(e, a, b, error));
    if (!t[whole] == !t[a])
        FAIL(error, SHOAL_E_FORMAT,
            "%s: module %s must have either lokr_w%d, or lokr_w%d_a and lokr_w%d_b",
            o->adapter->path, show_key(shown, e), index + 1, index + 1, index + 1);
    return t[whole] ? take_factor(d, index, t[whole], NULL, error)
                    : take_factor(d, index, t[a], t[b], error);
}

/* As in ComfyUI, the rank is the second factor's where both are decomposed. */
static enum shoal_status take_lokr(struct opening *o, const struct adapter_entry *e,
    struct difference *d, struct shoal_error *error)
{
    const struct adapter_factor *f = d->item.factors;
    uint64_t rows, cols;

    TRY(take_lokr_factor(o, e, d, 0, ROLE_LOKR_W1, error));
    TRY(take_lokr_factor(o, e, d, 1, ROLE_LOKR_W2, error));
    d->item.kron = true;
    if (!size_mul((uint64_t)factor_rows(&f[0]), (uint64_t)factor_rows(&f[1]), &rows) ||
        !size_mul((uint64_t)factor_cols(&f[0]), (uint64_t)factor_cols(&f[1]), &cols) ||
        rows > INT64_MAX || cols > INT64_MAX)
        rows = cols = 0; /* no weight's */
    d->rows = (int64_t)rows;
    d->cols = (int64_t)cols;
    return take_scale(o, e, f[1].a.rows ? f[1].a.rows : f[0].a.rows, d, error);
}

static bool has_any(const struct adapter_entry *e, int first, int last)
{
    for (int role = first; role <= last; role++)
        if (e->tensors[role]) return true;
    return false;
}

/* The difference of the module's weight; *found: it has one. */
static enum shoal_status take_weight(struct opening *o, const struct adapter_entry *e,
    struct difference *d, bool *found, struct shoal_error *error)
{
    const bool lora = has_any(e, ROLE_UP, ROLE_DOWN), diff = e->tensors[ROLE_DIFF];
    const bool hada = has_any(e, ROLE_HADA_W1_A, ROLE_HADA_W2_B);
    const bool lokr = has_any(e, ROLE_LOKR_W1, ROLE_LOKR_W2_B);
    char shown[JSON_SHOWN_BYTES];

    *found = lora || diff || hada || lokr;
    *d = (struct difference){.item.scale = 1};
    if (lora + diff + hada + lokr > 1)
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "%s: module %s has differences of several kinds, of which readers take one or another: "
            "keep one",
            o->adapter->path, show_key(shown, e));
    if (hada) return take_hada(o, e, d, error);
    if (lokr) return take_lokr(o, e, d, error);
    if (lora) {
        TRY(check_pair(e, ROLE_UP, ROLE_DOWN, error));
        TRY(take_factor(d, 0, e->tensors[ROLE_UP], e->tensors[ROLE_DOWN], error));
    } else if (diff) {
        TRY(take_factor(d, 0, e->tensors[ROLE_DIFF], NULL, error));
    }
    d->rows = factor_rows(&d->item.factors[0]);
    d->cols = factor_cols(&d->item.factors[0]);
    return take_scale(o, e, d->item.factors[0].a.rows, d, error);
}

/* ---- whose it is ---- */

/* The difference's shape must be that of the tensor that its module's name means; a vector's
 * difference is one row. */
static enum shoal_status check_shape(const struct opening *o, struct difference *d,
    const struct adapter_target *target, struct shoal_error *error)
{
    const struct weight *w = target_weight(o->targets, target);
    char shown[JSON_SHOWN_BYTES];

    if (w->rows == 1) {
        struct adapter_factor *f = d->item.factors;

        if (d->rows == 1 && d->cols == target->of) return SHOAL_OK;
        if (!f[0].a.rows && !f[1].b.rows && d->cols == 1 && d->rows == target->of) {
            f[0].b.cols = d->cols = d->rows;
            f[0].b.rows = d->rows = 1;
            return SHOAL_OK;
        }
    } else if (d->rows == target->of && d->cols == w->cols) {
        return SHOAL_OK;
    }
    FAIL(error, SHOAL_E_FORMAT,
        "%s: tensor %s makes a difference of [%lld, %lld], but %s of %s is [%lld, %lld] in %s: the "
        "adapter is for another model",
        o->adapter->path, json_show(shown, d->tensors[0]->name), (long long)d->rows,
        (long long)d->cols, w->name, o->targets->models[target->kind]->family,
        (long long)(w->rows == 1 ? 1 : target->of),
        (long long)(w->rows == 1 ? target->of : w->cols), w->pieces[0]->file->path);
}

static enum shoal_status add_item(struct opening *o, const struct difference *d,
    const struct adapter_target *target, struct shoal_error *error)
{
    struct adapter *a = o->adapter;
    struct adapter_item *item;

    if (a->item_count == o->room) {
        const int32_t room = o->room * 2 + 64;
        struct adapter_item *items = mem_realloc(a->items, (size_t)room, sizeof *items);
        void *tensors;

        if (items) a->items = items;
        tensors = items ? mem_realloc(o->tensors, (size_t)room, sizeof *o->tensors) : NULL;
        if (!tensors) FAIL_MEMORY(error);
        o->tensors = tensors;
        o->room = room;
    }
    item = &a->items[a->item_count];
    *item = d->item;
    item->kind = target->kind;
    item->block = target->block;
    item->weight = target->weight;
    item->first = target->first;
    item->count = target->count;
    item->from = target->from;
    item->name = d->tensors[0]->name;
    item->tensors = a->item_count;
    memcpy(o->tensors[a->item_count++], d->tensors, sizeof d->tensors);
    return SHOAL_OK;
}

/* What the host reads from the model's file is never patched. */
static enum shoal_status check_device(const struct opening *o, const struct difference *d,
    const struct adapter_target *target, struct shoal_error *error)
{
    const struct weight *w = target_weight(o->targets, target);
    char shown[JSON_SHOWN_BYTES];

    if (!w->on_host) return SHOAL_OK;
    FAIL(error, SHOAL_E_UNSUPPORTED,
        "%s: tensor %s changes %s of %s, to which this build adds nothing: merge the adapter into "
        "the model's file",
        o->adapter->path, json_show(shown, d->tensors[0]->name), w->name,
        o->targets->models[target->kind]->family);
}

/* *matched: the parameter is one of the models'. */
static enum shoal_status match(struct opening *o, const struct adapter_entry *e,
    struct difference *d, const char *ending, bool *matched, struct shoal_error *error)
{
    const struct adapter_target *target;
    size_t count;

    TRY(adapter_targets_find(o->targets, e->key, e->key_bytes, ending, &target, &count, error));
    *matched = count > 0;
    for (; count; count--, target++) {
        TRY(check_device(o, d, target, error));
        TRY(check_shape(o, d, target, error));
        TRY(add_item(o, d, target, error));
    }
    return SHOAL_OK;
}

/* A tensor that is no difference must not be called as a parameter is: it would replace it. */
static enum shoal_status refuse_parameter(
    const struct opening *o, const struct adapter_entry *e, struct shoal_error *error)
{
    static const char *const endings[] = {"weight", "bias"};
    char shown[JSON_SHOWN_BYTES];

    for (int i = 0; i < 2; i++) {
        const size_t bytes = strlen(endings[i]);
        const struct adapter_target *target;
        size_t count;

        if (e->key_bytes <= bytes + 1 ||
            memcmp(e->key + e->key_bytes - bytes, endings[i], bytes) != 0)
            continue;
        TRY(adapter_targets_find(
            o->targets, e->key, e->key_bytes - bytes - 1, endings[i], &target, &count, error));
        if (count)
            FAIL(error, SHOAL_E_UNSUPPORTED,
                "%s: tensor %s is a weight in place of the model's, and this build adds "
                "differences only: merge the adapter into the model's file",
                o->adapter->path, json_show(shown, e->key));
    }
    return SHOAL_OK;
}

static enum shoal_status take_entry(
    struct opening *o, const struct adapter_entry *e, struct shoal_error *error)
{
    struct adapter *a = o->adapter;
    bool has_weight, weight = false, bias = false;
    const struct checkpoint_tensor *diff_b = e->tensors[ROLE_DIFF_BIAS];
    struct difference d;

    a->modules++;
    TRY(take_weight(o, e, &d, &has_weight, error));
    if (has_weight) TRY(match(o, e, &d, "weight", &weight, error));
    if (diff_b) {
        d = (struct difference){.item.scale = 1};
        TRY(take_factor(&d, 0, diff_b, NULL, error));
        d.rows = factor_rows(&d.item.factors[0]);
        d.cols = factor_cols(&d.item.factors[0]);
        TRY(match(o, e, &d, "bias", &bias, error));
    }
    if (e->tensors[ROLE_NONE]) TRY(refuse_parameter(o, e, error));
    if ((weight || !has_weight) && (bias || !diff_b) && (weight || bias)) return SHOAL_OK;
    if (a->unmatched < ADAPTER_SHOWN) {
        char shown[JSON_SHOWN_BYTES];

        snprintf(a->unmatched_names[a->unmatched], ADAPTER_NAME_BYTES, "%.95s", show_key(shown, e));
    }
    a->unmatched++;
    return SHOAL_OK;
}

/* ---- laying out, and reading ---- */

static int by_place(const void *x, const void *y)
{
    const struct adapter_item *a = x, *b = y;

    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    if (a->block != b->block) return a->block < b->block ? -1 : 1;
    if (a->weight != b->weight) return a->weight < b->weight ? -1 : 1;
    return a->first < b->first ? -1 : a->first > b->first;
}

static enum shoal_status check_overlaps(const struct adapter *a, struct shoal_error *error)
{
    char one[JSON_SHOWN_BYTES], other[JSON_SHOWN_BYTES];

    for (int32_t i = 1; i < a->item_count; i++) {
        const struct adapter_item *before = &a->items[i - 1], *item = &a->items[i];

        if (before->kind != item->kind || before->block != item->block ||
            before->weight != item->weight || before->first + before->count <= item->first)
            continue;
        FAIL(error, SHOAL_E_FORMAT,
            "%s: tensors %s and %s are differences of the same weight: keep one of the two",
            a->path, json_show(one, before->name), json_show(other, item->name));
    }
    return SHOAL_OK;
}

static struct adapter_matrix *matrix_of(struct adapter_item *item, int index)
{
    struct adapter_factor *f = &item->factors[index / 2];

    return index % 2 ? &f->a : &f->b;
}

/* An item that has the same tensors as an earlier one of its block shares them. */
static const struct adapter_item *sharer(
    const struct opening *o, const struct adapter_span *span, int32_t first, int32_t index)
{
    const struct adapter_item *items = o->adapter->items;

    for (int32_t i = index - 1; i >= first; i--)
        if (items[i].kind == span->kind && items[i].block == span->block &&
            items[i].name == items[index].name)
            return &items[i];
    return NULL;
}

/* Gives every tensor its place: block by block. */
static enum shoal_status place(struct opening *o, struct shoal_error *error)
{
    struct adapter *a = o->adapter;
    struct adapter_span *span = NULL;
    int32_t first = 0;

    a->spans = mem_calloc((size_t)a->item_count, sizeof *a->spans);
    if (!a->spans) FAIL_MEMORY(error);
    for (int32_t i = 0; i < a->item_count; i++) {
        struct adapter_item *item = &a->items[i];
        const struct adapter_item *same;

        if (!span || span->kind != item->kind || span->block != item->block) {
            span = &a->spans[a->span_count++];
            *span = (struct adapter_span){
                .kind = item->kind, .block = item->block, .offset = a->factor_bytes};
            first = i;
        }
        same = sharer(o, span, first, i);
        for (int m = 0; m < 4; m++) {
            const struct checkpoint_tensor *t = o->tensors[item->tensors][m];

            if (same) matrix_of(item, m)->offset = same->factors[m / 2].b.offset;
            if (same && m % 2) matrix_of(item, m)->offset = same->factors[m / 2].a.offset;
            if (same || !t) continue;
            matrix_of(item, m)->offset = span->offset + span->bytes;
            span->bytes += size_align(t->bytes, FACTOR_ALIGNMENT);
        }
        span->bytes = size_align(span->bytes, BLOCK_WEIGHT_ALIGNMENT);
        a->factor_bytes = span->offset + span->bytes;
    }
    a->factor_bytes = size_align(a->factor_bytes, HOST_PAGE_BYTES);
    return SHOAL_OK;
}

static enum shoal_status read_tensor(struct opening *o, const struct checkpoint_tensor *t,
    uint64_t offset, struct shoal_error *error)
{
    struct adapter *a = o->adapter;
    char shown[JSON_SHOWN_BYTES];

    TRY(checkpoint_read(t, a->factors + offset, error));
    a->read_bytes += t->bytes;
    if (quant_has_nonfinite(a->factors + offset, t->dtype, 0, t->bytes))
        FAIL(error, SHOAL_E_NUMERIC, "%s: tensor %s holds NaN or infinity: the file is damaged",
            a->path, json_show(shown, t->name));
    return SHOAL_OK;
}

static enum shoal_status read_factors(
    struct opening *o, struct allowance *allowance, struct shoal_error *error)
{
    struct adapter *a = o->adapter;
    uint64_t end = 0;

    TRY(allowance_take(allowance, a->path, a->factor_bytes, error));
    a->factors = pages_alloc(a->factor_bytes);
    if (!a->factors) FAIL_MEMORY(error);
    for (int32_t i = 0; i < a->item_count; i++) {
        struct adapter_item *item = &a->items[i];

        for (int m = 0; m < 4; m++) {
            const struct checkpoint_tensor *t = o->tensors[item->tensors][m];
            const uint64_t offset = matrix_of(item, m)->offset;

            if (!t || offset < end) continue; /* shared: read already */
            TRY(read_tensor(o, t, offset, error));
            end = offset + 1;
        }
    }
    return SHOAL_OK;
}

/* ---- the whole ---- */

static enum shoal_status refuse_unmatched(const struct opening *o, struct shoal_error *error)
{
    const struct adapter *a = o->adapter;

    if (!a->modules) FAIL(error, SHOAL_E_FORMAT, "%s: it holds no tensor", a->path);
    FAIL(error, SHOAL_E_MISSING,
        "%s: none of its %d modules is one of the model's, e.g. %s: the adapter is for another "
        "model",
        a->path, (int)a->modules, a->unmatched_names[0]);
}

static enum shoal_status take_entries(struct opening *o, struct shoal_error *error)
{
    struct adapter_entries entries;
    enum shoal_status status;

    TRY(entries_open(&entries, o->checkpoint, error));
    status = settings_open(&o->settings, o->checkpoint, error);
    for (size_t i = 0; i < entries.count && !status; i++)
        status = take_entry(o, &entries.list[i], error);
    settings_close(&o->settings);
    entries_close(&entries);
    TRY(status);
    if (!o->adapter->item_count) return refuse_unmatched(o, error);
    qsort(o->adapter->items, (size_t)o->adapter->item_count, sizeof *o->adapter->items, by_place);
    TRY(check_overlaps(o->adapter, error));
    return place(o, error);
}

static enum shoal_status read_file(
    struct opening *o, struct allowance *allowance, struct shoal_error *error)
{
    struct adapter *a = o->adapter;
    const struct file *file = checkpoint_file(o->checkpoint, 0);

    if (checkpoint_file_count(o->checkpoint) != 1)
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "%s: the adapter lies in several files: name one .safetensors file", a->path);
    a->file = *file;
    a->file.fd = -1;
    a->file.path = NULL;
    a->read_bytes = checkpoint_header_bytes(o->checkpoint);
    TRY(take_entries(o, error));
    TRY(read_factors(o, allowance, error));
    return file_check_unchanged(file, error);
}

enum shoal_status adapter_open(struct adapter **adapter, const char *path,
    const struct adapter_targets *targets, struct allowance *allowance, struct shoal_error *error)
{
    struct opening o = {.targets = targets};
    struct checkpoint *checkpoint = NULL;
    const uint64_t before = allowance->bytes;
    enum shoal_status status;

    *adapter = NULL;
    o.adapter = mem_calloc(1, sizeof *o.adapter);
    if (!o.adapter) FAIL_MEMORY(error);
    o.adapter->path = mem_strdup(path);
    if (!o.adapter->path) {
        adapter_close(&o.adapter);
        FAIL_MEMORY(error);
    }
    status = checkpoint_open_within(path, allowance, &checkpoint, error);
    if (!status)
        status =
            allowance_take(allowance, path, entries_bytes(checkpoint_count(checkpoint)), error);
    o.adapter->reading_bytes = allowance->bytes - before;
    o.checkpoint = checkpoint;
    if (!status) status = read_file(&o, allowance, error);
    checkpoint_close(&checkpoint);
    mem_free(o.tensors);
    for (int32_t i = 0; i < o.adapter->item_count; i++)
        o.adapter->items[i].name = NULL; /* the checkpoint's */
    if (status)
        adapter_close(&o.adapter);
    else
        *adapter = o.adapter;
    return status;
}

void adapter_close(struct adapter **adapter)
{
    struct adapter *a = *adapter;

    if (!a) return;
    pages_free(a->factors, a->factor_bytes);
    mem_free(a->items);
    mem_free(a->spans);
    mem_free(a->path);
    mem_free(a);
    *adapter = NULL;
}

bool adapter_is_current(const struct adapter *adapter)
{
    struct file file;
    bool current;

    if (file_open(adapter->path, &file, NULL)) return false;
    current = file_same(&file, &adapter->file);
    file_close(&file);
    return current;
}

const struct adapter_span *adapter_span_of(
    const struct adapter *adapter, enum family_kind kind, int32_t block)
{
    for (int32_t i = 0; i < adapter->span_count; i++)
        if (adapter->spans[i].kind == kind && adapter->spans[i].block == block)
            return &adapter->spans[i];
    return NULL;
}
