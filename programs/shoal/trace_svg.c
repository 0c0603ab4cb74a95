/*
 * Drawing a trace. No scripts, no style sheet, no font of its own, so that it shows wherever an
 * image may be; the same trace gives the same bytes.
 *
 *     title
 *     phases, and in them steps        bands
 *     read, copy, unpack, compute, wait      a lane each: name, bars, busy part at the right end
 *     time
 */
#include "trace_svg.h"

#include "trace_lane.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEFT = 118, /* of the plot */
    RIGHT = LEFT + LANE_COLUMNS,
    WIDTH = RIGHT + 82,
    PHASES_TOP = 58,
    PHASE_HEIGHT = 20,
    STEPS_TOP = PHASES_TOP + PHASE_HEIGHT + 2,
    STEP_HEIGHT = 16,
    LANES_TOP = STEPS_TOP + STEP_HEIGHT + 10,
    LANE_HEIGHT = 30,
    LANE_PITCH = 38,
    AXIS_HEIGHT = 34,
};

#define LETTER_PIXELS 6.3 /* of the small type, on average and a little more */
#define LEAST_BAND_PIXELS 0.5
#define LEVELS 8 /* of how full a column is */

static const struct look {
    const char *explained;
    const char *colours[2]; /* of bars, alternating */
} looks[SPAN_KINDS] = {
    [SPAN_READ] = {"file to memory", {"#3d7cc9", "#6a9edb"}},
    [SPAN_COPY] = {"memory to device", {"#1f9aa5", "#56b6bf"}},
    [SPAN_UNPACK] = {"on the device", {"#8b62c4", "#a888d5"}},
    [SPAN_COMPUTE] = {"a block, all lanes", {"#3f9a54", "#68b57a"}},
    [SPAN_WAIT] = {"for a block", {"#d9552f", "#e27b5d"}},
};

struct drawing {
    FILE *out;
    const struct trace_file *file;
    double from, to, pixel; /* seconds; of a pixel */
    int bottom;             /* of the last lane */
};

static double x_of(const struct drawing *d, double seconds)
{
    return LEFT + (fmin(fmax(seconds, d->from), d->to) - d->from) / d->pixel;
}

/* Names are printable ASCII already. */
static void print_escaped(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '&')
            fputs("&amp;", out);
        else if (*text == '<')
            fputs("&lt;", out);
        else if (*text == '>')
            fputs("&gt;", out);
        else
            fputc(*text, out);
    }
}

/* ---- figures ---- */

/* With the unit and the digits that suit a step of `step` seconds on a scale that ends at `to`. */
static struct cli_text time_text(double seconds, double step, double to)
{
    const char *unit = to < 2e-3 ? "\xc2\xb5s" : to < 2 ? "ms" : "s";
    double factor = to < 2e-3 ? 1e6 : to < 2 ? 1e3 : 1;
    int digits = (int)fmax(0, ceil(-log10(step * factor) - 1e-9));
    struct cli_text text;

    snprintf(
        text.text, sizeof text.text, "%.*f %s", digits > 9 ? 9 : digits, seconds * factor, unit);
    return text;
}

/* To four digits or so. */
static struct cli_text span_text(double seconds)
{
    return time_text(seconds, fmax(seconds, 1e-9) / 1000, seconds);
}

/* In units of 1000, as drives and links are sold. */
static struct cli_text rate_text(double bytes_per_second)
{
    struct cli_text text;

    if (bytes_per_second >= 1e9)
        snprintf(text.text, sizeof text.text, "%.2f GB/s", bytes_per_second * 1e-9);
    else
        snprintf(text.text, sizeof text.text, "%.0f MB/s", bytes_per_second * 1e-6);
    return text;
}

static struct cli_text percent_text(double part)
{
    struct cli_text text;

    if (part > 0 && part < 0.01)
        snprintf(text.text, sizeof text.text, "&lt; 1 %%");
    else
        snprintf(text.text, sizeof text.text, "%.0f %%", part * 100);
    return text;
}

/* ---- text in boxes ---- */

