/* src/media: pixels, and PNG files read back with libpng. */
#include "support.h"

#include "base/memory.h"
#include "media/pixels.h"
#include "media/png.h"

#include <locale.h>
#include <math.h>
#include <png.h>
#include <stdio.h>

/* Reads a PNG back from memory. */
struct source {
    const uint8_t *data;
    size_t bytes, at;
};

static void read_source(png_structp png, png_bytep to, size_t count)
{
    struct source *s = png_get_io_ptr(png);

    assert_true(count <= s->bytes - s->at);
    memcpy(to, s->data + s->at, count);
    s->at += count;
}

/* Compares pixels and text chunks, in order. */
static void check_png(const uint8_t *data, size_t bytes, const uint8_t *rgb, png_uint_32 width,
    png_uint_32 height, const struct png_entry *entries, int entry_count)
{
    struct source source = {data, bytes, 0};
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    uint8_t *row = mem_alloc((size_t)width * 3);
    png_textp texts = NULL;

    if (setjmp(png_jmpbuf(png))) fail_msg("libpng cannot read the file");
    png_set_read_fn(png, &source, read_source);
    png_read_info(png, info);
    assert_int_equal(png_get_image_width(png, info), width);
    assert_int_equal(png_get_image_height(png, info), height);
    assert_int_equal(png_get_bit_depth(png, info), 8);
    assert_int_equal(png_get_color_type(png, info), PNG_COLOR_TYPE_RGB);
    assert_false(png_get_valid(png, info, PNG_INFO_tIME));
    for (png_uint_32 y = 0; y < height; y++) {
        png_read_row(png, row, NULL);
        assert_memory_equal(row, rgb + (size_t)y * width * 3, (size_t)width * 3);
    }
    png_read_end(png, info);
    assert_int_equal(source.at, bytes);
    assert_int_equal(png_get_text(png, info, &texts, NULL), entry_count);
    for (int i = 0; i < entry_count; i++) {
        bool ascii = true;

        for (const char *c = entries[i].value; *c; c++)
            ascii = ascii && (unsigned char)*c < 0x80;
        assert_string_equal(texts[i].key, entries[i].key);
        assert_string_equal(texts[i].text, entries[i].value);
        assert_int_equal(
            texts[i].compression, ascii ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE);
    }
    png_destroy_read_struct(&png, &info, NULL);
    mem_free(row);
}

static void test_round_trip(void **state)
{
    static const int32_t sizes[][2] = {{1, 1}, {3, 2}, {128, 96}, {1, 500}, {517, 1}};
    static const struct png_entry entries[] = {
        {"parameters", "a red apple\nSteps: 8"},
        {"Software", "shoal 0.1.0"},
        {"Comment", "\xe8\x8b\xb9\xe6\x9e\x9c \xc3\xa9 \xf0\x9f\x8d\x8e"},
        {"Empty", ""},
    };
    struct shoal_error error = {0};
    uint64_t random = 1;

    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t count = (size_t)sizes[s][0] * (size_t)sizes[s][1] * 3, bytes, again_bytes;
        uint8_t *rgb = mem_alloc(count), *data = NULL, *again = NULL;

        for (size_t i = 0; i < count; i++)
            rgb[i] = (uint8_t)(i / 7 + (test_random(&random) & 3));
        for (int texts = 0; texts <= 4; texts += 4) {
            assert_ok(png_encode(
                rgb, sizes[s][0], sizes[s][1], entries, (size_t)texts, &data, &bytes, &error));
            assert_ok(png_encode(rgb, sizes[s][0], sizes[s][1], entries, (size_t)texts, &again,
                &again_bytes, &error));
            assert_int_equal(bytes, again_bytes);
            assert_memory_equal(data, again, bytes);
            check_png(data, bytes, rgb, (png_uint_32)sizes[s][0], (png_uint_32)sizes[s][1], entries,
                texts);
            mem_free(data);
            mem_free(again);
        }
        mem_free(rgb);
    }
}

