/* One safetensors file: what is read, and what is refused with which words. */
#include "checkpoint_files.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"

#include <jansson.h>

/* ---- what is read ---- */

static const char two[] = "{\"__metadata__\":{\"format\":\"pt\",\"about\":\"a test\"},"
                          "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                          "\"a\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}}   ";

static void test_reads(void **state)
{
    const char *path = put_safetensors("two.safetensors", two, 32);
    const struct checkpoint_tensor *a, *b;
    struct checkpoint *checkpoint = NULL;
    struct shoal_error error = {0};
    unsigned char data[24];

    (void)state;
    assert_ok(checkpoint_open(path, &checkpoint, &error));
    assert_string_equal(checkpoint_path(checkpoint), path);
    assert_int_equal(checkpoint_count(checkpoint), 2);
    a = checkpoint_at(checkpoint, 0);
    b = checkpoint_at(checkpoint, 1);
    assert_string_equal(a->name, "a");
    assert_string_equal(b->name, "b");
    assert_ptr_equal(checkpoint_find(checkpoint, "a"), a);
    assert_ptr_equal(checkpoint_find(checkpoint, "b"), b);
    assert_null(checkpoint_find(checkpoint, "c"));
    assert_null(checkpoint_find(checkpoint, ""));
    assert_null(checkpoint_find(checkpoint, "__metadata__"));
    assert_int_equal(a->dtype, DTYPE_BF16);
    assert_int_equal(a->shape.rank, 1);
    assert_int_equal(a->shape.dim[0], 4);
    assert_int_equal(a->bytes, 8);
    assert_int_equal(a->offset, 8 + strlen(two) + 24);
    assert_int_equal(b->dtype, DTYPE_F32);
    assert_int_equal(b->shape.rank, 2);
    assert_int_equal(b->shape.dim[1], 3);
    assert_string_equal(a->file->path, path);
    assert_string_equal(checkpoint_metadata(checkpoint, "format"), "pt");
    assert_string_equal(checkpoint_metadata(checkpoint, "about"), "a test");
    assert_null(checkpoint_metadata(checkpoint, "none"));

    assert_ok(checkpoint_read(b, data, &error));
    for (int i = 0; i < 24; i++)
        assert_int_equal(data[i], i);
    assert_ok(checkpoint_read(a, data, &error));
    for (int i = 0; i < 8; i++)
        assert_int_equal(data[i], 24 + i);
    checkpoint_close(&checkpoint);
    assert_null(checkpoint);
    checkpoint_close(&checkpoint);
}

/* The file may shrink after it was opened: that is an error of the read, which says so. */
static void test_read_of_shrunken_file(void **state)
{
    const char *path = put_safetensors("shrinks.safetensors", two, 32);
    struct checkpoint *checkpoint = NULL;
    struct shoal_error error = {0};
    char data[24];

    (void)state;
    assert_ok(checkpoint_open(path, &checkpoint, &error));
    assert_int_equal(truncate(path, (off_t)(8 + strlen(two) + 10)), 0);
    assert_int_equal(checkpoint_read(checkpoint_find(checkpoint, "b"), data, &error), SHOAL_E_IO);
    assert_non_null(strstr(error.text, "tensor 'b'"));
    assert_non_null(strstr(error.text, "shrinks.safetensors"));
    checkpoint_close(&checkpoint);
}

static void test_accepts(void **state)
{
    static const struct {
        const char *header;
        size_t data_bytes, count;
    } cases[] = {
        {"{}", 0, 0},
        {" \n{} ", 0, 0},
        {"{\"__metadata__\":{}}", 0, 0},
        {"{\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, 1},
        {"{\"e\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[0,0]}}", 0, 1},
        /* Empty tensors on the border of others; the order in the header is free. */
        {"{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]},"
         "\"e\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[1,1]},"
         "\"a\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
            3, 3},
        {"{\"q\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[0,3]}}", 3, 1},
        {"{\"q\":{\"dtype\":\"F6_E3M2\",\"shape\":[4],\"data_offsets\":[0,3]}}", 3, 1},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,2],\"data_offsets\":[0,2],"
         "\"later\":[1,{}]}}",
            2, 1},
        {"{\"\u00e4\u4e2d\":{\"dtype\":\"BOOL\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path =
            put_safetensors("fine.safetensors", cases[i].header, cases[i].data_bytes);
        struct checkpoint *checkpoint = NULL;
        struct shoal_error error = {0};

        assert_ok(checkpoint_open(path, &checkpoint, &error));
        assert_int_equal(checkpoint_count(checkpoint), cases[i].count);
        checkpoint_close(&checkpoint);
    }
}