/* `name`, or its last part ("12" of "layers.12"), whichever fits; NULL if none does. */
static const char *fitting(const char *name, double pixels)
{
    const char *last = name + strlen(name);

    if ((double)strlen(name) * LETTER_PIXELS + 4 <= pixels) return name;
    while (last > name && last[-1] != '.' && last[-1] != ' ')
        last--;
    /* Room for two digits, so that numbers do not stop at 9. */
    return *last && fmax(2, (double)strlen(last)) * LETTER_PIXELS + 2 <= pixels ? last : NULL;
}

static void print_centred(
    const struct drawing *d, const char *name, double begin, double end, double y)
{
    const char *text = fitting(name, (end - begin) / d->pixel);

    if (!text) return;
    fprintf(d->out, "<text x=\"%.1f\" y=\"%.1f\">", (x_of(d, begin) + x_of(d, end)) / 2, y);
    print_escaped(d->out, text);
    fputs("</text>\n", d->out);
}

/* ---- phases ---- */

/* Whether phase span `i` lies in an earlier one, which ends at *outer_end; keeps that up to date.
 */
static bool is_inner(const struct trace_span *span, double *outer_end)
{
    if (span->begin < *outer_end) return true;
    *outer_end = span->end;
    return false;
}

static void print_band(const struct drawing *d, const struct trace_span *span, bool inner, int nth)
{
    static const char *const fills[2][2] = {{"#c9d3e3", "#dbe2ee"}, {"#e3e8f1", "#eef1f7"}};
    double begin = x_of(d, span->begin), end = x_of(d, span->end);

    fprintf(d->out, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"><title>",
        begin, inner ? STEPS_TOP : PHASES_TOP, end - begin, inner ? STEP_HEIGHT : PHASE_HEIGHT,
        fills[inner][nth % 2]);
    print_escaped(d->out, span->name);
    fprintf(d->out, ": %s", span_text(span->end - span->begin).text);
    if (span->bytes > 0) fprintf(d->out, ", %s copied", cli_size((uint64_t)span->bytes).text);
    fputs("</title></rect>\n", d->out);
}

/* Bands first, text over them, and lines down through the lanes where phases begin. */
static void print_phases(const struct drawing *d)
{
    for (int layer = 0; layer < 2; layer++) {
        double outer_end = -1;
        int nth[2] = {0, 0};

        fputs(layer ? "<g text-anchor=\"middle\" fill=\"#2c3a50\">\n" : "<g>\n", d->out);
        for (size_t i = 0; i < d->file->count; i++) {
            const struct trace_span *s = &d->file->spans[i];
            bool inner;

            if (s->kind != SPAN_PHASE) continue;
            inner = is_inner(s, &outer_end);
            if (s->begin >= d->to || s->end <= d->from) continue;
            if ((fmin(s->end, d->to) - fmax(s->begin, d->from)) < LEAST_BAND_PIXELS * d->pixel)
                continue;
            if (layer)
                print_centred(d, s->name, fmax(s->begin, d->from), fmin(s->end, d->to),
                    inner ? STEPS_TOP + 12 : PHASES_TOP + 14.5);
            else
                print_band(d, s, inner, nth[inner]++);
            if (!layer && s->begin > d->from)
                fprintf(d->out,
                    "<path d=\"M%.1f %dV%d\" stroke=\"#8fa0ba\" stroke-width=\"%s\"/>\n",
                    x_of(d, s->begin), inner ? STEPS_TOP : PHASES_TOP, d->bottom,
                    inner ? ".4" : "1");
        }
        fputs("</g>\n", d->out);
    }
}

/* ---- lanes ---- */

static void print_segment(const struct drawing *d, const struct segment *s)
{
    double begin = x_of(d, s->shown_begin), end = x_of(d, s->shown_end);

    fprintf(d->out, "<path d=\"M%.1f 0h%.1fv%dh-%.1fz\"><title>", begin, end - begin, LANE_HEIGHT,
        end - begin);
    print_escaped(d->out, s->name);
    fprintf(d->out, ": %s from %s", span_text(s->end - s->begin).text,
        time_text(s->begin, 1e-4, d->to).text);
    if (s->bytes > 0)
        fprintf(d->out, ", %s, %s", cli_size((uint64_t)s->bytes).text,
            rate_text(s->bytes / (s->end - s->begin)).text);
    if (s->spans > 1) fprintf(d->out, ", %zu pieces", s->spans);
    fputs("</title></path>\n", d->out);
}

