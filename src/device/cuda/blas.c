/*
 * cuBLASLt. What is declared of it here is its public ABI; calls take and give what NVIDIA's
 * "cuBLASLt API" says of the function of that name.
 */
#include "device/cuda/blas.h"

#include "base/memory.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the ABI ---- */

typedef struct opaque_handle *handle_t;
typedef struct opaque_product *product_t;
typedef struct opaque_layout *layout_t;
typedef struct opaque_wishes *wishes_t;

/* cublasStatus_t, those that we tell apart */
enum { SUCCESS = 0, ALLOC_FAILED = 3, INVALID_VALUE = 7, ARCH_MISMATCH = 8, NOT_SUPPORTED = 15 };
/* cudaDataType_t and cublasComputeType_t */
enum { R_32F = 0, R_16F = 2, R_16BF = 14, COMPUTE_32F = 68 };
/* cublasOperation_t, cublasLtEpilogue_t, cublasLtReductionScheme_t */
enum { OP_T = 1, EPILOGUE_BIAS = 4, REDUCTION_COMPUTE_TYPE = 2 };
/* cublasLtMatmulDescAttributes_t */
enum { PRODUCT_OP_A = 3, PRODUCT_EPILOGUE = 7, PRODUCT_BIAS = 8 };
/* cublasLtMatrixLayoutAttribute_t */
enum { LAYOUT_LEADING = 4 };
/* cublasLtMatmulPreferenceAttributes_t */
enum { WISH_WORKSPACE_BYTES = 1, WISH_REDUCTIONS = 3, WISH_ALIGNMENT_A = 5, WISH_ALIGNMENT_D = 8 };

struct algorithm {
    uint64_t data[8];
};

/* cublasLtMatmulHeuristicResult_t */
struct suggestion {
    struct algorithm algorithm;
    size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
};

/* X(member, symbol, (parameters)); all return a status but `version`. */
#define CALLS(X)                                                                                   \
    X(create, cublasLtCreate, (handle_t *))                                                        \
    X(destroy, cublasLtDestroy, (handle_t))                                                        \
    X(product_create, cublasLtMatmulDescCreate, (product_t *, int compute, int scale))             \
    X(product_destroy, cublasLtMatmulDescDestroy, (product_t))                                     \
    X(product_set, cublasLtMatmulDescSetAttribute, (product_t, int, const void *, size_t))         \
    X(layout_create, cublasLtMatrixLayoutCreate,                                                   \
        (layout_t *, int type, uint64_t rows, uint64_t cols, int64_t leading))                     \
    X(layout_destroy, cublasLtMatrixLayoutDestroy, (layout_t))                                     \
    X(layout_set, cublasLtMatrixLayoutSetAttribute, (layout_t, int, const void *, size_t))         \
    X(wishes_create, cublasLtMatmulPreferenceCreate, (wishes_t *))                                 \
    X(wishes_destroy, cublasLtMatmulPreferenceDestroy, (wishes_t))                                 \
    X(wishes_set, cublasLtMatmulPreferenceSetAttribute, (wishes_t, int, const void *, size_t))     \
    X(suggest, cublasLtMatmulAlgoGetHeuristic,                                                     \
        (handle_t, product_t, layout_t a, layout_t b, layout_t c, layout_t d, wishes_t, int most,  \
            struct suggestion *, int *count))                                                      \
    X(check, cublasLtMatmulAlgoCheck,                                                              \
        (handle_t, product_t, layout_t a, layout_t b, layout_t c, layout_t d,                      \
            const struct algorithm *, struct suggestion *))                                        \
    X(multiply, cublasLtMatmul,                                                                    \
        (handle_t, product_t, const void *alpha, const void *a, layout_t, const void *b, layout_t, \
            const void *beta, const void *c, layout_t, void *d, layout_t,                          \
            const struct algorithm *, void *workspace, size_t workspace_bytes, CUstream))

struct calls {
    size_t (*version)(void);
#define MEMBER(member, symbol, parameters) int(*member) parameters;
    CALLS(MEMBER)
#undef MEMBER
};

/* ---- what is kept of a shape ---- */

struct shape {
    int64_t m, n, k;
    struct cuda_columns columns; /* n are all of them, a panel or the last one */
    enum dtype type, y_type;
    bool bias;
};

/*
 * The library is column-major: to it y is d[n, m] = a^T b with a = w as [k, n] and b = x as [k, m].
 */
struct product {
    struct shape shape;
    product_t product;
    layout_t a, b, d;
    struct algorithm algorithm;
    bool usable; /* or the library has nothing for it */
};

#define PRODUCTS 64 /* shapes that are kept; a job has about twenty */
#define ALIGNMENT 16

