/*
 * Quantised elements, one at a time: the definition that faster code is checked against.
 *
 * Blocks, all scales F16, bits within a byte from the low end:
 *
 *     Q8_0   d, 32 signed bytes                            q d
 *     Q4_0   d, 16 bytes: low halves, then high halves     (q - 8) d
 *     Q4_1   d, m, 16 bytes likewise                       q d + m
 *     Q5_0   d, 32 high bits, 16 bytes likewise            (q - 16) d
 *     Q5_1   d, m, 32 high bits, 16 bytes likewise         q d + m
 *
 * and superblocks of 256, whose groups of 16 or 32 have small integer scales s, or s and t:
 *
 *     Q2_K   16 bytes s | t << 4, 64 bytes of 2 bits, d, e             q (s d) - t e
 *     Q3_K   32 bytes of high bits, 64 of 2 bits, 12 of s, d           (q - 4) ((s - 32) d)
 *     Q4_K   d, e, 12 bytes of s and t (6 bits each), 128 of 4 bits    q (s d) - t e
 *     Q5_K   d, e, 12 bytes likewise, 32 of high bits, 128 of 4 bits   q (s d) - t e
 *     Q6_K   128 bytes of 4 bits, 64 of 2 high bits, 16 signed s, d    (q - 32) (s d)
 *
 * Every product, sum and difference is rounded to F32 as written, as the reference's are.
 *
 * F8_E4M3 and F8_E5M2 are codes of one byte, with one F32 scale for a whole tensor beside it:
 *
 *     bf16(float(code) scale)     the product rounded to F32, then to BF16, both to nearest even
 *
 * So an element is a BF16 on every device, and a host that widens codes to BF16 changes no bit. A
 * code is a BF16 itself: with a scale of 1 nothing is rounded.
 */
#ifndef TENSOR_QUANT_H
#define TENSOR_QUANT_H

#include "tensor/dtype.h"

/* Elements [first, first + count) of the run of a computed type that begins at `data`; `scale` is
 * of F8 types. */
void quant_widen(
    float *to, const void *data, enum dtype dtype, float scale, int64_t first, int64_t count);

/* The same of F8 codes from `codes` on, as the BF16 that they are. */
void quant_f8_to_bf16(
    uint16_t *to, const uint8_t *codes, enum dtype dtype, float scale, uint64_t count);

/*
 * Whether a value, or a scale of quantised ones, is NaN or infinite, in `bytes` bytes of a run of a
 * computed type from its byte `offset` on. Both may lie anywhere in a block, at even bytes (for
 * F32, at whole values, for F8 anywhere), so that a tensor can be looked at in chunks.
 */
bool quant_has_nonfinite(const void *data, enum dtype dtype, uint64_t offset, uint64_t bytes);

#endif
