/*
 * The streamer on the CPU device: whatever is resident, kept in RAM or on disk, packed or not,
 * however small ring and staging are, every visit sees its own block's bytes, and the arena's peak
 * is what was asked for.
 */
#include "noise_model.h"

#include "base/memory.h"
#include "fault/scenario.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STAGING (CARGO_CHUNK_BYTES + 8192)
#define SEEDS (SCENARIO_THINNER > 2 ? 1u : 2u) /* slow builds leave cases out */

static struct device *new_device(void)
{
    struct shoal_error error = {0};
    struct device *device = NULL;

    assert_ok(cpu_create(&device, CPU_KERNELS_FAST, 2, &error));
    return device;
}

static void run(struct noise_model *m, const struct streamer_place *places, uint64_t ring_bytes,
    uint64_t staging_bytes)
{
    struct shoal_error error = {0};
    struct streamer_stats stats;
    struct rig rig;
    uint64_t disk = 0, kept = 0, first = 0, spare = 0;

    rig_open(&rig, m, new_device(), places, ring_bytes, staging_bytes);
    assert_ok(rig_start(&rig, &error));
    for (int walk = 0; walk < WALKS; walk++) {
        rig_expect(&rig, BLOCKS);
        rig_walk(&rig);
    }
    assert_ok(streamer_check(rig.streamer, &error));
    for (int i = 0; i <= BLOCKS; i++) {
        struct streamer_place place = i < BLOCKS ? places[i] : (struct streamer_place){0};
        struct cargo_size size = noise_measure(m, i, place);

        first += noise_measure(m, i, (struct streamer_place){0}).image_bytes;
        if (place.resident && place.packed && packing_rooms(&m->packing, i) &&
            size.image_bytes > spare)
            spare = size.image_bytes;
        if (i == BLOCKS || place.resident) continue;
        if (place.disk)
            disk += size.image_bytes;
        else
            kept += size.image_bytes;
    }
    stats = streamer_stats(rig.streamer);
    assert_int_equal(stats.first_read_bytes, first);
    assert_int_equal(stats.read_bytes, first + disk * (WALKS - 1));
    assert_int_equal(stats.host_bytes, kept + staging_bytes + spare);
    assert_int_equal(arena_peak(&rig.arena), rig.arena.bytes);
    rig_close(&rig);
}

static void run_all(bool packed)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct noise_model m;
        struct streamer_place places[BLOCKS] = {0};

        noise_open(&m, seed, packed);
        for (int slots = 1; slots <= 4; slots++)
            run(&m, places, m.largest * (uint64_t)slots, STAGING);
        for (int n = 0; n < BLOCKS; n++)
            places[n].disk = n % 2;
        run(&m, places, m.largest + 4096, STAGING);
        run(&m, places, m.largest * 2, 4 * STAGING);
        for (int n = 0; n < BLOCKS; n++)
            places[n].disk = true;
        run(&m, places, m.largest * 3, 2 * STAGING);
        for (int n = 0; n < BLOCKS; n++) {
            struct streamer_place *place = &places[(n * 7) % BLOCKS];

            place->resident = true;
            place->packed = packed && n % 2;
            place->disk = false;
            run(&m, places, n == BLOCKS - 1 && !packed ? 0 : m.largest * 2, 2 * STAGING);
        }
        noise_close(&m);
    }
}

static void test_plain(void **state)
{
    (void)state;
    run_all(false);
}

static void test_packed(void **state)
{
    (void)state;
    run_all(true);
}

/*
 * With one slot, the largest block fills the ring. Packed, it has been unpacked when it can be
 * used, so the next one's copy is given before it is released; plain, only then.
 */
