/*
 * Stores through the public header, on the CPU: the bytes that are at a block's addresses are those
 * that it was described by, whatever the tier, the wire and the order, over suspensions, and in
 * memory of the caller's.
 */
#include "support.h"

#include "base/size.h"
#include "shoal/shoal.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BLOCKS = 7, TENSORS = 3 };

/* Large enough to pack, ill-aligned, and tiny. */
static const uint64_t sizes[TENSORS] = {640 * 1024, 50001, 18};

static uint64_t seed = 5;
static char path[] = "/tmp/shoal_store_XXXXXX";
static char *bytes[BLOCKS][TENSORS];
static struct shoal_store_tensor tensors[BLOCKS][TENSORS];
static struct shoal_store_block blocks[BLOCKS];

/* Like weights: BF16 whose exponents vary little. */
static void fill(char *to, uint64_t count)
{
    for (uint64_t i = 0; i + 1 < count; i += 2) {
        to[i] = (char)test_random(&seed);
        to[i + 1] = (char)(0x3c + test_random(&seed) % 2 - (test_random(&seed) % 2 << 7));
    }
    if (count % 2) to[count - 1] = 1;
}

static int set_up(void **state)
{
    FILE *file;

    (void)state;
    file = fdopen(mkstemp(path), "wb");
    if (!file) return -1;
    fwrite("head", 1, 4, file);
    for (int i = 0; i < BLOCKS; i++) {
        for (int t = 0; t < TENSORS; t++) {
            bytes[i][t] = malloc(sizes[t]);
            fill(bytes[i][t], sizes[t]);
            tensors[i][t] = (struct shoal_store_tensor){.name = t ? "bias" : "weight",
                .dtype = t == 0 ? "BF16" : "U8",
                .bytes = sizes[t],
                .path = path,
                .offset = (uint64_t)ftell(file)};
            fwrite(bytes[i][t], 1, sizes[t], file);
        }
        blocks[i] = (struct shoal_store_block){.tensors = tensors[i], .tensor_count = TENSORS};
    }
    return fclose(file);
}

static int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < BLOCKS; i++)
        for (int t = 0; t < TENSORS; t++)
            free(bytes[i][t]);
    return unlink(path);
}

static struct shoal_store_request request(void)
{
    struct shoal_store_request r;

    shoal_store_request_init(&r);
    r.device = "cpu";
    r.threads = 2;
    return r;
}

static struct shoal_store *create(const struct shoal_store_request *r)
{
    struct shoal_error error = {0};
    struct shoal_store *store;

    assert_ok(shoal_store_create(blocks, BLOCKS, r, &store, &error));
    return store;
}

static void visit(struct shoal_store *store, int block)
{
    struct shoal_error error = {0};
    uint64_t addresses[TENSORS];

    assert_ok(shoal_store_acquire(store, block, NULL, addresses, &error));
    for (int t = 0; t < TENSORS; t++)
        assert_memory_equal((const void *)(uintptr_t)addresses[t], bytes[block][t], sizes[t]);
    assert_ok(shoal_store_release(store, block, &error));
}

static void walk(struct shoal_store *store)
{
    for (int i = 0; i < BLOCKS; i++)
        visit(store, i);
}

/* In memory, block by block, or in the file. */
static void lie_in_memory(bool all, bool none)
{
    for (int i = 0; i < BLOCKS; i++)
        for (int t = 0; t < TENSORS; t++) {
            const bool memory = !none && (all || i % 2);

            tensors[i][t].data = memory ? bytes[i][t] : NULL;
            tensors[i][t].path = memory ? NULL : path;
        }
}

/* Runs that end anywhere, and begin again; each is looked at byte by byte. */
static void run_all_ways(struct shoal_store *store, void *memory)
{
    struct shoal_error error = {0};

    for (int stop = 0; stop < BLOCKS; stop += 2) {
        assert_ok(shoal_store_resume(store, (uint64_t)(uintptr_t)memory, &error));
        for (int i = 0; i < stop; i++)
            visit(store, i);
        walk(store);
        for (int i = 0; i < BLOCKS; i += 2) /* some are left out */
            visit(store, i);
        visit(store, stop); /* and some come twice */
        visit(store, stop);
        assert_ok(shoal_store_suspend(store, &error));
        if (memory) memset(memory, 0xa5, shoal_store_device_bytes(store));
    }
    /* Given up before anything was read. */
    assert_ok(shoal_store_resume(store, (uint64_t)(uintptr_t)memory, &error));
    assert_ok(shoal_store_suspend(store, &error));
    assert_ok(shoal_store_suspend(store, &error));
    assert_ok(shoal_store_resume(store, (uint64_t)(uintptr_t)memory, &error));
    walk(store);
}

