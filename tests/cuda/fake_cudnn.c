/*
 * A cuDNN without a card, as a library of its own: attends to what lies in the fake driver's
 * memory, and looks at what it is given. Numbers are those of NVIDIA's headers.
 */
#include "cuda/fake_cudnn.h"

#include "base/number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, BAD_PARAM = 2000, NOT_FINALIZED = 2004, ALLOCATION = 4003 };
enum { ENGINE = 2, CONFIG, HEURISTIC, PLAN, GRAPH = 15, PACK, TENSOR, ATTENTION = 41 };
enum { HANDLES = 0, DATA_TYPES = 1, BOOLEANS = 2, INT64S = 3, POINTERS = 6, DESCRIPTORS = 15 };
enum { R_32F = 0, R_16BF = 9 };
enum { Q, K, V, OUT, SCALE, OPERANDS }; /* with a hole in their attributes' numbers */
#define OPERAND_ATTRIBUTE(i) ((i) == SCALE ? 2805 : 2800 + (i))
#define WORKSPACE_ALIGNMENT 256

EXPORT struct fake_cudnn fake_cudnn;

struct attribute {
    int name, type;
    int64_t count;
    union {
        struct descriptor *descriptors[8];
        void *pointers[8];
        int64_t numbers[8];
        int kinds[16];
        bool flags[64];
    } is;
};

struct descriptor {
    int type;
    bool final;
    struct attribute attributes[8];
    int count;
    int engine;               /* of a configuration, an engine, a plan */
    struct descriptor *graph; /* of a configuration */
    int under_way;            /* runs of a plan */
};

/* An operand, and a run on its way. */
struct operand {
    uint16_t *at;
    int64_t heads, rows, dim, head_stride, row_stride;
};
struct work {
    struct descriptor *plan;
    struct operand operands[SCALE];
    float scale;
};

static char last_error[64];

static int require(bool condition, const char *what)
{
    if (!condition && !fake_cudnn.violation) fake_cudnn.violation = what;
    return condition ? SUCCESS : BAD_PARAM;
}

static int answer(int status)
{
    if (status) snprintf(last_error, sizeof last_error, "the fake says %d", status);
    return status;
}

static void *create(size_t bytes)
{
    fake_cudnn.things++;
    return calloc(1, bytes);
}

#define CALL(type, name, ...)                                                                      \
    EXPORT type name(__VA_ARGS__);                                                                 \
    type name(__VA_ARGS__)

CALL(size_t, cudnnGetVersion, void)
{
    return fake_cudnn.version;
}

CALL(void, cudnnGetLastErrorString, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s", last_error);
}

/* A handle is the stream that it was given. */
CALL(int, cudnnCreate, CUstream **handle)
{
    if (fake_cudnn.handle_status) return answer(fake_cudnn.handle_status);
    *handle = create(sizeof **handle);
    return SUCCESS;
}

CALL(int, cudnnDestroy, CUstream *handle)
{
    fake_cudnn.things--;
    free(handle);
    return SUCCESS;
}

CALL(int, cudnnSetStream, CUstream *handle, CUstream stream)
{
    *handle = stream;
    return SUCCESS;
}

CALL(int, cudnnBackendCreateDescriptor, int type, struct descriptor **descriptor)
{
    *descriptor = create(sizeof **descriptor);
    if (!*descriptor) return ALLOCATION;
    (*descriptor)->type = type;
    return SUCCESS;
}

CALL(int, cudnnBackendDestroyDescriptor, struct descriptor *d)
{
    fake_cudnn.things--;
    require(!d->under_way, "a plan that is destroyed while it runs");
    free(d);
    return SUCCESS;
}

static size_t element_bytes(int type)
{
    return type == BOOLEANS ? sizeof(bool) : type == DATA_TYPES || type == 8 ? sizeof(int) : 8;
}

CALL(int, cudnnBackendSetAttribute, struct descriptor *d, int name, int type, int64_t count,
    const void *values)
{
    struct attribute *a = &d->attributes[d->count];
    const size_t bytes = (size_t)count * element_bytes(type);

    if (require(!d->final, "an attribute of something final") ||
        require(d->count < 8 && bytes <= sizeof a->is, "too much"))
        return BAD_PARAM;
    a->name = name;
    a->type = type;
    a->count = count;
    memcpy(&a->is, values, bytes);
    if (type == DESCRIPTORS && require(a->is.descriptors[0]->final, "a part that is not final"))
        return NOT_FINALIZED;
    d->count++;
    return SUCCESS;
}

