/*
 * Adding the differences of adapters (LoRA and its kin) to a weight: what the operation `patch`
 * computes, on every device to the same bits.
 *
 *     acc = x[i, j], widened
 *     for each term, in order:   t = difference(i + term.row, j + term.col)
 *                                acc = fma(term.scale, t, acc)
 *     y[i, j] = acc, rounded to y's type
 *
 * A difference is of one or two factors. A factor's value at (i, j) is b[i, j] or, if it has an a,
 * the chain of r = fma(b[i, k], a[k, j], r) over k = 0, 1, ... from r = 0. Of one factor the
 * difference is its value; of two the product of both values, rounded to F32, at (i, j) of both,
 * or if term.kron, with P x Q the size of the second, at (i / P, j / Q) and (i % P, j % Q).
 *
 * All of it in F32, fused where fma is written and nowhere else. Values are rounded to nearest
 * even; what is beyond F16's range becomes its largest number.
 */
#ifndef DEVICE_PATCH_H
#define DEVICE_PATCH_H

#include "tensor/matrix.h"

#include <assert.h>

#define PATCH_TERMS 8 /* at most */

/* Of F32, F16 or BF16. */
struct patch_factor {
    struct matrix b, a; /* [rows, rank], [rank, cols]; a may be left out */
};

struct patch_term {
    struct patch_factor factors[2]; /* the second may be left out */
    bool kron;
    float scale;
    int64_t row, col; /* of the difference, that y's first element takes */
};

struct patch {
    struct patch_term terms[PATCH_TERMS];
    int32_t count; /* 0: y = x in y's type */
};

static inline int64_t patch_factor_cols(const struct patch_factor *factor)
{
    return factor->a.addr ? factor->a.cols : factor->b.cols;
}

/* The type that a weight of a computed type has when it is patched. */
static inline enum dtype patch_dtype(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_F16 ? dtype : DTYPE_BF16;
}

static inline void check_patch_factor(
    const struct patch_factor *f, int64_t rows, int64_t cols, bool exact)
{
    assert(f->b.addr && !dtype_is_quantised(f->b.dtype));
    assert(!f->a.addr || (f->b.cols == f->a.rows && !dtype_is_quantised(f->a.dtype)));
    assert(!exact || (f->b.rows >= rows && patch_factor_cols(f) >= cols));
    (void)f, (void)rows, (void)cols, (void)exact;
}

/* y is x itself, or does not overlap it. */
static inline void check_patch(struct matrix y, struct matrix x, const struct patch *patch)
{
    assert(y.addr && x.addr && y.rows == x.rows && y.cols == x.cols);
    assert(!dtype_is_quantised(y.dtype) && patch->count <= PATCH_TERMS);
    for (int32_t i = 0; i < patch->count; i++) {
        const struct patch_term *t = &patch->terms[i];
        const bool two = t->factors[1].b.addr;

        check_patch_factor(&t->factors[0], t->row + y.rows, t->col + y.cols, !t->kron);
        if (two) check_patch_factor(&t->factors[1], t->row + y.rows, t->col + y.cols, !t->kron);
        assert(two || !t->kron);
        (void)two;
    }
    (void)y, (void)x;
}

#endif
