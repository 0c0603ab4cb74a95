/* Replays the fuzz targets' corpora through the targets themselves, without a fuzzer. */
#include "support.h"

#include "base/file.h"
#include "base/memory.h"

#include <stdio.h>

#define LLVMFuzzerTestOneInput fuzz_safetensors
#define require require_safetensors
#include "../fuzz/fuzz_safetensors.c"
#undef LLVMFuzzerTestOneInput
#undef require

#define LLVMFuzzerTestOneInput fuzz_gguf
#define require require_gguf
#define check_tensors check_gguf_tensors
#include "../fuzz/fuzz_gguf.c"
#undef LLVMFuzzerTestOneInput
#undef require
#undef check_tensors

#define LLVMFuzzerTestOneInput fuzz_index
#define require require_index
#include "../fuzz/fuzz_index.c"
#undef LLVMFuzzerTestOneInput
#undef require

#define LLVMFuzzerTestOneInput fuzz_tokenizer
#define require require_tokenizer
#include "../fuzz/fuzz_tokenizer.c"
#undef LLVMFuzzerTestOneInput
#undef require

#define LLVMFuzzerTestOneInput fuzz_wire
#define require require_wire
#include "../fuzz/fuzz_wire.c"
#undef LLVMFuzzerTestOneInput
#undef require

#define LLVMFuzzerTestOneInput fuzz_scales
#define require require_scales
#include "../fuzz/fuzz_scales.c"
#undef LLVMFuzzerTestOneInput
#undef require

#define LLVMFuzzerTestOneInput fuzz_adapter
#define require require_adapter
#include "../fuzz/fuzz_adapter.c"
#undef LLVMFuzzerTestOneInput
#undef require

static void replay(const char *name, int (*target)(const uint8_t *data, size_t size))
{
    char folder[200], path[500];
    struct shoal_error error = {0};
    char **names = NULL;
    size_t count;

    snprintf(folder, sizeof folder, "tests/fuzz/corpus/%s", name);
    assert_ok(file_list(folder, &names, &count, &error));
    assert_true(count > 20);
    for (size_t i = 0; i < count; i++) {
        char *data;
        size_t bytes;

        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        assert_ok(file_read_all(path, 1 << 20, &data, &bytes, &error));
        print_message("%s\n", path); /* the last one seen is the culprit */
        assert_int_equal(target((const uint8_t *)data, bytes), 0);
        mem_free(data);
    }
    mem_free(names);
}

static void test_safetensors(void **state)
{
    (void)state;
    replay("safetensors", fuzz_safetensors);
}

static void test_gguf(void **state)
{
    (void)state;
    replay("gguf", fuzz_gguf);
}

static void test_index(void **state)
{
    (void)state;
    replay("index", fuzz_index);
}

static void test_tokenizer(void **state)
{
    (void)state;
    replay("tokenizer", fuzz_tokenizer);
}

static void test_wire(void **state)
{
    (void)state;
    replay("wire", fuzz_wire);
}

static void test_scales(void **state)
{
    (void)state;
    replay("scales", fuzz_scales);
}

static void test_adapter(void **state)
{
    (void)state;
    replay("adapter", fuzz_adapter);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors),
        cmocka_unit_test(test_scales),
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_index),
        cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_wire),
        cmocka_unit_test(test_adapter),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
