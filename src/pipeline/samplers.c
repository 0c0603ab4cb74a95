/* Listing samplers and schedules, for people and for programs. */
#include "shoal/shoal.h"

#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"
#include "sampling/sampler.h"

#include <jansson.h>

static void print_text(struct text *t)
{
    text_append(t, "samplers            calls of the model, a step\n");
    for (int i = 0; i < SAMPLER_COUNT; i++)
        text_append(t, "  %-16s  %d%s  %s%s\n", samplers[i]->name, (int)samplers[i]->calls_a_step,
            samplers[i]->noisy ? ", and noise" : "           ", samplers[i]->about,
            i ? "" : " (default)");
    text_append(t, "schedules\n");
    for (int i = 0; i < SCHEDULE_COUNT; i++)
        text_append(
            t, "  %-16s  %s%s\n", schedules[i]->name, schedules[i]->about, i ? "" : " (default)");
}

static enum shoal_status print_json(struct text *t, struct shoal_error *error)
{
    json_t *object = json_pack("{s:[], s:[]}", "samplers", "schedules");
    bool failed = !object;
    char *dump;

    for (int i = 0; !failed && i < SAMPLER_COUNT; i++)
        failed = json_array_append_new(json_object_get(object, "samplers"),
            json_pack("{s:s, s:s, s:i, s:b}", "name", samplers[i]->name, "about",
                samplers[i]->about, "calls_a_step", (int)samplers[i]->calls_a_step, "noise",
                (int)samplers[i]->noisy));
    for (int i = 0; !failed && i < SCHEDULE_COUNT; i++)
        failed = json_array_append_new(json_object_get(object, "schedules"),
            json_pack("{s:s, s:s}", "name", schedules[i]->name, "about", schedules[i]->about));
    dump = failed ? NULL : json_print(object);
    json_decref(object);
    if (!dump) FAIL_MEMORY(error);
    text_append(t, "%s", dump);
    mem_free(dump);
    return SHOAL_OK;
}

enum shoal_status shoal_samplers(bool json, char **text, struct shoal_error *error)
{
    struct text t = {0};

    *text = NULL;
    if (json)
        TRY(print_json(&t, error));
    else
        print_text(&t);
    if (t.failed) {
        mem_free(t.data);
        FAIL_MEMORY(error);
    }
    *text = t.data;
    return SHOAL_OK;
}
