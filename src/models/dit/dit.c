/* What diffusion transformers have in common. */
#include "models/dit/dit.h"

#include "base/memory.h"
#include "layers/rope.h"

#define MAX_STEPS 100000

static enum shoal_status check_spec(
    const struct dit_family *family, const struct dit_prompt_spec *spec, struct shoal_error *error)
{
    int64_t patch = family->patch, limit = DIT_MAX_TOKENS * patch;

    if (spec->tokens < 1 || spec->tokens > DIT_MAX_TOKENS)
        FAIL(error, SHOAL_E_INVALID, "a prompt of %lld tokens: it must have 1 to %d",
            (long long)spec->tokens, DIT_MAX_TOKENS);
    if (spec->height < 1 || spec->width < 1 || spec->height % patch || spec->width % patch ||
        spec->height > limit || spec->width > limit ||
        spec->height / patch * (spec->width / patch) > DIT_MAX_TOKENS)
        FAIL(error, SHOAL_E_INVALID,
            "a latent of %lld x %lld: its sides must be multiples of %d, and it may have %d "
            "patches",
            (long long)spec->height, (long long)spec->width, (int)patch, DIT_MAX_TOKENS);
    if (spec->steps < 1 || spec->steps > MAX_STEPS)
        FAIL(error, SHOAL_E_INVALID, "%d steps: they must be 1 to %d", (int)spec->steps, MAX_STEPS);
    return SHOAL_OK;
}

/* All but what is made of numbers. */
static struct dit_prompt measured(const struct model *model, const struct dit_prompt_spec *spec)
{
    const struct dit_config *config = dit_config(model);
    const int64_t patch = config->family->patch;
    struct dit_prompt p = {.config = config,
        .tokens = spec->tokens,
        .padded = spec->tokens,
        .ids = spec->id_count,
        .height = spec->height,
        .width = spec->width,
        .image_tokens = spec->height / patch * (spec->width / patch),
        .steps = spec->steps,
        .features = spec->features};

    p.image_padded = p.image_tokens;
    config->family->measure(&p);
    return p;
}

uint64_t dit_prompt_bytes(const struct model *model, const struct dit_prompt_spec *spec)
{
    const struct dit_prompt p = measured(model, spec);

    return tables_bytes(p.tables, DIT_TABLES);
}

enum shoal_status dit_prompt_create(const struct model *model, const struct dit_prompt_spec *spec,
    struct dit_prompt **prompt, struct shoal_error *error)
{
    struct dit_prompt *p;
    enum shoal_status status;

    *prompt = NULL;
    TRY(check_spec(dit_config(model)->family, spec, error));
    p = mem_calloc(1, sizeof *p);
    if (!p) FAIL_MEMORY(error);
    *p = measured(model, spec);
    *prompt = p;
    if (!spec->features) return SHOAL_OK; /* only counted: nothing is copied */
    status = tables_make(p->tables, DIT_TABLES, error);
    if (!status) status = p->config->family->fill(p, spec, error);
    if (status) dit_prompt_destroy(NULL, prompt);
    return status;
}

void dit_prompt_destroy(struct exec *x, struct dit_prompt **prompt)
{
    struct dit_prompt *p = *prompt;

    if (!p) return;
    tables_fini(x, p->tables, DIT_TABLES);
    if (x) exec_free(x, &p->context);
    mem_free(p);
    *prompt = NULL;
}

enum shoal_status dit_fill_rope(
    struct dit_prompt *p, const struct dit_rope *rope, struct shoal_error *error)
{
    const struct table *table = &p->tables[rope->table];
    const int64_t pairs = table->cols / 2;
    double *frequencies = mem_calloc((size_t)pairs, sizeof *frequencies);
    int64_t first = 0;

    if (!frequencies) FAIL_MEMORY(error);
    for (int axis = 0; axis < 3; axis++) {
        const int64_t count = rope->axes[axis] / 2;

        if (rope->single)
            rope_frequencies_single(frequencies, rope->axes[axis], rope->theta);
        else
            rope_frequencies(frequencies, rope->axes[axis], rope->theta);
        for (int64_t t = 0; t < table->rows; t++) {
            int64_t place[3];

            rope->position(p, t, place);
            rope_row(table->host + t * table->cols, pairs, first, count, frequencies, place[axis]);
        }
        first += count;
    }
    mem_free(frequencies);
    return SHOAL_OK;
}

void dit_lane_fini(struct exec *x, struct dit_lane *lane)
{
    exec_free(x, &lane->hidden);
    exec_free(x, &lane->text);
    exec_free(x, &lane->time);
    exec_free(x, &lane->shared);
}
