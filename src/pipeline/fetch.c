/* Reading tensors ahead. The thread owns the reader; what it shares is under the mutex. */
#include "pipeline/fetch.h"

#include "base/memory.h"
#include "base/size.h"
#include "wire/wire.h"

#include <string.h>

#define CHUNK_BYTES ((uint64_t)4 << 20)
#define DEPTH 8

/* Waits for a free buffer; false: quit. */
static bool wait_for_room(struct fetch *f)
{
    bool go;

    mutex_lock(&f->mutex);
    while (!f->quit && f->ready - f->taken == FETCH_BUFFERS)
        cond_wait(&f->cond, &f->mutex);
    go = !f->quit;
    mutex_unlock(&f->mutex);
    return go;
}

/* Reads the pages that the tensor lies in. */
static enum shoal_status read_pages(
    struct fetch *f, const struct checkpoint_tensor *tensor, char *to, struct shoal_error *error)
{
    uint64_t begin = tensor->offset / READER_ALIGNMENT * READER_ALIGNMENT;
    uint64_t end = tensor->offset + tensor->stored_bytes, waiting = 0;
    enum shoal_status status = SHOAL_OK;
    struct read done;

    for (uint64_t at = begin; at < end && !status; at += CHUNK_BYTES) {
        uint64_t least = end - at < CHUNK_BYTES ? end - at : CHUNK_BYTES;
        struct read read = {.file = tensor->file,
            .offset = at,
            .bytes = size_align(least, READER_ALIGNMENT),
            .to = to + (at - begin),
            .least = least};

        status = reader_submit(f->reader, &read, error);
        if (!status) waiting++;
    }
    /* All of them, whatever failed: the buffer is theirs until then. The first failure counts. */
    for (; waiting; waiting--) {
        struct shoal_error other;

        if (!reader_next(f->reader, true, &done, status ? &other : error))
            waiting++;
        else if (!status)
            status = done.status;
    }
    return status;
}

static enum shoal_status read_tensor(
    struct fetch *f, const struct checkpoint_tensor *tensor, int buffer, struct shoal_error *error)
{
    char *stored = f->stored[buffer] + tensor->offset % READER_ALIGNMENT;

    TRY(read_pages(f, tensor, f->stored[buffer], error));
    if (tensor->packed && (uintptr_t)stored % WIRE_ALIGNMENT)
        stored = memmove(f->stored[buffer], stored, tensor->stored_bytes);
    f->data[buffer] = tensor->packed ? f->values[buffer] : stored;
    return checkpoint_unpack(tensor, stored, f->values[buffer], error);
}

static void fetch_run(void *arg)
{
    struct fetch *f = arg;
    enum shoal_status status = SHOAL_OK;

    for (size_t i = 0; i < f->count && !status && wait_for_room(f); i++) {
        status = read_tensor(f, f->tensors[i], (int)(i % FETCH_BUFFERS), &f->error);
        mutex_lock(&f->mutex);
        f->status = status;
        if (!status) f->ready++;
        cond_wake_all(&f->cond);
        mutex_unlock(&f->mutex);
    }
}

enum shoal_status fetch_take(struct fetch *f, const void **data, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;

    mutex_lock(&f->mutex);
    while (f->ready == f->taken && !f->status)
        cond_wait(&f->cond, &f->mutex);
    if (f->ready == f->taken) status = f->status;
    mutex_unlock(&f->mutex);
    *data = f->data[f->taken % FETCH_BUFFERS];
    if (status && error) *error = f->error;
    return status;
}

void fetch_give(struct fetch *f)
{
    mutex_lock(&f->mutex);
    f->taken++;
    cond_wake_all(&f->cond);
    mutex_unlock(&f->mutex);
}

/* Buffers for the largest. */
static enum shoal_status make_room(struct fetch *f, struct shoal_error *error)
{
    for (size_t i = 0; i < f->count; i++) {
        const struct checkpoint_tensor *t = f->tensors[i];
        uint64_t pages =
            size_align(t->offset % READER_ALIGNMENT + t->stored_bytes, READER_ALIGNMENT);

        if (pages > f->stored_room) f->stored_room = pages;
        if (t->packed && t->bytes > f->values_room) f->values_room = t->bytes;
    }
    for (int i = 0; i < FETCH_BUFFERS; i++) {
        f->stored[i] = pages_alloc(f->stored_room);
        if (f->values_room) f->values[i] = pages_alloc(f->values_room);
        if (!f->stored[i] || (f->values_room && !f->values[i])) FAIL_MEMORY(error);
    }
    return SHOAL_OK;
}

enum shoal_status fetch_start(struct fetch *f, const struct checkpoint_tensor *const *tensors,
    size_t count, struct shoal_error *error)
{
    *f = (struct fetch){.tensors = tensors, .count = count};
    mutex_init(&f->mutex);
    cond_init(&f->cond);
    if (!count) return SHOAL_OK;
    TRY(make_room(f, error));
    TRY(reader_create(&f->reader, READER_AUTO, DEPTH, error));
    TRY(thread_start(&f->thread, fetch_run, f, error));
    f->started = true;
    return SHOAL_OK;
}

void fetch_stop(struct fetch *f)
{
    mutex_lock(&f->mutex);
    f->quit = true;
    cond_wake_all(&f->cond);
    mutex_unlock(&f->mutex);
    if (f->started) thread_join(&f->thread);
    reader_destroy(&f->reader);
    for (int i = 0; i < FETCH_BUFFERS; i++) {
        if (f->stored[i]) pages_free(f->stored[i], f->stored_room);
        if (f->values[i]) pages_free(f->values[i], f->values_room);
    }
    cond_fini(&f->cond);
    mutex_fini(&f->mutex);
}
