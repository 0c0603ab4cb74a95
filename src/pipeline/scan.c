/* Reading one tensor ahead in pieces. */
#include "pipeline/scan.h"

#include "base/memory.h"
#include "base/size.h"

#define PIECE_BYTES ((uint64_t)4 << 20)

enum shoal_status scan_init(struct scan *s, struct shoal_error *error)
{
    *s = (struct scan){0};
    for (int i = 0; i < SCAN_BUFFERS; i++) {
        s->buffers[i] = pages_alloc(PIECE_BYTES);
        if (!s->buffers[i]) FAIL_MEMORY(error);
    }
    return reader_create(&s->reader, READER_AUTO, SCAN_BUFFERS, error);
}

void scan_fini(struct scan *s)
{
    /* Waits for what is under way: the buffers are its until then. */
    reader_destroy(&s->reader);
    for (int i = 0; i < SCAN_BUFFERS; i++)
        if (s->buffers[i]) pages_free(s->buffers[i], PIECE_BYTES);
    *s = (struct scan){0};
}

void scan_begin(struct scan *s, const struct checkpoint_tensor *tensor)
{
    s->tensor = tensor;
    s->begin = tensor->offset / READER_ALIGNMENT * READER_ALIGNMENT;
    s->end = tensor->offset + tensor->stored_bytes;
    s->asked = s->taken = 0;
}

static uint64_t piece_begin(const struct scan *s, uint64_t piece)
{
    return s->begin + piece * PIECE_BYTES;
}

static uint64_t piece_bytes(const struct scan *s, uint64_t piece)
{
    uint64_t left = s->end - piece_begin(s, piece);

    return left < PIECE_BYTES ? left : PIECE_BYTES;
}

/* Asks for as many pieces as there are free buffers. */
static enum shoal_status ask(struct scan *s, struct shoal_error *error)
{
    for (; s->asked < s->taken + SCAN_BUFFERS && piece_begin(s, s->asked) < s->end; s->asked++) {
        uint64_t least = piece_bytes(s, s->asked), buffer = s->asked % SCAN_BUFFERS;
        struct read read = {.file = s->tensor->file,
            .offset = piece_begin(s, s->asked),
            .bytes = size_align(least, READER_ALIGNMENT),
            .to = s->buffers[buffer],
            .least = least,
            .tag = &s->here[buffer]};

        s->here[buffer] = false;
        TRY(reader_submit(s->reader, &read, error));
    }
    return SHOAL_OK;
}

enum shoal_status scan_next(
    struct scan *s, const char **data, uint64_t *bytes, struct shoal_error *error)
{
    uint64_t piece = s->taken, skip = piece ? 0 : s->tensor->offset - s->begin;
    struct read read;

    *bytes = 0;
    *data = NULL;
    if (piece_begin(s, piece) >= s->end) return SHOAL_OK;
    /* Its buffer was the last piece's until now. */
    TRY(ask(s, error));
    while (!s->here[piece % SCAN_BUFFERS]) {
        if (!reader_next(s->reader, true, &read, error)) continue;
        TRY(read.status);
        *(bool *)read.tag = true;
    }
    *data = s->buffers[piece % SCAN_BUFFERS] + skip;
    *bytes = piece_bytes(s, piece) - skip;
    s->taken++;
    return SHOAL_OK;
}