static void test_next_copy_in_one_slot(void **state)
{
    const int largest = 5;

    (void)state;
    for (int packed = 0; packed < 2; packed++) {
        struct streamer_place places[BLOCKS] = {0};
        struct shoal_error error = {0};
        struct matrix weights[2];
        uint64_t copied, next;
        struct noise_model m;
        struct rig rig;

        noise_open(&m, 3, packed);
        rig_open(&rig, &m, new_device(), places, m.largest, STAGING);
        assert_ok(rig_start(&rig, &error));
        /* From the second walk on nothing is waited for but the ring. */
        rig_expect(&rig, BLOCKS);
        rig_walk(&rig);
        for (int i = 0; i < largest; i++)
            rig_expect(&rig, i);
        assert_ok(streamer_acquire(rig.streamer, largest, weights, &error));
        copied = streamer_stats(rig.streamer).copied_bytes;
        streamer_release(rig.streamer, largest);
        next = streamer_stats(rig.streamer).copied_bytes;
        if (packed)
            assert_int_equal(copied, next);
        else
            assert_true(copied < next);
        for (int i = largest + 1; i < BLOCKS; i++)
            rig_expect(&rig, i);
        rig_close(&rig);
        noise_close(&m);
    }
}

/* Acquires until something fails; the error must be the block's. */
static enum shoal_status walk_until_failure(struct rig *rig, struct shoal_error *error)
{
    struct matrix weights[2];
    enum shoal_status status = streamer_globals(rig->streamer, weights, error);

    for (int i = 0; i < BLOCKS && !status; i++) {
        status = streamer_acquire(rig->streamer, i, weights, error);
        if (!status) streamer_release(rig->streamer, i);
    }
    return status;
}

static int64_t modified_ns(const struct noise_model *m)
{
    struct stat info;

    assert_int_equal(fstat(m->file.fd, &info), 0);
    return info.st_mtim.tv_sec * 1000000000LL + info.st_mtim.tv_nsec;
}

/* Overwrites bytes of the model's file behind its back. */
static void damage(const struct noise_model *m, uint64_t offset, size_t bytes)
{
    char path[64], junk[4096];
    int fd;

    memset(junk, 0xa7, sizeof junk);
    snprintf(path, sizeof path, "/proc/self/fd/%d", m->file.fd);
    fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, junk, bytes, (off_t)offset), bytes);
    close(fd);
}

/* Gives a tensor exponents that are all alike common, after its sample has been taken. */
static void spoil(struct noise_model *m, const struct checkpoint_tensor *tensor)
{
    uint64_t seed = 1;
    char path[64];
    int fd;

    snprintf(path, sizeof path, "/proc/self/fd/%d", m->file.fd);
    fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    for (uint64_t at = 0; at + 4096 <= tensor->bytes; at += 4096) {
        uint16_t junk[2048];

        for (int i = 0; i < 2048; i++)
            junk[i] = (uint16_t)(test_random(&seed) >> 8 & 0xbfff);
        assert_int_equal(
            pwrite(fd, junk, sizeof junk, (off_t)(tensor->offset + at)), (ssize_t)sizeof junk);
    }
    close(fd);
    m->file.modified_ns = modified_ns(m);
}

/* Packed on the way: all that streams, then some of it, then residents too; those that are read
 * again in every walk stay plain. */
static void test_packing(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct noise_model m;
        struct streamer_place places[BLOCKS] = {0};
        int packed = 0;

        noise_open(&m, seed, false);
        noise_pack(&m);
        for (int n = 0; n < BLOCKS; n++) {
            packed += packing_rooms(&m.packing, n) != NULL;
            places[n].packed = true;
        }
        assert_true(packed > BLOCKS / 2);
        for (int slots = 1; slots <= 4; slots++)
            run(&m, places, m.largest * (uint64_t)slots, STAGING);
        for (int n = 0; n < BLOCKS; n++) {
            places[n].packed = n % 3 != 0;
            places[n].disk = n % 3 == 0 && n % 2;
        }
        run(&m, places, m.largest + 4096, STAGING);
        run(&m, places, m.largest * 3, 4 * STAGING);
        for (int n = 0; n < BLOCKS; n++) {
            struct streamer_place *place = &places[(n * 7) % BLOCKS];

            place->resident = true;
            place->packed = n % 4 != 0;
            place->disk = false;
            run(&m, places, n == BLOCKS - 1 ? 0 : m.largest * 2, n % 2 ? STAGING : 4 * STAGING);
        }
        noise_close(&m);
    }
}