static void test_refusals(void **state)
{
    static const uint8_t rgb[3] = {0};
    static const char *const keys[] = {"", "\xc3\xa9",
        "a key that is longer than the seventy-nine bytes that a PNG file allows for a key"};
    struct shoal_error error = {0};
    uint8_t *data = NULL;
    size_t bytes;

    (void)state;
    assert_int_equal(png_encode(rgb, 0, 1, NULL, 0, &data, &bytes, &error), SHOAL_E_INVALID);
    assert_int_equal(png_encode(rgb, 1, -1, NULL, 0, &data, &bytes, &error), SHOAL_E_INVALID);
    assert_int_equal(
        png_encode(rgb, INT32_MAX, INT32_MAX, NULL, 0, &data, &bytes, &error), SHOAL_E_INVALID);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const struct png_entry entry = {keys[i], "value"};

        assert_int_equal(png_encode(rgb, 1, 1, &entry, 1, &data, &bytes, &error), SHOAL_E_INVALID);
    }
    assert_null(data);
}

/* A PNG of one row of four pixels, as libpng writes that kind. */
static size_t write_kind(uint8_t *to, size_t room, int type, int depth, const uint8_t *row)
{
    static const png_color palette[] = {{1, 2, 3}, {250, 0, 7}};
    FILE *file = fmemopen(to, room, "wb");
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    long bytes;

    assert_non_null(file);
    if (setjmp(png_jmpbuf(png))) fail_msg("libpng cannot write the file");
    png_init_io(png, file);
    png_set_IHDR(png, info, 4, 1, depth, type, PNG_INTERLACE_ADAM7, PNG_COMPRESSION_TYPE_DEFAULT,
        PNG_FILTER_TYPE_DEFAULT);
    if (type == PNG_COLOR_TYPE_PALETTE) png_set_PLTE(png, info, palette, 2);
    png_write_info(png, info);
    for (int pass = png_set_interlace_handling(png); pass > 0; pass--)
        png_write_row(png, row);
    png_write_end(png, NULL);
    png_destroy_write_struct(&png, &info);
    bytes = ftell(file);
    fclose(file);
    return (size_t)bytes;
}

/* Every kind of pixel becomes three bytes. */
static void test_reading(void **state)
{
    static const struct {
        int type, depth;
        uint8_t row[32], expected[12];
    } kinds[] = {
        {PNG_COLOR_TYPE_RGB, 8, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
            {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}},
        {PNG_COLOR_TYPE_RGBA, 8, {1, 2, 3, 0, 4, 5, 6, 9, 7, 8, 9, 255, 10, 11, 12, 1},
            {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}},
        {PNG_COLOR_TYPE_GRAY, 8, {0, 9, 128, 255},
            {0, 0, 0, 9, 9, 9, 128, 128, 128, 255, 255, 255}},
        {PNG_COLOR_TYPE_GRAY, 1, {0x50}, {0, 0, 0, 255, 255, 255, 0, 0, 0, 255, 255, 255}},
        {PNG_COLOR_TYPE_GRAY, 16, {0, 0, 0x80, 0x80, 0x7f, 0x7f, 0xff, 0xff},
            {0, 0, 0, 128, 128, 128, 127, 127, 127, 255, 255, 255}},
        {PNG_COLOR_TYPE_PALETTE, 1, {0x50}, {1, 2, 3, 250, 0, 7, 1, 2, 3, 250, 0, 7}},
    };
    static uint8_t data[4096];
    struct shoal_error error = {0};
    uint8_t rgb[12];
    int32_t width, height;

    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t bytes = write_kind(data, sizeof data, kinds[i].type, kinds[i].depth, kinds[i].row);

        assert_ok(png_decode("x.png", data, bytes, NULL, &width, &height, &error));
        assert_int_equal(width, 4);
        assert_int_equal(height, 1);
        assert_ok(png_decode("x.png", data, bytes, rgb, &width, &height, &error));
        assert_memory_equal(rgb, kinds[i].expected, sizeof rgb);
        for (size_t cut = 0; cut < bytes; cut++) {
            assert_int_equal(
                png_decode("x.png", data, cut, rgb, &width, &height, &error), SHOAL_E_FORMAT);
            assert_non_null(strstr(error.text, "x.png"));
        }
        for (size_t at = 0; at < bytes; at++) { /* no byte of it is trusted */
            data[at] ^= 0x41;
            if (png_decode("x.png", data, bytes, NULL, &width, &height, &error) == SHOAL_OK &&
                width == 4 && height == 1) {
                enum shoal_status ignored =
                    png_decode("x.png", data, bytes, rgb, &width, &height, &error);
                (void)ignored;
            }
            data[at] ^= 0x41;
        }
    }
}

