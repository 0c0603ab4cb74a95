/* What cmocka needs included before it, and small helpers that the tests share. */
#ifndef TESTS_SUPPORT_H
#define TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"

/* Fails with the text of the local `error`, which says more than a number. */
#define assert_ok(expr)                                                                            \
    do {                                                                                           \
        if ((expr) != SHOAL_OK) fail_msg("%s: %s", #expr, error.text);                             \
    } while (0)

/* A small deterministic generator: tests must not differ from run to run. */
static inline uint32_t test_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

#endif
