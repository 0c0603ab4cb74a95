/* Cutting a sequence's rows into chunks where rows are independent, so that wide activations never
 * exist for all of them at once. */
#ifndef LAYERS_CHUNK_H
#define LAYERS_CHUNK_H

#include <stdint.h>

/* Rows of each chunk but the last: as even as multiples of 32 allow. Of the row count and the
 * device's `most` only, so that results depend on nothing else. */
static inline int64_t chunk_rows(int64_t rows, int64_t most)
{
    int64_t chunks = (rows + most - 1) / most;
    int64_t even = chunks ? (rows + chunks - 1) / chunks : 1;
    int64_t step = (even + 31) / 32 * 32;

    return step < rows ? step : rows;
}

#endif
