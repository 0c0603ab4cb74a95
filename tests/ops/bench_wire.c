/*
 * Measures the wire: what is left of tensors, and how fast they are packed, checked and unpacked.
 * Not a test. Rates are gigabytes of elements a second, the best of several rounds.
 *
 *     bench_wire [threads [CHECKPOINT ...]]
 */
#include "base/clock.h"
#include "base/memory.h"
#include "base/number.h"
#include "checkpoint/checkpoint.h"
#include "wire/tile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F8_E4M3};

#define DTYPES_MEASURED (sizeof dtypes / sizeof *dtypes)

/* ---- numbers ---- */

static uint64_t seed = 1;

static double uniform(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return ((double)(seed >> 33) + 0.5) * 0x1p-31;
}

static float gaussian(void)
{
    return (float)(sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()));
}

/* The nearest number of the type (of two as near, the even one); beyond the largest, the largest.
 */
static uint32_t narrow(enum dtype dtype, float value)
{
    const int mantissa_bits = dtype == DTYPE_F16 ? 10 : 3;
    const uint32_t width = dtype == DTYPE_F16 ? 16 : 8;
    /* E4M3 has no infinity and one NaN. */
    const uint32_t most = dtype == DTYPE_F16 ? 0x7bff : 0x7e;
    const int least_exponent = dtype == DTYPE_F8_E4M3 ? -6 : -14;
    int exponent;
    double units;
    uint32_t bits;

    if (dtype == DTYPE_BF16) return bf16_from_float(value);
    exponent = value != 0 ? ilogbf(value) : least_exponent;
    if (exponent < least_exponent) exponent = least_exponent;
    units = rint(ldexp(fabs((double)value), mantissa_bits - exponent));
    if (units > 4096) units = 4096;
    bits = (uint32_t)units + ((uint32_t)(exponent - least_exponent) << mantissa_bits);
    if (bits > most) bits = most;
    return bits | float_to_bits(value) >> 31 << (width - 1);
}

static void put(enum dtype dtype, void *data, uint64_t i, float value)
{
    if (dtype_bytes(dtype, 1) == 2)
        ((uint16_t *)data)[i] = (uint16_t)narrow(dtype, value);
    else
        ((uint8_t *)data)[i] = (uint8_t)narrow(dtype, value);
}

static void *room(uint64_t bytes)
{
    void *pages = pages_alloc(bytes);

    if (!pages) exit(1);
    pages_want_large(pages, bytes);
    return pages;
}

/* ---- what is left ---- */

static uint64_t packed_bytes(struct pool *pool, enum dtype dtype, const void *data, uint64_t count)
{
    uint64_t bound = wire_bound(dtype, count), bytes;
    void *payload = room(bound);

    bytes = wire_encode(pool, dtype, data, count, payload);
    pages_free(payload, bound);
    return bytes;
}

/* Rows of 4096 whose scales are log-normal around 0.02; FP8 as it is cast, and scaled to its range
 * as a whole. */
static void gaussian_ratios(struct pool *pool)
{
    enum { ROWS = 512, COLS = 4096, COUNT = ROWS * COLS };
    static const double taus[] = {0, 0.4, 0.6};
    float *values = room(COUNT * 4);
    void *data = room(COUNT * 2);

    for (int t = 0; t < 3; t++) {
        float largest = 0;

        for (int row = 0; row < ROWS; row++) {
            float scale = 0.02f * expf((float)taus[t] * gaussian());

            for (int i = row * COLS; i < (row + 1) * COLS; i++) {
                values[i] = scale * gaussian();
                largest = fmaxf(largest, fabsf(values[i]));
            }
        }
        printf("Gaussian, 0.02, tau %.1f:", taus[t]);
        for (size_t d = 0; d < DTYPES_MEASURED; d++) {
            float scales[2] = {1, 448 / largest};

            for (int s = 0; s < (dtype_bytes(dtypes[d], 1) == 1 ? 2 : 1); s++) {
                for (int i = 0; i < COUNT; i++)
                    put(dtypes[d], data, (uint64_t)i, values[i] * scales[s]);
                printf("  %s%s %.4f", dtype_name(dtypes[d]), s ? " scaled" : "",
                    (double)packed_bytes(pool, dtypes[d], data, COUNT) /
                        (double)dtype_bytes(dtypes[d], COUNT));
            }
        }
        printf("\n");
    }
    pages_free(values, COUNT * 4);
    pages_free(data, COUNT * 2);
}

static float element(enum dtype dtype, const void *data, uint64_t i)
{
    return dtype == DTYPE_F32   ? ((const float *)data)[i]
           : dtype == DTYPE_F16 ? f16_to_float(((const uint16_t *)data)[i])
                                : bf16_to_float(((const uint16_t *)data)[i]);
}

/* As it is or cast; FP8 also scaled to its range. A tensor that is small, or comes to no less than
 * WIRE_WORTH_WHILE, counts with its own bytes. */
static void checkpoint_ratio(
    struct pool *pool, const struct checkpoint *checkpoint, enum dtype dtype, bool scaled)
{
    struct shoal_error error = {0};
    uint64_t before = 0, after = 0, packed = 0;