/* Its attribute; all zeros, and that is a violation, if it was not set to so many of this type. */
static const struct attribute *of(const struct descriptor *d, int name, int type, int64_t count)
{
    static const struct attribute nothing;

    for (int i = 0; i < d->count; i++)
        if (d->attributes[i].name == name && d->attributes[i].type == type &&
            d->attributes[i].count == count)
            return &d->attributes[i];
    require(false, "an attribute that is missing, or of another type or count");
    return &nothing;
}

static const struct descriptor *part(const struct descriptor *d, int name, int type)
{
    static const struct descriptor nothing;
    const struct descriptor *found = of(d, name, DESCRIPTORS, 1)->is.descriptors[0];

    if (found && !require(found->type == type, "a descriptor of another type")) return found;
    return &nothing;
}

static int check_tensor(const struct descriptor *d)
{
    const int64_t *strides = of(d, 903, INT64S, 4)->is.numbers;
    const int type = of(d, 901, DATA_TYPES, 1)->is.kinds[0];

    of(d, 902, INT64S, 4);
    of(d, 906, INT64S, 1);
    if (type == R_32F) return require(of(d, 908, BOOLEANS, 1)->is.flags[0], "F32 not by value");
    return require(type == R_16BF && of(d, 900, INT64S, 1)->is.numbers[0] == 16 &&
                       strides[3] == 1 && strides[2] % 8 == 0,
        "a tensor's type, alignment or strides");
}

static int check_attention(const struct descriptor *d)
{
    const int64_t *dims[OPERANDS];

    for (int i = 0; i < OPERANDS; i++)
        dims[i] = of(part(d, OPERAND_ATTRIBUTE(i), TENSOR), 902, INT64S, 4)->is.numbers;
    fake_cudnn.operations++;
    if (fake_cudnn.operation_status) return fake_cudnn.operation_status;
    return require(memcmp(dims[Q], dims[OUT], 4 * sizeof **dims) == 0 &&
                       memcmp(dims[K], dims[V], 4 * sizeof **dims) == 0 && dims[Q][0] == 1 &&
                       dims[K][0] == 1 && dims[K][1] > 0 && dims[Q][1] % dims[K][1] == 0 &&
                       dims[Q][3] == dims[K][3] && dims[SCALE][0] == 1 && dims[SCALE][3] == 1,
        "shapes that are not those of an attention");
}

static int check_plan(struct descriptor *d)
{
    const struct descriptor *config = part(d, 401, CONFIG);

    d->engine = config->engine;
    fake_cudnn.plans++;
    return fake_cudnn.engines[d->engine].status;
}

static int check_final(struct descriptor *d)
{
    switch (d->type) {
    case TENSOR:
        return check_tensor(d);
    case ATTENTION:
        return check_attention(d);
    case GRAPH:
        part(d, 801, ATTENTION);
        return require(of(d, 800, HANDLES, 1)->is.pointers[0], "a graph without a handle");
    case HEURISTIC:
        part(d, 201, GRAPH);
        if (require(of(d, 200, 8, 1)->is.kinds[0] == 3, "another heuristic than A"))
            return BAD_PARAM;
        return fake_cudnn.heuristic_status;
    case PLAN:
        return check_plan(d);
    case PACK:
        of(d, 1000, INT64S, OPERANDS);
        of(d, 1001, POINTERS, OPERANDS);
        of(d, 1003, POINTERS, 1);
        return SUCCESS;
    default:
        return require(false, "a descriptor that nobody finalises");
    }
}

CALL(int, cudnnBackendFinalize, struct descriptor *d)
{
    const int status = check_final(d);

    d->final = !status;
    return answer(status);
}

CALL(int, cudnnBackendGetAttribute, const struct descriptor *d, int name, int type, int64_t most,
    int64_t *count, void *values)
{
    const struct fake_engine *engine = &fake_cudnn.engines[d->engine];

    if (require(d->final, "asked of something that is not final")) return NOT_FINALIZED;
    *count = 1;
    if (name == 202 && type == DESCRIPTORS) {
        *count = fake_cudnn.engine_count;
        if (most < *count && values) *count = most;
        for (int i = 0; values && i < *count; i++) {
            struct descriptor *config = ((struct descriptor **)values)[i];

            require(config->type == CONFIG, "suggestions in other descriptors");
            config->final = true;
            config->engine = i;
            config->graph = of(d, 201, DESCRIPTORS, 1)->is.descriptors[0];
        }
    } else if (name == 300 && type == DESCRIPTORS) {
        struct descriptor *made = *(struct descriptor **)values;

        require(made->type == ENGINE, "an engine in another descriptor");
        made->final = true;
        made->engine = d->engine;
    } else if (name == 1303 && type == 11) {
        const int notes[] = {0, 4}; /* on tensor cores, not deterministic */

        *count = engine->varies ? 2 : 1;
        memcpy(values, notes, (size_t)*count * sizeof *notes);
    } else if (name == 402 && type == INT64S) {
        *(int64_t *)values = engine->workspace_bytes;
    } else {
        return require(false, "an unknown attribute");
    }
    return SUCCESS;
}

