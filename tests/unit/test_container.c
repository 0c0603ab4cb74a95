/* The packed container as it is read: real types, checks of every mark, and damage found. */
#include "checkpoint_files.h"

#include "base/checksum.h"
#include "base/memory.h"
#include "checkpoint/container.h"
#include "checkpoint/safetensors.h"
#include "wire_support.h"

enum { ROWS = 96, COLS = 500, COUNT = ROWS * COLS };

static uint16_t values[COUNT];

static const struct checkpoint_tensor packed_tensor = {.name = "layers.0.\"w\"",
    .dtype = DTYPE_BF16,
    .shape = {.rank = 2, .dim = {ROWS, COLS}},
    .bytes = sizeof values};
static const struct checkpoint_tensor plain_tensor = {
    .name = "n", .dtype = DTYPE_F32, .shape = {.rank = 1, .dim = {3}}, .bytes = 12};

/* A file with a payload, some zeros after it, and a plain tensor. */
static const char *put_container(const char *name, uint64_t *payload_bytes)
{
    static const float plain[3] = {1, 2, 3};
    uint64_t bound = wire_bound(DTYPE_BF16, COUNT), bytes, length;
    uint8_t *payload = wire_room(bound), *file;
    struct container_entry entries[2] = {
        {.tensor = &packed_tensor, .packed = true}, {.tensor = &plain_tensor}};
    const char *path;
    char *header;

    wire_fill(DTYPE_BF16, values, 0, COUNT, FILL_GAUSSIAN);
    bytes = wire_encode(NULL, DTYPE_BF16, values, COUNT, payload);
    entries[0].stored_bytes = bytes;
    entries[0].bytes = bytes + 40;
    entries[0].checksum = checksum_of(payload, bytes);
    entries[1].offset = bytes + 40;
    entries[1].bytes = entries[1].stored_bytes = sizeof plain;
    entries[1].checksum = checksum_of(plain, sizeof plain);
    header = container_header(entries, 2, json_pack("{s:s}", "format", "pt"), true);
    assert_non_null(header);
    length = strlen(header);
    assert_true(length <= container_header_bound(entries, 2, json_pack("{s:s}", "format", "pt")));
    file = calloc(1, 8 + length + bytes + 40 + sizeof plain);
    assert_non_null(file);
    memcpy(file, &length, 8);
    memcpy(file + 8, header, length);
    memcpy(file + 8 + length, payload, bytes);
    memcpy(file + 8 + length + bytes + 40, plain, sizeof plain);
    path = put_bytes(name, file, 8 + length + bytes + 40 + sizeof plain);
    mem_free(header);
    free(payload);
    free(file);
    *payload_bytes = bytes;
    return path;
}

static void test_reads(void **state)
{
    static uint16_t got[COUNT];
    struct shoal_error error = {0};
    struct checkpoint *c = NULL;
    const struct checkpoint_tensor *w, *n;
    const char *key, *value;
    uint64_t bytes;
    float plain[3];

    (void)state;
    assert_ok(checkpoint_open(put_container("good.safetensors", &bytes), &c, &error));
    w = checkpoint_find(c, packed_tensor.name);
    n = checkpoint_find(c, "n");
    assert_non_null(w);
    assert_non_null(n);
    assert_true(w->packed && w->has_checksum && w->dtype == DTYPE_BF16);
    assert_true(shape_equal(&w->shape, &packed_tensor.shape));
    assert_int_equal(w->bytes, sizeof values);
    assert_int_equal(w->stored_bytes, bytes);
    assert_true(!n->packed && n->has_checksum && n->dtype == DTYPE_F32);
    assert_int_equal(n->stored_bytes, 12);
    assert_ok(checkpoint_read(w, got, &error));
    assert_memory_equal(got, values, sizeof values);
    assert_ok(checkpoint_read(n, plain, &error));
    assert_true(plain[2] == 3);
    /* The container's own keys are not among the others. */
    assert_int_equal(checkpoint_file_count(c), 1);
    assert_true(checkpoint_file_metadata(c, 0, 0, &key, &value));
    assert_string_equal(key, "format");
    assert_string_equal(value, "pt");
    assert_false(checkpoint_file_metadata(c, 0, 1, &key, &value));
    checkpoint_close(&c);
}

static void change_byte(const char *path, uint64_t offset)
{
    FILE *file = fopen(path, "r+b");
    int byte;

    assert_non_null(file);
    assert_int_equal(fseek(file, (long)offset, SEEK_SET), 0);
    byte = fgetc(file);
    assert_int_equal(fseek(file, (long)offset, SEEK_SET), 0);
    fputc(byte ^ 1, file);
    assert_int_equal(fclose(file), 0);
}

static void assert_damaged(const char *path, const char *name, const char *word)
{
    static uint16_t got[COUNT];
    struct shoal_error error = {0};
    struct checkpoint *c = NULL;

    assert_ok(checkpoint_open(path, &c, &error));
    assert_int_equal(checkpoint_read(checkpoint_find(c, name), got, &error), SHOAL_E_FORMAT);
    assert_non_null(strstr(error.text, word));
    assert_non_null(strstr(error.text, name));
    checkpoint_close(&c);
}