static int level_of(const struct drawing *d, const struct column *column)
{
    int level = (int)ceil(column->seconds / d->pixel * LEVELS - 1e-6);

    return level > LEVELS ? LEVELS : level;
}

/* Columns that are about equally full, drawn as one. */
static void print_columns(const struct drawing *d, const struct lane *lane)
{
    for (int first = 0, next; first < LANE_COLUMNS; first = next) {
        int level = level_of(d, &lane->columns[first]);
        size_t spans = 0;
        double seconds = 0;

        for (next = first; next < LANE_COLUMNS; next++) {
            if (level_of(d, &lane->columns[next]) != level) break;
            spans += lane->columns[next].spans;
            seconds += lane->columns[next].seconds;
        }
        if (level == 0) continue;
        fprintf(d->out,
            "<path d=\"M%d 0h%dv%dh-%dz\" fill-opacity=\"%.2f\"><title>%zu short spans, %s in "
            "all</title></path>\n",
            LEFT + first, next - first, LANE_HEIGHT, next - first, 0.15 + 0.85 * level / LEVELS,
            spans, span_text(seconds).text);
    }
}

static void print_bars(
    const struct drawing *d, const struct lane *lane, const struct look *look, int y)
{
    fprintf(d->out, "<g transform=\"translate(0 %d)\">\n<g fill=\"%s\">\n", y, look->colours[0]);
    print_columns(d, lane);
    for (int parity = 0; parity < 2; parity++) {
        int nth = 0;

        if (parity) fprintf(d->out, "</g>\n<g fill=\"%s\">\n", look->colours[1]);
        for (size_t i = 0; i < lane->segment_count; i++)
            if (lane->segments[i].shown_end > lane->segments[i].shown_begin && nth++ % 2 == parity)
                print_segment(d, &lane->segments[i]);
    }
    fputs("</g>\n<g text-anchor=\"middle\" fill=\"#fff\">\n", d->out);
    for (size_t i = 0; i < lane->segment_count; i++)
        print_centred(d, lane->segments[i].name, lane->segments[i].shown_begin,
            lane->segments[i].shown_end, LANE_HEIGHT / 2 + 4);
    fputs("</g>\n</g>\n", d->out);
}

/* The name and what it means at the left, how busy it was at the right. */
static void print_lane_text(const struct drawing *d, const struct lane *lane, enum span_kind kind,
    const struct look *look, int y)
{
    double part = lane->busy_seconds / (d->to - d->from);
    bool rate = lane->bytes > 0 && lane->busy_seconds > 0;

    fprintf(d->out,
        "<rect x=\"10\" y=\"%d\" width=\"5\" height=\"%d\" fill=\"%s\"/>\n"
        "<text x=\"22\" y=\"%d\" font-size=\"12\" font-weight=\"bold\">%s</text>\n"
        "<text x=\"22\" y=\"%d\" font-size=\"10\" fill=\"#5b6675\">%s</text>\n",
        y, LANE_HEIGHT, look->colours[0], y + 13, span_kind_name(kind), y + 26, look->explained);
    fprintf(d->out, "<text x=\"%d\" y=\"%d\" font-size=\"12\" font-weight=\"bold\">%s</text>\n",
        RIGHT + 8, y + (rate ? 13 : 19), percent_text(part).text);
    if (rate)
        fprintf(d->out, "<text x=\"%d\" y=\"%d\" font-size=\"10\" fill=\"#5b6675\">%s</text>\n",
            RIGHT + 8, y + 26, rate_text(lane->bytes / lane->busy_seconds).text);
}

/* ---- time ---- */

/* 1, 2 or 5 times a power of ten: so far apart that ten or fewer fit. */
static double tick_step(double seconds)
{
    double step = pow(10, floor(log10(seconds / 10)));
    double ratio = seconds / 10 / step;

    return step * (ratio <= 1 ? 1 : ratio <= 2 ? 2 : ratio <= 5 ? 5 : 10);
}

