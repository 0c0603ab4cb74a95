/* What generate, plan and verify start with: options, the model, the request and a plan of it. */
#ifndef JOB_H
#define JOB_H

#include "model_path.h"
#include "options.h"

/* What plan and verify take when no prompt is given. */
#define JOB_DEFAULT_PROMPT "a red apple"

#define JOB_MAX_NOTES 24

struct job {
    struct options options;
    const char *model_name; /* what was opened, for people */
    char model_path[MODEL_PATH_BYTES];
    bool uses_copies; /* --disk-cache has some, or will */
    struct shoal_model *model;
    struct shoal_request request;
    struct shoal_plan *plan;
    struct shoal_plan_summary summary;
    struct job_note {
        char text[512];
        bool in_plan;       /* the plan's text says it too */
    } notes[JOB_MAX_NOTES]; /* options that have no effect, and why */
    int note_count;
};

/* Parses the command line and opens the model; leaves *code as options_parse does. */
bool job_open(struct job *job, const struct command *command, int argc, char **argv, int *code);

/*
 * Makes the plan, its summary and the notes. Prints the notes, less those in the plan's text if
 * that will be shown.
 */
bool job_plan(struct job *job, bool shows_plan, int *code);

/*
 * If the plan does not fit, says so with the least budget that would do and returns CLI_BUDGET;
 * else CLI_OK.
 */
int job_check_fits(const struct job *job);

/* Pictures that the request asks for. */
static inline int32_t job_pictures(const struct job *job)
{
    return job->request.count * (1 + job->request.more_prompt_count);
}

/* The prompts as members of a JSON object that has others: the first one, and all. */
void job_print_prompts(const struct job *job);

void job_note(struct job *job, bool in_plan, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void job_close(struct job *job);

#endif
