/* The fake driver's streams: queues of commands, and who may go forward when. Its lock is held. */
#ifndef TESTS_CUDA_FAKE_STREAMS_H
#define TESTS_CUDA_FAKE_STREAMS_H

#include "cuda/fake_driver.h"

enum fake_kind { FAKE_RUN, FAKE_COPY_IN, FAKE_COPY_OUT, FAKE_COPY_WITHIN, FAKE_RECORD, FAKE_AWAIT };

struct fake_command {
    enum fake_kind kind;
    void (*run)(void *given); /* FAKE_RUN: frees what it is given */
    void *given;
    void *to; /* copies */
    const void *from;
    size_t bytes;
    CUevent event;    /* FAKE_RECORD */
    CUstream awaited; /* FAKE_AWAIT: until this stream has done `place` commands */
    uint64_t place;
};

void fake_streams_open(enum fake_pace pace, uint64_t seed);
void fake_streams_forget(void);        /* all streams and events, and what waits in them */
int fake_streams_count(void);          /* of streams and events */
void fake_streams_run(void);           /* all that waits */
bool fake_streams_wait_for_work(void); /* whether something waits */
bool fake_streams_use(uintptr_t at, size_t bytes); /* whether a copy that waits does */

CUstream fake_stream_new(void);
void fake_stream_drop(CUstream stream); /* runs what waits first */
void fake_stream_give(CUstream stream, struct fake_command command);
void fake_stream_run(CUstream stream);
void fake_stream_record(CUstream stream, CUevent event);
void fake_stream_await(CUstream stream, CUevent event);

CUevent fake_event_new(void);
bool fake_event_drop(CUevent event);     /* whether a stream still had to record it */
bool fake_event_happened(CUevent event); /* asking often enough helps */
void fake_event_run(CUevent event);
/* False: not yet. 0: never recorded. */
bool fake_event_time(CUevent event, uint64_t *time_ns);

/* Bytes that nobody should read: as floats of any type, not numbers. */
void fake_spoil(void *at, size_t bytes);

#endif
