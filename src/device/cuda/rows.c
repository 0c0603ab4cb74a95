/*
 * Operations that go over rows without sums: checks, and how their kernels are laid out. Layouts
 * depend on the card; no bit does, since every element is computed by itself.
 */
#include "device/cuda/internal.h"

static_assert(sizeof(struct copy_args) == sizeof(struct combine), "a kernel's args are a combine");

/* Blocks that keep every processor busy and share what they load once; threads go on from there. */
#define BLOCKS_PER_PROCESSOR 16

int32_t cuda_run_width(int count, const struct matrix *operands)
{
    int32_t width = 8;

    for (int i = 0; i < count; i++)
        if (operands[i].addr && operands[i].dtype == DTYPE_F32) width = 4;
    return width;
}

uint32_t cuda_blocks(struct stream *stream, int64_t wanted)
{
    return (uint32_t)least(wanted, cuda_device(stream->device)->processors * BLOCKS_PER_PROCESSOR);
}

/* ---- elements ---- */

/* Where no element cares for its column, dense operands are one long row. */
static void flatten(int count, struct matrix *operands)
{
    for (int i = 0; i < count; i++)
        if (operands[i].addr && operands[i].stride != operands[i].cols) return;
    for (int i = 0; i < count; i++) {
        operands[i].cols *= operands[i].rows;
        operands[i].stride = operands[i].cols;
        operands[i].rows = 1;
    }
}

static struct gpu_layout layout_of(int64_t cols, int32_t width)
{
    int64_t runs = ceil_div(cols, width), across = ceil_div(runs, ROWS_THREADS);
    int32_t lanes = (int32_t)ceil_div(runs, across);

    return (struct gpu_layout){lanes, ROWS_THREADS / lanes, width};
}

static struct cuda_grid grid_of(
    struct stream *stream, const struct gpu_layout *layout, int64_t rows, int64_t cols)
{
    int64_t across = ceil_div(cols, (int64_t)layout->lanes * layout->width);
    uint32_t x = cuda_blocks(stream, across), most = cuda_blocks(stream, INT64_MAX) / x;
    int64_t down = least(ceil_div(rows, layout->slots), most ? most : 1);

    return (struct cuda_grid){x, (uint32_t)least(down, 65535), 1,
        (uint32_t)ceil_div(layout->lanes * layout->slots, 32) * 32, 0};
}

/* operands: y, a, b; an a of one row serves all of y's. b may be none. */
static void combine(struct stream *stream, enum cuda_kernel kernel, struct matrix operands[3],
    struct matrix vector, float p, float q)
{
    struct combine args = {.vector = gpu_matrix(vector), .p = p, .q = q};
    bool repeated = operands[1].rows < operands[0].rows;

    if (!vector.addr && !repeated) flatten(3, operands);
    args.y = gpu_matrix(operands[0]);
    args.a = gpu_matrix(operands[1]);
    args.b = gpu_matrix(operands[2]);
    if (repeated) args.a.stride = 0;
    args.layout = layout_of(args.y.cols, cuda_run_width(3, operands));
    cuda_launch(stream, kernel, grid_of(stream, &args.layout, args.y.rows, args.y.cols), &args);
}

void cuda_gated(struct stream *stream, struct matrix y, struct matrix a, struct matrix b,
    enum activation activation)
{
    check_gated(y, a, b, activation);
    combine(stream, activation == ACTIVATION_SILU ? KERNEL_gated_silu : KERNEL_gated_gelu,
        (struct matrix[]){y, a, b}, MATRIX_NONE, 0, 0);
}

void cuda_gated_add(struct stream *stream, struct matrix y, struct matrix gate, struct matrix x,
    struct matrix gamma, float eps)
{
    struct cuda_room room = cuda_room(stream);

    check_gated_add(y, gate, x, gamma);
    gate = cuda_plain(stream, gate, &room);
    gamma = cuda_plain(stream, gamma, &room);
    if (gamma.addr)
        cuda_rms_norm_add(stream, y, gate, x, gamma, eps);
    else
        combine(stream, KERNEL_gated_add, (struct matrix[]){y, x, y}, gate, 0, 0);
}

void cuda_blend(struct stream *stream, struct matrix y, float a, struct matrix x, float b)
{
    check_pair(y, x);
    combine(stream, KERNEL_blend, (struct matrix[]){y, x, y}, MATRIX_NONE, a, b);
}

