/*
 * Fuzz target: the input is a whole safetensors file. What the parser accepts must keep every
 * promise that the rest of the library relies on.
 * `make fuzz` builds and runs it.
 */
#include "base/size.h"
#include "checkpoint/safetensors.h"
#include "wire/wire.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) abort();
}

static void check_tensors(const struct safetensors *parsed, uint64_t data_offset, uint64_t end)
{
    uint64_t total = 0;
    bool packed = false;

    for (size_t i = 0; i < parsed->count; i++) {
        const struct checkpoint_tensor *tensor = &parsed->tensors[i];
        uint64_t bytes, count;

        require(!i || strcmp(parsed->tensors[i - 1].name, tensor->name) < 0);
        require(tensor->shape.rank >= 0 && tensor->shape.rank <= SHAPE_MAX_RANK);
        require(shape_bytes(&tensor->shape, tensor->dtype, &bytes) && bytes == tensor->bytes);
        require(tensor->offset >= data_offset && tensor->offset <= end);
        require(tensor->stored_bytes <= end - tensor->offset);
        require(size_add(total, tensor->stored_bytes, &total));
        packed = packed || tensor->packed;
        if (tensor->packed)
            require(wire_packs(tensor->dtype) && shape_count(&tensor->shape, &count) &&
                    count <= WIRE_MOST && tensor->stored_bytes >= WIRE_ALIGNMENT &&
                    tensor->stored_bytes <= wire_bound(tensor->dtype, count));
        else
            require(tensor->stored_bytes == tensor->bytes);
    }
    /* None overlaps another, since together they are the data, with what follows payloads. */
    require(packed ? total <= end - data_offset : total == end - data_offset);
    for (size_t i = 0; i < parsed->metadata_count; i++)
        require(parsed->metadata[i].key && parsed->metadata[i].value);
}

static void check_header(const char *header, size_t bytes, uint64_t file_bytes)
{
    struct safetensors parsed;
    struct shoal_error error = {0};
    enum shoal_status status = safetensors_parse("f", header, bytes, file_bytes, &parsed, &error);

    if (status) {
        require(error.status == status && error.text[0] == 'f');
        require(!parsed.tensors && !parsed.count && !parsed.metadata_count);
        for (const char *c = error.text; *c; c++)
            require((unsigned char)*c >= 0x20);
    } else {
        check_tensors(&parsed, SAFETENSORS_LENGTH_BYTES + bytes, file_bytes);
    }
    safetensors_fini(&parsed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t count = size < SAFETENSORS_LENGTH_BYTES ? size : SAFETENSORS_LENGTH_BYTES, bytes;
    const char *header = (const char *)data + count;
    uint64_t file_bytes = size;
    struct shoal_error error;

    if (safetensors_header_bytes("f", data, count, file_bytes, &bytes, &error)) return 0;
    check_header(header, bytes, file_bytes);
    /* The same header in front of 40 GB, which no fuzzer would write. */
    check_header(header, bytes, 40000000000u);
    return 0;
}
