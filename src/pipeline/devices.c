/* What this build and this machine can compute on. */
#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/thread.h"
#include "device/cpu/cpu.h"

static const char *const why_no_cuda = "this version has no CUDA back end yet";

enum shoal_status shoal_devices(bool json, char **text, struct shoal_error *error)
{
    struct text t = {0};

    *text = NULL;
    if (json) {
        json_t *object = json_pack("{s:[{s:s, s:b, s:s, s:i}, {s:s, s:b, s:s}]}", "devices", "name",
            "cpu", "usable", 1, "detail", cpu_describe(), "cores", thread_cores(), "name", "cuda",
            "usable", 0, "detail", why_no_cuda);
        char *dump = json_print(object);

        json_decref(object);
        if (!dump) FAIL_MEMORY(error);
        text_append(&t, "%s", dump);
        mem_free(dump);
    } else {
        text_append(&t, "cpu   usable: %d cores, %s\n", thread_cores(), cpu_describe());
        text_append(&t, "cuda  not usable: %s\n", why_no_cuda);
    }
    if (t.failed) {
        mem_free(t.data);
        FAIL_MEMORY(error);
    }
    *text = t.data;
    return SHOAL_OK;
}
