/*
 * The devices that a program of goldens is run on, by its argument: none: the CPU, with both of its
 * kernels; `gpu`: this machine's card; a number: an emulated card, an sm_80 or sm_75, if the
 * program is linked with cuda/emulated_card.c.
 */
#ifndef TESTS_GOLDEN_DEVICES_H
#define TESTS_GOLDEN_DEVICES_H

#include "golden/run_model.h"

struct golden_devices {
    const enum run_device *list;
    int count;
    bool card;
    int emulated_sm;  /* 0: none is emulated */
    const char *name; /* as struct shoal_request has it */
    struct device_traits traits;
};
extern struct golden_devices golden_devices;

#define GOLDEN_FLOAT_LIMIT ((struct golden_gap){1e-4, 1e-4}) /* of what is computed in F32 */

/* The limit for what these devices compute, from what it is in BF16: in F16, whose values have
 * three bits more, an eighth. */
struct golden_gap golden_limit(struct golden_gap bf16);

/* 77, with a line that says why, where there is no card to run on. */
int golden_choose(int argc, char **argv);

#define GOLDEN_MAIN(tests, set_up, tear_down)                                                      \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        const int skipped = golden_choose(argc, argv);                                             \
                                                                                                   \
        return skipped ? skipped : cmocka_run_group_tests(tests, set_up, tear_down);               \
    }

#endif
