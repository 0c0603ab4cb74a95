/* Tables of numbers that are made on the host and used on the device: rotary positions, times. */
#ifndef LAYERS_TABLE_H
#define LAYERS_TABLE_H

#include "layers/exec.h"

/* [rows, cols], F32. Zero-initialise, then set rows and cols. */
struct table {
    int64_t rows, cols;   /* no rows: there is none */
    float *host;          /* between tables_make and tables_fini, for the owner to fill */
    struct matrix device; /* scratch, between tables_upload and its release */
};

/* Zeroed host memory for those that have rows. If that fails, tables_fini frees what there is. */
enum shoal_status tables_make(
    struct table *tables, int count, struct shoal_error *error) SHOAL_CHECKED;

/* Host memory that they take, or would. */
uint64_t tables_bytes(const struct table *tables, int count);

/* Allocates those that have rows, in order, and uploads them. Their host memory must stay until the
 * stream is synchronised. */
void tables_upload(struct exec *x, struct table *tables, int count);

/* Frees the scratch. */
void tables_release(struct exec *x, struct table *tables, int count);

/* Frees the scratch, unless `x` is NULL, and the host memory. */
void tables_fini(struct exec *x, struct table *tables, int count);

#endif
