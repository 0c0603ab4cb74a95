/* Convolutions on the CUDA device against the reference, and their rates. */
#include "cuda/gpu_support.h"

#include "device/cuda/internal.h"

#include <math.h>

/* Of the largest result. Rounding both sides of a product to BF16 moves it by 4e-3 of itself; sums
 * may be smaller than what they are of. Where both are of the activation type, only sums round. */
#define ROUNDED 8e-3
#define EXACT 2e-6

/* One convolution and its operands' types. */
struct conv_case {
    int64_t in, out, height, width;
    int32_t kernel, upsample;
    bool accumulate, affine, silu, bias;
    enum dtype x, y, w;
    int64_t planes; /* of the kernel */
};

static enum dtype activation(void)
{
    return gpu_device()->traits.activation;
}

static double tolerance_of(const struct conv_case *c)
{
    bool exact = c->x == activation() && c->w == activation() && !c->affine && !c->silu;

    return exact ? EXACT : ROUNDED;
}

/* A case's operands, new ones; the next check drops them. */
struct conv_operands {
    struct operand *x, *w, *bias, *affine, *y;
    struct conv conv; /* but for the affine map's place, which changes */
};

static struct conv_operands operands_of(const struct conv_case *c)
{
    int64_t pixels = c->height * c->width, taps = c->kernel * c->kernel * c->planes;
    struct conv_operands o = {.conv = {.height = c->height,
                                  .width = c->width,
                                  .kernel = c->kernel,
                                  .upsample = c->upsample,
                                  .accumulate = c->accumulate,
                                  .activation = c->silu ? ACTIVATION_SILU : ACTIVATION_NONE}};

    o.x = gpu_input(c->x, c->in, pixels / c->upsample / c->upsample);
    o.w = gpu_input(c->w, c->out, c->in * taps);
    if (c->bias) o.bias = gpu_input(c->w, 1, c->out);
    if (c->affine) o.affine = gpu_input(DTYPE_F32, 2, c->in);
    o.y = c->accumulate ? gpu_inout(c->y, c->out, pixels) : gpu_output(c->y, c->out, pixels);
    return o;
}

static void check_conv(const struct conv_case *c)
{
    struct conv_operands o = operands_of(c);

    GPU_CHECK(tolerance_of(c), conv2d, on(o.y), on(o.x), on(o.w), on(o.bias),
        (o.conv.affine = on(o.affine), &o.conv));
}

/* Everything that a convolution can be asked for, crossed. */
static void test_features(void **state)
{
    uint64_t random = 7;

    (void)state;
    for (int bits = 0; bits < 64; bits++) {
        struct conv_case c = {.kernel = bits & 1 ? 3 : 1,
            .upsample = bits & 2 ? 2 : 1,
            .accumulate = bits & 4,
            .affine = bits & 8,
            .silu = bits & 16,
            .bias = bits & 32};

        c.in = 1 + test_random(&random) % 40;
        c.out = 1 + test_random(&random) % 40;
        c.height = (int64_t)(1 + test_random(&random) % 9) * c.upsample;
        c.width = (int64_t)(1 + test_random(&random) % 11) * c.upsample;
        c.x = gpu_activations[test_random(&random) % 3];
        c.y = gpu_activations[test_random(&random) % 3];
        c.w = gpu_activations[test_random(&random) % 3];
        if (test_random(&random) % 2) c.x = c.w = activation();
        c.planes = bits % CONV_MAX_PLANES + 1;
        check_conv(&c);
    }
}

