/* Tables of numbers that are made on the host and used on the device. */
#include "layers/table.h"

#include "base/memory.h"

enum shoal_status tables_make(struct table *tables, int count, struct shoal_error *error)
{
    for (int i = 0; i < count; i++) {
        struct table *t = &tables[i];

        if (!t->rows) continue;
        t->host = mem_calloc((size_t)t->rows, (size_t)t->cols * sizeof(float));
        if (!t->host) FAIL_MEMORY(error);
    }
    return SHOAL_OK;
}

uint64_t tables_bytes(const struct table *tables, int count)
{
    int64_t numbers = 0;

    for (int i = 0; i < count; i++)
        numbers += tables[i].rows * tables[i].cols;
    return (uint64_t)numbers * sizeof(float);
}

void tables_upload(struct exec *x, struct table *tables, int count)
{
    for (int i = 0; i < count; i++) {
        struct table *t = &tables[i];

        if (!t->rows) continue;
        t->device = exec_alloc_float(x, t->rows, t->cols);
        exec_upload(x, t->device, t->host);
    }
}

void tables_release(struct exec *x, struct table *tables, int count)
{
    for (int i = count - 1; i >= 0; i--)
        exec_free(x, &tables[i].device);
}

void tables_fini(struct exec *x, struct table *tables, int count)
{
    if (x) tables_release(x, tables, count);
    for (int i = 0; i < count; i++)
        mem_free(tables[i].host);
}
