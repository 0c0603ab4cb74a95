/*
 * Products of matrices. Few rows are bound by the reading of the weights and have a kernel of their
 * own (kernels/few.h); others are multiplied on tensor cores, by cuBLASLt if it is there
 * (blas.h) and kernels/linear.h if not. What both sides of a product are not, of the activation
 * type and aligned to 16 bytes, is converted panel by panel in the workspace first
 * (kernels/convert.h). All of this is chosen by shapes and types.
 */
#include "device/cuda/blas.h"
#include "device/cuda/internal.h"

#define ALIGNMENT 16
#define PANEL_ROWS 256 /* panels have a multiple of them, where there is room for so many */
#define TILE_ROWS 128  /* of y, in a library's larger tiles, whose columns are PANEL_ROWS */

/* ---- operands ---- */

/* The bias as the other kernels take it: of a plain type; and, if it can be without rounding, of
 * y's and aligned, as cuBLASLt does. F8 is BF16 when it is widened. */
static struct matrix usable_bias(
    struct stream *stream, struct matrix bias, enum dtype y_type, device_addr at)
{
    struct cuda_device *cuda = cuda_device(stream->device);
    bool quantised = dtype_is_quantised(bias.dtype);
    bool same = (dtype_is_f8(bias.dtype) ? DTYPE_BF16 : bias.dtype) == y_type;
    bool move = cuda->blas && (same ? bias.addr % ALIGNMENT != 0 : y_type == DTYPE_F32);

    if (!bias.addr || !(quantised || move)) return bias;
    return cuda_convert(stream, at, same ? y_type : DTYPE_F32, bias);
}

static struct matrix bias_cols(struct matrix bias, int64_t first, int64_t count)
{
    return bias.addr ? matrix_cols(bias, first, count) : bias;
}

static bool ready(struct matrix m, enum dtype type)
{
    return m.dtype == type && m.addr % ALIGNMENT == 0 && m.cols % 8 == 0 &&
           (m.stride % 8 == 0 || m.rows == 1);
}

/* ---- our own kernels ---- */

static void multiply_few(
    struct stream *stream, struct matrix y, struct matrix x, struct matrix w, struct matrix bias)
{
    struct few_args args = {gpu_matrix(y), gpu_matrix(x), gpu_matrix(w), gpu_matrix(bias)};
    enum cuda_kernel kernel = w.dtype == DTYPE_F32    ? KERNEL_few_f32
                              : w.dtype == DTYPE_F16  ? KERNEL_few_f16
                              : w.dtype == DTYPE_BF16 ? KERNEL_few_bf16
                                                      : KERNEL_few_quantised;

    cuda_launch(stream, kernel,
        (struct cuda_grid){(uint32_t)ceil_div(y.cols, FEW_COLS), 1, 1, FEW_THREADS, 0}, &args);
}

static const struct tile {
    enum cuda_kernel bf16, f16;
    int32_t m, n, threads, shared_bytes;
} tiles[] = {
#define TILE(type, m, n, warp_m, warp_n, stages, blocks)                                           \
    {KERNEL_linear_bf16_##m##_##n, KERNEL_linear_f16_##m##_##n, m, n,                              \
        LINEAR_THREADS(m, n, warp_m, warp_n), LINEAR_SHARED_BYTES(m, n, stages)},
    LINEAR_TILES(TILE, )
#undef TILE
};
#define TILES ((int)(sizeof tiles / sizeof *tiles))

/*
 * The tile that makes y soonest: rounds of a tile on every multiprocessor, each as long as its
 * products and, for what the tile reads for each of them, its rows and columns. No bit depends on
 * it.
 */
static const struct tile *best_tile(const struct cuda_device *cuda, int64_t m, int64_t n)
{
    const struct tile *best = NULL;
    int64_t fewest = 0;

    for (int i = 0; i < TILES; i++) {
        const struct tile *t = &tiles[i];
        int64_t count = ceil_div(m, t->m) * ceil_div(n, t->n), ticks;

        if (t->shared_bytes > cuda->shared_bytes) continue;
        ticks = ceil_div(count, cuda->processors) * (t->m * t->n + 48 * (t->m + t->n));
        if (!best || ticks < fewest) {
            best = t;
            fewest = ticks;
        }
    }
    assert(best);
    return best;
}

static void multiply_own(
    struct stream *stream, struct matrix y, struct matrix x, struct matrix w, struct matrix bias)
{
    const struct tile *t = best_tile(cuda_device(stream->device), y.rows, y.cols);
    int64_t pair = 2 * dtype_bytes(y.dtype, 1);
    struct linear_args args = {gpu_matrix(y), gpu_matrix(x), gpu_matrix(w), gpu_matrix(bias),
        (int64_t)y.addr % pair == 0 && (y.stride % 2 == 0 || y.rows == 1)};