static void test_damage(void **state)
{
    struct shoal_error error = {0};
    uint64_t bytes, offset, plain_offset;
    struct checkpoint *c = NULL;
    const char *path = put_container("damaged.safetensors", &bytes);

    (void)state;
    assert_ok(checkpoint_open(path, &c, &error));
    offset = checkpoint_find(c, packed_tensor.name)->offset;
    plain_offset = checkpoint_find(c, "n")->offset;
    checkpoint_close(&c);
    change_byte(path, offset + bytes - 200);
    assert_damaged(path, packed_tensor.name, "checksum");
    change_byte(path, offset + bytes - 200);
    change_byte(path, plain_offset);
    assert_damaged(path, "n", "checksum");
    /* The zeros between them are nobody's. */
    change_byte(path, plain_offset);
    change_byte(path, offset + bytes + 1);
    assert_ok(checkpoint_open(path, &c, &error));
    assert_ok(checkpoint_read(checkpoint_find(c, packed_tensor.name), values, &error));
    checkpoint_close(&c);
}

/* A payload whose checksum is right, of something else than the header says. */
static void test_another_payload(void **state)
{
    uint64_t bound = wire_bound(DTYPE_F16, COUNT), bytes;
    uint8_t *payload = wire_room(bound), *file;
    char header[512], path[600];
    uint64_t length;

    (void)state;
    wire_fill(DTYPE_F16, values, 0, COUNT, FILL_GAUSSIAN);
    bytes = wire_encode(NULL, DTYPE_F16, values, COUNT, payload);
    snprintf(header, sizeof header,
        "{\"__metadata__\":{\"shoal.wire\":\"1\",\"shoal.wire.w\":\"F16 96,499 %llu %016llx\"},"
        "\"w\":{\"dtype\":\"U8\",\"shape\":[%llu],\"data_offsets\":[0,%llu]}}",
        (unsigned long long)bytes, (unsigned long long)checksum_of(payload, bytes),
        (unsigned long long)bytes, (unsigned long long)bytes);
    length = strlen(header);
    file = calloc(1, 8 + length + bytes);
    assert_non_null(file);
    memcpy(file, &length, 8);
    memcpy(file + 8, header, length);
    memcpy(file + 8 + length, payload, bytes);
    snprintf(path, sizeof path, "%s", put_bytes("other", file, 8 + length + bytes));
    assert_damaged(path, "w", "not what its header says");
    free(file);
    free(payload);
}

#define SUM "0123456789abcdef"
#define W(shape) "\"w\":{\"dtype\":\"U8\",\"shape\":" shape ",\"data_offsets\":[0,128]}"
#define MARKED(mark)                                                                               \
    "{\"__metadata__\":{\"shoal.wire\":\"1\",\"shoal.wire.w\":\"" mark "\"}," W("[128]") "}"

