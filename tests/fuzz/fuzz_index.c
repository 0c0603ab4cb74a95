/*
 * Fuzz target: the input is the index of a sharded checkpoint.
 *
 * Built as fuzz_safetensors.c says, with the corpus in tests/fuzz/corpus/index.
 */
#include "checkpoint/index.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct shoal_error error = {0};
    struct index index;
    enum shoal_status status = index_parse("f", (const char *)data, size, &index, &error);

    if (status) {
        require(error.status == status && error.text[0] == 'f');
        require(!index.entries && !index.count && !index.shards && !index.shard_count);
        for (const char *c = error.text; *c; c++)
            require((unsigned char)*c >= 0x20);
    } else {
        require(index.count && index.shard_count && index.shard_count <= index.count);
        for (size_t i = 0; i < index.count; i++)
            require(index.entries[i].tensor && index.entries[i].shard < index.shard_count);
        for (size_t i = 0; i < index.shard_count; i++) {
            require(*index.shards[i] && !strchr(index.shards[i], '/'));
            require(!i || strcmp(index.shards[i - 1], index.shards[i]) < 0);
        }
    }
    index_fini(&index);
    return 0;
}
