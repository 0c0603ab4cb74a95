/*
 * How fast a machine moves and computes: what turns bytes and operations into seconds. Measured by
 * `shoal bench links` and kept in a file, taken from a table of published card figures (what-if
 * questions), or guessed.
 */
#ifndef PLAN_RATES_H
#define PLAN_RATES_H

#include "base/error.h"

enum rates_origin { RATES_GUESSED, RATES_MEASURED, RATES_PUBLISHED };

/* What kinds of operations cost, apart because they run at different rates. */
enum work_kind { WORK_LINEAR, WORK_ATTENTION, WORK_CONV, WORK_KINDS };

struct rates {
    char name[64]; /* "Intel Xeon Gold 6130", "rtx4060"; "this machine" where it is guessed */
    enum rates_origin origin;
    double flops[WORK_KINDS]; /* operations a second */
    double weight_bytes;      /* a second: of the weights that linear products take in */
    double memory_bytes;      /* a second: of everything else that is computed, by its traffic */
    double call_seconds;      /* of an operation, however small */
    double link_bytes;        /* host -> device, of pinned memory where a card tells it apart */
    double unpinned_bytes;    /* of memory that is not */
    double bounce_bytes;      /* host -> staging ring, by the threads that do it */
    double disk_bytes;        /* as the step loop reads */
    double disk_sequential_bytes; /* one plain O_DIRECT read after another; for the report */
    double unpack_bytes;          /* of weights that come out of the wire's decoder */
    double pack_bytes; /* of weights that go into its encoder; a machine's by all cores, a plan's
                          by those that pack while it reads */
    /* What copying and reading, at the rates above, take away from computing while they go on:
     * 0.05 means that computing is 5 % slower. */
    double copy_tax, read_tax;
    uint64_t threads;       /* with which a CPU was measured; 0: not said */
    uint64_t vram_bytes;    /* of the card; 0: not said */
    uint64_t context_bytes; /* what the driver takes of it */
};

/* Work of one block's forward. */
struct work {
    double operations[WORK_KINDS];
    double weights; /* bytes that linear products take in: at few rows it is these that count */
    double traffic; /* bytes of the operations that are of no kind above */
    double calls;   /* operations, of all kinds */
};

double rates_seconds(const struct rates *rates, const struct work *work);

/* Plain guesses for a CPU with so many cores. */
void rates_guess(struct rates *rates, int cores);

/* Those of the card of the table that a driver's name for a card ("NVIDIA GeForce RTX 4060") comes
 * nearest to, or else of a small one, in a machine with so many cores. */
void rates_guess_card(struct rates *rates, const char *card_name, int cores);

/* "rtx4060", "RTX 4060", ...; SHOAL_E_INVALID lists those there are. Desktop cards, all of them. */
enum shoal_status rates_of_card(
    const char *name, struct rates *rates, struct shoal_error *error) SHOAL_CHECKED;

/* JSON. SHOAL_E_FORMAT names the file and the member; SHOAL_E_MISSING: of another version. */
enum shoal_status rates_read(
    const char *path, struct rates *rates, struct shoal_error *error) SHOAL_CHECKED;
enum shoal_status rates_write(
    const char *path, const struct rates *rates, struct shoal_error *error) SHOAL_CHECKED;

#endif
