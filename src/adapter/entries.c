/* Names of an adapter's tensors: what they end in, and what is refused. */
#include "adapter/entries.h"

#include "base/memory.h"
#include "checkpoint/json.h"

#include <stdlib.h>
#include <string.h>

/* ---- endings ---- */

static const struct ending {
    const char *text;
    enum adapter_role role;
} endings[] = {
    {".lora_up.weight", ROLE_UP},
    {".lora_down.weight", ROLE_DOWN},
    {".lora_B.weight", ROLE_UP},
    {".lora_A.weight", ROLE_DOWN},
    {".lora_B", ROLE_UP},
    {".lora_A", ROLE_DOWN},
    {".lora.up.weight", ROLE_UP},
    {".lora.down.weight", ROLE_DOWN},
    {"_lora.up.weight", ROLE_UP},
    {"_lora.down.weight", ROLE_DOWN},
    {".lora_linear_layer.up.weight", ROLE_UP},
    {".lora_linear_layer.down.weight", ROLE_DOWN},
    {".alpha", ROLE_ALPHA},
    {".diff", ROLE_DIFF},
    {".diff_b", ROLE_DIFF_BIAS},
    {".w_norm", ROLE_DIFF},
    {".b_norm", ROLE_DIFF_BIAS},
    {".hada_w1_a", ROLE_HADA_W1_A},
    {".hada_w1_b", ROLE_HADA_W1_B},
    {".hada_w2_a", ROLE_HADA_W2_A},
    {".hada_w2_b", ROLE_HADA_W2_B},
    {".lokr_w1", ROLE_LOKR_W1},
    {".lokr_w1_a", ROLE_LOKR_W1_A},
    {".lokr_w1_b", ROLE_LOKR_W1_B},
    {".lokr_w2", ROLE_LOKR_W2},
    {".lokr_w2_a", ROLE_LOKR_W2_A},
    {".lokr_w2_b", ROLE_LOKR_W2_B},
};

/* What a name holds whose meaning is another; and what that is. */
static const struct refusal {
    const char *part, *meaning;
} refusals[] = {
    {".dora_scale", "DoRA, which scales rows of the sum by norms"},
    {".lora_magnitude_vector", "DoRA, which scales rows of the sum by norms"},
    {".lora_mid.", "a LoRA of three factors (Tucker)"},
    {".hada_t1", "a LoHa in Tucker form"},
    {".hada_t2", "a LoHa in Tucker form"},
    {".lokr_t2", "a LoKr in Tucker form"},
    {".set_weight", "a weight in place of the model's"},
    {".reshape_weight", "a weight of another shape than the model's"},
    {".lora_embedding_", "a LoRA of an embedding"},
    {".lora_A.bias", "a LoRA with biases of its own"},
    {".lora_B.bias", "a LoRA with biases of its own"},
    {".oft_", "OFT, which turns weights"},
    {".boft_", "BOFT, which turns weights"},
    {".oft_blocks", "OFT, which turns weights"},
    {".scalar", "a LyCORIS adapter with a scale of its own"},
    {".rescale", "an adapter that rescales its output"},
    {".a1.weight", "GLoRA, whose difference depends on the weight"},
    {".b1.weight", "GLoRA, whose difference depends on the weight"},
    {".on_input", "(IA)3, which scales activations"},
    {".ia3_l", "(IA)3, which scales activations"},
    {".vera_lambda", "VeRA, whose factors are in no file"},
};

static bool ends_with(const char *name, size_t length, const char *ending)
{
    const size_t bytes = strlen(ending);

    return length > bytes && !memcmp(name + length - bytes, ending, bytes);
}

/* "X.lora_A.default.weight", as peft names adapters: the length of X, or 0. */
static size_t named_by_peft(const char *name, size_t length, enum adapter_role *role)
{
    const size_t weight = strlen(".weight"), middle = strlen(".lora_A");
    size_t at;

    if (!ends_with(name, length, ".weight")) return 0;
    for (at = length - weight; at > 0 && name[at - 1] != '.'; at--)
        continue;
    if (at < middle + 2) return 0;
    at -= middle + 1;
    *role = ROLE_UP;
    if (!memcmp(name + at, ".lora_B.", middle + 1)) return at;
    *role = ROLE_DOWN;
    return memcmp(name + at, ".lora_A.", middle + 1) ? 0 : at;
}

