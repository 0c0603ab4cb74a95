/* Operands that kernels do not take as they are, converted in the workspace: kernels/convert.h.
 * Operations use all of the workspace, one after another. */
#include "device/cuda/internal.h"

#define PART_ALIGNMENT 256

struct cuda_room cuda_room(struct stream *stream)
{
    const struct cuda_device *cuda = cuda_device(stream->device);

    return (struct cuda_room){cuda->workspace, cuda->workspace_bytes};
}

device_addr cuda_room_take(struct cuda_room *room, uint64_t bytes)
{
    device_addr at = room->at;

    bytes = (bytes + PART_ALIGNMENT - 1) / PART_ALIGNMENT * PART_ALIGNMENT;
    assert(bytes <= room->bytes);
    room->at += bytes;
    room->bytes -= bytes;
    return at;
}

int64_t cuda_converted_cols(int64_t cols)
{
    return ceil_div(cols, 8) * 8;
}

struct matrix cuda_convert(struct stream *stream, device_addr at, enum dtype dtype, struct matrix m)
{
    struct matrix to = matrix_at(at, dtype, m.rows, cuda_converted_cols(m.cols));
    struct convert_args args = {gpu_matrix(to), gpu_matrix(m)};
    const int64_t runs = ceil_div(to.cols / 8, CONVERT_THREADS);
    const int64_t threads = ceil_div(ceil_div(to.cols / 8, runs), 32) * 32;

    cuda_launch(stream, KERNEL_convert,
        (struct cuda_grid){
            (uint32_t)ceil_div(m.rows, CONVERT_ROWS), (uint32_t)runs, 1, (uint32_t)threads, 0},
        &args);
    return to;
}

struct matrix cuda_plain(struct stream *stream, struct matrix m, struct cuda_room *room)
{
    struct matrix plain;
    uint64_t bytes;

    if (!m.addr || !dtype_is_quantised(m.dtype)) return m;
    bytes = (uint64_t)dtype_bytes(DTYPE_F32, m.rows * cuda_converted_cols(m.cols));
    plain = cuda_convert(stream, cuda_room_take(room, bytes), DTYPE_F32, m);
    plain.cols = m.cols;
    return plain;
}
