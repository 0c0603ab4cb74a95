/* PNG files in memory over libpng, whose errors are long jumps: they are caught here. */
#include "media/png.h"

#include "base/memory.h"
#include "base/text.h"

#include <inttypes.h>
#include <png.h>
#include <setjmp.h>
#include <string.h>

/* What survives a long jump: everything that was allocated, and the message. */
struct writer {
    png_structp png;
    png_infop info;
    png_text *chunks;
    uint8_t *data;
    size_t used, room;
    bool memory; /* an allocation failed */
    char message[200];
};

static void *png_take(png_structp png, png_alloc_size_t bytes)
{
    struct writer *w = png_get_mem_ptr(png);
    void *block = mem_alloc(bytes);

    if (!block) w->memory = true;
    return block;
}

static void png_give(png_structp png, void *block)
{
    (void)png;
    mem_free(block);
}

static void png_failed(png_structp png, png_const_charp message)
{
    struct writer *w = png_get_error_ptr(png);

    strncpy(w->message, message, sizeof w->message - 1);
    png_longjmp(png, 1);
}

static void png_warned(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

static void png_append(png_structp png, png_bytep bytes, size_t count)
{
    struct writer *w = png_get_io_ptr(png);

    if (count > w->room - w->used) {
        size_t room = 2 * w->room + count;
        uint8_t *grown = mem_realloc(w->data, room, 1);

        if (!grown) {
            w->memory = true;
            png_error(png, "out of memory");
        }
        w->data = grown;
        w->room = room;
    }
    memcpy(w->data + w->used, bytes, count);
    w->used += count;
}

static void png_flushed(png_structp png)
{
    (void)png;
}

static bool is_ascii(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text >= 0x80) return false;
    return true;
}

/* False after a long jump. Holds no local state that a jump could spoil. */
static bool write_all(
    struct writer *w, const uint8_t *rgb, png_uint_32 width, png_uint_32 height, size_t chunk_count)
{
    if (setjmp(png_jmpbuf(w->png))) return false;
    png_set_write_fn(w->png, w, png_append, png_flushed);
    png_set_IHDR(w->png, w->info, width, height, 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
        PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_set_compression_level(w->png, 6);
    png_set_filter(w->png, PNG_FILTER_TYPE_BASE, PNG_ALL_FILTERS);
    if (chunk_count) png_set_text(w->png, w->info, w->chunks, (int)chunk_count);
    png_write_info(w->png, w->info);
    for (png_uint_32 y = 0; y < height; y++)
        png_write_row(w->png, rgb + (size_t)y * width * 3);
    png_write_end(w->png, NULL);
    return true;
}

static enum shoal_status open_writer(
    struct writer *w, const struct png_entry *entries, size_t count, struct shoal_error *error)
{
    w->png = png_create_write_struct_2(
        PNG_LIBPNG_VER_STRING, w, png_failed, png_warned, w, png_take, png_give);
    w->info = w->png ? png_create_info_struct(w->png) : NULL;
    w->chunks = mem_calloc(count, sizeof *w->chunks);
    if (!w->info || !w->chunks) FAIL_MEMORY(error);
    for (size_t i = 0; i < count; i++) {
        size_t key = strlen(entries[i].key);

        if (!key || key > 79 || !is_ascii(entries[i].key))
            FAIL(error, SHOAL_E_INVALID, "\"%.100s\" cannot be the key of a PNG text chunk",
                entries[i].key);
        /* libpng's members are not const, but it only reads and copies them. */
        w->chunks[i].key = (char *)(uintptr_t)entries[i].key;
        w->chunks[i].text = (char *)(uintptr_t)entries[i].value;
        w->chunks[i].compression =
            is_ascii(entries[i].value) ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE;
    }
    return SHOAL_OK;
}

enum shoal_status png_encode(const uint8_t *rgb, int32_t width, int32_t height,
    const struct png_entry *entries, size_t entry_count, uint8_t **data, size_t *bytes,
    struct shoal_error *error)
{
    struct writer w = {0};
    enum shoal_status status;

    if (width < 1 || height < 1 || width > 1000000 || height > 1000000 || entry_count > 1000)
        FAIL(error, SHOAL_E_INVALID,
            "a PNG of %d x %d pixels and %zu texts cannot be written; the limits are 1000000 x "
            "1000000 and 1000",
            width, height, entry_count);
    status = open_writer(&w, entries, entry_count, error);
    if (!status && !write_all(&w, rgb, (png_uint_32)width, (png_uint_32)height, entry_count)) {
        if (w.memory)
            status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
        else
            status = error_set(error, SHOAL_E_IO, __FILE__, __LINE__, "libpng: %s", w.message);
    }
    png_destroy_write_struct(&w.png, &w.info);
    mem_free(w.chunks);
    if (status) {
        mem_free(w.data);
        return status;
    }
    *data = w.data;
    *bytes = w.used;
    return SHOAL_OK;
}

/* A number with a point, whatever the program's locale says. */
static const char *plain_number(char text[32], float value)
{
    char *to = text;

    snprintf(text, 32, "%g", (double)value);
    for (const char *from = text; *from; from++) {
        bool plain = (*from >= '0' && *from <= '9') || strchr("+-.einfa", *from);

        if (plain)
            *to++ = *from;
        else if (to == text || to[-1] != '.')
            *to++ = '.';
    }
    *to = 0;
    return text;
}

/* A value that holds a separator is quoted, as a JSON string. */
static void append_value(struct text *text, const char *value)
{
    if (!strpbrk(value, ",:\n")) {
        text_append(text, "%s", value);
        return;
    }
    text_append(text, "\"");
    for (; *value; value++) {
        if (*value == '\n')
            text_append(text, "\\n");
        else if ((unsigned char)*value < 0x20)
            text_append(text, "\\u%04x", (unsigned)*value);
        else
            text_append(text, "%s%c", *value == '"' || *value == '\\' ? "\\" : "", *value);
    }
    text_append(text, "\"");
}

enum shoal_status png_parameters(
    const struct png_settings *settings, char **text, struct shoal_error *error)
{
    struct text t = {0};
    char number[32];

    text_append(&t, "%s\n", settings->prompt);
    if (settings->negative_prompt && *settings->negative_prompt)
        text_append(&t, "Negative prompt: %s\n", settings->negative_prompt);
    text_append(&t, "Steps: %d, Sampler: ", settings->steps);
    append_value(&t, settings->sampler);
    if (settings->schedule) {
        text_append(&t, ", Schedule type: ");
        append_value(&t, settings->schedule);
    }
    text_append(&t, ", CFG scale: %s", plain_number(number, settings->cfg));
    text_append(&t, ", Seed: %" PRIu64 ", Size: %dx%d, Model: ", settings->seed, settings->width,
        settings->height);
    append_value(&t, settings->model);
    text_append(&t, ", Shift: %s", plain_number(number, settings->shift));
    if (settings->loras) {
        text_append(&t, ", LoRA: ");
        append_value(&t, settings->loras);
    }
    if (settings->strength > 0)
        text_append(&t, ", Denoising strength: %s", plain_number(number, settings->strength));
    if (t.failed) {
        mem_free(t.data);
        FAIL_MEMORY(error);
    }
    *text = t.data;
    return SHOAL_OK;
}