/* Every type that the format names, by name. */
static void test_every_dtype(void **state)
{
    (void)state;
    for (int i = 0; i < DTYPE_PLAIN_COUNT; i++) {
        enum dtype dtype = (enum dtype)i;
        size_t bytes = (size_t)dtype_bytes(dtype, 4);
        struct checkpoint *checkpoint = NULL;
        struct shoal_error error = {0};
        char header[200];

        snprintf(header, sizeof header,
            "{\"t\":{\"dtype\":\"%s\",\"shape\":[4],\"data_offsets\":[0,%zu]}}", dtype_name(dtype),
            bytes);
        assert_ok(checkpoint_open(
            put_safetensors("dtype.safetensors", header, bytes), &checkpoint, &error));
        assert_int_equal(checkpoint_at(checkpoint, 0)->dtype, dtype);
        checkpoint_close(&checkpoint);
    }
}

/* ---- what is refused ---- */

struct refusal {
    const char *header;
    size_t data_bytes;
    enum shoal_status status;
    const char *words[2]; /* in the message */
};

#define ENTRY(dtype, shape, offsets)                                                               \
    "{\"t.w\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define TENSOR(name, shape, offsets)                                                               \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define F SHOAL_E_FORMAT
#define U SHOAL_E_UNSUPPORTED