static void check(const struct shoal_store_request *r)
{
    struct shoal_store_stats stats;

    for (int where = 0; where < 3; where++) {
        for (int lent = 0; lent < 2; lent++) {
            struct shoal_store *store;
            void *memory = NULL;

            lie_in_memory(where == 0, where == 1);
            store = create(r);
            if (lent)
                memory = aligned_alloc(4096, size_align(shoal_store_device_bytes(store), 4096));
            run_all_ways(store, memory);
            shoal_store_stats(store, &stats);
            assert_int_equal(stats.weight_bytes, BLOCKS * (sizes[0] + sizes[1] + sizes[2]));
            assert_true(stats.copied_bytes > 0 && stats.read_bytes > 0);
            assert_true(stats.device_bytes <= r->vram_bytes);
            assert_non_null(shoal_store_text(store));
            assert_non_null(shoal_store_json(store));
            shoal_store_destroy(&store);
            shoal_store_destroy(&store);
            free(memory);
        }
    }
}

static void test_ring(void **state)
{
    struct shoal_store_request r = request();

    (void)state;
    check(&r);
    r.prefetch_slots = 4;
    check(&r);
    r.prefetch_slots = SHOAL_AUTO;
    r.buffer = SHOAL_BUFFER_SINGLE;
    check(&r);
}

static void test_packed(void **state)
{
    struct shoal_store_request r = request();
    struct shoal_store_stats stats;
    struct shoal_store *store;

    (void)state;
    r.wire = SHOAL_WIRE_PACKED;
    lie_in_memory(false, false);
    store = create(&r);
    shoal_store_stats(store, &stats);
    assert_int_equal(stats.packed_blocks, BLOCKS);
    shoal_store_destroy(&store);
    check(&r);
    r.buffer = SHOAL_BUFFER_SINGLE;
    check(&r);
}

static void test_residents(void **state)
{
    struct shoal_store_request r = request();

    (void)state;
    r.resident_blocks = 3;
    check(&r);
    r.resident_blocks = SHOAL_AUTO;
    check(&r);
}

/* As little host memory as works: blocks are read again in every walk. */
static void test_tiers(void **state)
{
    struct shoal_store_request r = request();
    struct shoal_store_stats stats;
    struct shoal_error error = {0};
    struct shoal_store *store;

    (void)state;
    lie_in_memory(false, true);
    r.ram_bytes = 64 << 10;
    for (;; r.ram_bytes += 32 << 10) { /* the least is what the error says, and a little more */
        enum shoal_status status = shoal_store_create(blocks, BLOCKS, &r, &store, &error);

        if (!status) break;
        assert_int_equal(status, SHOAL_E_BUDGET);
    }
    shoal_store_stats(store, &stats);
    assert_true(stats.disk_blocks > 0);
    shoal_store_destroy(&store);
    check(&r);
}

static void test_loaded(void **state)
{
    struct shoal_store_request r = request();
    struct shoal_error error = {0};
    struct shoal_store *store;

    (void)state;
    lie_in_memory(true, false);
    store = create(&r);
    assert_false(shoal_store_loaded(store));
    assert_ok(shoal_store_resume(store, 0, &error));
    walk(store);
    assert_true(shoal_store_loaded(store));
    assert_ok(shoal_store_suspend(store, &error));
    assert_true(shoal_store_loaded(store));
    shoal_store_destroy(&store);
}

/* How many complete events of a kind the file has. */
static int count_events(const char *trace, const char *kind)
{
    FILE *file = fopen(trace, "r");
    char line[1000];
    int found = 0;

    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        found += strstr(line, kind) && strstr(line, "\"X\"");
    fclose(file);
    return found;
}

/* Every visit of a run that has been suspended is in the trace, and none of the runs before. */
static void test_trace(void **state)
{
    struct shoal_store_request r = request();
    struct shoal_error error = {0};
    struct shoal_store *store;
    char trace[sizeof path + 6];

    (void)state;
    lie_in_memory(false, false);
    store = create(&r);
    snprintf(trace, sizeof trace, "%s.json", path);
    assert_int_equal(shoal_store_write_trace(store, trace, &error), SHOAL_E_INVALID);
    shoal_store_destroy(&store);
    r.trace = true;
    store = create(&r);
    assert_ok(shoal_store_resume(store, 0, &error));
    walk(store);
    walk(store);
    assert_int_equal(shoal_store_write_trace(store, trace, &error), SHOAL_E_INVALID);
    assert_ok(shoal_store_suspend(store, &error));
    assert_ok(shoal_store_write_trace(store, trace, &error));
    assert_int_equal(count_events(trace, "\"compute\""), 2 * BLOCKS);
    assert_true(count_events(trace, "\"copy\"") >= 2 * BLOCKS);
    for (int run = 0; run < 3; run++) {
        assert_ok(shoal_store_resume(store, 0, &error));
        walk(store);
        assert_ok(shoal_store_suspend(store, &error));
        assert_ok(shoal_store_write_trace(store, trace, &error));
        assert_int_equal(count_events(trace, "\"compute\""), BLOCKS);
        assert_in_range(count_events(trace, "\"copy\""), BLOCKS, 2 * BLOCKS);
    }
    shoal_store_destroy(&store);
    unlink(trace);
}

