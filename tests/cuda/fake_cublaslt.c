/*
 * A cuBLASLt without a card, as a library of its own: multiplies what lies in the fake driver's
 * memory, in the order in which our own kernels add up, and looks at what it is given. Numbers are
 * those of NVIDIA's headers.
 */
#include "cuda/fake_cublaslt.h"

#include "base/number.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { R_32F = 0, R_16F = 2, R_16BF = 14, COMPUTE_32F = 68 };
#define WORKSPACE_BYTES ((uint64_t)20 << 20)

EXPORT struct fake_cublaslt fake_cublaslt;

struct layout {
    int type;
    uint64_t rows, cols;
    int64_t leading;
};
struct product {
    int32_t op_a, epilogue;
    uint64_t bias;
};
struct wishes {
    uint64_t workspace_bytes;
    uint32_t reductions, alignment[4];
};
struct algorithm {
    uint64_t data[8];
};
struct suggestion {
    struct algorithm algorithm;
    size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
};

/* The last algorithm that was checked: what it was suggested for, and the largest n it is for. */
static struct {
    uint64_t suggested, n;
} checked;

/* A product on its way. */
struct work {
    struct layout a, b, d;
    bool split;
    struct product product;
    const uint16_t *w, *x;
    void *y;
};

static int require(bool condition, const char *what)
{
    if (!condition && !fake_cublaslt.violation) fake_cublaslt.violation = what;
    return condition ? SUCCESS : INVALID_VALUE;
}

static void *create(size_t bytes)
{
    fake_cublaslt.things++;
    return calloc(1, bytes);
}

static int destroy(void *thing)
{
    fake_cublaslt.things--;
    free(thing);
    return SUCCESS;
}

EXPORT size_t cublasLtGetVersion(void);
size_t cublasLtGetVersion(void)
{
    return 130205;
}

#define CALL(name, ...)                                                                            \
    EXPORT int name(__VA_ARGS__);                                                                  \
    int name(__VA_ARGS__)

CALL(cublasLtCreate, void **handle)
{
    *handle = create(1);
    return SUCCESS;
}

CALL(cublasLtDestroy, void *handle)
{
    return destroy(handle);
}

CALL(cublasLtMatmulDescCreate, struct product **product, int compute, int scale)
{
    if (fake_cublaslt.description_status) return fake_cublaslt.description_status;
    *product = create(sizeof **product);
    return require(compute == COMPUTE_32F && scale == R_32F, "not in F32");
}

CALL(cublasLtMatmulDescDestroy, struct product *product)
{
    return destroy(product);
}

CALL(cublasLtMatmulDescSetAttribute, struct product *product, int which, const void *value,
    size_t bytes)
{
    switch (which) {
    case 3:
        memcpy(&product->op_a, value, sizeof product->op_a);
        return require(bytes == 4, "the operation's bytes");
    case 7:
        memcpy(&product->epilogue, value, sizeof product->epilogue);
        return require(bytes == 4, "the epilogue's bytes");
    case 8:
        memcpy(&product->bias, value, sizeof product->bias);
        return require(bytes == 8, "the bias's bytes");
    default:
        return require(false, "an unknown attribute of a product");
    }
}

CALL(cublasLtMatrixLayoutCreate, struct layout **layout, int type, uint64_t rows, uint64_t cols,
    int64_t leading)
{
    *layout = create(sizeof **layout);
    **layout = (struct layout){type, rows, cols, leading};
    return require(leading >= (int64_t)rows, "a leading dimension below the rows");
}

CALL(cublasLtMatrixLayoutDestroy, struct layout *layout)
{
    return destroy(layout);
}

CALL(cublasLtMatrixLayoutSetAttribute, struct layout *layout, int which, const void *value,
    size_t bytes)
{
    memcpy(&layout->leading, value, sizeof layout->leading);
    return require(which == 4 && bytes == 8 && layout->leading >= (int64_t)layout->rows,
        "an attribute of a layout");
}

CALL(cublasLtMatmulPreferenceCreate, struct wishes **wishes)
{
    *wishes = create(sizeof **wishes);
    return SUCCESS;
}

CALL(cublasLtMatmulPreferenceDestroy, struct wishes *wishes)
{
    return destroy(wishes);
}

CALL(cublasLtMatmulPreferenceSetAttribute, struct wishes *wishes, int which, const void *value,
    size_t bytes)
{
    if (which == 1) {
        memcpy(&wishes->workspace_bytes, value, sizeof wishes->workspace_bytes);
        return require(bytes == 8, "the workspace's bytes");
    }
    if (which == 3)
        memcpy(&wishes->reductions, value, sizeof wishes->reductions);
    else if (which >= 5 && which <= 8)
        memcpy(&wishes->alignment[which - 5], value, sizeof *wishes->alignment);
    else
        return require(false, "an unknown wish");
    return require(bytes == 4, "a wish's bytes");
}

CALL(cublasLtMatmulAlgoGetHeuristic, void *handle, struct product *product, struct layout *a,
    struct layout *b, struct layout *c, struct layout *d, struct wishes *wishes, int most,
    struct suggestion *suggestion, int *count)
{
    (void)handle;
    fake_cublaslt.suggestions++;
    memset(suggestion, 0, sizeof *suggestion);
    if (fake_cublaslt.suggestion_status) return fake_cublaslt.suggestion_status;
    suggestion->algorithm.data[0] = d->rows;
    suggestion->algorithm.data[1] = d->cols;
    suggestion->algorithm.data[2] = a->rows;
    *count = d->rows != FAKE_N_WITHOUT_ALGORITHM;
    for (int i = 0; i < 4; i++)
        if (wishes->alignment[i] != 16) return require(false, "alignments that are not 16");
    return require(most == 1 && c == d && product->op_a == 1 && wishes->reductions == 2 &&
                       wishes->workspace_bytes == WORKSPACE_BYTES && a->type == b->type &&
                       a->rows == b->rows && a->cols == d->rows && b->cols == d->cols,
        "what a suggestion is asked for");
}

