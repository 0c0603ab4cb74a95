/* The registry of samplers. A new one is a file beside this and a line here. */
#include "sampling/sampler.h"

#include "base/memory.h"
#include "base/text.h"

#include <assert.h>
#include <string.h>

const struct sampler *const samplers[SAMPLER_COUNT] = {&sampler_euler, &sampler_euler_ancestral,
    &sampler_heun, &sampler_dpmpp_2m, &sampler_uni_pc, &sampler_uni_pc_bh2};

enum shoal_status sampler_find(
    const char *name, const struct sampler **sampler, struct shoal_error *error)
{
    struct text names = {0};
    enum shoal_status status;

    for (size_t i = 0; i < SAMPLER_COUNT; i++) {
        if (!name || !strcmp(samplers[i]->name, name)) {
            *sampler = samplers[i];
            mem_free(names.data);
            return SHOAL_OK;
        }
        text_append(&names, "%s%s", i ? ", " : "", samplers[i]->name);
    }
    status = error_set(error, SHOAL_E_INVALID, __FILE__, __LINE__,
        "there is no sampler \"%.100s\"; there are: %s", name, names.failed ? "" : names.data);
    mem_free(names.data);
    return status;
}

struct sampler_call sampler_call_at(
    const struct sampler *sampler, const struct schedule *schedule, int32_t index)
{
    struct sampler_call call = {0};

    sampler->call(schedule, index, &call);
    return call;
}

void sampler_move(struct sampler_call *call, enum sampler_slot to, double add,
    enum sampler_slot from, double keep)
{
    assert(call->count < SAMPLER_MOST_MOVES);
    call->moves[call->count++] =
        (struct sampler_move){.to = to, .from = from, .add = (float)add, .keep = (float)keep};
}

void sampler_copy(struct sampler_call *call, enum sampler_slot to, enum sampler_slot from)
{
    sampler_move(call, to, 1, from, 0);
}
