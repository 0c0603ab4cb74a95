/* Errors: filling the caller's struct shoal_error and forwarding statuses. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include "shoal/shoal.h"

/*
 * Fills `error` (NULL allowed) and returns `status`, so that `return error_set(...)` reads well.
 * The first cause wins: use error_prefix to say more about it on the way up.
 */
enum shoal_status error_set(struct shoal_error *error, enum shoal_status status, const char *file,
    int line, const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Puts a context such as "model.safetensors: " before the text that is there. */
void error_prefix(struct shoal_error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Returns from the calling function with a filled error. */
#define FAIL(error, status, ...)                                                                   \
    return error_set((error), (status), __FILE__, __LINE__, __VA_ARGS__)

#define FAIL_MEMORY(error) FAIL(error, SHOAL_E_MEMORY, "out of memory")

/* Forwards a failure of `expr`. */
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        enum shoal_status try_status_ = (expr);                                                    \
        if (try_status_) return try_status_;                                                       \
    } while (0)

/* The same where something must be undone first: sets `status` and jumps to `fail`. */
#define TRY_OR_FAIL(expr)                                                                          \
    do {                                                                                           \
        status = (expr);                                                                           \
        if (status) goto fail;                                                                     \
    } while (0)

#endif
