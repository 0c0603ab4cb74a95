/*
 * cuDNN. What is declared of it here is the public ABI of its backend: descriptors that are made,
 * given attributes by number, and finalised; calls take and give what NVIDIA's "cuDNN backend API"
 * says of the function of that name.
 */
#include "device/cuda/cudnn.h"

#include "base/memory.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the ABI ---- */

typedef struct opaque_handle *handle_t;
typedef void *descriptor_t;

/* cudnnStatus_t: thousands are categories. Below INTERNAL_ERROR it is an installation, a parameter
 * or a wish that does not work, now or later; from there on something failed. */
enum {
    SUCCESS = 0,
    NOT_SUPPORTED = 3000,
    INTERNAL_ERROR = 4000,
    HOST_ALLOCATION = 4003,
    DEVICE_ALLOCATION = 4004,
};
/* cudnnDataType_t, cudnnBackendHeurMode_t, cudnnBackendNumericalNote_t */
enum { DATA_FLOAT = 0, DATA_BFLOAT16 = 9, HEURISTIC_A = 3, NOTE_NONDETERMINISTIC = 4 };
/* cudnnBackendAttributeType_t */
enum {
    TYPE_HANDLE = 0,
    TYPE_DATA_TYPE = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INT64 = 3,
    TYPE_POINTER = 6,
    TYPE_HEURISTIC = 8,
    TYPE_NUMERICAL_NOTE = 11,
    TYPE_DESCRIPTOR = 15,
};
/* cudnnBackendDescriptorType_t */
enum {
    ENGINE = 2,
    CONFIG = 3,
    HEURISTIC = 4,
    PLAN = 5,
    GRAPH = 15,
    PACK = 16,
    TENSOR = 17,
    ATTENTION = 41, /* of one operation; before 9.13.1 it took a graph of nine */
};
#define LEAST_VERSION 91301
/* cudnnBackendAttributeName_t */
enum {
    HEURISTIC_MODE = 200,
    HEURISTIC_GRAPH = 201,
    HEURISTIC_RESULTS = 202,
    CONFIG_ENGINE = 300,
    PLAN_CONFIG = 401,
    PLAN_WORKSPACE_BYTES = 402,
    GRAPH_HANDLE = 800,
    GRAPH_OPERATIONS = 801,
    TENSOR_ALIGNMENT = 900,
    TENSOR_TYPE = 901,
    TENSOR_DIMENSIONS = 902,
    TENSOR_STRIDES = 903,
    TENSOR_ID = 906,
    TENSOR_BY_VALUE = 908,
    PACK_IDS = 1000,
    PACK_POINTERS = 1001,
    PACK_WORKSPACE = 1003,
    ENGINE_NUMERICAL_NOTES = 1303,
    ATTENTION_Q = 2800,
    ATTENTION_K = 2801,
    ATTENTION_V = 2802,
    ATTENTION_OUT = 2803,
    ATTENTION_SCALE = 2805,
};

/* X(member, symbol, (parameters)); all return a status but `version` and `last_error`. */
#define CALLS(X)                                                                                   \
    X(create, cudnnCreate, (handle_t *))                                                           \
    X(destroy, cudnnDestroy, (handle_t))                                                           \
    X(set_stream, cudnnSetStream, (handle_t, CUstream))                                            \
    X(make, cudnnBackendCreateDescriptor, (int type, descriptor_t *))                              \
    X(drop, cudnnBackendDestroyDescriptor, (descriptor_t))                                         \
    X(set, cudnnBackendSetAttribute,                                                               \
        (descriptor_t, int attribute, int type, int64_t count, const void *values))                \
    X(get, cudnnBackendGetAttribute,                                                               \
        (descriptor_t, int attribute, int type, int64_t most, int64_t *count, void *values))       \
    X(finalize, cudnnBackendFinalize, (descriptor_t))                                              \
    X(execute, cudnnBackendExecute, (handle_t, descriptor_t plan, descriptor_t pack))

struct calls {
    size_t (*version)(void);
    void (*last_error)(char *text, size_t bytes);
#define MEMBER(member, symbol, parameters) int(*member) parameters;
    CALLS(MEMBER)
#undef MEMBER
};

