/* The picture of a trace: one self-contained SVG. */
#ifndef TRACE_SVG_H
#define TRACE_SVG_H

#include "trace_file.h"

/* Draws the seconds from `from` to `to`, `from` being less. False when out of memory. */
bool trace_svg(FILE *out, const struct trace_file *file, double from, double to);

#endif
