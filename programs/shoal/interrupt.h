/* Ctrl-C: the first one asks the run to stop at the next block, the second one ends at once. */
#ifndef INTERRUPT_H
#define INTERRUPT_H

#include <stdbool.h>

/* Catches SIGINT, SIGTERM and SIGHUP, those that are not ignored. */
void interrupt_install(void);

/* The callback that shoal_run polls; `user` is not used. */
bool interrupt_requested(void *user);

/* 128 + the signal that asked, as shells have it: 130 for Ctrl-C. */
int interrupt_exit_code(void);

#endif
