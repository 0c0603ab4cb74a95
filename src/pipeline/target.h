/*
 * The target: the device that a plan is for. A card is opened when it is planned for, because what
 * its driver takes must be known then; the CPU when it runs.
 */
#ifndef PIPELINE_TARGET_H
#define PIPELINE_TARGET_H

#include "device/device.h"
#include "plan/rates.h"

struct target {
    char name[64]; /* "cpu", "cuda", "cuda:1"; of another machine: as struct rates has it */
    bool elsewhere;
    bool card;     /* not a CPU */
    bool borrowed; /* the device is another plan's */
    struct device_traits traits;
    struct device *device;  /* a card; NULL: the CPU, or elsewhere */
    uint64_t vram_bytes;    /* there is no more; SHOAL_UNLIMITED: as much as the machine has */
    uint64_t context_bytes; /* of them, what the driver and libraries take beside the arena */
    uint64_t host_bytes;    /* and what they take of the process's memory */
    struct shoal_error
        no_card; /* why the CPU was taken, if a card was looked for; else status is 0 */
};

/*
 * `name`: "cpu", "cuda", "cuda:N", or NULL: $SHOAL_DEVICE if it is set, else the first card if one
 * can be used, else the CPU. SHOAL_E_UNSUPPORTED if there is no such device, SHOAL_E_DEVICE if it
 * cannot be used.
 */
enum shoal_status target_open(
    struct target *target, const char *name, struct shoal_error *error) SHOAL_CHECKED;
/* Of another machine, by its rates. */
void target_elsewhere(struct target *target, const struct rates *rates);
void target_close(struct target *target); /* accepts a zeroed one */

#endif
