/* Drawing progress. It measures nothing: every figure comes from the library's callback. */
#include "progress.h"

#include <string.h>
#include <time.h>

#define REDRAW_SECONDS 0.05

static bool line_is_drawn;

static double monotonic_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void progress_start(struct progress *progress, const char *label, bool quiet)
{
    *progress = (struct progress){
        .label = label,
        .terminal = cli_is_terminal(stderr),
        .quiet = quiet,
    };
}

void progress_clear(void)
{
    if (!line_is_drawn) return;
    fputs("\r\x1b[K", stderr);
    fflush(stderr); /* what comes next may go to standard output */
    line_is_drawn = false;
}

/* The part of the phase that is done, in [0, 1]; never less than what was drawn before. */
static double fraction_done(struct progress *progress, const struct shoal_progress *now)
{
    double done = now->step;

    if (now->steps <= 0) return 0;
    if (now->block < now->blocks) done += (double)now->block / now->blocks;
    done /= now->steps;
    if (done > 1) done = 1;
    if (done > progress->fraction) progress->fraction = done;
    return progress->fraction;
}

/* "0.38 s a step, 14.2 MiB a step, 3.1 s left": what is known so far, "" at first. */
static void describe(const struct shoal_progress *now, double fraction, char *text, size_t room)
{
    double left = fraction > 0 ? now->seconds * (1 - fraction) / fraction : 0;
    int length = 0;

    text[0] = '\0';
    if (now->step_seconds > 0 && now->phase == SHOAL_PHASE_STEPS)
        length = snprintf(text, room, "%s and %s a step, ", cli_seconds(now->step_seconds).text,
            cli_size(now->step_bytes).text);
    if (fraction > 0 && now->seconds >= 0.5)
        snprintf(text + length, room - (size_t)length, "%s left", cli_seconds(left).text);
    else if (length > 2)
        text[length - 2] = '\0';
}

void progress_draw(const char *left, double fraction, const char *right)
{
    int columns = cli_columns(stderr) - 1; /* a full line would wrap */
    int bar = columns - (int)strlen(left) - (int)strlen(right) - 3;

    if (bar > 40) bar = 40;
    fputs("\r\x1b[K", stderr);
    if (bar < 8) {
        char line[320];

        /* No room for a bar: the figures say more. */
        snprintf(line, sizeof line, "%s%s", left, right);
        fprintf(stderr, "%.*s", columns > 0 ? columns : 0, line);
    } else {
        int filled = (int)(fraction * bar);

        fprintf(stderr, "%s[%s", left, cli_colour(stderr, COLOUR_CYAN));
        for (int i = 0; i < bar; i++)
            fputc(i < filled ? '=' : i == filled ? '>' : ' ', stderr);
        fprintf(stderr, "%s] %s", cli_colour(stderr, COLOUR_NONE), right);
    }
    fflush(stderr);
    line_is_drawn = true;
}

static void draw(struct progress *progress, const struct shoal_progress *now)
{
    double fraction = fraction_done(progress, now);
    char left[192];
    char right[96];

    snprintf(left, sizeof left, "%s%s%s %d/%d ", progress->label ? progress->label : "",
        progress->label ? ": " : "", shoal_phase_name(now->phase), now->step, now->steps);
    describe(now, fraction, right, sizeof right);
    progress_draw(left, fraction, right);
}

/* One line for each step; for another phase, one when it is over. */
static void print_line(struct progress *progress, const struct shoal_progress *now)
{
    const struct shoal_progress *last = &progress->last;

    if (now->phase != last->phase && last->phase != SHOAL_PHASE_STEPS && last->steps > 0)
        fprintf(stderr, "%s: %s\n", shoal_phase_name(last->phase), cli_seconds(last->seconds).text);
    if (now->phase == SHOAL_PHASE_STEPS && now->step > 0 &&
        (last->phase != SHOAL_PHASE_STEPS || now->step > last->step))
        fprintf(stderr, "step %d/%d: %s, %s\n", now->step, now->steps,
            cli_seconds(now->step_seconds).text, cli_size(now->step_bytes).text);
}

void progress_update(void *user, const struct shoal_progress *now)
{
    struct progress *progress = user;
    double time = monotonic_seconds();

    if (!progress->terminal) {
        if (!progress->quiet) print_line(progress, now);
    } else if (now->phase != progress->last.phase || now->step != progress->last.step ||
               time - progress->drawn_at >= REDRAW_SECONDS) {
        if (now->phase != progress->last.phase) progress->fraction = 0;
        progress->drawn_at = time;
        draw(progress, now);
    }
    progress->last = *now;
}
