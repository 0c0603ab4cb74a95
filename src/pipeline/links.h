/* Measuring this machine: what shoal_bench_links reports and the rates that plans predict by. */
#ifndef PIPELINE_LINKS_H
#define PIPELINE_LINKS_H

#include "base/thread.h"
#include "device/device.h"
#include "plan/rates.h"

/* Each is typical of its rounds, not the best of them: a plan is to say how long a run takes. */
struct links_figures {
    struct rates rates;
    double link_cached_bytes; /* a second, from a source that the CPU's caches hold */
    double packed_part;       /* of the bytes of what was packed */
    uint64_t file_bytes;      /* of the file that was read */
    char reader[64];          /* how the loop read */
    bool cached;              /* the file could not be read past the page cache */
    double spread; /* the largest ratio of a figure's typical time and its shortest: near 1, unless
                      the machine is busy elsewhere */
};

/* Seconds of a call of `body`, the median of those that `seconds` allow; if it is slow, up to three
 * times as long is taken to have three. *spread is raised to how often the shortest goes into it.
 */
double links_seconds(void (*body)(void *arg), void *arg, double seconds, double *spread);

double links_median(double *values, int count); /* sorts them */
/* The median of rates; *spread is raised to how often it goes into the highest. Sorts them. */
double links_median_rate(double *rates, int count, double *spread);

/* Fills the rates of disk, wire and device, each its own part of `figures`. */
enum shoal_status links_measure_disk(
    const char *path, struct links_figures *figures, struct shoal_error *error) SHOAL_CHECKED;
enum shoal_status links_measure_wire(struct device *device, int threads,
    struct links_figures *figures, struct shoal_error *error) SHOAL_CHECKED;
/* The rate of copies alone, from memory that is pinned if the device knows of that and can. */
enum shoal_status links_measure_link(struct device *device, double *link_bytes, bool *pinned,
    struct shoal_error *error) SHOAL_CHECKED;
/* The rates of what is not pinned: of copies, and on the way to the staging ring with a part of so
 * many threads. After links_measure_device: where it makes no difference they are the link's. */
enum shoal_status links_measure_unpinned(struct device *device, int threads,
    struct links_figures *figures, struct shoal_error *error) SHOAL_CHECKED;
/* `path`: what is read while the device computes. */
enum shoal_status links_measure_device(struct device *device, const char *path,
    struct links_figures *figures, struct shoal_error *error) SHOAL_CHECKED;

/* Keeps the drive as busy as the loop does, by a thread of its own, until it is closed. Closing
 * reports what failed. */
struct links_reading;
enum shoal_status links_reading_open(
    const char *path, struct links_reading **reading, struct shoal_error *error) SHOAL_CHECKED;
enum shoal_status links_reading_close(
    struct links_reading **reading, struct shoal_error *error) SHOAL_CHECKED;

/*
 * Where a device's rates are kept: shoal/rates.json (of the CPU), rates-cuda.json, ... in
 * $XDG_CACHE_HOME or ~/.cache; mem_free'd by the caller. SHOAL_E_MISSING if there is neither.
 */
enum shoal_status links_rates_path(
    const char *device, char **path, struct shoal_error *error) SHOAL_CHECKED;

#endif
