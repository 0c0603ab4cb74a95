/* Layers against the same formula computed whole: more rows than one chunk, strided weights,
 * grouped heads; and the small host-side tables. */
#include "support.h"

#include "base/memory.h"
#include "device/cpu/cpu.h"
#include "layers/attention.h"
#include "layers/chunk.h"
#include "layers/feed_forward.h"
#include "layers/joint_attention.h"
#include "layers/rope.h"
#include "layers/timestep.h"

#include <math.h>

#define SCRATCH_BYTES ((uint64_t)256 << 20)

struct bench {
    struct device *device;
    struct stream *stream;
    struct region *region;
    struct exec x;
    uint64_t random;
};

static void bench_open(struct bench *b)
{
    struct shoal_error error = {0};

    *b = (struct bench){.random = 1};
    assert_ok(cpu_create(&b->device, CPU_KERNELS_FAST, 2, &error));
    assert_ok(b->device->ops->arena_reserve(b->device, SCRATCH_BYTES, &error));
    assert_ok(b->device->ops->stream_create(b->device, false, &b->stream, &error));
    assert_ok(region_create(&b->region, SCRATCH_BYTES, &error));
    exec_init(&b->x, b->device, b->stream, b->region, b->device->arena + SCRATCH_BYTES);
}

static void bench_close(struct bench *b)
{
    b->device->ops->stream_destroy(&b->stream);
    device_destroy(&b->device);
    region_destroy(&b->region);
}

static struct matrix random_matrix(struct bench *b, int64_t rows, int64_t cols, float size)
{
    struct shoal_error error = {0};
    struct matrix m = exec_alloc(&b->x, rows, cols);
    float *values = mem_alloc((size_t)(rows * cols) * sizeof *values);

    assert_int_equal(b->x.error.status, SHOAL_OK);
    for (int64_t i = 0; i < rows * cols; i++)
        values[i] = ((float)test_random(&b->random) / 1073741824.0f - 1.0f) * size;
    exec_upload(&b->x, m, values);
    assert_ok(b->device->ops->stream_synchronize(b->stream, &error));
    mem_free(values);
    return m;
}

static struct matrix copy_of(struct bench *b, struct matrix m)
{
    struct matrix copy = exec_alloc(&b->x, m.rows, m.cols);

    b->x.ops->copy(b->stream, copy, m);
    return copy;
}

static void assert_close(struct bench *b, struct matrix got, struct matrix want)
{
    struct shoal_error error = {0};
    size_t count = (size_t)(got.rows * got.cols);
    float *values = mem_alloc(2 * count * sizeof *values);

    exec_download(&b->x, values, got);
    exec_download(&b->x, values + count, want);
    assert_ok(b->device->ops->stream_synchronize(b->stream, &error));
    assert_int_equal(b->x.error.status, SHOAL_OK);
    for (size_t i = 0; i < count; i++)
        if (!(fabsf(values[i] - values[count + i]) <= 2e-5f * (1 + fabsf(values[count + i]))))
            fail_msg("element %zu: %g, not %g", i, (double)values[i], (double)values[count + i]);
    mem_free(values);
}

/* ---- attention ---- */