/* A tensor that is not like its sample is found, and named. */
static void test_outgrown(void **state)
{
    struct streamer_place places[BLOCKS] = {0};
    struct shoal_error error = {0};
    struct noise_model m;
    struct rig rig;

    (void)state;
    noise_open(&m, 3, false);
    noise_pack(&m);
    spoil(&m, &m.tensors[11]);
    for (int resident = 0; resident < 2; resident++) {
        for (int n = 0; n < BLOCKS; n++)
            places[n] = (struct streamer_place){.packed = true, .resident = resident};
        rig_open(&rig, &m, new_device(), places, resident ? 0 : m.largest * 2, STAGING);
        assert_ok(rig_start(&rig, &error));
        assert_int_equal(walk_until_failure(&rig, &error), SHOAL_E_UNSUPPORTED);
        assert_non_null(strstr(error.text, "block 5"));
        assert_ptr_equal(streamer_outgrown(rig.streamer), &m.tensors[11]);
        rig_close(&rig);
    }
    noise_close(&m);
}

/* Destroyed in the middle of a walk, with reads and copies under way: nothing leaks or hangs. */
static void test_cancel_midway(void **state)
{
    struct noise_model m;
    struct streamer_place places[BLOCKS] = {0};

    (void)state;
    noise_open(&m, 9, false);
    noise_pack(&m);
    for (int i = 0; i < BLOCKS; i++)
        places[i] = (struct streamer_place){
            .disk = i % 3 == 1, .packed = i % 3 != 1, .resident = i % 6 == 2};
    for (int stop = 0; stop < BLOCKS; stop++) {
        struct shoal_error error = {0};
        struct rig rig;

        rig_open(&rig, &m, new_device(), places, m.largest * 3, 2 * STAGING);
        assert_ok(rig_start(&rig, &error));
        if (stop) rig_expect(&rig, BLOCKS);
        for (int i = 0; i < stop; i++)
            rig_expect(&rig, i);
        rig_close(&rig);
    }
    noise_close(&m);
}

static void test_failures_leave_nothing(void **state)
{
    struct shoal_error error = {0};
    struct streamer_place places[BLOCKS] = {0};
    struct noise_model m;
    struct rig rig;

    (void)state;
    noise_open(&m, 5, false);
    rig_open(&rig, &m, new_device(), places, m.largest * 2, STAGING);
    rig.setup.ring_bytes = m.largest * 3; /* more than the arena has */
    assert_int_equal(rig_start(&rig, &error), SHOAL_E_BUDGET);
    assert_null(rig.streamer);
    arena_clear_bottom(&rig.arena);
    rig.setup.ring_bytes = m.largest * 2;
    m.tensors[9].offset = m.file.bytes - 4; /* as if the file had been cut */
    assert_ok(rig_start(&rig, &error));
    assert_int_equal(walk_until_failure(&rig, &error), SHOAL_E_IO);
    assert_non_null(strstr(error.text, "block 4"));
    assert_int_equal(streamer_check(rig.streamer, &error), SHOAL_E_IO);
    rig_close(&rig);
    noise_close(&m);
}

/* A weight that is no number is found while reading, and named. */
static void test_nan_weight(void **state)
{
    static const struct {
        enum dtype dtype;
        uint32_t bits;
    } cases[] = {{DTYPE_F32, 0x7fc00000}, {DTYPE_F32, 0xff800000}, {DTYPE_BF16, 0x7fc0},
        {DTYPE_F16, 0x7e00}, {DTYPE_F16, 0xfc00}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t values[64] = {[40] = cases[i].bits};
        struct file file = {.path = (char *)(uintptr_t) "some.safetensors"};
        struct checkpoint_tensor tensor = {.name = "noise",
            .dtype = cases[i].dtype,
            .bytes = sizeof values,
            .stored_bytes = sizeof values,
            .file = &file};
        struct weight weight = {.dtype = cases[i].dtype,
            .rows = 1,
            .cols = 64,
            .bytes = sizeof values,
            .pieces = {&tensor},
            .piece_count = 1};
        struct block block = {
            .name = "layer 3", .weights = &weight, .weight_count = 1, .bytes = sizeof values};
        struct shoal_error error = {0};
        struct checksum sum;
        struct cargo cargo;

        assert_ok(cargo_init(&cargo, &block, NULL, NULL, &error));
        assert_int_equal(cargo_check(&cargo, &cargo.chunks[0], (const char *)values, &sum, &error),
            SHOAL_E_NUMERIC);
        assert_non_null(strstr(error.text, "noise"));
        assert_non_null(strstr(error.text, "layer 3"));
        values[40] = 0;
        assert_ok(cargo_check(&cargo, &cargo.chunks[0], (const char *)values, &sum, &error));
        cargo_fini(&cargo);
    }
}

