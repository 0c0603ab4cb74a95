/*
 * Progress on standard error: one line that is redrawn on a terminal, one line for each step
 * elsewhere.
 */
#ifndef PROGRESS_H
#define PROGRESS_H

#include "cli.h"

struct progress {
    const char *label; /* put before everything, e.g. a row of verify; NULL for none */
    bool terminal;
    bool quiet; /* say nothing, where there is no terminal */
    struct shoal_progress last;
    double fraction; /* of the phase, as drawn */
    double drawn_at; /* seconds of a monotonic clock */
};

void progress_start(struct progress *progress, const char *label, bool quiet);

/* The callback for shoal_run; `user` is a struct progress. */
void progress_update(void *user, const struct shoal_progress *now);

/* Draws the line: "LEFT[====>   ] RIGHT", or what of it fits. */
void progress_draw(const char *left, double fraction, const char *right);

/* Takes the line off the terminal, if one is there, so that something else can be printed. */
void progress_clear(void);

#endif