static void attention_whole(struct bench *b, struct matrix hidden, const struct attention_layer *l)
{
    const struct compute_ops *ops = b->x.ops;
    int64_t q_dim = (int64_t)l->heads * l->head_dim, kv_dim = (int64_t)l->kv_heads * l->head_dim;
    struct matrix normed = exec_alloc(&b->x, hidden.rows, hidden.cols);
    struct matrix qkv = exec_alloc(&b->x, hidden.rows, q_dim + 2 * kv_dim);
    struct matrix attended = exec_alloc(&b->x, hidden.rows, q_dim);
    struct matrix q = matrix_cols(qkv, 0, q_dim), k = matrix_cols(qkv, q_dim, kv_dim);

    ops->rms_norm(b->stream, normed, hidden, l->norm, l->scale, l->eps);
    ops->linear(b->stream, qkv, normed, l->qkv[0], l->qkv_bias);
    if (matrix_given(l->rope)) {
        ops->rms_norm_rope(b->stream, q, l->q_norm, l->head_eps, l->rope, l->layout);
        ops->rms_norm_rope(b->stream, k, l->k_norm, l->head_eps, l->rope, l->layout);
    }
    ops->attention(b->stream, attended, q, k, matrix_cols(qkv, q_dim + kv_dim, kv_dim),
        &(struct attention){.heads = l->heads,
            .kv_heads = l->kv_heads,
            .scale = l->unscaled ? 1.0f : 1.0f / sqrtf((float)l->head_dim),
            .causal = l->causal,
            .bias = l->distances});
    ops->linear(b->stream, normed, attended, l->out, MATRIX_NONE);
    if (matrix_given(l->post_norm))
        ops->rms_norm(b->stream, normed, normed, l->post_norm, MATRIX_NONE, l->eps);
    ops->gated_add(b->stream, hidden, l->gate, normed, MATRIX_NONE, 0);
    exec_free(&b->x, &attended);
    exec_free(&b->x, &qkv);
    exec_free(&b->x, &normed);
}

/* How what follows the norm is done. */
enum style { PLAIN, MODULATED, BIASED, DISTANT };

static void check_attention(int64_t tokens, bool causal, enum style style)
{
    struct bench b;
    struct attention_layer l = {
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 8,
        .eps = 1e-5f,
        .head_eps = 1e-6f,
        .layout = causal ? ROPE_HALF : ROPE_INTERLEAVED,
        .causal = causal,
    };
    int64_t dim = 24;
    struct matrix hidden, want, again;

    bench_open(&b);
    l.norm = random_matrix(&b, 1, dim, 1);
    l.qkv[0] = random_matrix(&b, 8 * 8, dim, 0.5f);
    l.out = random_matrix(&b, dim, 32, 0.3f);
    if (style == PLAIN || style == MODULATED) {
        l.q_norm = random_matrix(&b, 1, 8, 1);
        l.k_norm = random_matrix(&b, 1, 8, 1);
    }
    if (style != DISTANT) l.rope = random_matrix(&b, tokens, 8, 1);
    if (style == BIASED) l.qkv_bias = random_matrix(&b, 1, 8 * 8, 1);
    if (style == DISTANT) {
        l.distances = random_matrix(&b, 4, 2 * tokens - 1, 2);
        l.unscaled = true;
    }
    if (style == MODULATED) {
        l.scale = random_matrix(&b, 1, dim, 1);
        l.gate = random_matrix(&b, 1, dim, 1);
        l.post_norm = random_matrix(&b, 1, dim, 1);
    }
    hidden = random_matrix(&b, tokens, dim, 2);
    want = copy_of(&b, hidden);
    attention_whole(&b, want, &l);
    again = copy_of(&b, hidden);
    attention_add(&b.x, hidden, &l);
    assert_close(&b, hidden, want);
    /* In parts of their own, q, k and v give the same bits. */
    l.qkv[1] = matrix_rows(l.qkv[0], 32, 16);
    l.qkv[2] = matrix_rows(l.qkv[0], 48, 16);
    l.qkv[0].rows = 32;
    attention_add(&b.x, again, &l);
    assert_memory_equal((void *)(uintptr_t)again.addr, (void *)(uintptr_t)hidden.addr,
        (size_t)(tokens * dim) * sizeof(float));
    bench_close(&b);
}

static void test_attention(void **state)
{
    (void)state;
    check_attention(5, true, PLAIN);
    check_attention(1100, true, PLAIN);
    check_attention(33, false, MODULATED);
    check_attention(1024, false, MODULATED);
    check_attention(1025, false, MODULATED);
    check_attention(2112, false, MODULATED);
    check_attention(37, true, BIASED);
    check_attention(1025, false, BIASED);
    check_attention(1, false, DISTANT);
    check_attention(1024, false, DISTANT);
    check_attention(1100, false, DISTANT);
}

