/* Pinning host memory. */
#include "stream/pins.h"

static void pin_all(void *arg)
{
    struct pins *p = arg;
    enum shoal_status status = SHOAL_OK;
    struct shoal_error error = {0};

    mutex_lock(p->mutex);
    while (!p->stop && !status && p->done < p->count) {
        const struct pins_span span = p->spans[p->done];

        mutex_unlock(p->mutex);
        status = p->device->ops->host_register(p->device, span.pages, span.bytes, &error);
        mutex_lock(p->mutex);
        if (!status) p->done++;
        p->advanced(p->user);
    }
    p->ended = true;
    p->error = error;
    p->advanced(p->user);
    mutex_unlock(p->mutex);
}

enum shoal_status pins_open(struct pins *pins, struct shoal_error *error)
{
    TRY(thread_start(&pins->thread, pin_all, pins, error));
    pins->started = true;
    return SHOAL_OK;
}

void pins_stop(struct pins *pins)
{
    if (!pins->started) return;
    mutex_lock(pins->mutex);
    pins->stop = true;
    mutex_unlock(pins->mutex);
    thread_join(&pins->thread);
    pins->started = false;
}

void pins_close(struct pins *pins)
{
    pins_stop(pins);
    while (pins->done > 0)
        pins->device->ops->host_unregister(pins->device, pins->spans[--pins->done].pages);
}
