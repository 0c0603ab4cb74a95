/*
 * Convolutions: weights are packed into the workspace, as many output channels at a time as it has
 * room for, then tiles of channels by pixels are made of them. Which tiles are taken changes no
 * bit.
 */
#include "device/cuda/internal.h"

/* Shapes of tiles, and their kernels. */
static const struct tiling {
    int32_t outs, rows;
    enum cuda_kernel kernels[2][2]; /* [1x1, 3x3][BF16, F16] */
} wide = {CONV_WIDE_OUTS, CONV_WIDE_ROWS,
    {{KERNEL_conv1_wide_bf16, KERNEL_conv1_wide_f16},
        {KERNEL_conv3_wide_bf16, KERNEL_conv3_wide_f16}}},
  narrow = {CONV_NARROW_OUTS, CONV_NARROW_ROWS,
      {{KERNEL_conv1_narrow_bf16, KERNEL_conv1_narrow_f16},
          {KERNEL_conv3_narrow_bf16, KERNEL_conv3_narrow_f16}}};

static int64_t tiles_across(const struct conv *conv)
{
    return ceil_div(conv->width, CONV_COLUMNS);
}

static int64_t tiles_of(const struct tiling *tiling, const struct conv *conv)
{
    return ceil_div(conv->height, tiling->rows) * tiles_across(conv);
}

/* Narrow tiles compute at two thirds of the rate or so, but fit few channels better, and there are
 * more of them for the card to share out. */
static const struct tiling *choose(
    const struct cuda_device *cuda, int64_t outs, const struct conv *conv)
{
    int64_t wide_tiles = ceil_div(outs, wide.outs), narrow_tiles = ceil_div(outs, narrow.outs);

    if (3 * narrow_tiles * narrow.outs <= 2 * wide_tiles * wide.outs) return &narrow;
    return wide_tiles * tiles_of(&wide, conv) * 2 <= cuda->processors ? &narrow : &wide;
}

static bool is_paired(struct matrix y, int64_t width)
{
    return width % 2 == 0 && y.stride % 2 == 0 && y.addr % (uint64_t)dtype_bytes(y.dtype, 2) == 0;
}

/* The operation in full, for as many output channels as the room has space for. */
static void convolve(struct stream *stream, const struct tiling *tiling, struct cuda_room room,
    struct matrix y, struct matrix x, struct matrix w, struct matrix bias, const struct conv *conv)
{
    const enum dtype product = stream->device->traits.activation;
    int32_t taps = conv->kernel * conv->kernel;
    int32_t chunks = (int32_t)ceil_div(x.rows, CONV_CHANNELS);
    int32_t out_tiles = (int32_t)ceil_div(y.rows, tiling->outs);
    void *weights = (void *)(uintptr_t)room.at;
    int64_t vectors = (int64_t)out_tiles * chunks * CONV_STAGE_BYTES(tiling->outs) / 16 * taps;
    struct conv_pack_args pack = {gpu_matrix(w), weights, (int32_t)product, (int32_t)x.rows, taps,
        (int32_t)conv_planes(w, x, conv), tiling->outs, out_tiles, chunks};
    struct conv_work work = {
        .y = gpu_matrix(y),
        .x = gpu_matrix(x),
        .bias = gpu_matrix(bias),
        .affine = gpu_matrix(conv->affine),
        .weights = weights,
        .height = (int32_t)conv->height,
        .width = (int32_t)conv->width,
        .above = (int32_t)conv->above,
        .rows = (int32_t)(conv->above + conv->height + conv->below),
        .upsample = conv->upsample - 1,
        .chunks = chunks,
        .out_tiles = out_tiles,
        .tiles_across = (int32_t)tiles_across(conv),
        .silu = conv->activation == ACTIVATION_SILU,
        .accumulate = conv->accumulate,
        .plain = x.dtype == product && !conv->affine.addr && conv->activation == ACTIVATION_NONE,
        .paired = is_paired(y, conv->width),
    };

    cuda_launch(stream, KERNEL_conv_pack,
        (struct cuda_grid){
            (uint32_t)ceil_div(vectors, CONV_PACK_THREADS), 1, 1, CONV_PACK_THREADS, 0},
        &pack);
    cuda_launch(stream, tiling->kernels[conv->kernel == 3][product == DTYPE_F16],
        (struct cuda_grid){(uint32_t)(tiles_of(tiling, conv) * out_tiles), 1, 1, CONV_THREADS,
            (uint32_t)CONV_SHARED_BYTES(tiling->outs, tiling->rows, conv->kernel)},
        &work);
}

void cuda_conv2d(struct stream *stream, struct matrix y, struct matrix x, struct matrix w,
    struct matrix bias, const struct conv *conv)
{
    const enum dtype product = stream->device->traits.activation;
    const bool quantised = dtype_is_quantised(w.dtype);
    const struct tiling *tiling = choose(cuda_device(stream->device), y.rows, conv);
    int64_t tile_bytes = ceil_div(x.rows, CONV_CHANNELS) * CONV_STAGE_BYTES(tiling->outs) *
                         conv->kernel * conv->kernel;
    int64_t row_bytes = quantised ? dtype_bytes(product, cuda_converted_cols(w.cols)) : 0, at_once;
    struct cuda_room all = cuda_room(stream);

    check_conv2d(y, x, w, bias, conv);
    assert(product != DTYPE_F32);
    bias = cuda_plain(stream, bias, &all);
    /* A tile's bytes, and those of its quantised rows, are multiples of what room is taken in. */
    at_once = (int64_t)all.bytes / (tile_bytes + tiling->outs * row_bytes) * tiling->outs;
    assert(at_once > 0);
    for (int64_t first = 0, count; first < y.rows; first += count) {
        struct matrix rows;
        struct cuda_room room = all;

        count = least(at_once, y.rows - first);
        rows = matrix_rows(w, first, count);
        /* Rounded now or when it is packed: once. */
        if (quantised) {
            rows = cuda_convert(
                stream, cuda_room_take(&room, (uint64_t)(count * row_bytes)), product, rows);
            rows.cols = w.cols;
        }
        convolve(stream, tiling, room, matrix_rows(y, first, count), x, rows,
            matrix_given(bias) ? matrix_cols(bias, first, count) : bias, conv);
    }
}
