/* Weights with the differences of adapters added. */
#include "device/cuda/internal.h"

_Static_assert(PATCH_MOST_TERMS == PATCH_TERMS, "all terms at once");

void cuda_patch(struct stream *stream, struct matrix y, struct matrix x, const struct patch *patch)
{
    struct patch_args args = {gpu_matrix(y), gpu_matrix(x), .count = patch->count};

    check_patch(y, x, patch);
    for (int32_t i = 0; i < patch->count; i++) {
        const struct patch_term *t = &patch->terms[i];
        struct gpu_patch_term *to = &args.terms[i];

        *to = (struct gpu_patch_term){
            .row = t->row, .col = t->col, .scale = t->scale, .kron = t->kron};
        for (int f = 0; f < 2; f++)
            to->factors[f] =
                (struct gpu_patch_factor){gpu_matrix(t->factors[f].b), gpu_matrix(t->factors[f].a)};
    }
    cuda_launch(stream, KERNEL_patch,
        (struct cuda_grid){(uint32_t)ceil_div(y.rows, PATCH_TILE_ROWS),
            (uint32_t)ceil_div(y.cols, PATCH_TILE_COLS), 1, PATCH_THREADS, PATCH_SHARED_BYTES},
        &args);
}
