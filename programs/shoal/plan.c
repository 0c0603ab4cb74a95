/* shoal plan: what would run, without running it. */
#include "job.h"

const struct command command_plan = {
    .name = "plan",
    .usage = "[-p TEXT] [-m MODEL] [--vram SIZE] [options of generate]",
    .summary = "Says what generate would do with the same options, without doing it: what stays "
               "on the device, what streams and what is read from disk, the peak of device and "
               "host memory, bytes and operations a step, and the least budgets that work. These "
               "are exact; times are predicted.",
    .set = COMMAND_PLAN,
};

int plan_main(int argc, char **argv)
{
    struct job job;
    bool json;
    int code;

    if (!job_open(&job, &command_plan, argc, argv, &code)) goto done;
    if (job.options.given[OPTION_OUTPUT])
        job_note(&job, false, "--output has no effect: plan paints nothing");
    json = job.options.json;
    if (!job_plan(&job, !json, &code)) goto done;
    cli_print_text(json ? shoal_plan_json(job.plan) : shoal_plan_text(job.plan), json);
    code = cli_finish(job_check_fits(&job));
done:
    job_close(&job);
    return code;
}