/* More than one tile each way, of both shapes, and more channels than are read at a time. */
static void test_tiles(void **state)
{
    const struct conv_case cases[] = {
        {33, 100, 10, 33, 3, 1, true, true, true, true, DTYPE_F32, DTYPE_F32, DTYPE_F32, 1},
        {70, 33, 17, 18, 3, 1, false, true, true, true, DTYPE_F32, DTYPE_F32, DTYPE_BF16, 1},
        {64, 129, 8, 16, 1, 1, true, false, false, true, DTYPE_F32, DTYPE_F32, DTYPE_F16, 1},
        {40, 100, 9, 40, 1, 1, false, true, false, false, DTYPE_F32, DTYPE_F32, DTYPE_F32, 1},
        {65, 100, 18, 18, 3, 2, false, false, false, true, DTYPE_F32, DTYPE_F32, DTYPE_F32, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int types = 0; types < 2; types++) {
            struct conv_case c = cases[i];

            if (types) c.x = c.y = c.w = activation();
            check_conv(&c);
        }
}

/* The real ones that are small: latents to hidden channels, hidden channels to colours. */
static void test_few_channels(void **state)
{
    const struct conv_case cases[] = {
        {16, 96, 5, 12, 3, 1, false, true, false, true, DTYPE_F32, DTYPE_BF16, DTYPE_BF16, 1},
        {4, 4, 6, 7, 1, 1, false, true, false, true, DTYPE_F32, DTYPE_F32, DTYPE_F32, 1},
        {128, 3, 6, 9, 3, 1, false, true, true, true, DTYPE_BF16, DTYPE_F32, DTYPE_BF16, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_conv(&cases[i]);
}

/* Sums over input channels in pieces, each with columns of the weights (klvae.c does this). */
static void test_pieces(void **state)
{
    struct operand *x = gpu_input(activation(), 48, 5 * 6), *w = gpu_input(DTYPE_F32, 20, 48 * 9);
    struct operand *bias = gpu_input(DTYPE_F32, 1, 20), *y = gpu_output(DTYPE_F32, 20, 5 * 6);
    struct conv conv = {.height = 5, .width = 6, .kernel = 3, .upsample = 1};

    (void)state;
    for (gpu_begin("conv2d in pieces", ROUNDED); gpu_next();)
        for (int64_t first = 0; first < 48; first += 16) {
            conv.accumulate = first > 0;
            gpu.ops->conv2d(gpu.stream, on(y), on_rows(x, first, 16), on_cols(w, 9 * first, 9 * 16),
                first ? MATRIX_NONE : on(bias), &conv);
        }
}

/* For gpu.ops: `strip` rows at a time, from as many rows of x as they need. */
static void convolve_in_strips(const struct conv_case *c, struct conv_operands *o, int64_t strip)
{
    int64_t scale = c->upsample, border = c->kernel / 2, width = c->width;
    struct conv conv = o->conv;

    conv.affine = on(o->affine);
    for (int64_t row = 0, end; row < c->height; row = end) {
        int64_t top = (row > border ? row - border : 0) / scale, bottom;

        end = row + strip < c->height ? row + strip : c->height;
        bottom = (end + border < c->height ? end + border : c->height) + scale - 1;
        bottom /= scale;
        conv.height = end - row;
        conv.above = row - top * scale;
        conv.below = bottom * scale - end;
        gpu.ops->conv2d(gpu.stream, on_cols(o->y, row * width, (end - row) * width),
            on_cols(o->x, top * (width / scale), (bottom - top) * (width / scale)), on(o->w),
            on(o->bias), &conv);
    }
}

/* The reference whole; the device in strips, other ones at each turn, which changes no bit. */
static void test_strips(void **state)
{
    const struct conv_case cases[] = {
        {33, 40, 21, 18, 3, 1, true, true, true, true, DTYPE_F32, DTYPE_F32, DTYPE_F32, 1},
        {33, 100, 18, 34, 3, 1, false, true, true, true, DTYPE_F32, DTYPE_F32, DTYPE_F32, 1},
        {40, 33, 22, 18, 3, 2, false, false, false, true, DTYPE_F32, DTYPE_F32, DTYPE_F32, 1},
        {20, 7, 18, 16, 1, 1, true, false, false, false, DTYPE_F32, DTYPE_F32, DTYPE_F32, 1},
    };
    const int64_t strips[] = {1000, 8, 1000, 7, 1, 17};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct conv_case c = cases[i];
        struct conv_operands o;
        int turn = 0;

        c.x = c.y = c.w = activation();
        o = operands_of(&c);
        for (gpu_begin("conv2d in strips", tolerance_of(&c)); gpu_next(); turn++)
            convolve_in_strips(&c, &o, strips[turn % 6]);
    }
}

/* Outside of the picture are zeros, not what the affine map and activation make of zeros; what is
 * not finite stays where its kernel reaches. */
static void test_padding(void **state)
{
    const float scale_shift[2] = {1, 100}, ones[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    float picture[4 * 5] = {0};
    struct operand *x = gpu_input(DTYPE_F32, 1, 4 * 5), *w = gpu_input(DTYPE_F32, 1, 9);
    struct operand *affine = gpu_input(DTYPE_F32, 2, 1), *y = gpu_output(DTYPE_F32, 1, 4 * 5);
    struct conv conv = {.height = 4, .width = 5, .kernel = 3, .upsample = 1};

    (void)state;
    /* F16, in which such a card multiplies, saturates, but keeps what is no number. */
    picture[0] = activation() == DTYPE_F16 ? NAN : INFINITY;
    picture[4] = -picture[0];
    gpu_set(x, picture);
    gpu_set(w, ones);
    gpu_set(affine, scale_shift);
    GPU_CHECK(EXACT, conv2d, on(y), on(x), on(w), MATRIX_NONE, (conv.affine = on(affine), &conv));
}

/* More weights than the workspace has room for are taken in turns. */
static void test_small_workspace(void **state)
{
    const struct conv_case c = {
        33, 70, 4, 6, 3, 1, true, true, true, true, DTYPE_F32, DTYPE_F32, DTYPE_F32, 1};
    struct cuda_device *cuda = (struct cuda_device *)gpu_device();
    uint64_t bytes = cuda->workspace_bytes;

    (void)state;
    cuda->workspace_bytes = 2 * 2 * CONV_STAGE_BYTES(CONV_NARROW_OUTS) * 9 + 1000;
    check_conv(&c);
    cuda->workspace_bytes = bytes;
}

/* Files that store kernels flattened may quantise them, and biases. */
static void test_quantised(void **state)
{
    const struct conv_case cases[] = {
        {32, 64, 5, 7, 1, 1, true, true, true, true, DTYPE_F32, DTYPE_F32, DTYPE_Q8_0, 1},
        {64, 96, 6, 6, 3, 2, false, false, false, true, DTYPE_F32, DTYPE_F32, DTYPE_Q4_1, 1},
        {256, 256, 4, 3, 3, 1, false, true, true, true, DTYPE_F32, DTYPE_F32, DTYPE_Q4_K, 1},
        {256, 33, 4, 5, 1, 1, true, false, false, false, DTYPE_F32, DTYPE_F32, DTYPE_Q3_K, 1},
        {64, 40, 4, 5, 3, 1, true, false, false, true, DTYPE_F32, DTYPE_F32, DTYPE_F8_E4M3, 3},
        {33, 40, 4, 5, 3, 1, true, false, false, true, DTYPE_F32, DTYPE_F32, DTYPE_F8_E4M3, 1},
        {35, 33, 4, 5, 1, 1, true, true, false, true, DTYPE_F32, DTYPE_F32, DTYPE_F8_E5M2, 1},
    };
    struct cuda_device *cuda = (struct cuda_device *)gpu_device();
    const uint64_t bytes = cuda->workspace_bytes;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int small = 0; small < 2; small++) {
            const struct conv_case *c = &cases[i];
            int64_t tile_bytes = CONV_STAGE_BYTES(CONV_WIDE_OUTS) * ceil_div(c->in, CONV_CHANNELS);

            /* Room for a tile: its weights as they are multiplied, and packed; and for the bias. */
            if (small)
                cuda->workspace_bytes =
                    (uint64_t)(CONV_WIDE_OUTS * c->in * 2 * c->planes + tile_bytes) * 9 + 2048;
            check_conv(c);
            cuda->workspace_bytes = bytes;
        }
}

/* ---- on a card ---- */

static void time_conv(const struct conv_case *c)
{
    struct conv_operands o = operands_of(c);
    int64_t pixels = c->height * c->width, taps = c->kernel * c->kernel;
    int64_t inputs = pixels / c->upsample / c->upsample * c->in;
    double flops = 2.0 * (double)(pixels * taps) * (double)(c->in * c->out);
    int64_t bytes = dtype_bytes(c->x, inputs) + dtype_bytes(c->w, c->out * c->in * taps) +
                    dtype_bytes(c->y, pixels * c->out) * (1 + c->accumulate);

    GPU_TIME(flops, bytes, tolerance_of(c), conv2d, on(o.y), on(o.x), on(o.w), on(o.bias),
        (o.conv.affine = on(o.affine), &o.conv));
}

/* A FLUX decoder's, of a picture of 1024 x 1024: resnets, upsamplers whole and in pieces, shortcut
 * and resnet of a piece, first and last. */
static void test_rates(void **state)
{
    const enum dtype a = DTYPE_BF16, f = DTYPE_F32;
    const struct conv_case cases[] = {
        {512, 512, 128, 128, 3, 1, false, true, true, true, a, a, a, 1},
        {512, 512, 128, 128, 3, 1, true, true, true, true, a, a, a, 1},
        {512, 512, 256, 256, 3, 2, false, false, false, true, a, a, a, 1},
        {512, 512, 256, 256, 3, 1, true, true, true, true, a, a, a, 1},
        {512, 32, 512, 512, 3, 2, false, false, false, true, a, a, a, 1},
        {32, 256, 512, 512, 1, 1, true, false, false, true, a, a, a, 1},
        {32, 256, 512, 512, 3, 1, true, true, true, true, a, a, a, 1},
        {256, 256, 512, 512, 3, 1, true, true, true, true, a, a, a, 1},
        {128, 128, 1024, 1024, 3, 1, true, true, true, true, a, a, a, 1},
        {16, 512, 128, 128, 3, 1, false, true, false, true, f, a, a, 1},
        {128, 3, 1024, 1024, 3, 1, false, true, true, true, a, f, a, 1},
        {512, 512, 64, 64, 3, 1, true, true, true, true, a, a, a, 1},
        /* A Wan decoder's of that size. */
        {384, 384, 256, 256, 3, 1, true, false, false, true, a, a, a, 3},
        {192, 96, 1024, 1024, 3, 2, false, false, false, true, a, a, a, 1},
        {96, 96, 1024, 1024, 3, 1, true, false, false, true, a, a, a, 3},
    };

    (void)state;
    if (!gpu.real) return;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        time_conv(&cases[i]);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_features),
    cmocka_unit_test(test_tiles),
    cmocka_unit_test(test_few_channels),
    cmocka_unit_test(test_pieces),
    cmocka_unit_test(test_strips),
    cmocka_unit_test(test_padding),
    cmocka_unit_test(test_small_workspace),
    cmocka_unit_test(test_quantised),
    cmocka_unit_test(test_rates),
};

GPU_MAIN(tests)