    for (size_t t = 0; t < checkpoint_count(checkpoint); t++) {
        const struct checkpoint_tensor *tensor = checkpoint_at(checkpoint, t);
        uint64_t count, size, bytes;
        float scale = 1, largest = 0;
        void *from, *data;

        if (!dtype_computes(tensor->dtype)) continue;
        count = tensor->bytes / (uint64_t)dtype_bytes(tensor->dtype, 1);
        size = bytes = (uint64_t)dtype_bytes(dtype, (int64_t)count);
        from = room(tensor->bytes);
        data = room(size);
        if (checkpoint_read(tensor, from, &error)) exit(1);
        for (uint64_t i = 0; i < count; i++)
            largest = fmaxf(largest, fabsf(element(tensor->dtype, from, i)));
        if (scaled && largest > 0) scale = 448 / largest;
        for (uint64_t i = 0; i < count; i++)
            put(dtype, data, i, element(tensor->dtype, from, i) * scale);
        if (size >= WIRE_LEAST_BYTES) bytes = packed_bytes(pool, dtype, data, count);
        if ((double)bytes > WIRE_WORTH_WHILE * (double)size) bytes = size;
        before += size;
        after += bytes;
        packed += bytes < size ? size : 0;
        pages_free(from, tensor->bytes);
        pages_free(data, size);
    }
    printf("  %s%s %.4f (%.0f %% packed)", dtype_name(dtype), scaled ? " scaled" : "",
        (double)after / (double)before, 100 * (double)packed / (double)before);
}

static void checkpoint_ratios(struct pool *pool, const char *path)
{
    struct shoal_error error = {0};
    struct checkpoint *checkpoint;

    if (checkpoint_open(path, &checkpoint, &error)) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    printf("%s:", path);
    for (size_t d = 0; d < DTYPES_MEASURED; d++)
        for (int scaled = 0; scaled < (dtype_bytes(dtypes[d], 1) == 1 ? 2 : 1); scaled++)
            checkpoint_ratio(pool, checkpoint, dtypes[d], scaled);
    printf("\n");
    checkpoint_close(&checkpoint);
}

/* ---- how fast ---- */

/* The best rate in half a second, and of at least three rounds. */
#define MEASURE(rate, bytes, call)                                                                 \
    do {                                                                                           \
        uint64_t end_ = clock_ns() + 500000000;                                                    \
                                                                                                   \
        (rate) = 0;                                                                                \
        for (int round_ = 0; round_ < 3 || clock_ns() < end_; round_++) {                          \
            uint64_t start_ = clock_ns();                                                          \
                                                                                                   \
            call;                                                                                  \
            (rate) = fmax((rate), (double)(bytes) / (double)(clock_ns() - start_));                \
        }                                                                                          \
    } while (0)

struct decoding {
    const struct wire_path *path;
    const void *payload;
    struct wire_info info;
    uint8_t *data;
    uint64_t tiles, tile_bytes;
};

#define GROUP 64

static void decode_group(void *arg, int64_t index, int worker)
{
    const struct decoding *d = arg;
    uint64_t first = (uint64_t)index * GROUP, left = d->tiles - first;

    (void)worker;
    wire_decode_on(d->path, d->payload, d->info, first, left < GROUP ? left : GROUP,
        d->data + first * d->tile_bytes);
}

static void rates(struct pool *pool, enum dtype dtype, uint64_t count)
{
    uint64_t size = (uint64_t)dtype_bytes(dtype, (int64_t)count), bound = wire_bound(dtype, count),
             bytes;
    uint8_t *data = room(size), *payload = room(bound), *got = room(size);
    double one, all;

    for (uint64_t i = 0; i < count; i++)
        put(dtype, data, i, (dtype_bytes(dtype, 1) == 1 ? 1 : 0.02f) * gaussian());
    bytes = wire_encode(pool, dtype, data, count, payload);
    MEASURE(one, size, memcpy(got, data, size));
    printf("%s, %.0f MB: memcpy %.2f", dtype_name(dtype), (double)size * 1e-6, one);
    MEASURE(one, size, {
        struct shoal_error error = {0};
        struct wire_info info;

        if (wire_check(payload, bytes, "", &info, &error)) exit(1);
    });
    printf(", check %.2f GB/s\n", one);
    for (int i = 0; wire_path_at(i); i++) {
        const struct wire_path *path = wire_path_at(i);
        struct decoding d = {path, payload, {dtype, count, bytes}, got, wire_tiles(count),
            (uint64_t)dtype_bytes(dtype, WIRE_TILE)};

        MEASURE(one, size, wire_encode_on(path, NULL, dtype, data, count, payload));
        MEASURE(all, size, wire_encode_on(path, pool, dtype, data, count, payload));
        printf(
            "    %-8s encode %6.2f, %d threads %6.2f;", path->name, one, pool_workers(pool), all);
        MEASURE(one, size, wire_decode_on(path, payload, d.info, 0, d.tiles, got));
        MEASURE(
            all, size, pool_run(pool, (int64_t)((d.tiles + GROUP - 1) / GROUP), decode_group, &d));
        printf(" decode %6.2f, %6.2f GB/s\n", one, all);
        if (memcmp(got, data, size)) exit(1);
    }
    pages_free(data, size);
    pages_free(payload, bound);
    pages_free(got, size);
}

int main(int argc, char **argv)
{
    struct shoal_error error = {0};
    struct pool *pool;

    setvbuf(stdout, NULL, _IONBF, 0);
    if (pool_create(&pool, argc > 1 ? atoi(argv[1]) : thread_cores(), &error)) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    gaussian_ratios(pool);
    for (int i = 2; i < argc; i++)
        checkpoint_ratios(pool, argv[i]);
    rates(pool, DTYPE_BF16, 1 << 18); /* in the caches */
    for (size_t d = 0; d < DTYPES_MEASURED; d++)
        rates(pool, dtypes[d], 1 << 25);
    pool_destroy(&pool);
    return 0;
}
