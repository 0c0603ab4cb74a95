/* Writes small GGUF files for tests. */
#include "support.h"

#include "unit/gguf_file.h"

#include "base/file.h"
#include "base/number.h"
#include "base/size.h"

#include <math.h>
#include <stdlib.h>

#define ALIGNMENT 32

static void put(struct gguf_bytes *to, const void *data, size_t bytes)
{
    if (bytes > to->room - to->used) {
        to->room = 2 * to->room + bytes + 64;
        to->data = realloc(to->data, to->room);
        if (!to->data) abort();
    }
    if (!bytes) return; /* and there may be no room at all yet */
    if (data)
        memcpy(to->data + to->used, data, bytes);
    else
        memset(to->data + to->used, 0, bytes);
    to->used += bytes;
}

void gguf_put_number(struct gguf_bytes *to, uint64_t value, int bytes)
{
    put(to, &value, (size_t)bytes); /* tests run on little-endian machines */
}

void gguf_put_text(struct gguf_bytes *to, const char *text)
{
    gguf_put_number(to, strlen(text), 8);
    put(to, text, strlen(text));
}

static void begin_pair(struct gguf_file *f, const char *key, enum gguf_type type)
{
    gguf_put_text(&f->pairs, key);
    gguf_put_number(&f->pairs, type, 4);
    f->pair_count++;
}

void gguf_file_scalar(struct gguf_file *f, const char *key, enum gguf_type type, uint64_t bits)
{
    static const int bytes[GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

    begin_pair(f, key, type);
    gguf_put_number(&f->pairs, bits, type < GGUF_TYPES ? bytes[type] : 0);
}

void gguf_file_f32(struct gguf_file *f, const char *key, float value)
{
    gguf_file_scalar(f, key, GGUF_F32, float_to_bits(value));
}

void gguf_file_string(struct gguf_file *f, const char *key, const char *value)
{
    begin_pair(f, key, GGUF_STRING);
    gguf_put_text(&f->pairs, value);
}

void gguf_file_i32s(struct gguf_file *f, const char *key, const int32_t *values, size_t count)
{
    begin_pair(f, key, GGUF_ARRAY);
    gguf_put_number(&f->pairs, GGUF_I32, 4);
    gguf_put_number(&f->pairs, count, 8);
    put(&f->pairs, values, count * sizeof *values);
}

void gguf_file_tensor(struct gguf_file *f, const char *name, uint32_t number, enum dtype dtype,
    struct shape shape, const void *data)
{
    uint64_t bytes;

    assert_true(shape_bytes(&shape, dtype, &bytes));
    gguf_put_text(&f->infos, name);
    gguf_put_number(&f->infos, (uint64_t)shape.rank, 4);
    for (int32_t i = shape.rank; i-- > 0;)
        gguf_put_number(&f->infos, (uint64_t)shape.dim[i], 8);
    gguf_put_number(&f->infos, number, 4);
    gguf_put_number(&f->infos, f->data.used, 8);
    put(&f->data, data, bytes);
    put(&f->data, NULL, size_align(f->data.used, ALIGNMENT) - f->data.used);
    f->tensor_count++;
}

char *gguf_file_bytes(struct gguf_file *f, size_t *bytes)
{
    struct gguf_bytes all = {0};

    put(&all, "GGUF", 4);
    gguf_put_number(&all, 3, 4);
    gguf_put_number(&all, f->tensor_count, 8);
    gguf_put_number(&all, f->pair_count, 8);
    put(&all, f->pairs.data, f->pairs.used);
    put(&all, f->infos.data, f->infos.used);
    put(&all, NULL, size_align(all.used, ALIGNMENT) - all.used);
    put(&all, f->data.data, f->data.used);
    free(f->pairs.data);
    free(f->infos.data);
    free(f->data.data);
    *f = (struct gguf_file){0};
    *bytes = all.used;
    return all.data;
}

enum shoal_status gguf_file_write(struct gguf_file *f, const char *path, struct shoal_error *error)
{
    size_t bytes;
    char *data = gguf_file_bytes(f, &bytes);
    enum shoal_status status = file_write_whole(path, data, bytes, error);

    free(data);
    return status;
}

uint32_t gguf_number(enum dtype dtype)
{
    static const struct {
        enum dtype dtype;
        uint32_t number;
    } numbers[] = {{DTYPE_F16, 1}, {DTYPE_Q4_0, 2}, {DTYPE_Q4_1, 3}, {DTYPE_Q5_0, 6},
        {DTYPE_Q5_1, 7}, {DTYPE_Q8_0, 8}, {DTYPE_Q2_K, 10}, {DTYPE_Q3_K, 11}, {DTYPE_Q4_K, 12},
        {DTYPE_Q5_K, 13}, {DTYPE_Q6_K, 14}, {DTYPE_BF16, 30}};

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].dtype == dtype) return numbers[i].number;
    return 0; /* F32 */
}