void cuda_guide(
    struct stream *stream, struct matrix y, struct matrix cond, struct matrix uncond, float scale)
{
    check_triple(y, cond, uncond);
    combine(stream, KERNEL_guide, (struct matrix[]){y, cond, uncond}, MATRIX_NONE, scale, 0);
}

/* As many rows of x at a time as the workspace holds widened. */
static void copy_quantised(struct stream *stream, struct matrix y, struct matrix x)
{
    const struct cuda_room room = cuda_room(stream);
    const int64_t row_bytes = dtype_bytes(DTYPE_F32, cuda_converted_cols(x.cols));
    int64_t fit = (int64_t)room.bytes / row_bytes, count;

    assert(fit > 0);
    for (int64_t first = 0; first < x.rows; first += count) {
        struct matrix part, to = y;

        count = least(fit, x.rows - first);
        part = cuda_convert(stream, room.at, DTYPE_F32, matrix_rows(x, first, count));
        part.cols = x.cols;
        if (x.rows > 1) to = matrix_rows(y, first, count);
        combine(stream, KERNEL_copy, (struct matrix[]){to, part, MATRIX_NONE}, MATRIX_NONE, 0, 0);
    }
}

void cuda_copy(struct stream *stream, struct matrix y, struct matrix x)
{
    check_copy(y, x);
    if (dtype_is_quantised(x.dtype))
        copy_quantised(stream, y, x);
    else
        combine(stream, KERNEL_copy, (struct matrix[]){y, x, MATRIX_NONE}, MATRIX_NONE, 0, 0);
}

static_assert((int)ACTIVATION_SILU == 1 && (int)ACTIVATION_TANH == 2 &&
                  (int)ACTIVATION_GELU_ERF == 3 && (int)ACTIVATION_GELU_TANH == 4 &&
                  (int)ACTIVATION_RELU == 5,
    "kernels/activation.cuh numbers them so");

static void activate(struct stream *stream, struct matrix y, struct matrix x, struct matrix affine,
    enum activation activation)
{
    struct matrix operands[] = {y, x};
    struct activate_args args = {.affine = gpu_matrix(affine), .activation = (int32_t)activation};

    if (!affine.addr) flatten(2, operands);
    args.y = gpu_matrix(operands[0]);
    args.x = gpu_matrix(operands[1]);
    args.layout = layout_of(args.y.cols, cuda_run_width(2, operands));
    cuda_launch(
        stream, KERNEL_activate, grid_of(stream, &args.layout, args.y.rows, args.y.cols), &args);
}

void cuda_activate(
    struct stream *stream, struct matrix y, struct matrix x, enum activation activation)
{
    check_pair(y, x);
    activate(stream, y, x, MATRIX_NONE, activation);
}

void cuda_affine(struct stream *stream, struct matrix y, struct matrix x, struct matrix affine,
    enum activation activation)
{
    check_affine(y, x, affine);
    activate(stream, y, x, affine, activation);
}

/* ---- moving elements ---- */

void cuda_transpose(struct stream *stream, struct matrix y, struct matrix x)
{
    struct transpose_args args = {gpu_matrix(y), gpu_matrix(x)};
    int64_t tiles = ceil_div(x.rows, TRANSPOSE_TILE) * ceil_div(x.cols, TRANSPOSE_TILE);

    check_transpose(y, x);
    assert(tiles <= INT32_MAX);
    cuda_launch(stream, KERNEL_transpose,
        (struct cuda_grid){(uint32_t)tiles, 1, 1, TRANSPOSE_THREADS, 0}, &args);
}

static void move_patches(struct stream *stream, struct matrix tokens, struct matrix picture,
    int64_t height, int64_t width, int32_t patch, enum patch_order order, bool back)
{
    struct move_patches_args args = {
        gpu_matrix(tokens), gpu_matrix(picture), width, patch, back, order == PATCH_CHANNELS_FIRST};

    check_patches(tokens, picture, height, width, patch);
    cuda_launch(stream, KERNEL_move_patches,
        (struct cuda_grid){cuda_blocks(stream, ceil_div(tokens.rows * tokens.cols, ROWS_THREADS)),
            1, 1, ROWS_THREADS, 0},
        &args);
}

void cuda_patchify(struct stream *stream, struct matrix y, struct matrix x, int64_t height,
    int64_t width, int32_t patch, enum patch_order order)
{
    move_patches(stream, y, x, height, width, patch, order, false);
}

void cuda_unpatchify(struct stream *stream, struct matrix y, struct matrix x, int64_t height,
    int64_t width, int32_t patch, enum patch_order order)
{
    move_patches(stream, x, y, height, width, patch, order, true);
}
