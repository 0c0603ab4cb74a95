/*
 * Fuzz target: the input is a whole GGUF file. What the parser accepts must keep every promise that
 * the rest of the library relies on.
 *
 *     make fuzz    # or as fuzz_safetensors.c, with the corpus tests/fuzz/corpus/gguf
 */
#include "base/size.h"
#include "checkpoint/gguf.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) abort();
}

static void check_plain(const char *text)
{
    require(*text);
    for (; *text; text++)
        require(*text >= 0x20 && *text < 0x7f);
}

static int by_place(const void *a, const void *b)
{
    const struct checkpoint_tensor *x = a, *y = b;

    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static void check_tensors(struct gguf *parsed, uint64_t header_bytes, uint64_t end)
{
    for (size_t i = 0; i < parsed->count; i++) {
        const struct checkpoint_tensor *tensor = &parsed->tensors[i];
        uint64_t bytes;

        check_plain(tensor->name);
        require(!i || strcmp(parsed->tensors[i - 1].name, tensor->name) < 0);
        require(tensor->shape.rank >= 0 && tensor->shape.rank <= SHAPE_MAX_RANK);
        require(shape_bytes(&tensor->shape, tensor->dtype, &bytes) && bytes == tensor->bytes);
        require(bytes && tensor->offset >= header_bytes && tensor->offset <= end);
        require(tensor->offset % 8 == 0 && bytes <= end - tensor->offset);
    }
    qsort(parsed->tensors, parsed->count, sizeof *parsed->tensors, by_place);
    for (size_t i = 1; i < parsed->count; i++)
        require(parsed->tensors[i - 1].offset + parsed->tensors[i - 1].bytes <=
                parsed->tensors[i].offset);
}

static void check_pairs(const struct gguf *parsed)
{
    for (size_t i = 0; i < parsed->pair_count; i++) {
        const struct gguf_pair *pair = &parsed->pairs[i];
        struct shoal_error error = {0};
        json_t *value = NULL;

        check_plain(pair->key);
        require(!i || strcmp(parsed->pairs[i - 1].key, pair->key) < 0);
        require(gguf_find(parsed, pair->key) == pair);
        if (!gguf_value("f", pair, &value, &error)) {
            require(json_is_array(value) == pair->is_array);
            require(!pair->is_array || json_array_size(value) == pair->count);
        } else {
            require(!value && error.text[0] == 'f');
        }
        json_decref(value);
    }
}

static void check_file(const char *header, size_t bytes, uint64_t file_bytes)
{
    struct gguf parsed;
    struct shoal_error error = {0};
    enum shoal_status status = gguf_parse("f", header, bytes, file_bytes, &parsed, &error);

    if (status) {
        require(error.status == status && error.text[0] == 'f');
        require(!parsed.tensors && !parsed.count && !parsed.pair_count);
        for (const char *c = error.text; *c; c++)
            require((unsigned char)*c >= 0x20);
    } else {
        check_pairs(&parsed);
        check_tensors(&parsed, bytes, file_bytes);
    }
    gguf_fini(&parsed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct shoal_error error = {0};
    size_t bytes, some;
    bool more;

    /* The header's length is the same however much of the file is there, or more is wanted. */
    if (gguf_header_bytes("f", (const char *)data, size, size, &bytes, &more, &error)) return 0;
    require(!more && bytes <= size);
    require(!gguf_header_bytes("f", (const char *)data, bytes / 2, size, &some, &more, &error));
    require(more && some <= bytes / 2);
    check_file((const char *)data, bytes, size);
    /* The same header in front of 40 GB, which no fuzzer would write. */
    check_file((const char *)data, bytes, 40000000000u);
    return 0;
}