static const struct cuda_symbol symbols[] = {{"cudnnGetVersion", offsetof(struct calls, version)},
    {"cudnnGetLastErrorString", offsetof(struct calls, last_error)},
#define SYMBOL(member, symbol, parameters) {#symbol, offsetof(struct calls, member)},
    CALLS(SYMBOL)
#undef SYMBOL
};

/* ---- what is kept of a shape ---- */

struct shape {
    int64_t queries, keys, heads, kv_heads, dim;
    int64_t q_stride, k_stride, v_stride, out_stride;
};

#define CONFIGS 4 /* engines that are tried for a shape, as the library orders them */
#define PARTS                                                                                      \
    (5 + 3 + 3 * CONFIGS) /* tensors; operation, graph, heuristic; and for each config             \
                           */
#define PLANS 16          /* shapes that are kept; a job has about five */
#define ALIGNMENT 16
/* Of the end of the device's workspace, where cuBLASLt's is too: operations take turns. Engines
 * that want more are not taken; those seen want 256 bytes at most. */
#define WORKSPACE_BYTES ((uint64_t)1 << 20)

/* Descriptors, in the order in which they were made. */
struct parts {
    descriptor_t all[PARTS];
    int count;
};

struct plan {
    struct shape shape;
    struct parts parts;
    descriptor_t plan; /* one of the parts */
};

struct cuda_cudnn {
    void *library;
    struct calls calls;
    handle_t handle;
    struct cuda_device *cuda;
    device_addr workspace;
    char name[32];
    char why[480]; /* the first call that did not work, of the last plan that was asked for */
    struct plan plans[PLANS];
    int count, next; /* next: the one that is replaced when all are taken */
};

/* ---- making descriptors: after the first call that does not work the others do nothing ---- */

struct making {
    struct cuda_cudnn *cudnn;
    struct parts *parts;
    int status; /* of the first call that did not work */
};

__attribute__((format(printf, 2, 3))) static void explain(
    struct cuda_cudnn *cudnn, const char *format, ...)
{
    va_list arguments;

    if (*cudnn->why) return;
    va_start(arguments, format);
    vsnprintf(cudnn->why, sizeof cudnn->why, format, arguments);
    va_end(arguments);
}

/* `attribute`: the one that it was about, or 0. */
static void check(struct making *m, int status, const char *call, const char *what, int attribute)
{
    char text[300] = "", number[32] = "";

    if (!status) return;
    m->status = status;
    m->cudnn->calls.last_error(text, sizeof text);
    if (attribute) snprintf(number, sizeof number, ", attribute %d", attribute);
    explain(m->cudnn, "%s of %s%s, status %d (%s)", call, what, number, status, text);
}

static descriptor_t make(struct making *m, int type, const char *what)
{
    descriptor_t made = NULL;

    if (m->status) return NULL;
    assert(m->parts->count < PARTS);
    check(m, m->cudnn->calls.make(type, &made), "cudnnBackendCreateDescriptor", what, 0);
    if (made) m->parts->all[m->parts->count++] = made;
    return made;
}

static void set(struct making *m, descriptor_t of, const char *what, int attribute, int type,
    int64_t count, const void *values)
{
    if (m->status) return;
    check(m, m->cudnn->calls.set(of, attribute, type, count, values), "cudnnBackendSetAttribute",
        what, attribute);
}

static void get(struct making *m, descriptor_t of, const char *what, int attribute, int type,
    int64_t most, int64_t *count, void *values)
{
    if (m->status) return;
    check(m, m->cudnn->calls.get(of, attribute, type, most, count, values),
        "cudnnBackendGetAttribute", what, attribute);
}

static void finalize(struct making *m, descriptor_t d, const char *what)
{
    if (m->status) return;
    check(m, m->cudnn->calls.finalize(d), "cudnnBackendFinalize", what, 0);
}

static void parts_drop(const struct cuda_cudnn *cudnn, struct parts *parts)
{
    while (parts->count > 0)
        cudnn->calls.drop(parts->all[--parts->count]);
}

/* ---- plans ---- */

/* A status that says that the library has nothing for what it is asked, and never will. Others are
 * failures, such as too little memory. */
static bool cannot(int status)
{
    return status > SUCCESS && status < INTERNAL_ERROR;
}

