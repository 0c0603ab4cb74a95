/* A product with a matrix that is stored as several. */
#include "layers/project.h"

void project(struct exec *x, struct matrix y, struct matrix in, const struct matrix *parts,
    int32_t count, struct matrix bias, int64_t first)
{
    int64_t end = first + y.cols, begin = 0;

    for (int32_t i = 0; i < count; begin += parts[i++].rows) {
        int64_t from = first > begin ? first : begin;
        int64_t to = end < begin + parts[i].rows ? end : begin + parts[i].rows;
        struct matrix own = MATRIX_NONE;

        if (from >= to) continue;
        if (matrix_given(bias)) own = matrix_cols(bias, from, to - from);
        x->ops->linear(x->stream, matrix_cols(y, from - first, to - from), in,
            matrix_rows(parts[i], from - begin, to - from), own);
    }
}