struct cuda_blas {
    void *library;
    struct calls calls;
    handle_t handle;
    struct cuda_device *cuda;
    device_addr workspace;
    char name[32];
    struct product products[PRODUCTS];
    int count, next; /* next: the one that is replaced when all are taken */
};

static int data_type(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? R_32F : dtype == DTYPE_F16 ? R_16F : R_16BF;
}

static void layouts_drop(const struct cuda_blas *blas, struct product *p)
{
    if (p->a) blas->calls.layout_destroy(p->a);
    if (p->d) blas->calls.layout_destroy(p->d);
    p->a = p->d = NULL;
}

static void product_drop(const struct cuda_blas *blas, struct product *p)
{
    layouts_drop(blas, p);
    if (p->product) blas->calls.product_destroy(p->product);
    if (p->b) blas->calls.layout_destroy(p->b);
    memset(p, 0, sizeof *p);
}

/*
 * The first algorithm that the library suggests. It must not depend on where operands lie, so they
 * are described as dense and aligned to 16 bytes, whatever they are; nor on the order in which
 * blocks finish, so that sums are split only if a second pass adds them up.
 */
static int suggest(const struct cuda_blas *blas, struct product *p)
{
    const struct calls *lt = &blas->calls;
    const uint64_t workspace_bytes = CUDA_BLAS_WORKSPACE_BYTES;
    const uint32_t reductions = REDUCTION_COMPUTE_TYPE, alignment = ALIGNMENT;
    struct suggestion suggestion = {0};
    wishes_t wishes = NULL;
    int count = 0, status = lt->wishes_create(&wishes);

    if (status) return status;
    status = lt->wishes_set(wishes, WISH_WORKSPACE_BYTES, &workspace_bytes, sizeof workspace_bytes);
    if (!status) status = lt->wishes_set(wishes, WISH_REDUCTIONS, &reductions, sizeof reductions);
    for (int which = WISH_ALIGNMENT_A; !status && which <= WISH_ALIGNMENT_D; which++)
        status = lt->wishes_set(wishes, which, &alignment, sizeof alignment);
    if (!status)
        status = lt->suggest(
            blas->handle, p->product, p->a, p->b, p->d, p->d, wishes, 1, &suggestion, &count);
    lt->wishes_destroy(wishes);
    if (status) return status;
    if (count == 0) return NOT_SUPPORTED;
    p->algorithm = suggestion.algorithm;
    return suggestion.status;
}

/* Describes w and y for `n` columns of the product. */
static int lay_out(const struct cuda_blas *blas, struct product *p, int64_t n)
{
    const struct calls *lt = &blas->calls;
    const struct shape s = p->shape;
    const int64_t row = ceil_div(n, ALIGNMENT) * ALIGNMENT;
    int status;

    layouts_drop(blas, p);
    status = lt->layout_create(&p->a, data_type(s.type), (uint64_t)s.k, (uint64_t)n, s.k);
    if (status) return status;
    return lt->layout_create(&p->d, data_type(s.y_type), (uint64_t)n, (uint64_t)s.m, row);
}

/* Whether `n` columns can be made as all are. */
static int check_panel(const struct cuda_blas *blas, struct product *p, int64_t n)
{
    struct suggestion result = {0};
    int status;

    if (n == 0 || n == p->shape.columns.all) return SUCCESS;
    status = lay_out(blas, p, n);
    if (status) return status;
    status =
        blas->calls.check(blas->handle, p->product, p->a, p->b, p->d, p->d, &p->algorithm, &result);
    if (status) return status;
    return result.workspace_bytes > CUDA_BLAS_WORKSPACE_BYTES ? NOT_SUPPORTED : result.status;
}

/* Looks at the whole and its panels, whichever the shape is, so that all are usable or none is. */
static int describe(const struct cuda_blas *blas, struct product *p)
{
    const struct calls *lt = &blas->calls;
    const struct shape s = p->shape;
    const int32_t transpose = OP_T, epilogue = EPILOGUE_BIAS;
    const device_addr bias = blas->workspace; /* for now: there must be one */
    int status = lt->product_create(&p->product, COMPUTE_32F, R_32F);

    if (!status) status = lt->product_set(p->product, PRODUCT_OP_A, &transpose, sizeof transpose);
    if (!status && s.bias)
        status = lt->product_set(p->product, PRODUCT_EPILOGUE, &epilogue, sizeof epilogue);
    if (!status && s.bias) status = lt->product_set(p->product, PRODUCT_BIAS, &bias, sizeof bias);
    if (!status)
        status = lt->layout_create(&p->b, data_type(s.type), (uint64_t)s.k, (uint64_t)s.m, s.k);
    if (!status) status = lay_out(blas, p, s.columns.all);
    if (!status) status = suggest(blas, p);
    if (!status) status = check_panel(blas, p, s.columns.panel);
    if (!status) status = check_panel(blas, p, s.columns.all % s.columns.panel);
    return status ? status : lay_out(blas, p, s.n);
}