/* An operand of the operation, whose attribute numbers it too. */
static void operand(struct making *m, descriptor_t operation, const char *what, int attribute,
    int type, const int64_t dims[4], const int64_t strides[4])
{
    const int64_t id = attribute, alignment = ALIGNMENT;
    const bool by_value = attribute == ATTENTION_SCALE;
    descriptor_t d = make(m, TENSOR, what);

    set(m, d, what, TENSOR_TYPE, TYPE_DATA_TYPE, 1, &type);
    set(m, d, what, TENSOR_DIMENSIONS, TYPE_INT64, 4, dims);
    set(m, d, what, TENSOR_STRIDES, TYPE_INT64, 4, strides);
    set(m, d, what, TENSOR_ID, TYPE_INT64, 1, &id);
    set(m, d, what, TENSOR_ALIGNMENT, TYPE_INT64, 1, &alignment);
    if (by_value) set(m, d, what, TENSOR_BY_VALUE, TYPE_BOOLEAN, 1, &by_value);
    finalize(m, d, what);
    set(m, operation, "the attention", attribute, TYPE_DESCRIPTOR, 1, &d);
}

/* A matrix of heads side by side, as [1, heads, rows, dim]. */
static void matrix_operand(struct making *m, descriptor_t operation, const char *what,
    int attribute, int64_t rows, int64_t heads, int64_t dim, int64_t stride)
{
    const int64_t dims[4] = {1, heads, rows, dim}, strides[4] = {rows * stride, dim, stride, 1};

    operand(m, operation, what, attribute, DATA_BFLOAT16, dims, strides);
}

static descriptor_t graph(struct making *m, const struct shape *s)
{
    const int64_t ones[4] = {1, 1, 1, 1};
    descriptor_t attention = make(m, ATTENTION, "the attention");
    descriptor_t made = make(m, GRAPH, "the graph");

    matrix_operand(m, attention, "q", ATTENTION_Q, s->queries, s->heads, s->dim, s->q_stride);
    matrix_operand(m, attention, "k", ATTENTION_K, s->keys, s->kv_heads, s->dim, s->k_stride);
    matrix_operand(m, attention, "v", ATTENTION_V, s->keys, s->kv_heads, s->dim, s->v_stride);
    matrix_operand(m, attention, "out", ATTENTION_OUT, s->queries, s->heads, s->dim, s->out_stride);
    operand(m, attention, "the scale", ATTENTION_SCALE, DATA_FLOAT, ones, ones);
    finalize(m, attention, "the attention");
    set(m, made, "the graph", GRAPH_HANDLE, TYPE_HANDLE, 1, &m->cudnn->handle);
    set(m, made, "the graph", GRAPH_OPERATIONS, TYPE_DESCRIPTOR, 1, &attention);
    finalize(m, made, "the graph");
    return made;
}

/* The engines that the library would take for it, the best first; how many. */
static int64_t suggest(struct making *m, descriptor_t graph, descriptor_t configs[CONFIGS])
{
    const int mode = HEURISTIC_A;
    descriptor_t heuristic = make(m, HEURISTIC, "the heuristic");
    int64_t most = 0, count = 0;

    set(m, heuristic, "the heuristic", HEURISTIC_GRAPH, TYPE_DESCRIPTOR, 1, &graph);
    set(m, heuristic, "the heuristic", HEURISTIC_MODE, TYPE_HEURISTIC, 1, &mode);
    finalize(m, heuristic, "the heuristic");
    get(m, heuristic, "the heuristic", HEURISTIC_RESULTS, TYPE_DESCRIPTOR, 0, &most, NULL);
    if (most > CONFIGS) most = CONFIGS;
    for (int64_t i = 0; i < most; i++)
        configs[i] = make(m, CONFIG, "a configuration");
    if (most > 0) /* fewer: not all work here */
        get(m, heuristic, "the heuristic", HEURISTIC_RESULTS, TYPE_DESCRIPTOR, most, &count,
            configs);
    if (!m->status && count == 0) explain(m->cudnn, "no engine is suggested");
    return m->status ? 0 : count;
}

/* Whether its sums are added up in an order that is always the same. */
static bool deterministic(struct making *m, descriptor_t config)
{
    int notes[16];
    descriptor_t engine = make(m, ENGINE, "an engine");
    int64_t count = 0;

    get(m, config, "a configuration", CONFIG_ENGINE, TYPE_DESCRIPTOR, 1, &count, &engine);
    count = 0;
    get(m, engine, "an engine", ENGINE_NUMERICAL_NOTES, TYPE_NUMERICAL_NOTE,
        sizeof notes / sizeof *notes, &count, notes);
    for (int64_t i = 0; i < count; i++)
        if (notes[i] == NOTE_NONDETERMINISTIC) {
            explain(m->cudnn, "an engine is not deterministic");
            return false;
        }
    return !m->status;
}