    cuda_launch(stream, x.dtype == DTYPE_BF16 ? t->bf16 : t->f16,
        (struct cuda_grid){(uint32_t)(ceil_div(y.rows, t->m) * ceil_div(y.cols, t->n)), 1, 1,
            (uint32_t)t->threads, (uint32_t)t->shared_bytes},
        &args);
}

/* ---- panels ---- */

/* The rows of a panel, of `rows` in all: as few panels as fit, and all alike. */
static int64_t panel_rows(uint64_t bytes, uint64_t row_bytes, int64_t rows)
{
    const int64_t fit = (int64_t)(bytes / row_bytes), whole = fit / PANEL_ROWS * PANEL_ROWS;

    assert(fit > 0);
    if (fit >= rows) return rows;
    if (whole == 0) return fit;
    return ceil_div(ceil_div(rows, ceil_div(rows, whole)), PANEL_ROWS) * PANEL_ROWS;
}

/* What of a panel of w keeps every multiprocessor busy for whole rounds of tiles, if it fits, given
 * the rows of y. A tail of a round is lost in each panel, but once in the whole. */
static int64_t panel_columns(const struct cuda_device *cuda, uint64_t bytes, uint64_t row_bytes,
    int64_t y_rows, int64_t rows)
{
    const int64_t fit = (int64_t)(bytes / row_bytes);
    const int64_t round = cuda->processors / ceil_div(y_rows, TILE_ROWS) * PANEL_ROWS;

    if (fit >= rows || round == 0 || fit < round) return panel_rows(bytes, row_bytes, rows);
    return fit / round * round;
}

static void multiply(struct stream *stream, struct matrix y, struct matrix x, struct matrix w,
    struct matrix bias, struct cuda_columns columns)
{
    bool takes = !bias.addr || bias.dtype == y.dtype;

    if (!takes || !cuda_blas_multiply(stream, y, x, w, bias, columns))
        multiply_own(stream, y, x, w, bias);
}

/* Panels are of the same rows whether w has to be converted or not, so that what it is stored in
 * does not show. If it has not, all its panels are multiplied at once. */
static void multiply_panels(struct stream *stream, struct matrix y, struct matrix x,
    struct matrix w, struct matrix bias, struct cuda_room room)
{
    const struct cuda_device *cuda = cuda_device(stream->device);
    enum dtype type = cuda->base.traits.activation;
    bool x_ready = ready(x, type), w_ready = ready(w, type);
    uint64_t row_bytes = (uint64_t)dtype_bytes(type, cuda_converted_cols(x.cols));
    int64_t x_rows = x_ready ? x.rows : panel_rows(room.bytes / 2, row_bytes, x.rows);
    device_addr w_at = room.at + (x_ready ? 0 : (uint64_t)x_rows * row_bytes);
    struct cuda_columns columns = {w.rows,
        panel_columns(cuda, x_ready ? room.bytes : room.bytes / 2, row_bytes, x_rows, w.rows)};
    int64_t w_rows = w_ready ? w.rows : columns.panel;

    for (int64_t m = 0; m < y.rows; m += x_rows) {
        int64_t rows = m + x_rows < y.rows ? x_rows : y.rows - m;
        struct matrix x_panel = matrix_rows(x, m, rows), y_rows = matrix_rows(y, m, rows);

        if (!x_ready) x_panel = cuda_convert(stream, room.at, type, x_panel);
        for (int64_t n = 0; n < y.cols; n += w_rows) {
            int64_t cols = n + w_rows < y.cols ? w_rows : y.cols - n;
            struct matrix w_panel = matrix_rows(w, n, cols);

            if (!w_ready) w_panel = cuda_convert(stream, w_at, type, w_panel);
            multiply(stream, matrix_cols(y_rows, n, cols), x_panel, w_panel,
                bias_cols(bias, n, cols), columns);
        }
    }
}

void cuda_linear(
    struct stream *stream, struct matrix y, struct matrix x, struct matrix w, struct matrix bias)
{
    struct cuda_device *cuda = cuda_device(stream->device);
    struct cuda_room room = cuda_room(stream);
    device_addr bias_at =
        cuda_room_take(&room, (uint64_t)dtype_bytes(DTYPE_F32, cuda_converted_cols(y.cols)));

    check_linear(y, x, w, bias);
    if (cuda->blas) room.bytes -= CUDA_BLAS_WORKSPACE_BYTES;
    bias = usable_bias(stream, bias, y.dtype, bias_at);
    if (x.rows <= FEW_ROWS)
        multiply_few(stream, y, x, w, bias);
    else
        multiply_panels(stream, y, x, w, bias, room);
}