/* A LayerNorm's rows, moved and stretched, attend to another sequence; q's heads have no positions.
 */
static void check_context(int64_t tokens, int64_t keys)
{
    struct bench b;
    struct attention_layer l = {
        .heads = 4, .kv_heads = 4, .head_dim = 8, .eps = 1e-6f, .head_eps = 1e-6f};
    int64_t dim = 24, other = 20;
    struct matrix hidden, want, normed, kv, q, attended, k;

    bench_open(&b);
    l.layout = ROPE_HALF;
    l.scale = random_matrix(&b, 1, dim, 1);
    l.shift = random_matrix(&b, 1, dim, 1);
    l.gate = random_matrix(&b, 1, dim, 1);
    l.qkv[0] = random_matrix(&b, 32, dim, 0.5f);
    l.qkv[1] = random_matrix(&b, 64, other, 0.5f);
    l.q_norm = random_matrix(&b, 1, 8, 1);
    l.k_norm = random_matrix(&b, 1, 8, 1);
    l.out = random_matrix(&b, dim, 32, 0.3f);
    l.context = random_matrix(&b, keys, other, 1);
    l.context_rope = random_matrix(&b, keys, 8, 1);
    hidden = random_matrix(&b, tokens, dim, 2);
    want = copy_of(&b, hidden);
    normed = exec_alloc(&b.x, tokens, dim);
    q = exec_alloc(&b.x, tokens, 32);
    attended = exec_alloc(&b.x, tokens, 32);
    kv = exec_alloc(&b.x, keys, 64);
    k = matrix_cols(kv, 0, 32);
    b.x.ops->layer_norm(b.stream, normed, want, MATRIX_NONE, l.scale, l.shift, l.eps);
    b.x.ops->linear(b.stream, q, normed, l.qkv[0], MATRIX_NONE);
    b.x.ops->linear(b.stream, kv, l.context, l.qkv[1], MATRIX_NONE);
    b.x.ops->rms_norm_rope(b.stream, q, l.q_norm, l.head_eps, MATRIX_NONE, l.layout);
    b.x.ops->rms_norm_rope(b.stream, k, l.k_norm, l.head_eps, l.context_rope, l.layout);
    b.x.ops->attention(b.stream, attended, q, k, matrix_cols(kv, 32, 32),
        &(struct attention){.heads = 4, .kv_heads = 4, .scale = 1.0f / sqrtf(8.0f)});
    b.x.ops->linear(b.stream, normed, attended, l.out, MATRIX_NONE);
    b.x.ops->gated_add(b.stream, want, l.gate, normed, MATRIX_NONE, 0);
    attention_add(&b.x, hidden, &l);
    assert_close(&b, hidden, want);
    bench_close(&b);
}

static void test_context(void **state)
{
    (void)state;
    check_context(5, 1);
    check_context(1100, 33);
    check_context(40, 1500);
}

/* ---- feed-forward ---- */

