/* Measuring the wire: its encoder, and its decoder on the device. */
#include "pipeline/links.h"

#include "base/checksum.h"
#include "base/memory.h"
#include "pipeline/noise.h"
#include "wire/wire.h"

#define WIRE_ELEMENTS ((uint64_t)64 << 20) /* more than caches hold */
#define WIRE_SECONDS 0.4

struct wire_bench {
    struct pool *pool;
    uint16_t *weights, *payload;
    uint64_t bound, bytes; /* of the payload: at most, and as packed */
    struct device *device;
    struct stream *stream;
    struct shoal_error error; /* status: the stream's first failure */
};

static void pack(void *arg)
{
    struct wire_bench *b = arg;

    b->bytes = wire_encode(b->pool, DTYPE_BF16, b->weights, WIRE_ELEMENTS, b->payload);
}

/* The payload lies at the arena's begin, and the weights come after it. */
static void unpack(void *arg)
{
    struct wire_bench *b = arg;
    const device_addr arena = b->device->arena;
    const struct crossed tensor = {
        matrix_at(arena + b->bytes, DTYPE_BF16, 1, WIRE_ELEMENTS), arena, b->bytes, true};

    b->device->ops->compute->unpack(b->stream, &tensor, 1);
    if (!b->error.status)
        b->error.status = b->device->ops->stream_synchronize(b->stream, &b->error);
}

/* The device unpacks what was packed; the weights are overwritten by what comes of it. */
static enum shoal_status measure_unpack(
    struct wire_bench *b, struct links_figures *figures, struct shoal_error *error)
{
    const struct device_ops *ops = b->device->ops;
    const uint64_t bytes = WIRE_ELEMENTS * sizeof(uint16_t);
    const uint64_t sum = checksum_of(b->weights, bytes);

    TRY(ops->arena_reserve(b->device, b->bytes + bytes, error));
    if (ops->arena_mark) ops->arena_mark(b->device, b->device->arena, b->bytes + bytes, true);
    TRY(ops->stream_create(b->device, false, &b->stream, error));
    ops->copy_in(b->stream, b->device->arena, b->payload, b->bytes);
    figures->rates.unpack_bytes =
        (double)bytes / links_seconds(unpack, b, WIRE_SECONDS, &figures->spread);
    ops->copy_out(b->stream, b->weights, b->device->arena + b->bytes, bytes);
    if (!b->error.status) b->error.status = ops->stream_synchronize(b->stream, &b->error);
    if (b->error.status && error) *error = b->error;
    if (b->error.status) return b->error.status;
    if (checksum_of(b->weights, bytes) != sum)
        FAIL(error, SHOAL_E_NUMERIC,
            "the wire gave other bits than it got: this is a bug in shoal, please report it");
    return SHOAL_OK;
}

enum shoal_status links_measure_wire(
    struct device *device, int threads, struct links_figures *figures, struct shoal_error *error)
{
    const uint64_t bytes = WIRE_ELEMENTS * sizeof(uint16_t);
    struct wire_bench b = {.bound = wire_bound(DTYPE_BF16, WIRE_ELEMENTS), .device = device};
    enum shoal_status status = SHOAL_OK;

    b.weights = pages_alloc(bytes);
    b.payload = pages_alloc(b.bound);
    if (!b.weights || !b.payload) {
        status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
        goto fail;
    }
    TRY_OR_FAIL(pool_create(&b.pool, threads, error));
    TRY_OR_FAIL(noise_weights(b.weights, WIRE_ELEMENTS, error));
    figures->rates.pack_bytes =
        (double)bytes / links_seconds(pack, &b, WIRE_SECONDS, &figures->spread);
    figures->packed_part = (double)b.bytes / (double)bytes;
    status = measure_unpack(&b, figures, error);
fail:
    if (b.stream) device->ops->stream_destroy(&b.stream);
    if (device->arena_bytes) device->ops->arena_release(device);
    pool_destroy(&b.pool);
    pages_free(b.payload, b.bound);
    pages_free(b.weights, bytes);
    return status;
}
