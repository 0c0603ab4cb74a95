/* Writes small safetensors files for tests. */
#include "support.h"

#include "unit/tensor_file.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/text.h"

#include <stdio.h>

static void fill(char *to, uint64_t bytes, enum dtype dtype, size_t index, bool random)
{
    uint64_t state = index + 1;

    memset(to, (int)index + 1, bytes);
    if (!random) return;
    for (uint64_t i = 0; i < bytes; i += (uint64_t)dtype_bytes(dtype, 1)) {
        float value = ((float)(test_random(&state) & 0xffff) / 32768.0f - 1.0f) * 0.05f;
        uint16_t half = bf16_from_float(value);

        if (dtype == DTYPE_F32)
            memcpy(to + i, &value, sizeof value);
        else
            memcpy(to + i, &half, sizeof half);
    }
}

enum shoal_status tensor_file_write(const char *path, const struct tensor_spec *tensors,
    size_t count, const void *const *data, bool random, struct shoal_error *error)
{
    struct text header = {0};
    uint64_t data_bytes = 0, bytes, header_bytes;
    char *file, *at;
    enum shoal_status status;

    text_append(&header, "{");
    for (size_t i = 0; i < count; i++) {
        if (!shape_bytes(&tensors[i].shape, tensors[i].dtype, &bytes))
            FAIL(error, SHOAL_E_INVALID, "%s", tensors[i].name);
        text_append(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "",
            tensors[i].name, dtype_name(tensors[i].dtype));
        for (int32_t d = 0; d < tensors[i].shape.rank; d++)
            text_append(&header, "%s%lld", d ? "," : "", (long long)tensors[i].shape.dim[d]);
        text_append(&header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)data_bytes,
            (unsigned long long)(data_bytes + bytes));
        data_bytes += bytes;
    }
    text_append(&header, "}");
    while (header.length % 8)
        text_append(&header, " ");
    header_bytes = header.length;
    file = mem_alloc(8 + header_bytes + data_bytes);
    if (!file || header.failed) FAIL_MEMORY(error);
    memcpy(file, &header_bytes, 8);
    memcpy(file + 8, header.data, header_bytes);
    at = file + 8 + header_bytes;
    for (size_t i = 0; i < count; i++) {
        if (!shape_bytes(&tensors[i].shape, tensors[i].dtype, &bytes)) return SHOAL_E_INVALID;
        if (data)
            memcpy(at, data[i], bytes);
        else
            fill(at, bytes, tensors[i].dtype, i, random);
        at += bytes;
    }
    status = file_write_whole(path, file, 8 + header_bytes + data_bytes, error);
    mem_free(file);
    mem_free(header.data);
    return status;
}