/* The plan of this configuration, or NULL if it is not for us; finalising it compiles a kernel. */
static descriptor_t plan_by(struct making *m, descriptor_t config)
{
    descriptor_t made;
    int64_t bytes = 0, count = 0;

    if (!deterministic(m, config)) return NULL;
    made = make(m, PLAN, "the plan");
    set(m, made, "the plan", PLAN_CONFIG, TYPE_DESCRIPTOR, 1, &config);
    finalize(m, made, "the plan");
    get(m, made, "the plan", PLAN_WORKSPACE_BYTES, TYPE_INT64, 1, &count, &bytes);
    if (m->status) return NULL;
    if (bytes < 0 || (uint64_t)bytes > WORKSPACE_BYTES) {
        explain(m->cudnn, "an engine wants a workspace of %lld bytes", (long long)bytes);
        return NULL;
    }
    return made;
}

/* SUCCESS, and a plan for p's shape, or a status that says why there is none. */
static int describe(struct cuda_cudnn *cudnn, struct plan *p)
{
    struct making m = {cudnn, &p->parts, SUCCESS};
    descriptor_t configs[CONFIGS];
    int64_t count;

    *cudnn->why = 0;
    count = suggest(&m, graph(&m, &p->shape), configs);
    for (int64_t i = 0; i < count && !p->plan; i++) {
        p->plan = plan_by(&m, configs[i]);
        if (!cannot(m.status)) continue;
        m.status = SUCCESS; /* another one may */
    }
    return m.status || p->plan ? m.status : NOT_SUPPORTED;
}

static void plan_drop(const struct cuda_cudnn *cudnn, struct plan *p)
{
    parts_drop(cudnn, &p->parts);
    memset(p, 0, sizeof *p);
}

static bool same_shape(const struct shape *a, const struct shape *b)
{
    return a->queries == b->queries && a->keys == b->keys && a->heads == b->heads &&
           a->kv_heads == b->kv_heads && a->dim == b->dim && a->q_stride == b->q_stride &&
           a->k_stride == b->k_stride && a->v_stride == b->v_stride &&
           a->out_stride == b->out_stride;
}

/* SUCCESS, and the plan, which is made when its shape is first met, or why there is none. */
static int plan_of(struct cuda_cudnn *cudnn, const struct shape *shape, struct plan **plan)
{
    struct plan *p;
    int status;

    for (int i = 0; i < cudnn->count; i++)
        if (same_shape(&cudnn->plans[i].shape, shape)) {
            *plan = &cudnn->plans[i];
            return SUCCESS;
        }
    p = &cudnn->plans[cudnn->count < PLANS ? cudnn->count : cudnn->next];
    /* The kernel of the one that is replaced may still run. */
    if (cudnn->count == PLANS) cudnn->cuda->driver->context_synchronize();
    plan_drop(cudnn, p);
    p->shape = *shape;
    status = describe(cudnn, p);
    if (status) {
        plan_drop(cudnn, p); /* no shape is all zeros */
        return status;
    }
    if (cudnn->count < PLANS)
        cudnn->count++;
    else
        cudnn->next = (cudnn->next + 1) % PLANS;
    *plan = p;
    return SUCCESS;
}

/* ---- attending ---- */

#define LEAST_ROWS 512 /* queries, and keys: fewer are not worth a kernel of their own */

static bool takes(const struct shape *s)
{
    return (s->dim == 64 || s->dim == 128) && s->queries >= LEAST_ROWS && s->keys >= LEAST_ROWS;
}

static bool aligned(struct matrix m)
{
    return m.addr % ALIGNMENT == 0 && dtype_bytes(m.dtype, m.stride) % ALIGNMENT == 0;
}