/* centred: under a LayerNorm, and with biases. */
static void check_feed_forward(int64_t tokens, bool gated, bool centred)
{
    struct bench b;
    struct feed_forward_layer l = {.eps = 1e-5f};
    int64_t dim = 24, ffn_dim = 40;
    struct matrix hidden, want, normed, one, three;

    bench_open(&b);
    if (!centred) l.norm = random_matrix(&b, 1, dim, 1);
    l.scale = random_matrix(&b, 1, dim, 1);
    if (centred) {
        l.shift = random_matrix(&b, 1, dim, 1);
        l.b1 = random_matrix(&b, 1, ffn_dim, 1);
        l.b2 = random_matrix(&b, 1, dim, 1);
    }
    l.w1 = random_matrix(&b, ffn_dim, dim, 0.5f);
    l.activation = gated ? ACTIVATION_SILU : ACTIVATION_RELU;
    if (gated) l.w3 = random_matrix(&b, ffn_dim, dim, 0.5f);
    l.w2 = random_matrix(&b, dim, ffn_dim, 0.3f);
    l.post_norm = random_matrix(&b, 1, dim, 1);
    l.gate = random_matrix(&b, 1, dim, 1);
    hidden = random_matrix(&b, tokens, dim, 2);
    want = copy_of(&b, hidden);
    normed = exec_alloc(&b.x, tokens, dim);
    one = exec_alloc(&b.x, tokens, ffn_dim);
    three = exec_alloc(&b.x, tokens, ffn_dim);
    if (centred)
        b.x.ops->layer_norm(b.stream, normed, want, MATRIX_NONE, l.scale, l.shift, l.eps);
    else
        b.x.ops->rms_norm(b.stream, normed, want, l.norm, l.scale, l.eps);
    b.x.ops->linear(b.stream, one, normed, l.w1, l.b1);
    if (gated) {
        b.x.ops->linear(b.stream, three, normed, l.w3, MATRIX_NONE);
        b.x.ops->gated(b.stream, one, one, three, l.activation);
    } else {
        b.x.ops->activate(b.stream, one, one, l.activation);
    }
    b.x.ops->linear(b.stream, normed, one, l.w2, l.b2);
    b.x.ops->rms_norm(b.stream, normed, normed, l.post_norm, MATRIX_NONE, l.eps);
    b.x.ops->gated_add(b.stream, want, l.gate, normed, MATRIX_NONE, 0);
    feed_forward_add(&b.x, hidden, &l);
    assert_close(&b, hidden, want);
    bench_close(&b);
}

static void test_feed_forward(void **state)
{
    (void)state;
    check_feed_forward(1, true, false);
    check_feed_forward(1024, true, false);
    check_feed_forward(2500, true, false);
    check_feed_forward(2500, false, false);
    check_feed_forward(2500, false, true);
}

/* ---- joint attention ---- */

#define JOINT_HEADS 4
#define JOINT_HEAD 8
#define JOINT_DIM (JOINT_HEADS * JOINT_HEAD)

static struct joint_stream random_stream(struct bench *b, int64_t tokens, int64_t dim)
{
    return (struct joint_stream){
        .hidden = random_matrix(b, tokens, dim, 2),
        .scale = random_matrix(b, 1, dim, 1),
        .shift = random_matrix(b, 1, dim, 1),
        .qkv = {random_matrix(b, 3 * JOINT_DIM, dim, 0.5f)},
        .qkv_bias = random_matrix(b, 1, 3 * JOINT_DIM, 1),
        .q_norm = random_matrix(b, 1, JOINT_HEAD, 1),
        .k_norm = random_matrix(b, 1, JOINT_HEAD, 1),
        .out = random_matrix(b, dim, JOINT_DIM, 0.3f),
        .out_bias = random_matrix(b, 1, dim, 1),
        .gate = random_matrix(b, 1, dim, 1),
        .rope = random_matrix(b, tokens, JOINT_HEAD, 1),
    };
}

