/* The registry of samplers. A new one is a file beside this and a line here. */
#include "sampling/sampler.h"

#include "base/memory.h"
#include "base/text.h"

#include <string.h>

static const struct sampler *const samplers[] = {&sampler_euler};

#define SAMPLER_COUNT (sizeof samplers / sizeof *samplers)

enum shoal_status sampler_find(
    const char *name, const struct sampler **sampler, struct shoal_error *error)
{
    struct text names = {0};
    enum shoal_status status;

    if (!name) name = "euler";
    for (size_t i = 0; i < SAMPLER_COUNT; i++) {
        if (!strcmp(samplers[i]->name, name)) {
            *sampler = samplers[i];
            return SHOAL_OK;
        }
        text_append(&names, "%s%s", i ? ", " : "", samplers[i]->name);
    }
    status = error_set(error, SHOAL_E_INVALID, __FILE__, __LINE__,
        "there is no sampler \"%.100s\"; there is: %s", name, names.failed ? "" : names.data);
    mem_free(names.data);
    return status;
}