static void refuse(const struct shoal_store_request *r, enum shoal_status status, const char *words)
{
    struct shoal_error error = {0};
    struct shoal_store *store;

    assert_int_equal(shoal_store_create(blocks, BLOCKS, r, &store, &error), status);
    assert_null(store);
    if (!strstr(error.text, words)) fail_msg("\"%s\" does not say \"%s\"", error.text, words);
}

static void test_refusals(void **state)
{
    struct shoal_store_request r = request();
    struct shoal_error error = {0};
    struct shoal_store *store;
    uint64_t addresses[TENSORS];

    (void)state;
    lie_in_memory(false, true);
    r.vram_bytes = 4096;
    refuse(&r, SHOAL_E_BUDGET, "4.00 KiB");
    r = request();
    r.ram_bytes = 4096;
    refuse(&r, SHOAL_E_BUDGET, "4.00 KiB");
    r = request();
    r.prefetch_slots = 9;
    refuse(&r, SHOAL_E_INVALID, "prefetch_slots");
    r = request();
    r.block_seconds = -1;
    refuse(&r, SHOAL_E_INVALID, "block_seconds");
    r = request();
    tensors[2][1].data = bytes[2][1];
    refuse(&r, SHOAL_E_INVALID, "tensor bias of block 2: it must lie either in memory");
    tensors[2][1].data = NULL;
    tensors[2][1].offset += 1 << 30;
    refuse(&r, SHOAL_E_INVALID, "it would end at byte");
    tensors[2][1].offset -= 1 << 30;
    tensors[2][1].path = "/nowhere/at.all";
    refuse(&r, SHOAL_E_IO, "/nowhere/at.all");
    tensors[2][1].path = path;
    assert_int_equal(shoal_store_create(blocks, 0, &r, &store, &error), SHOAL_E_INVALID);
    store = create(&r);
    assert_int_equal(
        shoal_store_acquire(store, 0, NULL, addresses, &error), SHOAL_E_INVALID); /* suspended */
    assert_int_equal(shoal_store_resume(store, 17, &error), SHOAL_E_INVALID);
    assert_ok(shoal_store_resume(store, 0, &error));
    assert_int_equal(shoal_store_resume(store, 0, &error), SHOAL_E_INVALID);
    assert_int_equal(shoal_store_release(store, 0, &error), SHOAL_E_INVALID);
    assert_int_equal(shoal_store_acquire(store, BLOCKS, NULL, addresses, &error), SHOAL_E_INVALID);
    assert_ok(shoal_store_acquire(store, 0, NULL, addresses, &error));
    assert_int_equal(shoal_store_acquire(store, 1, NULL, addresses, &error), SHOAL_E_INVALID);
    shoal_store_destroy(&store); /* while one is held */
}

/* A file that is changed under it fails what is acquired; resumed, the store begins anew. */
static void test_changed(void **state)
{
    struct shoal_store_request r = request();
    struct shoal_error error = {0};
    struct shoal_store *store;
    uint64_t addresses[TENSORS];
    enum shoal_status status = SHOAL_OK;

    (void)state;
    lie_in_memory(false, true);
    store = create(&r);
    assert_int_equal(truncate(path, 100000), 0);
    assert_ok(shoal_store_resume(store, 0, &error));
    for (int i = 0; !status && i < BLOCKS; i++) {
        status = shoal_store_acquire(store, i, NULL, addresses, &error);
        if (!status) assert_ok(shoal_store_release(store, i, &error));
    }
    assert_int_equal(status, SHOAL_E_IO);
    assert_int_equal(shoal_store_suspend(store, &error), SHOAL_E_IO);
    assert_ok(shoal_store_suspend(store, &error));
    shoal_store_destroy(&store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring), cmocka_unit_test(test_packed),
        cmocka_unit_test(test_residents), cmocka_unit_test(test_tiers),
        cmocka_unit_test(test_loaded), cmocka_unit_test(test_trace),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_changed), /* the file's end */
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
