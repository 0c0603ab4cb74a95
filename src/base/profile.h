/*
 * Ranges for profilers, by NVIDIA's NVTX: what the host's threads were giving to the device when,
 * nested, beside what the device did. Unlike a trace (trace.h) nothing is recorded here: a profiler
 * such as Nsight Systems says by the environment's NVTX_INJECTION64_PATH who listens, and without
 * one, or in a build without NVTX's header, a range is a test of a pointer.
 */
#ifndef BASE_PROFILE_H
#define BASE_PROFILE_H

enum profile_kind {
    PROFILE_PHASE, /* of a run */
    PROFILE_UNIT,  /* of a phase: a step, a prompt, a picture */
    PROFILE_BLOCK, /* its weights are unpacked and its forwards given to the compute stream */
    PROFILE_WAIT,  /* for the drive, within a block or before the globals */
    PROFILE_COPY,  /* what is there of a block is given to the copy stream */
    PROFILE_KINDS
};

/* A range of this thread, within the one that it has open. `name` is the listener's to copy. */
void profile_begin(enum profile_kind kind, const char *name);
/* Ends the thread's innermost range. */
void profile_end(void);

#endif
