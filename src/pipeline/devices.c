/* What this build and this machine can compute on. */
#include "base/json.h"
#include "base/memory.h"
#include "base/size.h"
#include "base/text.h"
#include "base/thread.h"
#include "device/cpu/cpu.h"
#include "device/cuda/cuda.h"

#include <stdio.h>

/* A card, or in place of all cards why there are none. */
struct found {
    char name[24]; /* "cuda:0" */
    struct cuda_card card;
    struct shoal_error why_not; /* status: SHOAL_OK if it can be used */
};

static json_t *found_json(const struct found *f)
{
    json_t *object = json_pack("{s:s, s:b, s:s}", "name", f->name, "usable", !f->why_not.status,
        "detail", f->why_not.status ? f->why_not.text : f->card.name);

    if (object && f->card.bytes &&
        (json_object_set_new(object, "sm", json_integer(f->card.sm)) ||
            json_object_set_new(object, "memory_bytes", json_integer((json_int_t)f->card.bytes)))) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static void found_text(struct text *t, const struct found *f)
{
    char size[SIZE_TEXT_BYTES];

    if (f->why_not.status)
        text_append(t, "%-7s not usable: %s\n", f->name, f->why_not.text);
    else
        text_append(t, "%-7s usable: %s, %s, sm_%d\n", f->name, f->card.name,
            size_format(size, f->card.bytes), f->card.sm);
}

/* The `index`th line after the CPU's; false after the last. */
static bool find(int32_t index, struct found *f)
{
    int32_t count = 0;

    *f = (struct found){.name = "cuda"};
    if (cuda_count(&count, &f->why_not)) return index == 0;
    if (index >= count) return false;
    f->why_not.status = cuda_look(index, &f->card, &f->why_not);
    snprintf(f->name, sizeof f->name, "cuda:%d", index);
    return true;
}

static enum shoal_status print_json(struct text *t, struct shoal_error *error)
{
    json_t *object = json_pack("{s:[{s:s, s:b, s:s, s:i}]}", "devices", "name", "cpu", "usable", 1,
        "detail", cpu_describe(), "cores", thread_cores());
    struct found f;
    bool failed = false;
    char *dump;

    for (int32_t i = 0; !failed && find(i, &f); i++)
        failed = json_array_append_new(json_object_get(object, "devices"), found_json(&f));
    dump = failed ? NULL : json_print(object);
    json_decref(object);
    if (!dump) FAIL_MEMORY(error);
    text_append(t, "%s", dump);
    mem_free(dump);
    return SHOAL_OK;
}

enum shoal_status shoal_devices(bool json, char **text, struct shoal_error *error)
{
    struct text t = {0};
    struct found f;

    *text = NULL;
    if (json) {
        TRY(print_json(&t, error));
    } else {
        text_append(&t, "cpu     usable: %d cores, %s\n", thread_cores(), cpu_describe());
        for (int32_t i = 0; find(i, &f); i++)
            found_text(&t, &f);
    }
    if (t.failed) {
        mem_free(t.data);
        FAIL_MEMORY(error);
    }
    *text = t.data;
    return SHOAL_OK;
}