/* What the tensor is, and how much of its name is the module's. */
static enum adapter_role role_of(const char *name, size_t *key_bytes)
{
    const size_t length = strlen(name);
    enum adapter_role role;

    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (ends_with(name, length, endings[i].text)) {
            *key_bytes = length - strlen(endings[i].text);
            return endings[i].role;
        }
    *key_bytes = named_by_peft(name, length, &role);
    if (*key_bytes) return role;
    *key_bytes = length;
    return ROLE_NONE;
}

static enum shoal_status refuse(const struct checkpoint_tensor *tensor, struct shoal_error *error)
{
    char shown[JSON_SHOWN_BYTES];

    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
        if (strstr(tensor->name, refusals[i].part))
            FAIL(error, SHOAL_E_UNSUPPORTED,
                "%s: tensor %s belongs to %s: this build adds LoRA, LoHa, LoKr and plain "
                "differences only; merge the adapter into the model's file",
                tensor->file->path, json_show(shown, tensor->name), refusals[i].meaning);
    return SHOAL_OK;
}

/* ---- grouping ---- */

struct named {
    const struct checkpoint_tensor *tensor;
    size_t key_bytes;
    enum adapter_role role;
};

static int by_key(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    const size_t least = x->key_bytes < y->key_bytes ? x->key_bytes : y->key_bytes;
    int order = memcmp(x->tensor->name, y->tensor->name, least);

    if (!order) order = x->key_bytes < y->key_bytes ? -1 : x->key_bytes > y->key_bytes;
    return order ? order : x->role < y->role ? -1 : x->role > y->role;
}

static enum shoal_status take(
    struct adapter_entry *entry, const struct named *named, struct shoal_error *error)
{
    const struct checkpoint_tensor **place = &entry->tensors[named->role];
    char first[JSON_SHOWN_BYTES], second[JSON_SHOWN_BYTES];

    if (*place && named->role != ROLE_NONE)
        FAIL(error, SHOAL_E_FORMAT,
            "%s: tensors %s and %s are the same part of one module: it holds two adapters; keep "
            "one",
            named->tensor->file->path, json_show(first, (*place)->name),
            json_show(second, named->tensor->name));
    *place = named->tensor;
    return SHOAL_OK;
}

static enum shoal_status group(struct adapter_entries *entries, const struct named *list,
    size_t count, struct shoal_error *error)
{
    for (size_t i = 0; i < count; i++) {
        struct adapter_entry *last = entries->count ? &entries->list[entries->count - 1] : NULL;

        if (!last || last->key_bytes != list[i].key_bytes ||
            memcmp(last->key, list[i].tensor->name, last->key_bytes)) {
            last = &entries->list[entries->count++];
            last->key = list[i].tensor->name;
            last->key_bytes = list[i].key_bytes;
        }
        TRY(take(last, &list[i], error));
    }
    return SHOAL_OK;
}

uint64_t entries_bytes(size_t tensors)
{
    return tensors * (sizeof(struct named) + sizeof(struct adapter_entry));
}

enum shoal_status entries_open(
    struct adapter_entries *entries, const struct checkpoint *checkpoint, struct shoal_error *error)
{
    const size_t count = checkpoint_count(checkpoint);
    struct named *list = mem_calloc(count, sizeof *list);
    enum shoal_status status = SHOAL_OK;

    *entries = (struct adapter_entries){.list = mem_calloc(count, sizeof *entries->list)};
    if (!list || !entries->list)
        status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
    for (size_t i = 0; i < count && !status; i++) {
        list[i].tensor = checkpoint_at(checkpoint, i);
        list[i].role = role_of(list[i].tensor->name, &list[i].key_bytes);
        status = refuse(list[i].tensor, error);
    }
    if (!status && count) {
        qsort(list, count, sizeof *list, by_key);
        status = group(entries, list, count, error);
    }
    mem_free(list);
    if (status) entries_close(entries);
    return status;
}

void entries_close(struct adapter_entries *entries)
{
    mem_free(entries->list);
    *entries = (struct adapter_entries){0};
}

void entry_matrix(const struct checkpoint_tensor *tensor, int64_t *rows, int64_t *cols)
{
    const int64_t count = (int64_t)checkpoint_elements(tensor);

    *rows = tensor->shape.rank > 1 ? tensor->shape.dim[0] : 1;
    *cols = *rows ? count / *rows : 0;
}
