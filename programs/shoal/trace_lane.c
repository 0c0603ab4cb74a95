/* Arranging the spans of a lane. */
#include "trace_lane.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Segments that a span may still belong to: reads of some blocks may be under way at once. */
#define OPEN_SEGMENTS 8

#define LEAST_PIXELS 0.5 /* narrower segments become columns */

/* The segment among the last ones that this span continues, or NULL. */
static struct segment *continued(struct lane *lane, const struct segment *span, double gap)
{
    size_t oldest = lane->segment_count > OPEN_SEGMENTS ? lane->segment_count - OPEN_SEGMENTS : 0;

    for (size_t i = lane->segment_count; i-- > oldest;) {
        struct segment *segment = &lane->segments[i];

        if (span->begin <= segment->end + gap && !strcmp(span->name, segment->name)) return segment;
    }
    return NULL;
}

/* Spans come sorted by begin. `reach` is where the busy time so far ends. */
static void add_span(struct lane *lane, const struct segment *span, double gap, double *reach)
{
    struct segment *segment = continued(lane, span, gap);

    if (span->end > *reach) {
        lane->busy_seconds += span->end - fmax(*reach, span->begin);
        *reach = span->end;
    }
    lane->bytes += span->bytes;
    lane->spans++;
    if (segment) {
        segment->end = fmax(segment->end, span->end);
        segment->bytes += span->bytes;
        segment->spans++;
    } else {
        lane->segments[lane->segment_count++] = *span;
    }
}

/* Spreads a segment that is too narrow over the one or two columns that it lies in. */
static void to_columns(struct lane *lane, const struct segment *segment, double from, double pixel)
{
    double begin = (segment->shown_begin - from) / pixel;
    double end = (segment->shown_end - from) / pixel;
    int first = (int)fmin(begin, LANE_COLUMNS - 1);
    int last = (int)fmin(end, LANE_COLUMNS - 1);

    lane->columns[first].spans += segment->spans;
    if (last == first) {
        lane->columns[first].seconds += (end - begin) * pixel;
        return;
    }
    lane->columns[first].seconds += (last - begin) * pixel;
    lane->columns[last].seconds += (end - last) * pixel;
}

bool lane_init(
    struct lane *lane, const struct trace_file *file, enum span_kind kind, double from, double to)
{
    double pixel = (to - from) / LANE_COLUMNS;
    double reach = from;

    *lane = (struct lane){.segments = calloc(file->count + 1, sizeof *lane->segments)};
    if (!lane->segments) return false;
    for (size_t i = 0; i < file->count; i++) {
        const struct trace_span *s = &file->spans[i];
        struct segment span = {s->name, fmax(s->begin, from), fmin(s->end, to), 0, 0, s->bytes, 1};

        if (s->kind != kind || s->begin >= to || s->end <= from) continue;
        /* Of a span that the window cuts, the bytes in proportion. */
        if (s->end > s->begin) span.bytes *= (span.end - span.begin) / (s->end - s->begin);
        add_span(lane, &span, LEAST_PIXELS * pixel, &reach);
    }
    reach = from;
    for (size_t i = 0; i < lane->segment_count; i++) {
        struct segment *segment = &lane->segments[i];

        segment->shown_begin = fmin(fmax(segment->begin, reach), segment->end);
        segment->shown_end = segment->end;
        reach = fmax(reach, segment->end);
        if (segment->shown_end - segment->shown_begin >= LEAST_PIXELS * pixel) continue;
        to_columns(lane, segment, from, pixel);
        segment->shown_end = segment->shown_begin;
    }
    return true;
}

void lane_fini(struct lane *lane)
{
    free(lane->segments);
    lane->segments = NULL;
}
