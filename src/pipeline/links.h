/* Measuring this machine: what shoal_bench_links reports and the rates that plans predict by. */
#ifndef PIPELINE_LINKS_H
#define PIPELINE_LINKS_H

#include "base/thread.h"
#include "device/device.h"
#include "plan/rates.h"

/* Each the best of its rounds: what disturbs a round only makes it slower. */
struct links_figures {
    struct rates rates;
    double link_cached_bytes; /* a second, from a source that the CPU's caches hold */
    double packed_part;       /* of the bytes of what was packed */
    uint64_t file_bytes;      /* of the file that was read */
    char reader[64];          /* how the loop read */
    bool cached;              /* the file could not be read past the page cache */
};

/* Seconds of the fastest call of `body`, which is repeated for `seconds`; if it is slow, for up to
 * three times as long to have three calls. */
double links_best(void (*body)(void *arg), void *arg, double seconds);

/* Fills the rates of disk, wire and device, each its own part of `figures`. */
enum shoal_status links_measure_disk(
    const char *path, struct links_figures *figures, struct shoal_error *error) SHOAL_CHECKED;
enum shoal_status links_measure_wire(struct device *device, int threads,
    struct links_figures *figures, struct shoal_error *error) SHOAL_CHECKED;
enum shoal_status links_measure_device(
    struct device *device, struct links_figures *figures, struct shoal_error *error) SHOAL_CHECKED;

/*
 * Where a device's rates are kept: shoal/rates.json (of the CPU), rates-cuda.json, ... in
 * $XDG_CACHE_HOME or ~/.cache; mem_free'd by the caller. SHOAL_E_MISSING if there is neither.
 */
enum shoal_status links_rates_path(
    const char *device, char **path, struct shoal_error *error) SHOAL_CHECKED;

#endif