static const struct refusal refusals[] = {
    {"", 0, F, {"header", "JSON"}},
    {"{", 0, F, {"not valid JSON", NULL}},
    {"{} {}", 0, F, {"not valid JSON", NULL}},
    {"[]", 0, F, {"not a JSON object", NULL}},
    {"7", 0, F, {"JSON", NULL}},
    {"{\"\xff\":{}}", 0, F, {"not UTF-8", NULL}},
    {"{\"a\":{},\"a\":{}}", 0, F, {"duplicate", "\"a\""}},
    {"{\"a\\u0000b\":{}}", 0, F, {"JSON", NULL}},
    {"{\"a\x1b\":{}}", 0, F, {"JSON", NULL}},
    {"{\"a\\u001b[2J\":{}}", 0, F, {"control characters", "a?[2J"}},
    {"{\"__metadata__\":7}", 0, F, {"__metadata__", "object"}},
    {"{\"__metadata__\":{\"k\":7}}", 0, F, {"__metadata__", "'k' is not a string"}},
    {"{\"__metadata__\":{\"k\":{\"l\":\"m\"}}}", 0, F, {"__metadata__", "'k' is not a string"}},
    {"{\"t.w\":7}", 0, F, {"'t.w'", "object"}},
    {"{\"t.w\":{}}", 0, F, {"'t.w'", "dtype"}},
    {ENTRY("32", "[2]", "[0,8]"), 8, F, {"'t.w'", "dtype"}},
    {ENTRY("\"F12\"", "[2]", "[0,8]"), 8, U, {"'t.w' has the unknown dtype 'F12'", "BF16, F64"}},
    {ENTRY("\"bf16\"", "[2]", "[0,4]"), 4, U, {"'t.w'", "known are F32"}},
    {ENTRY("\"F32\"", "{}", "[0,8]"), 8, F, {"'t.w'", "shape"}},
    {ENTRY("\"F32\"", "[-2]", "[0,8]"), 8, F, {"'t.w'", "negative dimension -2"}},
    {ENTRY("\"F32\"", "[-1,-2]", "[0,8]"), 8, F, {"'t.w'", "negative"}},
    {ENTRY("\"F32\"", "[2.0]", "[0,8]"), 8, F, {"'t.w'", "not an integer"}},
    {ENTRY("\"F32\"", "[\"2\"]", "[0,8]"), 8, F, {"'t.w'", "not an integer"}},
    {ENTRY("\"F32\"", "[4294967296,4294967296]", "[0,8]"), 8, F, {"'t.w'", "overflow"}},
    /* Would be 2 if it wrapped. */
    {ENTRY("\"U8\"", "[4611686018427387905,4,2]", "[0,8]"), 8, F, {"'t.w'", "overflow"}},
    {ENTRY("\"F32\"", "[4611686018427387904]", "[0,8]"), 8, F, {"'t.w'", "too big"}},
    {ENTRY("\"F32\"", "[99999999999999999999]", "[0,8]"), 8, F, {"too big integer", "99999"}},
    {ENTRY("\"F32\"", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), 8, U, {"'t.w'", "9 dimensions"}},
    {ENTRY("\"F4\"", "[3]", "[0,2]"), 2, F, {"'t.w'", "whole number of bytes"}},
    {ENTRY("\"F32\"", "[2]", "{}"), 8, F, {"'t.w'", "data_offsets"}},
    {ENTRY("\"F32\"", "[2]", "[0]"), 8, F, {"'t.w'", "data_offsets"}},
    {ENTRY("\"F32\"", "[2]", "[0,8,8]"), 8, F, {"'t.w'", "data_offsets"}},
    {ENTRY("\"F32\"", "[2]", "[0,8.0]"), 8, F, {"'t.w'", "data_offsets"}},
    {ENTRY("\"F32\"", "[2]", "[-8,0]"), 8, F, {"'t.w'", "data_offsets"}},
    {ENTRY("\"F32\"", "[2]", "[8,0]"), 8, F, {"'t.w'", "begin at 8"}},
    {ENTRY("\"F32\"", "[3]", "[0,8]"), 8, F, {"'t.w'", "needs 12 bytes"}},
    {ENTRY("\"BF16\"", "[2]", "[0,8]"), 8, F, {"[2] and dtype BF16", "span 8"}},
    {ENTRY("\"U8\"", "[8]", "[9223372036854775799,9223372036854775807]"), 8, F, {"'t.w'", "hole"}},
    {ENTRY("\"U8\"", "[2305843009213693951]", "[0,2305843009213693951]"), 8, F,
        {"'t.w'", "2305843009213693943 bytes are missing"}},
    {"{" TENSOR("a", "[2]", "[0,8]") "," TENSOR("b", "[2]", "[4,12]") "}", 12, F,
        {"'b' overlaps 'a'", NULL}},
    {"{" TENSOR("a", "[2]", "[0,8]") "," TENSOR("b", "[2]", "[0,8]") "}", 8, F, {"overlaps", NULL}},
    {"{" TENSOR("a", "[2]", "[0,8]") "," TENSOR("e", "[0]", "[4,4]") "}", 8, F, {"overlaps", NULL}},
    {"{" TENSOR("a", "[2]", "[0,8]") "," TENSOR("b", "[2]", "[16,24]") "}", 24, F,
        {"hole of 8 bytes", "'b'"}},
    {"{" TENSOR("a", "[2]", "[4,12]") "}", 12, F, {"hole of 4 bytes", "'a'"}},
    {"{" TENSOR("a", "[2]", "[0,8]") "}", 9, F, {"1 trailing bytes", NULL}},
    {"{}", 1, F, {"1 trailing bytes", NULL}},
    {"{" TENSOR("a", "[2]", "[0,8]") "," TENSOR("b", "[2]", "[8,16]") "}", 13, F,
        {"truncated: 3 bytes are missing", "'b'"}},
    {"{" TENSOR("a", "[2]", "[0,8]") "," TENSOR("b", "[2]", "[8,16]") "}", 7, F,
        {"truncated: 9 bytes are missing", "'a'"}},
};

static void refuse(const char *path, enum shoal_status status, const char *const words[2])
{
    struct checkpoint *checkpoint = (struct checkpoint *)1;
    struct shoal_error error = {0};

    if (checkpoint_open(path, &checkpoint, &error) != status)
        fail_msg("%s %s: got %d (%s)", path, words[0], (int)error.status, error.text);
    assert_null(checkpoint);
    assert_int_equal(error.status, status);
    assert_non_null(strstr(error.text, strrchr(path, '/') + 1));
    for (int i = 0; i < 2 && words[i]; i++)
        if (!strstr(error.text, words[i])) fail_msg("no \"%s\" in: %s", words[i], error.text);
    for (const char *c = error.text; *c; c++)
        assert_true((unsigned char)*c >= 0x20);
    /* A caller that does not want the text. */
    assert_int_equal(checkpoint_open(path, &checkpoint, NULL), status);
}