static bool same_shape(struct shape a, struct shape b)
{
    return a.m == b.m && a.n == b.n && a.k == b.k && a.type == b.type && a.y_type == b.y_type &&
           a.bias == b.bias && a.columns.all == b.columns.all && a.columns.panel == b.columns.panel;
}

/* A status that says that the library has nothing for what it is asked, and never will. Others are
 * failures, such as too little memory. */
static bool cannot(int status)
{
    return status == INVALID_VALUE || status == ARCH_MISMATCH || status == NOT_SUPPORTED;
}

/* Only what the library says for good is kept; SUCCESS, and a product that may not be usable, or a
 * failure's status. */
static int product_of(struct cuda_blas *blas, struct shape shape, struct product **product)
{
    struct product *p;
    int status;

    for (int i = 0; i < blas->count; i++)
        if (same_shape(blas->products[i].shape, shape)) {
            *product = &blas->products[i];
            return SUCCESS;
        }
    p = &blas->products[blas->count < PRODUCTS ? blas->count : blas->next];
    product_drop(blas, p);
    p->shape = shape;
    status = describe(blas, p);
    if (status && !cannot(status)) {
        product_drop(blas, p); /* no shape is all zeros */
        return status;
    }
    if (blas->count < PRODUCTS)
        blas->count++;
    else
        blas->next = (blas->next + 1) % PRODUCTS;
    p->usable = status == SUCCESS;
    *product = p;
    return SUCCESS;
}

/* ---- multiplying ---- */

static bool aligned(struct matrix m)
{
    return m.addr % ALIGNMENT == 0 &&
           (m.rows == 1 || dtype_bytes(m.dtype, m.stride) % ALIGNMENT == 0);
}

static int64_t leading(struct matrix m)
{
    return m.rows == 1 ? ceil_div(m.cols, ALIGNMENT) * ALIGNMENT : m.stride;
}

static int run(struct cuda_blas *blas, CUstream stream, const struct product *p, struct matrix y,
    struct matrix x, struct matrix w, struct matrix bias)
{
    const struct calls *lt = &blas->calls;
    const int64_t y_leading = leading(y), x_leading = leading(x), w_leading = leading(w);
    const float alpha = 1, beta = 0;
    void *out = (void *)(uintptr_t)y.addr;
    int status = lt->layout_set(p->a, LAYOUT_LEADING, &w_leading, sizeof w_leading);

    if (!status) status = lt->layout_set(p->b, LAYOUT_LEADING, &x_leading, sizeof x_leading);
    if (!status) status = lt->layout_set(p->d, LAYOUT_LEADING, &y_leading, sizeof y_leading);
    if (!status && bias.addr)
        status = lt->product_set(p->product, PRODUCT_BIAS, &bias.addr, sizeof bias.addr);
    if (!status)
        status = lt->multiply(blas->handle, p->product, &alpha, (const void *)(uintptr_t)w.addr,
            p->a, (const void *)(uintptr_t)x.addr, p->b, &beta, out, p->d, out, p->d, &p->algorithm,
            (void *)(uintptr_t)blas->workspace, CUDA_BLAS_WORKSPACE_BYTES, stream);
    return status;
}

bool cuda_blas_multiply(struct stream *stream, struct matrix y, struct matrix x, struct matrix w,
    struct matrix bias, struct cuda_columns columns)
{
    struct cuda_device *cuda = cuda_device(stream->device);
    struct product *p;
    char what[80];
    int status;

    assert(x.dtype == w.dtype && (!bias.addr || bias.dtype == y.dtype));
    if (y.dtype == DTYPE_F16) return false; /* it would write infinities: gpu.cuh's saturate */
    if (!cuda->blas || !aligned(y) || !aligned(x) || !aligned(w) || bias.addr % ALIGNMENT != 0)
        return false;
    if (!cuda_enter(cuda)) return true; /* dropped, like all that is given now */
    status = product_of(cuda->blas,
        (struct shape){y.rows, y.cols, x.cols, columns, x.dtype, y.dtype, bias.addr != 0}, &p);
    if (!status && !p->usable) return false;
    if (!status) status = run(cuda->blas, ((struct cuda_stream *)stream)->handle, p, y, x, w, bias);
    if (cannot(status)) return false;
    if (status) { /* our own kernels would do, but bits must not depend on a failure */
        snprintf(what, sizeof what, "%s, status %d", cuda->blas->name, status);
        cuda_fail(
            cuda, status == ALLOC_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN, what);
    }
    return true;
}

/* ---- opening ---- */

static const struct cuda_symbol symbols[] = {
    {"cublasLtGetVersion", offsetof(struct calls, version)},
#define SYMBOL(member, symbol, parameters) {#symbol, offsetof(struct calls, member)},
    CALLS(SYMBOL)
#undef SYMBOL
};

