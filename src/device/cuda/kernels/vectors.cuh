/*
 * Runs of a few elements of any type, in words as wide as their addresses allow; which changes no
 * bit. Loading and widening are two steps so that all of a thread's loads are under way before the
 * first is waited for.
 */
#ifndef DEVICE_CUDA_KERNELS_VECTORS_CUH
#define DEVICE_CUDA_KERNELS_VECTORS_CUH

#include "device/cuda/kernels/args.h"
#include "device/cuda/kernels/gpu.cuh"

struct alignas(16) words_4 {
    uint32_t at[4];
};

struct alignas(8) words_2 {
    uint32_t at[2];
};

/* `count` elements as they are stored: F32 a word each, others two to a word. */
template <int count> struct run {
    uint32_t words[count] = {};
};

DEVICE int element_bytes(int dtype)
{
    return dtype == GPU_F32 ? 4 : 2;
}

/* Whether every run of `count` that begins at a multiple of it in a row is aligned to its bytes, 16
 * at most (`count` is a power of two). */
template <int count> DEVICE bool runs_aligned(const gpu_matrix &m)
{
    int bytes = element_bytes(m.dtype), run_bytes = count * bytes < 16 ? count * bytes : 16;

    return (((uint64_t)(uintptr_t)m.at | (uint64_t)m.stride * bytes) & (run_bytes - 1)) == 0;
}

template <int count> DEVICE void load_words(uint32_t *to, const void *from)
{
    if constexpr (count >= 4) {
#pragma unroll
        for (int i = 0; i < count / 4; i++) {
            words_4 words = ((const words_4 *)from)[i];

            for (int k = 0; k < 4; k++)
                to[4 * i + k] = words.at[k];
        }
    } else if constexpr (count == 2) {
        words_2 words = *(const words_2 *)from;

        to[0] = words.at[0];
        to[1] = words.at[1];
    } else {
        to[0] = *(const uint32_t *)from;
    }
}

template <int count> DEVICE void store_words(void *to, const uint32_t *from)
{
    if constexpr (count >= 4) {
#pragma unroll
        for (int i = 0; i < count / 4; i++)
            ((words_4 *)to)[i] =
                words_4{{from[4 * i], from[4 * i + 1], from[4 * i + 2], from[4 * i + 3]}};
    } else if constexpr (count == 2) {
        *(words_2 *)to = words_2{{from[0], from[1]}};
    } else {
        *(uint32_t *)to = from[0];
    }
}

/* From element `index` on; only `left` of them exist (the others become 0). */
template <int count>
DEVICE void load_run(
    run<count> &r, const void *from, int64_t index, int left, int dtype, bool aligned)
{
    const uint32_t *words = (const uint32_t *)from + index;
    const uint16_t *halves = (const uint16_t *)from + index;

    if (aligned && left >= count) {
        if (dtype == GPU_F32)
            load_words<count>(r.words, words);
        else
            load_words<count / 2>(r.words, halves);
    } else if (dtype == GPU_F32) {
#pragma unroll
        for (int i = 0; i < count; i++)
            r.words[i] = i < left ? words[i] : 0;
    } else {
#pragma unroll
        for (int i = 0; i < count; i += 2) {
            r.words[i / 2] = i < left ? halves[i] : 0;
            if (i + 1 < left) r.words[i / 2] |= (uint32_t)halves[i + 1] << 16;
        }
    }
}

template <int count>
DEVICE void store_run(
    const run<count> &r, void *to, int64_t index, int left, int dtype, bool aligned)
{
    uint32_t *words = (uint32_t *)to + index;
    uint16_t *halves = (uint16_t *)to + index;

    if (aligned && left >= count) {
        if (dtype == GPU_F32)
            store_words<count>(words, r.words);
        else
            store_words<count / 2>(halves, r.words);
    } else if (dtype == GPU_F32) {
#pragma unroll
        for (int i = 0; i < count; i++)
            if (i < left) words[i] = r.words[i];
    } else {
#pragma unroll
        for (int i = 0; i < count; i++)
            if (i < left) halves[i] = (uint16_t)(r.words[i / 2] >> 16 * (i % 2));
    }
}

