/* Allowances. */
#include "base/allowance.h"

#include "base/size.h"

#define ALWAYS_BYTES (16u << 20)

enum shoal_status allowance_take(
    struct allowance *allowance, const char *path, uint64_t bytes, struct shoal_error *error)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES];

    if (!allowance) return SHOAL_OK;
    allowance->bytes += bytes;
    if (allowance->bytes > allowance->most_bytes && allowance->bytes > ALWAYS_BYTES)
        FAIL(error, SHOAL_E_BUDGET,
            "%s: reading it takes %s of host memory, of which --ram %llu (%s) leaves too little: "
            "give more, or a file with less beside its tensors or tokens",
            path, size_format_up(a, bytes), (unsigned long long)allowance->most_bytes,
            size_format(b, allowance->most_bytes));
    return SHOAL_OK;
}
