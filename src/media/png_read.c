/* Reading PNG files from memory over libpng, whose errors are long jumps: they are caught here. */
#include "media/png.h"

#include "base/memory.h"

#include <png.h>
#include <setjmp.h>
#include <string.h>

#define MOST_PIXELS 16384 /* a side */

/* What survives a long jump. */
struct reader {
    png_structp png;
    png_infop info;
    const uint8_t *data;
    size_t bytes, at;
    bool memory; /* an allocation failed */
    char message[200];
};

static void *reader_take(png_structp png, png_alloc_size_t bytes)
{
    struct reader *r = png_get_mem_ptr(png);
    void *block = mem_alloc(bytes);

    if (!block) r->memory = true;
    return block;
}

static void reader_give(png_structp png, void *block)
{
    (void)png;
    mem_free(block);
}

static void reader_failed(png_structp png, png_const_charp message)
{
    struct reader *r = png_get_error_ptr(png);

    strncpy(r->message, message, sizeof r->message - 1);
    png_longjmp(png, 1);
}

static void reader_warned(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

static void reader_copy(png_structp png, png_bytep to, size_t count)
{
    struct reader *r = png_get_io_ptr(png);

    if (count > r->bytes - r->at) png_error(png, "the file ends too early");
    memcpy(to, r->data + r->at, count);
    r->at += count;
}

/* False after a long jump, as all of these; none holds local state that a jump could spoil. */
static bool read_header(struct reader *r)
{
    if (setjmp(png_jmpbuf(r->png))) return false;
    png_set_read_fn(r->png, r, reader_copy);
    png_set_user_limits(r->png, MOST_PIXELS, MOST_PIXELS);
    png_read_info(r->png, r->info);
    return true;
}

/* Whatever it holds becomes 8 bits of red, green and blue. */
static bool read_pixels(struct reader *r, uint8_t *rgb)
{
    if (setjmp(png_jmpbuf(r->png))) return false;
    png_set_expand(r->png);
    png_set_scale_16(r->png);
    png_set_gray_to_rgb(r->png);
    png_set_strip_alpha(r->png);
    for (int passes = png_set_interlace_handling(r->png), pass = 0; pass < passes; pass++) {
        if (!pass) png_read_update_info(r->png, r->info);
        if (png_get_rowbytes(r->png, r->info) != 3 * (size_t)png_get_image_width(r->png, r->info))
            png_error(r->png, "its pixels are of an unknown kind");
        for (png_uint_32 y = 0; y < png_get_image_height(r->png, r->info); y++)
            png_read_row(r->png, rgb + (size_t)y * 3 * png_get_image_width(r->png, r->info), NULL);
    }
    png_read_end(r->png, NULL);
    return true;
}

static enum shoal_status failure(
    const struct reader *r, const char *name, struct shoal_error *error)
{
    if (r->memory) FAIL_MEMORY(error);
    FAIL(error, SHOAL_E_FORMAT, "%s: cannot be read as a PNG: %s", name, r->message);
}

enum shoal_status png_decode(const char *name, const uint8_t *data, size_t bytes, uint8_t *rgb,
    int32_t *width, int32_t *height, struct shoal_error *error)
{
    struct reader r = {.data = data, .bytes = bytes};
    enum shoal_status status = SHOAL_OK;

    if (bytes < 8 || png_sig_cmp(data, 0, 8))
        FAIL(error, SHOAL_E_FORMAT, "%s: is no PNG file", name);
    r.png = png_create_read_struct_2(
        PNG_LIBPNG_VER_STRING, &r, reader_failed, reader_warned, &r, reader_take, reader_give);
    r.info = r.png ? png_create_info_struct(r.png) : NULL;
    if (!r.info) {
        status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
    } else if (!read_header(&r) || (rgb && !read_pixels(&r, rgb))) {
        status = failure(&r, name, error);
    } else {
        *width = (int32_t)png_get_image_width(r.png, r.info);
        *height = (int32_t)png_get_image_height(r.png, r.info);
    }
    png_destroy_read_struct(&r.png, &r.info, NULL);
    return status;
}