static int run(struct cuda_cudnn *cudnn, CUstream stream, const struct plan *p, struct matrix out,
    struct matrix q, struct matrix k, struct matrix v, float scale)
{
    const int64_t ids[] = {ATTENTION_Q, ATTENTION_K, ATTENTION_V, ATTENTION_OUT, ATTENTION_SCALE};
    void *const pointers[] = {(void *)(uintptr_t)q.addr, (void *)(uintptr_t)k.addr,
        (void *)(uintptr_t)v.addr, (void *)(uintptr_t)out.addr, &scale};
    void *const workspace = (void *)(uintptr_t)cudnn->workspace;
    struct parts parts = {.count = 0};
    struct making m = {cudnn, &parts, SUCCESS};
    descriptor_t pack;

    *cudnn->why = 0;
    check(&m, cudnn->calls.set_stream(cudnn->handle, stream), "cudnnSetStream", "the handle", 0);
    pack = make(&m, PACK, "the operands");
    set(&m, pack, "the operands", PACK_WORKSPACE, TYPE_POINTER, 1, &workspace);
    set(&m, pack, "the operands", PACK_POINTERS, TYPE_POINTER, 5, pointers);
    set(&m, pack, "the operands", PACK_IDS, TYPE_INT64, 5, ids);
    finalize(&m, pack, "the operands");
    if (!m.status)
        check(&m, cudnn->calls.execute(cudnn->handle, p->plan, pack), "cudnnBackendExecute",
            "the plan", 0);
    parts_drop(cudnn, &parts);
    return m.status;
}

/* Our own kernels would do, but cuDNN was asked for, and bits must not depend on a failure. */
static void fail(struct cuda_cudnn *cudnn, int status)
{
    char what[600];

    snprintf(what, sizeof what,
        "attention by %s: %s (the environment's SHOAL_CUDA_ATTENTION=own does without)",
        cudnn->name, cudnn->why);
    cuda_fail(cudnn->cuda,
        cannot(status)                                             ? CUDA_ERROR_NOT_SUPPORTED
        : status == HOST_ALLOCATION || status == DEVICE_ALLOCATION ? CUDA_ERROR_OUT_OF_MEMORY
                                                                   : CUDA_ERROR_UNKNOWN,
        what);
}

bool cuda_cudnn_attend(struct stream *stream, struct matrix out, struct matrix q, struct matrix k,
    struct matrix v, int32_t heads, int32_t kv_heads, float scale)
{
    struct cuda_device *cuda = cuda_device(stream->device);
    struct cuda_cudnn *cudnn = cuda->cudnn;
    const struct shape shape = {
        q.rows, k.rows, heads, kv_heads, q.cols / heads, q.stride, k.stride, v.stride, out.stride};
    struct plan *p;
    int status;

    if (!cudnn || !takes(&shape) || q.dtype != DTYPE_BF16 || !aligned(out) || !aligned(q) ||
        !aligned(k) || !aligned(v))
        return false;
    assert(k.dtype == q.dtype && v.dtype == q.dtype && out.dtype == q.dtype && scale > 0);
    if (!cuda_enter(cuda)) return true; /* dropped, like all that is given now */
    status = plan_of(cudnn, &shape, &p);
    if (!status)
        status = run(cudnn, ((struct cuda_stream *)stream)->handle, p, out, q, k, v, scale);
    if (status) fail(cudnn, status);
    return true;
}

/* ---- opening ---- */

static void drop_library(struct cuda_cudnn *cudnn)
{
    for (int i = 0; i < cudnn->count; i++)
        plan_drop(cudnn, &cudnn->plans[i]);
    cudnn->calls.destroy(cudnn->handle);
    /* The library stays: it has state of its own in the context. */
    cudnn->library = NULL;
}

/* Attention as a transformer has it, whatever the workspace holds: kernels are loaded to the card
 * when they first run. False if the library does not do even that. */
static bool warm_up(struct cuda_cudnn *cudnn)
{
    const int64_t rows = 1024, dim = 128, heads = 8, cols = heads * dim;
    const struct cuda_device *cuda = cudnn->cuda;
    const struct shape shape = {rows, rows, heads, heads, dim, cols, cols, cols, cols};
    struct matrix m[4]; /* q, k, v, out */
    struct plan *p;
    int status = plan_of(cudnn, &shape, &p);

    assert((uint64_t)dtype_bytes(DTYPE_BF16, 4 * rows * cols) + WORKSPACE_BYTES <=
           cuda->workspace_bytes);
    for (int i = 0; i < 4; i++)
        m[i] = matrix_at(cuda->workspace + (uint64_t)dtype_bytes(DTYPE_BF16, i * rows * cols),
            DTYPE_BF16, rows, cols);
    if (!status) status = run(cudnn, NULL, p, m[3], m[0], m[1], m[2], 1);
    cuda->driver->context_synchronize();
    return !status;
}

