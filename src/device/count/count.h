/*
 * The counting device: the contract carried out by adding up. It has no memory and computes
 * nothing; a model run on it says exactly what the same run on a real device will need.
 */
#ifndef DEVICE_COUNT_COUNT_H
#define DEVICE_COUNT_COUNT_H

#include "device/device.h"

/* Products of these kinds are most of the work, and run at rates of their own. */
enum count_kind { COUNT_LINEAR, COUNT_ATTENTION, COUNT_CONV, COUNT_OTHER, COUNT_KINDS };

struct count_totals {
    uint64_t operations;         /* floating-point, a multiply-add being two; at most INT64_MAX */
    double by_kind[COUNT_KINDS]; /* the same */
    double weight_traffic; /* of linear products, bytes of weights, once for every product_rows */
    double other_traffic;  /* of the operations of no kind, and of converting weights */
    double calls;          /* of operations, that many pieces of work for the device */
    uint64_t traffic;      /* bytes of operands read and written by operations, each once */
    uint64_t copied_in;    /* bytes, host to device */
    uint64_t copied_out;
};

/* That lays activations out as the device with these traits would. */
enum shoal_status count_create(
    struct device **device, struct device_traits traits, struct shoal_error *error) SHOAL_CHECKED;
/* Since creation. */
struct count_totals count_read(const struct device *device);

#endif