/* False, and nothing is left open, if it cannot be used. */
static bool open_library(struct cuda_blas *blas, const char *file)
{
    const char *missing;
    size_t version;

    blas->library =
        cuda_library_open(file, symbols, sizeof symbols / sizeof *symbols, &blas->calls, &missing);
    if (!blas->library) return false;
    /* One for a newer driver than there is fails here. */
    if (blas->calls.create(&blas->handle)) {
        dlclose(blas->library);
        blas->library = NULL;
        return false;
    }
    version = blas->calls.version();
    snprintf(blas->name, sizeof blas->name, "cuBLASLt %d.%d", (int)(version / 10000),
        (int)(version / 100 % 100));
    return true;
}

/* Products as a transformer has them, whatever the workspace holds: kernels are loaded to the card
 * when they first run. */
static void warm_up(struct cuda_blas *blas)
{
    const struct cuda_device *cuda = blas->cuda;
    const enum dtype type = cuda->base.traits.activation, y_types[] = {DTYPE_F32, type};
    const int types = type == DTYPE_F16 ? 1 : 2; /* see cuda_blas_multiply */
    const int64_t rows[] = {64, 1024, 2048}, dim = 2048;

    if ((uint64_t)dtype_bytes(DTYPE_F32, 2 * dim * dim) >
        cuda->workspace_bytes - CUDA_BLAS_WORKSPACE_BYTES)
        return;
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < types; j++) {
            struct matrix w = matrix_at(cuda->workspace, type, dim, dim);
            struct matrix x = matrix_at(cuda->workspace, type, rows[i], dim);
            struct matrix y =
                matrix_at(cuda->workspace + (uint64_t)dtype_bytes(DTYPE_F32, dim * dim), y_types[j],
                    rows[i], dim);
            const struct shape shape = {rows[i], dim, dim, {dim, dim}, type, y_types[j], false};
            struct product *p;

            /* What fails now is asked for again when it is needed. */
            if (product_of(blas, shape, &p) == SUCCESS && p->usable)
                (void)run(blas, NULL, p, y, x, w, MATRIX_NONE);
        }
    cuda->driver->context_synchronize();
}

enum shoal_status cuda_blas_open(struct cuda_device *cuda, struct shoal_error *error)
{
    static const char *const files[] = {"libcublasLt.so.13", "libcublasLt.so.12",
        "/usr/local/cuda/lib64/libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.12"};
    const char *how = getenv("SHOAL_CUDA_MULTIPLY"), *named = getenv("SHOAL_CUBLASLT");
    bool own = how && strcmp(how, "own") == 0, must = how && strcmp(how, "cublaslt") == 0;
    struct cuda_blas *blas;

    if (how && *how && !own && !must)
        FAIL(error, SHOAL_E_INVALID,
            "the environment's SHOAL_CUDA_MULTIPLY is \"%s\"; it may be \"own\" or \"cublaslt\", "
            "or not there",
            how);
    if (own) return SHOAL_OK;
    assert(cuda->workspace_bytes > CUDA_BLAS_WORKSPACE_BYTES);
    blas = mem_calloc(1, sizeof *blas);
    if (!blas) FAIL_MEMORY(error);
    blas->cuda = cuda;
    blas->workspace = cuda->workspace + cuda->workspace_bytes - CUDA_BLAS_WORKSPACE_BYTES;
    if (named && *named)
        (void)open_library(blas, named);
    else
        for (size_t i = 0; !blas->library && i < sizeof files / sizeof *files; i++)
            (void)open_library(blas, files[i]);
    if (blas->library) {
        warm_up(blas);
        cuda->blas = blas;
        return SHOAL_OK;
    }
    mem_free(blas);
    if (named && *named)
        FAIL(error, SHOAL_E_DEVICE,
            "%s, which the environment's SHOAL_CUBLASLT names, is no cuBLASLt that works here; "
            "without the variable the system's is looked for",
            named);
    if (must)
        FAIL(error, SHOAL_E_DEVICE,
            "there is no cuBLASLt that works here, which the environment's SHOAL_CUDA_MULTIPLY "
            "asks for; SHOAL_CUBLASLT may say where its libcublasLt.so.12 or .13 is, and without "
            "both shoal's own kernels multiply");
    return SHOAL_OK;
}

void cuda_blas_close(struct cuda_blas **blas)
{
    if (!*blas) return;
    for (int i = 0; i < (*blas)->count; i++)
        product_drop(*blas, &(*blas)->products[i]);
    (*blas)->calls.destroy((*blas)->handle);
    /* The library stays: it has state of its own in the context. */
    mem_free(*blas);
    *blas = NULL;
}

const char *cuda_blas_name(const struct cuda_blas *blas)
{
    return blas ? blas->name : "own kernels";
}