/* The formula, with every stream whole. The streams' new hidden states go to `want`. */
static void joint_whole(struct bench *b, const struct joint_attention *l, struct matrix want[2])
{
    const struct compute_ops *ops = b->x.ops;
    const struct joint_stream *s = l->streams;
    const int64_t first[] = {0, s[0].hidden.rows}, dim = s[0].hidden.cols;
    const int64_t tokens = s[0].hidden.rows + s[1].hidden.rows;
    struct matrix normed = exec_alloc(&b->x, tokens, dim);
    struct matrix qkv = exec_alloc(&b->x, tokens, 3 * JOINT_DIM);
    struct matrix attended = exec_alloc(&b->x, tokens, JOINT_DIM);

    for (int i = 0; i < 2; i++) {
        struct matrix n = matrix_rows(normed, first[i], s[i].hidden.rows);
        struct matrix own = matrix_rows(qkv, first[i], s[i].hidden.rows);

        ops->layer_norm(b->stream, n, s[i].hidden, MATRIX_NONE, s[i].scale, s[i].shift, l->eps);
        ops->linear(b->stream, own, n, s[i].qkv[0], s[i].qkv_bias);
        ops->rms_norm_rope(b->stream, matrix_cols(own, 0, JOINT_DIM), s[i].q_norm, l->head_eps,
            s[i].rope, l->layout);
        ops->rms_norm_rope(b->stream, matrix_cols(own, JOINT_DIM, JOINT_DIM), s[i].k_norm,
            l->head_eps, s[i].rope, l->layout);
    }
    ops->attention(b->stream, attended, matrix_cols(qkv, 0, JOINT_DIM),
        matrix_cols(qkv, JOINT_DIM, JOINT_DIM), matrix_cols(qkv, 2 * JOINT_DIM, JOINT_DIM),
        &(struct attention){.heads = JOINT_HEADS,
            .kv_heads = JOINT_HEADS,
            .scale = 1.0f / sqrtf((float)JOINT_HEAD)});
    for (int i = 0; i < 2; i++) {
        struct matrix n = matrix_rows(normed, first[i], s[i].hidden.rows);

        want[i] = copy_of(b, s[i].hidden);
        ops->linear(b->stream, n, matrix_rows(attended, first[i], s[i].hidden.rows), s[i].out,
            s[i].out_bias);
        ops->gated_add(b->stream, want[i], s[i].gate, n, MATRIX_NONE, 0);
    }
    exec_free(&b->x, &attended);
    exec_free(&b->x, &qkv);
    exec_free(&b->x, &normed);
}

static void check_joint(int64_t text, int64_t image)
{
    struct bench b;
    struct joint_attention l = {
        .heads = JOINT_HEADS, .head_dim = JOINT_HEAD, .eps = 1e-6f, .head_eps = 1e-5f};
    struct matrix want[2], again[2];

    bench_open(&b);
    l.streams[0] = random_stream(&b, text, 24);
    l.streams[1] = random_stream(&b, image, 24);
    joint_whole(&b, &l, want);
    for (int i = 0; i < 2; i++)
        again[i] = copy_of(&b, l.streams[i].hidden);
    joint_attention_add(&b.x, &l);
    for (int i = 0; i < 2; i++) {
        struct joint_stream *s = &l.streams[i];
        struct matrix got = s->hidden;

        assert_close(&b, got, want[i]);
        /* In parts of their own, q, k and v give the same bits. */
        s->hidden = again[i];
        s->qkv[1] = matrix_rows(s->qkv[0], JOINT_DIM, JOINT_DIM);
        s->qkv[2] = matrix_rows(s->qkv[0], 2 * JOINT_DIM, JOINT_DIM);
        s->qkv[0].rows = JOINT_DIM;
        again[i] = got;
    }
    joint_attention_add(&b.x, &l);
    for (int i = 0; i < 2; i++)
        assert_memory_equal((void *)(uintptr_t)again[i].addr,
            (void *)(uintptr_t)l.streams[i].hidden.addr,
            (size_t)(again[i].rows * again[i].cols) * sizeof(float));
    bench_close(&b);
}

static void test_joint(void **state)
{
    (void)state;
    check_joint(1, 1);
    check_joint(5, 33);
    check_joint(40, 1025);
    check_joint(1100, 300);
}

/* ---- what is made on the host ---- */

static void test_chunks(void **state)
{
    (void)state;
    assert_int_equal(chunk_rows(0, 1024), 0);
    assert_int_equal(chunk_rows(1, 1024), 1);
    assert_int_equal(chunk_rows(1024, 1024), 1024);
    assert_int_equal(chunk_rows(1025, 1024), 544);
    assert_int_equal(chunk_rows(4160, 1024), 832);
    for (int64_t rows = 1; rows < 5000; rows++) {
        int64_t step = chunk_rows(rows, 1024);

        assert_true(step >= 1 && step <= 1024 && step <= rows);
        assert_true((rows + step - 1) / step == (rows + 1024 - 1) / 1024);
    }
}