/* The same word as a number, and back. */
DEVICE float word_as_float(uint32_t word)
{
    union {
        uint32_t word;
        float number;
    } both = {word};

    return both.number;
}

DEVICE uint32_t float_as_word(float number)
{
    union {
        float number;
        uint32_t word;
    } both = {number};

    return both.word;
}

template <int count> DEVICE void widen_run(float *to, const run<count> &r, int dtype)
{
    if (dtype == GPU_F32) {
#pragma unroll
        for (int i = 0; i < count; i++)
            to[i] = word_as_float(r.words[i]);
    } else if (dtype == GPU_BF16) {
#pragma unroll
        for (int i = 0; i < count; i++)
            to[i] = bf16_as_float((uint16_t)(r.words[i / 2] >> 16 * (i % 2)));
    } else {
#pragma unroll
        for (int i = 0; i < count; i++)
            to[i] = f16_as_float((uint16_t)(r.words[i / 2] >> 16 * (i % 2)));
    }
}

template <int count> DEVICE void narrow_run(run<count> &r, const float *from, int dtype)
{
    if (dtype == GPU_F32) {
#pragma unroll
        for (int i = 0; i < count; i++)
            r.words[i] = float_as_word(from[i]);
    } else if (dtype == GPU_BF16) {
#pragma unroll
        for (int i = 0; i < count; i += 2)
            r.words[i / 2] = floats_as_bf16(from[i], from[i + 1]);
    } else {
#pragma unroll
        for (int i = 0; i < count; i += 2)
            r.words[i / 2] = floats_as_f16(from[i], from[i + 1]);
    }
}

/*
 * A matrix that is gone over in runs of `width`: 8 where no matrix of the kernel is F32, else 4, so
 * that the widest is moved 16 bytes at a time. Saying so here lets the compiler leave F32 out of
 * the former.
 */
template <int width> struct operand {
    void *at;
    int64_t cols, stride;
    int dtype;
    bool aligned;
};

template <int width> DEVICE operand<width> operand_of(const gpu_matrix &m)
{
    int dtype = width < 8 ? m.dtype : m.dtype == GPU_BF16 ? GPU_BF16 : GPU_F16;

    return {m.at, m.cols, m.stride, dtype, runs_aligned<width>(m)};
}

/* What is left of `cols` from `col` on, as far as it matters. */
template <int count> DEVICE int left_of(int64_t cols, int64_t col)
{
    return cols - col < count ? (int)(cols - col) : count;
}

/* Elements [col, col + width) of a row. */
template <int width>
DEVICE void load_cols(run<width> &r, const operand<width> &m, int64_t row, int64_t col)
{
    load_run(r, m.at, row * m.stride + col, left_of<width>(m.cols, col), m.dtype, m.aligned);
}

/* Rounds and stores. */
template <int width>
DEVICE void store_cols(const float *from, const operand<width> &m, int64_t row, int64_t col)
{
    run<width> r;

    narrow_run(r, from, m.dtype);
    store_run(r, m.at, row * m.stride + col, left_of<width>(m.cols, col), m.dtype, m.aligned);
}

/* Of an optional vector of any type: `otherwise` where it was left out. */
template <int count>
DEVICE void load_vector(float *to, const gpu_matrix &vector, int64_t col, float otherwise)
{
    if (vector.at) {
        run<count> r;

        load_run(r, vector.at, col, left_of<count>(vector.cols, col), vector.dtype,
            runs_aligned<count>(vector));
        widen_run(to, r, vector.dtype);
    } else {
#pragma unroll
        for (int i = 0; i < count; i++)
            to[i] = otherwise;
    }
}

#endif
