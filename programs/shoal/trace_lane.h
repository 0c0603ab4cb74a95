/*
 * One lane of a trace's picture: the spans of a kind within a window of time, arranged so that they
 * can be drawn in a row. Knows pixels as a unit of time, and nothing of SVG.
 */
#ifndef TRACE_LANE_H
#define TRACE_LANE_H

#include "trace_file.h"

#define LANE_COLUMNS 800 /* pixels across the window */

/* What is wide enough to be seen: spans of one name that follow or overlap each other. */
struct segment {
    const char *name;
    double begin, end;             /* seconds, within the window */
    double shown_begin, shown_end; /* the same, less what lies under the segment before it */
    double bytes;
    size_t spans;
};

/* What is not: how much of each pixel such spans fill. */
struct column {
    double seconds;
    size_t spans; /* that begin in it */
};

struct lane {
    struct segment *segments; /* in order; those that are not shown have no width */
    size_t segment_count;
    struct column columns[LANE_COLUMNS];
    double busy_seconds, bytes; /* of the window */
    size_t spans;
};

/* False when out of memory. lane_fini is due either way. */
bool lane_init(
    struct lane *lane, const struct trace_file *file, enum span_kind kind, double from, double to);
void lane_fini(struct lane *lane);

#endif