static uint64_t checksum_of_tensor(const struct checkpoint_tensor *tensor)
{
    struct shoal_error error = {0};
    char *stored = malloc(tensor->stored_bytes);
    uint64_t sum;

    assert_ok(file_read_at(tensor->file, tensor->offset, stored, tensor->stored_bytes, &error));
    sum = checksum_of(stored, tensor->stored_bytes);
    free(stored);
    return sum;
}

/* A damaged payload is refused by its header; what else is wrong in it harms nobody but itself. */
static void test_damaged_payload(void **state)
{
    static const struct {
        uint64_t offset;
        size_t bytes;
        enum shoal_status status;
    } cases[] = {{0, 4, SHOAL_E_FORMAT}, {16, 8, SHOAL_E_FORMAT}, {64, 64, SHOAL_OK},
        {200, 4096, SHOAL_OK}, {200, 1, SHOAL_E_FORMAT}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct streamer_place places[BLOCKS] = {{.disk = true}};
        struct shoal_error error = {0};
        struct noise_model m;
        struct rig rig;

        noise_open(&m, 4, true);
        /* The last case is found by the checksum only. */
        m.tensors[11].has_checksum = i == sizeof cases / sizeof *cases - 1;
        m.tensors[11].checksum = checksum_of_tensor(&m.tensors[11]);
        damage(&m, m.tensors[11].offset + cases[i].offset, cases[i].bytes);
        m.file.modified_ns = modified_ns(&m);
        rig_open(&rig, &m, new_device(), places, m.largest * 2, 2 * STAGING);
        assert_ok(rig_start(&rig, &error));
        if (walk_until_failure(&rig, &error) != cases[i].status)
            fail_msg("case %zu: %s", i, error.text);
        rig_close(&rig);
        noise_close(&m);
    }
}

/* Writes to the model's file behind its back, and puts back the time of modification. */
static void change_quietly(const struct noise_model *m, uint64_t offset, const void *data, size_t n)
{
    struct timespec times[2];
    struct stat info;
    char path[64];
    int fd;

    snprintf(path, sizeof path, "/proc/self/fd/%d", m->file.fd);
    fd = open(path, O_WRONLY);
    assert_true(fd >= 0 && !fstat(fd, &info));
    times[0] = info.st_atim;
    times[1] = info.st_mtim;
    assert_int_equal(pwrite(fd, data, n, (off_t)offset), n);
    assert_int_equal(futimens(fd, times), 0);
    close(fd);
}

/* A payload's header that changes between two walks is found before the device trusts it. */
static void test_payload_changes(void **state)
{
    static const struct {
        uint64_t offset;
        uint8_t bytes[8];
        size_t count;
    } cases[] = {{0, {'x'}, 1}, {6, {0}, 1}, {6, {2}, 1}, {8, {1}, 8}, {16, {0, 0, 0, 0, 1}, 8}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct streamer_place places[BLOCKS];
        struct shoal_error error = {0};
        struct noise_model m;
        struct rig rig;

        for (int n = 0; n < BLOCKS; n++)
            places[n] = (struct streamer_place){.disk = true};
        noise_open(&m, 4, true);
        m.tensors[2 * BLOCKS - 1].name = "last";
        rig_open(&rig, &m, new_device(), places, m.largest, STAGING);
        assert_ok(rig_start(&rig, &error));
        rig_expect(&rig, BLOCKS);
        rig_walk(&rig);
        /* Reading ahead ends in the middle, where the largest block takes the whole ring. */
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        change_quietly(
            &m, m.tensors[2 * BLOCKS - 1].offset + cases[i].offset, cases[i].bytes, cases[i].count);
        assert_int_equal(walk_until_failure(&rig, &error), SHOAL_E_IO);
        assert_non_null(strstr(error.text, m.file.path));
        assert_non_null(strstr(error.text, "changed while it was in use"));
        assert_non_null(strstr(error.text, "tensor last"));
        rig_close(&rig);
        noise_close(&m);
    }
}