/* False, and nothing is left open, if it cannot be used. */
static bool open_library(struct cuda_cudnn *cudnn, const char *file)
{
    const char *missing;
    int status, version;

    cudnn->library =
        cuda_library_open(file, symbols, sizeof symbols / sizeof *symbols, &cudnn->calls, &missing);
    if (!cudnn->library) {
        /* What is wrong with one that is there says more than that another is not. */
        if (missing) *cudnn->why = 0;
        if (missing)
            explain(cudnn, "it has no %s", missing);
        else
            explain(cudnn, "%s", dlerror());
        return false;
    }
    *cudnn->why = 0;
    version = (int)cudnn->calls.version();
    snprintf(cudnn->name, sizeof cudnn->name, "cuDNN %d.%d", version / 10000, version / 100 % 100);
    status = version < LEAST_VERSION ? SUCCESS : cudnn->calls.create(&cudnn->handle);
    if (version < LEAST_VERSION || status) {
        if (status)
            explain(cudnn, "cudnnCreate, status %d", status);
        else
            explain(cudnn, "it is %s, and 9.13.1 or newer would do", cudnn->name);
        dlclose(cudnn->library);
        cudnn->library = NULL;
        return false;
    }
    if (warm_up(cudnn)) return true;
    drop_library(cudnn);
    return false;
}

static bool open_any(struct cuda_cudnn *cudnn, const char *named)
{
    static const char *const files[] = {
        "libcudnn_graph.so.9", "/usr/local/cuda/lib64/libcudnn_graph.so.9"};

    if (named && *named) return open_library(cudnn, named);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (open_library(cudnn, files[i])) return true;
    return false;
}

enum shoal_status cuda_cudnn_open(struct cuda_device *cuda, struct shoal_error *error)
{
    const char *how = getenv("SHOAL_CUDA_ATTENTION"), *named = getenv("SHOAL_CUDNN");
    enum shoal_status status;
    struct cuda_cudnn *cudnn;

    if (!how || !*how || strcmp(how, "own") == 0) return SHOAL_OK;
    if (strcmp(how, "cudnn") != 0)
        FAIL(error, SHOAL_E_INVALID,
            "the environment's SHOAL_CUDA_ATTENTION is \"%s\"; it may be \"own\" or \"cudnn\", or "
            "not there",
            how);
    if (cuda->sm < 80)
        FAIL(error, SHOAL_E_DEVICE,
            "cuDNN, which the environment's SHOAL_CUDA_ATTENTION asks for, needs BF16, which %s "
            "does not have",
            cuda->name);
    cudnn = mem_calloc(1, sizeof *cudnn);
    if (!cudnn) FAIL_MEMORY(error);
    cudnn->cuda = cuda;
    cudnn->workspace = cuda->workspace + cuda->workspace_bytes - WORKSPACE_BYTES;
    if (open_any(cudnn, named)) {
        cuda->cudnn = cudnn;
        return SHOAL_OK;
    }
    if (named && *named)
        status = error_set(error, SHOAL_E_DEVICE, __FILE__, __LINE__,
            "%s, which the environment's SHOAL_CUDNN names, is no cuDNN that works here (%s); "
            "without the variable the system's is looked for",
            named, cudnn->why);
    else
        status = error_set(error, SHOAL_E_DEVICE, __FILE__, __LINE__,
            "there is no cuDNN that works here (%s), which the environment's SHOAL_CUDA_ATTENTION "
            "asks for; SHOAL_CUDNN may say where its libcudnn_graph.so.9 is, and without both "
            "shoal's own kernels attend",
            cudnn->why);
    mem_free(cudnn);
    return status;
}

void cuda_cudnn_close(struct cuda_cudnn **cudnn)
{
    if (!*cudnn) return;
    drop_library(*cudnn);
    mem_free(*cudnn);
    *cudnn = NULL;
}

const char *cuda_cudnn_name(const struct cuda_cudnn *cudnn)
{
    return cudnn ? cudnn->name : "own kernels";
}