CALL(cublasLtMatmulAlgoCheck, void *handle, struct product *product, struct layout *a,
    struct layout *b, struct layout *c, struct layout *d, const struct algorithm *algorithm,
    struct suggestion *result)
{
    (void)handle, (void)product;
    memset(result, 0, sizeof *result);
    if (checked.suggested != algorithm->data[0]) checked.n = 0;
    checked.suggested = algorithm->data[0];
    if (d->rows == FAKE_N_NO_PANEL) return NOT_SUPPORTED;
    if (d->rows > checked.n) checked.n = d->rows;
    return require(c == d && a->type == b->type && a->rows == b->rows && a->cols == d->rows &&
                       b->cols == d->cols && d->rows < algorithm->data[0],
        "what an algorithm is checked for");
}

static float value(const void *at, int type, int64_t index)
{
    if (type == R_32F) return ((const float *)at)[index];
    if (type == R_16F) return f16_to_float(((const uint16_t *)at)[index]);
    return bf16_to_float(((const uint16_t *)at)[index]);
}

static float product_at(const struct work *work, const uint16_t *x, const uint16_t *w, int64_t k)
{
    if (k >= (int64_t)work->a.rows) return 0;
    return value(x, work->b.type, k) * value(w, work->a.type, k);
}

/* As emulate.h's matrix instruction adds up. */
static float sum_of(const struct work *work, int64_t m, int64_t n, int64_t from, int64_t to)
{
    const uint16_t *x = work->x + m * work->b.leading, *w = work->w + n * work->a.leading;
    float sum = 0, four[4];

    for (int64_t first = from; first < to; first += 16) {
        for (int64_t i = 0; i < 4; i++)
            four[i] =
                product_at(work, x, w, first + i) + product_at(work, x, w, first + i + 4) +
                (product_at(work, x, w, first + i + 8) + product_at(work, x, w, first + i + 12));
        sum += four[0] + four[1] + (four[2] + four[3]);
    }
    return sum;
}

static void multiply(void *given)
{
    struct work *work = given;
    const void *bias = (const void *)(uintptr_t)work->product.bias;

    for (int64_t m = 0; m < (int64_t)work->d.cols; m++)
        for (int64_t n = 0; n < (int64_t)work->d.rows; n++) {
            int64_t depth = (int64_t)work->a.rows, half = work->split ? depth / 32 * 16 : depth;
            int64_t at = m * work->d.leading + n;
            float sum = sum_of(work, m, n, 0, half) + sum_of(work, m, n, half, depth);

            if (work->product.epilogue == 4) sum += value(bias, work->d.type, n);
            if (work->d.type == R_32F)
                ((float *)work->y)[at] = sum;
            else
                ((uint16_t *)work->y)[at] = bf16_from_float(sum);
        }
    free(work);
}

CALL(cublasLtMatmul, void *handle, struct product *product, const float *alpha, const void *a,
    struct layout *a_layout, const void *b, struct layout *b_layout, const float *beta,
    const void *c, struct layout *c_layout, void *d, struct layout *d_layout,
    const struct algorithm *algorithm, void *workspace, size_t workspace_bytes, CUstream stream)
{
    const uint64_t size = d_layout->type == R_32F ? 4 : 2;
    const uint64_t addresses = (uintptr_t)a | (uintptr_t)b | (uintptr_t)d | product->bias |
                               (uintptr_t)workspace | (uint64_t)a_layout->leading * 2 |
                               (uint64_t)b_layout->leading * 2 | (uint64_t)d_layout->leading * size;
    struct work *work;

    (void)handle;
    if (require(*alpha == 1 && *beta == 0 && c == d && c_layout == d_layout, "the scales") ||
        require(addresses % 16 == 0, "something that is not aligned") ||
        require(workspace_bytes == WORKSPACE_BYTES, "the workspace") ||
        require(a_layout->type == b_layout->type && a_layout->type != R_32F, "the types") ||
        require(d_layout->type != R_16F, "F16 that overflows to infinity") ||
        require(algorithm->data[0] == d_layout->rows ||
                    (algorithm->data[0] == checked.suggested && d_layout->rows <= checked.n),
            "another shape's algorithm, unchecked") ||
        require(algorithm->data[1] == d_layout->cols && algorithm->data[2] == a_layout->rows,
            "another shape's algorithm"))
        return INVALID_VALUE;
    if (!stream) return SUCCESS; /* to warm up */
    if (d_layout->rows == FAKE_N_NOT_SUPPORTED) return NOT_SUPPORTED;
    if (fake_cublaslt.product_status) return fake_cublaslt.product_status;
    fake_cublaslt.products++;
    work = malloc(sizeof *work);
    if (!work) return EXECUTION_FAILED;
    *work = (struct work){
        *a_layout, *b_layout, *d_layout, algorithm->data[0] > FAKE_N_SPLIT, *product, a, b, d};
    fake_cublaslt.give(stream, (struct fake_command){.run = multiply, .given = work});
    return SUCCESS;
}