/* A header that lies across two chunks could not be looked at where the chunk is: it is refused
 * when it is first seen, so that none is passed over later. */
static void test_header_across_chunks(void **state)
{
    struct file file = {.path = (char *)(uintptr_t) "some.safetensors"};
    struct checkpoint_tensor tensors[] = {
        {.name = "plain", .dtype = DTYPE_BF16, .bytes = CARGO_CHUNK_BYTES - 4096, .file = &file},
        {.name = "askew",
            .dtype = DTYPE_BF16,
            .shape = {1, {1 << 16}},
            .bytes = 1 << 17,
            .packed = true,
            .offset = CARGO_CHUNK_BYTES - 32,
            .file = &file}};
    struct weight weights[2];
    struct block block = {.name = "layer 3", .weights = weights, .weight_count = 2};
    struct shoal_error error = {0};
    char *data = calloc(2, CARGO_CHUNK_BYTES);
    struct checksum sum;
    struct cargo cargo;

    (void)state;
    assert_non_null(data);
    for (int i = 0; i < 2; i++) {
        tensors[i].stored_bytes = tensors[i].bytes;
        weights[i] = (struct weight){.dtype = DTYPE_BF16,
            .rows = 1,
            .cols = 1,
            .bytes = tensors[i].bytes,
            .offset = i ? tensors[0].bytes : 0,
            .pieces = {&tensors[i]},
            .piece_count = 1};
    }
    assert_ok(cargo_init(&cargo, &block, NULL, NULL, &error));
    assert_int_equal(cargo.chunk_count, 2);
    assert_int_equal(cargo_check(&cargo, &cargo.chunks[0], data, &sum, &error), SHOAL_E_FORMAT);
    assert_non_null(strstr(error.text, "tensor askew"));
    assert_int_equal(cargo_check_again(&cargo, &cargo.chunks[0], data, &error), SHOAL_E_IO);
    cargo_fini(&cargo);
    free(data);
}

static bool cancel_once(void *user)
{
    int *calls = user;

    return !(*calls)++;
}

/* Who says once that it is to end need not say so again, even if the block has come meanwhile. */
static void test_cancel_said_once(void **state)
{
    struct streamer_place places[BLOCKS] = {0};
    struct noise_model m;
    int calls = 0;

    (void)state;
    noise_open(&m, 9, false);
    /* It is asked only if the drive is waited for. */
    for (int round = 0; round < 50 && !calls; round++) {
        struct shoal_error error = {0};
        enum shoal_status status;
        struct rig rig;

        rig_open(&rig, &m, new_device(), places, m.largest * 3, 2 * STAGING);
        rig.setup.cancelled = cancel_once;
        rig.setup.user = &calls;
        assert_ok(rig_start(&rig, &error));
        status = walk_until_failure(&rig, &error);
        assert_int_equal(status, calls ? SHOAL_E_CANCELLED : SHOAL_OK);
        rig_close(&rig);
    }
    assert_true(calls > 0);
    noise_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_next_copy_in_one_slot),
        cmocka_unit_test(test_packing),
        cmocka_unit_test(test_outgrown),
        cmocka_unit_test(test_cancel_midway),
        cmocka_unit_test(test_failures_leave_nothing),
        cmocka_unit_test(test_nan_weight),
        cmocka_unit_test(test_damaged_payload),
        cmocka_unit_test(test_payload_changes),
        cmocka_unit_test(test_header_across_chunks),
        cmocka_unit_test(test_cancel_said_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