/* ---- attending ---- */

static float value(const struct operand *o, int64_t head, int64_t row, int64_t col)
{
    return bf16_to_float(o->at[head * o->head_stride + row * o->row_stride + col]);
}

static void attend_row(const struct work *w, int64_t head, int64_t row, float *shares)
{
    const struct operand *q = &w->operands[Q], *k = &w->operands[K], *v = &w->operands[V];
    const struct operand *out = &w->operands[OUT];
    const int64_t group = head * k->heads / q->heads;
    float most = -INFINITY, sum = 0;

    for (int64_t s = 0; s < k->rows; s++) {
        shares[s] = 0;
        for (int64_t d = 0; d < q->dim; d++)
            shares[s] += value(q, head, row, d) * value(k, group, s, d);
        shares[s] *= w->scale;
        most = fmaxf(most, shares[s]);
    }
    for (int64_t s = 0; s < k->rows; s++)
        sum += shares[s] = expf(shares[s] - most);
    for (int64_t d = 0; d < q->dim; d++) {
        float mean = 0;

        for (int64_t s = 0; s < k->rows; s++)
            mean += shares[s] * value(v, group, s, d);
        out->at[head * out->head_stride + row * out->row_stride + d] = bf16_from_float(mean / sum);
    }
}

static void attend(void *given)
{
    struct work *w = given;
    const struct operand *q = &w->operands[Q];
    float *shares = malloc((size_t)w->operands[K].rows * sizeof *shares);

    for (int64_t h = 0; !fake_cudnn.idle && shares && h < q->heads; h++)
        for (int64_t row = 0; row < q->rows; row++)
            attend_row(w, h, row, shares);
    w->plan->under_way--;
    free(shares);
    free(w);
}

static void *pointer_of(const struct descriptor *pack, int64_t id)
{
    const int64_t *ids = of(pack, 1000, INT64S, OPERANDS)->is.numbers;

    for (int i = 0; i < OPERANDS; i++)
        if (ids[i] == id) return of(pack, 1001, POINTERS, OPERANDS)->is.pointers[i];
    require(false, "an operand that is not there");
    return NULL;
}

static struct work work_of(struct descriptor *plan, const struct descriptor *pack)
{
    const struct descriptor *graph = part(plan, 401, CONFIG)->graph;
    const struct descriptor *attention = part(graph, 801, ATTENTION);
    struct work w = {.plan = plan};

    for (int i = 0; i < OPERANDS; i++) {
        const struct descriptor *tensor = part(attention, OPERAND_ATTRIBUTE(i), TENSOR);
        const int64_t *dims = of(tensor, 902, INT64S, 4)->is.numbers;
        const int64_t *strides = of(tensor, 903, INT64S, 4)->is.numbers;
        void *at = pointer_of(pack, of(tensor, 906, INT64S, 1)->is.numbers[0]);

        if (i == SCALE)
            memcpy(&w.scale, at, sizeof w.scale); /* on the host, and only now */
        else
            w.operands[i] = (struct operand){at, dims[1], dims[2], dims[3], strides[1], strides[2]};
        require(at && (i == SCALE || (uintptr_t)at % 16 == 0), "an operand that is not aligned");
    }
    return w;
}

CALL(int, cudnnBackendExecute, CUstream *handle, struct descriptor *plan, struct descriptor *pack)
{
    const uintptr_t workspace = (uintptr_t)of(pack, 1003, POINTERS, 1)->is.pointers[0];
    struct work w, *given;

    if (require(plan->final && plan->type == PLAN && pack->final && pack->type == PACK, "a run") ||
        require(workspace && workspace % WORKSPACE_ALIGNMENT == 0, "the workspace"))
        return BAD_PARAM;
    w = work_of(plan, pack);
    if (fake_cudnn.violation) return BAD_PARAM;
    if (!*handle) return SUCCESS; /* to warm up */
    if (fake_cudnn.run_status) return answer(fake_cudnn.run_status);
    given = malloc(sizeof *given);
    if (!given) return ALLOCATION;
    *given = w;
    fake_cudnn.runs++;
    fake_cudnn.engine = plan->engine;
    plan->under_way++;
    fake_cudnn.give(*handle, (struct fake_command){.run = attend, .given = given});
    return SUCCESS;
}
