/*
 * The tensors of an adapter's file, by the parameter that they change: what the endings of their
 * names say. Formats are LoRA as kohya, diffusers and peft write it, plain differences as ComfyUI
 * reads them, and LyCORIS' LoHa and LoKr. What would change a weight in another way is refused.
 */
#ifndef ADAPTER_ENTRIES_H
#define ADAPTER_ENTRIES_H

#include "checkpoint/checkpoint.h"

enum adapter_role {
    ROLE_UP,   /* [m, r] */
    ROLE_DOWN, /* [r, n] */
    ROLE_DIFF,
    ROLE_DIFF_BIAS,
    ROLE_HADA_W1_A,
    ROLE_HADA_W1_B,
    ROLE_HADA_W2_A,
    ROLE_HADA_W2_B,
    ROLE_LOKR_W1,
    ROLE_LOKR_W1_A,
    ROLE_LOKR_W1_B,
    ROLE_LOKR_W2,
    ROLE_LOKR_W2_A,
    ROLE_LOKR_W2_B,
    ROLE_ALPHA,
    ROLES,
    ROLE_NONE = ROLES, /* the tensor's name says nothing that is known */
};

/* What a file says of one module. */
struct adapter_entry {
    const char *key; /* its name in the file: the first `key_bytes` of a tensor's */
    size_t key_bytes;
    const struct checkpoint_tensor *tensors[ROLES + 1]; /* NULL: there is none */
};

struct adapter_entries {
    struct adapter_entry *list;
    size_t count;
};

/* Host memory that opening them takes at the most, of so many tensors. */
uint64_t entries_bytes(size_t tensors);

/* SHOAL_E_UNSUPPORTED names a tensor that changes weights as nothing here does. */
enum shoal_status entries_open(struct adapter_entries *entries, const struct checkpoint *checkpoint,
    struct shoal_error *error) SHOAL_CHECKED;
void entries_close(struct adapter_entries *entries); /* accepts a zeroed one */

/* A tensor as a matrix: its first dimension by all others; of one dimension or none, one row. */
void entry_matrix(const struct checkpoint_tensor *tensor, int64_t *rows, int64_t *cols);

#endif
