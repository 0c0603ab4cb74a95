/*
 * Ctrl-C. Before a run it ends the program at once. In a run the first one asks it to stop at the
 * next block, the second one ends at once.
 */
#ifndef INTERRUPT_H
#define INTERRUPT_H

#include <stdbool.h>

/* Catches SIGINT, SIGTERM and SIGHUP, those that are not ignored. They end the program. */
void interrupt_install(void);

/*
 * True: signals are kept for interrupt_requested, as something runs that asks for them. False: they
 * end the program again; one that came before is still kept.
 */
void interrupt_defer(bool defer);

/* The callback that shoal_run polls; `user` is not used. */
bool interrupt_requested(void *user);

/* 128 + the signal that asked, as shells have it: 130 for Ctrl-C. */
int interrupt_exit_code(void);

#endif