static void test_tables(void **state)
{
    double exact[8], single[8];
    float row[16], sinusoid[256];

    (void)state;
    rope_frequencies(exact, 16, 256.0);
    rope_frequencies_single(single, 16, 256.0);
    for (int i = 0; i < 8; i++) {
        assert_true(fabs(exact[i] - pow(2.0, -i)) < 1e-15);
        assert_true((double)(float)single[i] == single[i]);
        assert_true(fabs(single[i] - exact[i]) < 1e-7);
    }
    rope_row(row, 8, 0, 8, exact, 3);
    for (int i = 0; i < 8; i++) {
        assert_true(row[i] == cosf(3.0f / (float)(1 << i)));
        assert_true(row[8 + i] == sinf(3.0f / (float)(1 << i)));
    }
    timestep_sinusoid(sinusoid, 256, 0.0f);
    assert_true(sinusoid[0] == 1.0f && sinusoid[127] == 1.0f && sinusoid[128] == 0.0f);
    timestep_sinusoid(sinusoid, 256, 250.0f);
    assert_true(sinusoid[0] == cosf(250.0f) && sinusoid[128] == sinf(250.0f));
}

/* ---- failures ---- */

static void test_sticky(void **state)
{
    struct bench b;
    struct matrix a, none, c;

    (void)state;
    bench_open(&b);
    a = random_matrix(&b, 2, 4, 1);
    none = exec_alloc(&b.x, 1 << 20, 1 << 20);
    assert_int_equal(b.x.error.status, SHOAL_E_BUDGET);
    assert_false(matrix_given(none));
    assert_int_equal(none.rows, 1 << 20);
    /* Nothing is computed from here on, and nothing is allocated. */
    b.x.ops->copy(b.stream, none, a);
    b.x.ops->linear(b.stream, none, none, none, none);
    c = exec_alloc(&b.x, 1, 1);
    assert_false(matrix_given(c));
    exec_free(&b.x, &c);
    exec_free(&b.x, &none);
    exec_free(&b.x, &a);
    assert_int_equal(region_used(b.region), 0);
    bench_close(&b);

    bench_open(&b);
    none = exec_alloc(&b.x, INT64_MAX, INT64_MAX);
    assert_int_equal(b.x.error.status, SHOAL_E_BUDGET);
    bench_close(&b);
    bench_open(&b);
    none = exec_alloc(&b.x, 0, 3);
    assert_int_equal(b.x.error.status, SHOAL_E_BUDGET);
    bench_close(&b);
}

/* Into the hole below, which may be smaller than what moves; by a little it does not move. */
static void test_settle(void **state)
{
    const int64_t holes[] = {64, 100, 600, 3000};
    struct bench b;

    (void)state;
    bench_open(&b);
    for (int i = 0; i < 4; i++) {
        struct matrix below = exec_alloc(&b.x, 64, holes[i]), m = random_matrix(&b, 64, 1000, 1);
        struct matrix above = random_matrix(&b, 1, 10, 1), kept = copy_of(&b, m), beside;
        device_addr from = m.addr, to = below.addr + 64 * 4 * (uint64_t)(holes[i] - 1000);

        beside = copy_of(&b, above);
        exec_free(&b.x, &below);
        exec_settle(&b.x, &m);
        assert_int_equal(m.addr, to);
        assert_true(m.addr > from);
        exec_settle(&b.x, &m);
        assert_int_equal(m.addr, to);
        assert_close(&b, m, kept);
        assert_close(&b, above, beside);
        exec_free(&b.x, &m);
        exec_free(&b.x, &above);
        exec_free(&b.x, &kept);
        exec_free(&b.x, &beside);
        assert_int_equal(region_used(b.region), 0);
    }
    struct matrix below = exec_alloc(&b.x, 64, 10), m = random_matrix(&b, 64, 1000, 1);
    device_addr from = m.addr;

    exec_free(&b.x, &below);
    exec_settle(&b.x, &m);
    assert_int_equal(m.addr, from);
    exec_free(&b.x, &m);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_context),
        cmocka_unit_test(test_feed_forward),
        cmocka_unit_test(test_joint),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_settle),
        cmocka_unit_test(test_sticky),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
