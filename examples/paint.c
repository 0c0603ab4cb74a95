/*
 * The shortest whole use of libshoal: paints one picture in the least memory that works.
 *
 * After make install:
 *
 *     cc paint.c -lshoal -o paint && ./paint models/shoal-mini 'a red apple' apple.png
 */
#include <shoal/shoal.h>

#include <stdio.h>

static enum shoal_status paint(const struct shoal_model *model, const char *prompt,
    const char *path, struct shoal_error *error)
{
    struct shoal_request request;
    struct shoal_plan_summary summary;
    struct shoal_plan *plan = NULL;
    struct shoal_result *result = NULL;
    enum shoal_status status;

    shoal_request_init(&request, model);
    request.prompt = prompt;
    status = shoal_plan_create(model, &request, &plan, error);
    if (status) return status;

    /* The plan knows the least budget before anything runs: ask for just that. */
    shoal_plan_summarise(plan, &summary);
    shoal_plan_destroy(&plan);
    request.vram_bytes = summary.least_vram_bytes;
    status = shoal_plan_create(model, &request, &plan, error);
    if (!status) puts(shoal_plan_text(plan));
    if (!status) status = shoal_run(plan, NULL, &result, error);
    if (!status) status = shoal_result_write_png(result, 0, path, error);

    shoal_result_destroy(&result);
    shoal_plan_destroy(&plan);
    return status;
}

int main(int argc, char **argv)
{
    struct shoal_model *model = NULL;
    struct shoal_error error = {0};
    enum shoal_status status;

    if (argc != 4) {
        fprintf(stderr, "usage: paint MODEL PROMPT FILE.png\n");
        return 2;
    }
    status = shoal_model_open(&(struct shoal_model_paths){.model = argv[1]}, &model, &error);
    if (!status) status = paint(model, argv[2], argv[3], &error);
    if (status) fprintf(stderr, "paint: %s\n", error.text);
    shoal_model_close(&model);
    return status != SHOAL_OK;
}