static void test_parameters(void **state)
{
    struct png_settings settings = {.prompt = "a red apple",
        .negative_prompt = "green",
        .sampler = "euler",
        .model = "shoal-mini",
        .steps = 8,
        .width = 128,
        .height = 96,
        .cfg = 3,
        .shift = 1.15f,
        .seed = UINT64_MAX};
    struct shoal_error error = {0};
    char *text = NULL;

    (void)state;
    assert_ok(png_parameters(&settings, &text, &error));
    assert_string_equal(text,
        "a red apple\nNegative prompt: green\nSteps: 8, Sampler: euler, CFG scale: 3, "
        "Seed: 18446744073709551615, Size: 128x96, Model: shoal-mini, Shift: 1.15");
    mem_free(text);
    settings.schedule = "karras";
    settings.strength = 0.6f;
    assert_ok(png_parameters(&settings, &text, &error));
    assert_non_null(strstr(text, "Sampler: euler, Schedule type: karras, CFG scale: 3,"));
    assert_non_null(strstr(text, "Shift: 1.15, Denoising strength: 0.6"));
    mem_free(text);
    settings.schedule = NULL;
    settings.strength = 0;
    settings.negative_prompt = NULL;
    settings.model = "a \"b\": c\\d\n,\x01";
    settings.cfg = 0.5f;
    setlocale(LC_ALL, "de_DE.UTF-8"); /* if it is there: a comma for a point */
    assert_ok(png_parameters(&settings, &text, &error));
    setlocale(LC_ALL, "C");
    assert_string_equal(text,
        "a red apple\nSteps: 8, Sampler: euler, CFG scale: 0.5, Seed: 18446744073709551615, "
        "Size: 128x96, Model: \"a \\\"b\\\": c\\\\d\\n,\\u0001\", Shift: 1.15");
    mem_free(text);
}

static void test_pixels(void **state)
{
    /* value * 255 lies half way at (2 k + 1) / 510: goes to the even neighbour. */
    static const float planes[] = {-1, 1, 0, 0.5f, /* red */
        -2, 3, -INFINITY, INFINITY,                /* green */
        1.0f / 255, -1.0f / 255, 0.25f, (float)NAN /* blue */};
    static const uint8_t expected[] = {0, 0, 128, 255, 255, 127, 128, 0, 159, 191, 255, 0};
    struct shoal_error error = {0};
    uint8_t rgb[12];

    (void)state;
    pixels_from_planes(rgb, planes, 2, 2);
    assert_memory_equal(rgb, expected, sizeof rgb);
    assert_ok(pixels_check(planes, 1, 2, 2, "the picture", &error));
    /* Two infinities and a NaN. */
    assert_int_equal(pixels_check(planes, 3, 2, 2, "the picture", &error), SHOAL_E_NUMERIC);
    assert_non_null(strstr(error.text, "the picture has 3 "));
    assert_non_null(strstr(error.text, "channel 1, row 1, column 0"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_reading),
        cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_pixels),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
