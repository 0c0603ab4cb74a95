/*
 * Fuzz target: the input is a whole safetensors file. What the parser accepts must keep every
 * promise that the rest of the library relies on.
 *
 *     make fuzz    # or: clang -g -O1 -std=gnu17 -D_GNU_SOURCE -Isrc -Iinclude
 *                  #       -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all
 *                  #       tests/fuzz/fuzz_safetensors.c src/checkpoint/?*.c src/tensor/?*.c
 *                  #       src/base/?*.c -ljansson -lm -lpthread -o fuzz_safetensors
 *                  # ./fuzz_safetensors -dict=tests/fuzz/safetensors.dict NEW_FOLDER
 *                  #       tests/fuzz/corpus/safetensors
 */
#include "base/size.h"
#include "checkpoint/safetensors.h"

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

    for (size_t i = 0; i < parsed->count; i++) {
        const struct checkpoint_tensor *tensor = &parsed->tensors[i];
        uint64_t bytes;

        require(!i || strcmp(parsed->tensors[i - 1].name, tensor->name) < 0);
        require(tensor->shape.rank >= 0 && tensor->shape.rank <= SHAPE_MAX_RANK);
        require(shape_bytes(&tensor->shape, tensor->dtype, &bytes) && bytes == tensor->bytes);
        require(tensor->offset >= data_offset && tensor->offset <= end);
        require(tensor->bytes <= end - tensor->offset);
        require(size_add(total, tensor->bytes, &total));
    }
    /* None overlaps another, since together they are the data. */
    require(total == end - data_offset);
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