static void print_axis(const struct drawing *d, bool labels)
{
    double step = tick_step(d->to - d->from);
    double first = ceil(d->from / step - 1e-6);

    fputs(labels ? "<g text-anchor=\"middle\" fill=\"#5b6675\">\n"
                 : "<g stroke=\"#fff\" stroke-width=\"1.5\">\n",
        d->out);
    for (int i = 0; i <= 10; i++) {
        double at = (first + i) * step;

        if (at > d->to + step * 1e-6) break;
        if (labels)
            fprintf(d->out, "<text x=\"%.1f\" y=\"%d\">%s</text>\n", x_of(d, at), d->bottom + 20,
                time_text(at, step, d->to).text);
        else
            fprintf(d->out, "<path d=\"M%.1f %dV%d\"/>\n", x_of(d, at), LANES_TOP, d->bottom);
    }
    fputs("</g>\n", d->out);
}

/* ---- all of it ---- */

static void print_head(const struct drawing *d)
{
    const struct trace_file *file = d->file;
    int height = d->bottom + AXIS_HEIGHT;

    fprintf(d->out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
        "viewBox=\"0 0 %d %d\" font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, "
        "'Helvetica Neue', Arial, sans-serif\" font-size=\"11\" fill=\"#1c2530\">\n"
        "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n"
        "<text x=\"10\" y=\"24\" font-size=\"15\" font-weight=\"bold\">",
        WIDTH, height, WIDTH, height, WIDTH, height);
    print_escaped(d->out, file->title);
    fprintf(d->out, "</text>\n<text x=\"10\" y=\"43\" font-size=\"12\" fill=\"#5b6675\">%s",
        span_text(d->to - d->from).text);
    if (d->from > 0 || d->to < file->seconds)
        fprintf(d->out, ", from %s of %s", time_text(d->from, 1e-3, file->seconds).text,
            span_text(file->seconds).text);
    if (file->dropped > 0)
        fprintf(d->out, "; %llu spans are missing: there were too many",
            (unsigned long long)file->dropped);
    fprintf(d->out,
        "</text>\n<text x=\"%d\" y=\"%d\" font-size=\"10\" fill=\"#5b6675\">busy</text>\n",
        RIGHT + 8, STEPS_TOP + 12);
}

/* A kind that never occurs in the whole trace gets no lane. */
static bool occurs(const struct trace_file *file, enum span_kind kind)
{
    for (size_t i = 0; i < file->count; i++)
        if (file->spans[i].kind == kind) return true;
    return false;
}

static bool print_lane(const struct drawing *d, enum span_kind kind, int y)
{
    struct lane lane;
    bool good = lane_init(&lane, d->file, kind, d->from, d->to);

    if (good) {
        print_bars(d, &lane, &looks[kind], y);
        print_lane_text(d, &lane, kind, &looks[kind], y);
    }
    lane_fini(&lane);
    return good;
}

bool trace_svg(FILE *out, const struct trace_file *file, double from, double to)
{
    struct drawing d = {out, file, from, to, (to - from) / LANE_COLUMNS, LANES_TOP};
    int tops[SPAN_KINDS] = {0};

    for (int kind = SPAN_READ; kind < SPAN_KINDS; kind++) {
        if (!occurs(file, (enum span_kind)kind)) continue;
        tops[kind] = d.bottom;
        d.bottom += LANE_PITCH;
    }
    print_head(&d);
    for (int kind = SPAN_READ; kind < SPAN_KINDS; kind++)
        if (tops[kind])
            fprintf(out, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#f1f3f6\"/>\n",
                LEFT, tops[kind], LANE_COLUMNS, LANE_HEIGHT);
    print_axis(&d, false);
    print_phases(&d);
    for (int kind = SPAN_READ; kind < SPAN_KINDS; kind++)
        if (tops[kind] && !print_lane(&d, (enum span_kind)kind, tops[kind])) return false;
    print_axis(&d, true);
    fputs("</svg>\n", out);
    return true;
}