/* ---- quantising, as coarsely as tests may ---- */

/* Towards zero; of the size that weights have, so always a normal number or 0. */
static uint16_t f16_from_float(float value)
{
    uint32_t bits = float_to_bits(value), size = bits & 0x7fffffff;

    if (size < 113u << 23) return (uint16_t)(bits >> 16 & 0x8000);
    return (uint16_t)((bits >> 16 & 0x8000) | (size - (112u << 23)) >> 13);
}

static int rounded(float value, int low, int high)
{
    long q = lrintf(value);

    return q < low ? low : q > high ? high : (int)q;
}

static void quantise_block(uint8_t *b, enum dtype dtype, const float *x)
{
    float most = 0, least = x[0], top = x[0], d;
    uint16_t half;
    uint32_t high = 0;
    int q[32];

    for (int i = 0; i < 32; i++) {
        most = fmaxf(most, fabsf(x[i]));
        least = fminf(least, x[i]);
        top = fmaxf(top, x[i]);
    }
    half = f16_from_float(dtype == DTYPE_Q8_0   ? most / 127
                          : dtype == DTYPE_Q4_0 ? most / 7
                                                : (top - least) / 31);
    d = f16_to_float(half);
    memcpy(b, &half, 2);
    for (int i = 0; i < 32; i++) {
        float scaled = d > 0 ? (x[i] - (dtype == DTYPE_Q5_1 ? least : 0)) / d : 0;

        q[i] = dtype == DTYPE_Q8_0   ? rounded(scaled, -127, 127)
               : dtype == DTYPE_Q4_0 ? rounded(scaled, -7, 7) + 8
                                     : rounded(scaled, 0, 31);
        high |= (uint32_t)(q[i] >> 4 & 1) << i;
    }
    if (dtype == DTYPE_Q8_0) {
        for (int i = 0; i < 32; i++)
            b[2 + i] = (uint8_t)q[i];
        return;
    }
    if (dtype == DTYPE_Q5_1) {
        half = f16_from_float(least);
        memcpy(b + 2, &half, 2);
        memcpy(b + 4, &high, 4);
    }
    b += dtype == DTYPE_Q5_1 ? 8 : 2;
    for (int i = 0; i < 16; i++)
        b[i] = (uint8_t)((q[i] & 15) | (q[16 + i] & 15) << 4);
}

void gguf_quantise(void *to, enum dtype dtype, const float *from, int64_t count)
{
    const int64_t elements = dtype_block_elements(dtype), bytes = dtype_block_bytes(dtype);
    static uint64_t state = 3;
    uint8_t *b = to;

    for (int64_t i = 0; i < count; i += elements, b += bytes) {
        if (elements == 1) {
            uint16_t half = dtype == DTYPE_F16 ? f16_from_float(from[i]) : bf16_from_float(from[i]);

            memcpy(b, dtype == DTYPE_F32 ? (const void *)&from[i] : &half, (size_t)bytes);
            continue;
        }
        if (dtype == DTYPE_Q8_0 || dtype == DTYPE_Q4_0 || dtype == DTYPE_Q5_1) {
            quantise_block(b, dtype, from + i);
            continue;
        }
        for (int64_t k = 0; k < bytes; k++)
            b[k] = (uint8_t)(test_random(&state) & 0x1f);
    }
}