static void test_hostile_marks(void **state)
{
    static const struct {
        const char *header, *word;
        enum shoal_status status;
    } cases[] = {
        {"{\"__metadata__\":{\"shoal.wire\":\"2\"}," W("[128]") "}", "version '2'",
            SHOAL_E_UNSUPPORTED},
        {"{\"__metadata__\":{\"shoal.wire\":\"\"}," W("[128]") "}", "version ''",
            SHOAL_E_UNSUPPORTED},
        {"{\"__metadata__\":{\"shoal.wire\":\"1\"}," W("[128]") "}", "no 'shoal.wire' mark",
            SHOAL_E_FORMAT},
        {"{\"__metadata__\":{\"shoal.wire.w\":\"" SUM "\"}," W("[128]") "}", "there is no",
            SHOAL_E_FORMAT},
        {"{\"__metadata__\":{\"shoal.wire\":\"1\",\"shoal.wire.w\":\"" SUM
         "\",\"shoal.wire.v\":\"" SUM "\"}," W("[128]") "}",
            "'shoal.wire.v', but there is no tensor of that name", SHOAL_E_FORMAT},
        {"{\"__metadata__\":{\"shoal.wire\":\"1\",\"shoal.wire.w\":\"BF16 9 128 " SUM
         "\"}," W("[2,64]") "}",
            "stored as U8 [2, 64]", SHOAL_E_FORMAT},
        {MARKED(""), "malformed", SHOAL_E_FORMAT},
        {MARKED("0123456789abcde"), "malformed", SHOAL_E_FORMAT},
        {MARKED("0123456789abcdef0"), "malformed", SHOAL_E_FORMAT},
        {MARKED("0123456789ABCDEF"), "malformed", SHOAL_E_FORMAT},
        {MARKED("BF16"), "malformed", SHOAL_E_FORMAT},
        {MARKED("BF16 " SUM), "but was written as BF16", SHOAL_E_FORMAT},
        {MARKED("BF16 40 128"), "malformed", SHOAL_E_FORMAT},
        {MARKED("BF16  128 " SUM), "malformed", SHOAL_E_FORMAT},
        {MARKED("BF16 4,,9 128 " SUM), "malformed", SHOAL_E_FORMAT},
        {MARKED("BF16 40, 128 " SUM), "malformed", SHOAL_E_FORMAT},
        {MARKED("BF16 -40 128 " SUM), "malformed", SHOAL_E_FORMAT},
        {MARKED("BF16 40 128 " SUM " "), "malformed", SHOAL_E_FORMAT},
        {MARKED("BF16 40 128 " SUM "\\u001b[31m"), "malformed", SHOAL_E_FORMAT},
        {MARKED("BF16 1,1,1,1,1,1,1,1,1 128 " SUM), "malformed", SHOAL_E_FORMAT},
        {MARKED("BF16 99999999999999999999 128 " SUM), "malformed", SHOAL_E_FORMAT},
        {MARKED("BF16 9223372036854775808 128 " SUM), "malformed", SHOAL_E_FORMAT},
        {MARKED("LONGLONGLONGLONGTYPE 40 128 " SUM), "malformed", SHOAL_E_FORMAT},
        {MARKED("BF17 40 128 " SUM), "'BF17'", SHOAL_E_UNSUPPORTED},
        {MARKED("F32 40 128 " SUM), "'F32'", SHOAL_E_UNSUPPORTED},
        {MARKED("BF16 4294967296,4294967296,4 128 " SUM), "too big", SHOAL_E_FORMAT},
        {MARKED("BF16 9223372036854775807 128 " SUM), "too big", SHOAL_E_FORMAT},
        {MARKED("BF16 8589934593 128 " SUM), "too big", SHOAL_E_FORMAT},
        {MARKED("BF16 40 0 " SUM), "a payload of 0 bytes", SHOAL_E_FORMAT},
        {MARKED("BF16 40 32 " SUM), "a payload of 32 bytes", SHOAL_E_FORMAT},
        {MARKED("BF16 40 100 " SUM), "a payload of 100 bytes", SHOAL_E_FORMAT},
        {MARKED("BF16 40 192 " SUM), "a payload of 192 bytes in the 128", SHOAL_E_FORMAT},
        {MARKED("BF16 40 18446744073709551552 " SUM), "a payload of", SHOAL_E_FORMAT},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct shoal_error error = {0};
        struct checkpoint *c = NULL;

        if (checkpoint_open(put_safetensors("bad", cases[i].header, 128), &c, &error) !=
                cases[i].status ||
            !strstr(error.text, cases[i].word))
            fail_msg("%s: %s", cases[i].header, error.text);
        assert_null(c);
    }
}

/* Names that only look like the container's are left alone. */
static void test_other_metadata(void **state)
{
    struct shoal_error error = {0};
    struct checkpoint *c = NULL;

    (void)state;
    assert_ok(checkpoint_open(
        put_safetensors("plain",
            "{\"__metadata__\":{\"shoal.wired\":\"x\",\"shoal\":\"y\"}," W("[128]") "}", 128),
        &c, &error));
    assert_string_equal(checkpoint_metadata(c, "shoal.wired"), "x");
    assert_false(checkpoint_at(c, 0)->has_checksum);
    checkpoint_close(&c);
}

/* The format's limit of a header is far away from what real models need. */
static void test_many_tensors(void **state)
{
    enum { TENSORS = 10000, NAME = 100 };
    struct checkpoint_tensor *tensors = calloc(TENSORS, sizeof *tensors);
    struct container_entry *entries = calloc(TENSORS, sizeof *entries);
    char(*names)[NAME] = calloc(TENSORS, NAME), *header;
    struct shoal_error error = {0};
    struct safetensors parsed;
    size_t bound;

    (void)state;
    for (int i = 0; i < TENSORS; i++) {
        snprintf(names[i], NAME, "model.diffusion_model.double_blocks.%d.img_attn.qkv.weight", i);
        tensors[i] = (struct checkpoint_tensor){
            .name = names[i], .dtype = DTYPE_BF16, .shape = {.rank = 2, .dim = {1 << 14, 1 << 14}}};
        entries[i] = (struct container_entry){.tensor = &tensors[i],
            .packed = true,
            .offset = (uint64_t)i << 28,
            .bytes = 1u << 28,
            .stored_bytes = 1u << 28,
            .checksum = ~0ull};
    }
    bound = container_header_bound(entries, TENSORS, NULL);
    header = container_header(entries, TENSORS, NULL, true);
    assert_non_null(header);
    assert_true(strlen(header) <= bound && bound < SAFETENSORS_MAX_HEADER_BYTES / 20);
    assert_ok(safetensors_parse("many", header, strlen(header),
        8 + strlen(header) + ((uint64_t)TENSORS << 28), &parsed, &error));
    assert_int_equal(parsed.count, TENSORS);
    assert_int_equal(parsed.metadata_count, 0);
    assert_true(parsed.tensors[7].packed && parsed.tensors[7].shape.dim[1] == 1 << 14);
    safetensors_fini(&parsed);
    mem_free(header);
    free(names);
    free(entries);
    free(tensors);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_another_payload),
        cmocka_unit_test(test_hostile_marks),
        cmocka_unit_test(test_other_metadata),
        cmocka_unit_test(test_many_tensors),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