static void test_refuses(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refusal *r = &refusals[i];

        refuse(put_safetensors("bad.safetensors", r->header, r->data_bytes), r->status, r->words);
    }
}

static void test_refuses_bad_lengths(void **state)
{
    static const char good[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";

    (void)state;
    refuse(put_text("empty.safetensors", ""), F, (const char *[2]){"empty", NULL});
    refuse(put_text("short.safetensors", "1234567"), F, (const char *[2]){"too short", "7 bytes"});
    refuse(put_claiming("long.safetensors", sizeof good - 1 + 9, good, 8), F,
        (const char *[2]){"truncated", "beyond the file's end by 1"});
    refuse(put_claiming("huge.safetensors", 100000001, good, 8), F,
        (const char *[2]){"100000001 bytes", "limit of 100000000"});
    refuse(put_claiming("max.safetensors", UINT64_MAX, good, 8), F,
        (const char *[2]){"18446744073709551615 bytes", "limit"});
    refuse(put_claiming("limit.safetensors", 100000000, good, 8), F,
        (const char *[2]){"truncated", "header"});
}

/* What people give by mistake gets told apart. */
static void test_refuses_other_formats(void **state)
{
    (void)state;
    refuse(put_text("a.pt", "PK\3\4xxxxxxxxxxxx"), U, (const char *[2]){"zip", "convert"});
    refuse(put_text("p.safetensors", "version https://git-lfs.github.com/spec/v1\n"), U,
        (const char *[2]){"Git LFS pointer", "git lfs pull"});
    refuse(put_text("h.safetensors", "<!DOCTYPE html>"), U, (const char *[2]){"web page", NULL});
    refuse(put_text("s.safetensors", "<html"), U, (const char *[2]){"web page", NULL});
}

/* Deeper than the JSON parser goes, and than a stack would. */
static void test_refuses_deep_json(void **state)
{
    size_t count = 1000000;
    char *text = malloc(count + 1);

    (void)state;
    assert_non_null(text);
    memset(text, '[', count);
    text[count] = 0;
    memcpy(text, "{\"a\":", 5);
    refuse(put_safetensors("deep.safetensors", text, 0), F, (const char *[2]){"JSON", "depth"});
    free(text);
}

/* A name of any length leaves room for the words around it. */
static void test_refuses_long_name(void **state)
{
    struct text header = {0};
    char name[5001];

    (void)state;
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = 0;
    text_append(
        &header, "{\"%s\":{\"dtype\":\"%s\",\"shape\":[],\"data_offsets\":[0,0]}}", name, name);
    refuse(put_safetensors("name.safetensors", header.data, 0), U,
        (const char *[2]){"xxx...'", "known are F32"});
    mem_free(header.data);
}

static void test_refuses_what_is_no_file(void **state)
{
    uid_t user = geteuid();
    const char *path;

    (void)state;
    refuse(at("none.safetensors"), SHOAL_E_IO, (const char *[2]){"cannot open", "No such file"});
    path = at("fifo.safetensors");
    assert_int_equal(mkfifo(path, 0600), 0);
    refuse(path, SHOAL_E_IO, (const char *[2]){"a FIFO", NULL}); /* and does not hang */
    refuse("/dev/null", SHOAL_E_IO, (const char *[2]){"special file", NULL});

    path = put_safetensors("secret.safetensors", two, 32);
    assert_int_equal(chmod(path, 0), 0);
    if (!user) assert_int_equal(seteuid(65534), 0);
    refuse(path, SHOAL_E_IO, (const char *[2]){"cannot open", "Permission denied"});
    assert_int_equal(seteuid(user), 0);
}

/* ---- memory ---- */

static long json_allocations_left;

static void *json_alloc(size_t bytes)
{
    return json_allocations_left-- > 0 ? malloc(bytes) : NULL;
}

/*
 * Whichever allocation of the JSON parser fails, the file is refused and nothing leaks. Where a
 * string could not be stored the parser says that it is malformed, and so do we.
 */
static void test_json_runs_out_of_memory(void **state)
{
    const char *path = put_safetensors("two.safetensors", two, 32);
    enum shoal_status status = SHOAL_E_MEMORY;
    long allocations = 0, out_of_memory = 0;
    struct checkpoint *checkpoint = NULL;

    (void)state;
    json_set_alloc_funcs(json_alloc, free);
    for (; status == SHOAL_E_MEMORY || status == SHOAL_E_FORMAT; allocations++) {
        json_allocations_left = allocations;
        status = checkpoint_open(path, &checkpoint, NULL);
        out_of_memory += status == SHOAL_E_MEMORY;
    }
    json_set_alloc_funcs(malloc, free);
    assert_int_equal(status, SHOAL_OK);
    assert_true(allocations > 20 && out_of_memory > allocations / 2);
    checkpoint_close(&checkpoint);
}

/* ---- size ---- */

/* 40 GB of data, none of which is touched: a sparse file opens at once. */
static void test_opens_40_gb_at_once(void **state)
{
    uint64_t bytes = 40000000000u, start;
    struct checkpoint *checkpoint = NULL;
    struct shoal_error error = {0};
    const char *path;
    char header[200], data[2];

    (void)state;
    snprintf(header, sizeof header,
        "{\"big\":{\"dtype\":\"BF16\",\"shape\":[%llu],\"data_offsets\":[0,%llu]},"
        "\"last\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[%llu,%llu]}}",
        (unsigned long long)(bytes / 2 - 1), (unsigned long long)(bytes - 2),
        (unsigned long long)(bytes - 2), (unsigned long long)bytes);
    path = put_safetensors("big.safetensors", header, 0);
    if (truncate(path, (off_t)(8 + strlen(header) + bytes))) skip(); /* no sparse files here */
    start = clock_ns();
    assert_ok(checkpoint_open(path, &checkpoint, &error));
    assert_true(clock_ns() - start < 1000000000u);
    assert_ok(checkpoint_read(checkpoint_find(checkpoint, "last"), data, &error));
    checkpoint_close(&checkpoint);
    assert_int_equal(unlink(path), 0);
}

static void test_opens_10000_tensors(void **state)
{
    struct checkpoint *checkpoint = NULL;
    struct shoal_error error = {0};
    struct text header = {0};
    const char *path;

    (void)state;
    for (int i = 0; i < 10000; i++)
        text_append(&header,
            "%s\"model.layers.%d.attention.weight\":"
            "{\"dtype\":\"U8\",\"shape\":[4,1],\"data_offsets\":[%d,%d]}",
            i ? "," : "{", i * 7 % 10000, 4 * i, 4 * i + 4);
    text_append(&header, "}");
    path = put_safetensors("many.safetensors", header.data, 40000);
    assert_ok(checkpoint_open(path, &checkpoint, &error));
    assert_int_equal(checkpoint_count(checkpoint), 10000);
    for (size_t i = 1; i < 10000; i++)
        assert_true(
            strcmp(checkpoint_at(checkpoint, i - 1)->name, checkpoint_at(checkpoint, i)->name) < 0);
    for (int i = 0; i < 10000; i++) {
        const struct checkpoint_tensor *tensor;
        char name[64];

        snprintf(name, sizeof name, "model.layers.%d.attention.weight", i * 7 % 10000);
        tensor = checkpoint_find(checkpoint, name);
        assert_non_null(tensor);
        assert_int_equal(tensor->offset, 8 + header.length + 4 * (uint64_t)i);
    }
    checkpoint_close(&checkpoint);
    mem_free(header.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_read_of_shrunken_file),
        cmocka_unit_test(test_accepts),
        cmocka_unit_test(test_every_dtype),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_refuses_bad_lengths),
        cmocka_unit_test(test_refuses_other_formats),
        cmocka_unit_test(test_refuses_deep_json),
        cmocka_unit_test(test_refuses_long_name),
        cmocka_unit_test(test_refuses_what_is_no_file),
        cmocka_unit_test(test_json_runs_out_of_memory),
        cmocka_unit_test(test_opens_40_gb_at_once),
        cmocka_unit_test(test_opens_10000_tensors),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
