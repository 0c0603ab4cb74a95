/* Sizes: checked arithmetic for numbers that come from files, and sizes as people write them. */
#ifndef BASE_SIZE_H
#define BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* False on overflow. */
static inline bool size_add(uint64_t a, uint64_t b, uint64_t *sum)
{
    return !__builtin_add_overflow(a, b, sum);
}

static inline bool size_mul(uint64_t a, uint64_t b, uint64_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}

/* Rounds up to a multiple of `alignment`, a power of two. The caller knows it cannot overflow. */
static inline uint64_t size_align(uint64_t bytes, uint64_t alignment)
{
    return (bytes + alignment - 1) & ~(alignment - 1);
}

/* "12.3 MiB", "999 B": into `text`, which is returned. */
#define SIZE_TEXT_BYTES 32
char *size_format(char text[SIZE_TEXT_BYTES], uint64_t bytes);
/* The same, rounded up: a least budget that is shown must do when it is typed in. */
char *size_format_up(char text[SIZE_TEXT_BYTES], uint64_t bytes);

static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* How many of b hold a. Neither is negative. */
static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

#endif
