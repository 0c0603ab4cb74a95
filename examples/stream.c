/*
 * The weights of a program's own blocks, streamed: a tower of matrices that is multiplied through
 * in a quarter of its memory. The arithmetic is the program's; libshoal brings the weights.
 *
 * After make install:
 *
 *     cc stream.c -lshoal -o stream && ./stream
 */
#include <shoal/shoal.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCKS = 16, WIDTH = 256, STEPS = 3 };

static float weights[BLOCKS][WIDTH * WIDTH];

/* y = tanh(W x), with W where the store has it. */
static void compute(float *x, const float *w)
{
    float y[WIDTH];

    for (int i = 0; i < WIDTH; i++) {
        double sum = 0;

        for (int k = 0; k < WIDTH; k++)
            sum += (double)w[i * WIDTH + k] * (double)x[k];
        y[i] = (float)tanh(sum);
    }
    for (int i = 0; i < WIDTH; i++)
        x[i] = y[i];
}

/* On the CPU a block's address is a pointer; on a card, kernels on the stream would read there. */
static enum shoal_status run(struct shoal_store *store, float *x, struct shoal_error *error)
{
    enum shoal_status status = shoal_store_resume(store, 0, error);

    for (int i = 0; !status && i < STEPS * BLOCKS; i++) {
        uint64_t address;

        status = shoal_store_acquire(store, i % BLOCKS, NULL, &address, error);
        if (status) break;
        compute(x, (const float *)(uintptr_t)address);
        status = shoal_store_release(store, i % BLOCKS, error);
    }
    if (!status) status = shoal_store_suspend(store, error);
    return status;
}

int main(void)
{
    static struct shoal_store_tensor tensors[BLOCKS];
    static struct shoal_store_block blocks[BLOCKS];
    struct shoal_store_request request;
    struct shoal_store *store = NULL;
    struct shoal_error error = {0};
    float streamed[WIDTH], plain[WIDTH];
    int same = 1;

    for (int i = 0; i < BLOCKS; i++) {
        for (int k = 0; k < WIDTH * WIDTH; k++)
            weights[i][k] = (float)((i * 7 + k * 13) % 41 - 20) / 200;
        tensors[i] = (struct shoal_store_tensor){
            .name = "weight", .dtype = "F32", .bytes = sizeof weights[i], .data = weights[i]};
        blocks[i] = (struct shoal_store_block){.tensors = &tensors[i], .tensor_count = 1};
    }
    for (int k = 0; k < WIDTH; k++)
        streamed[k] = plain[k] = (float)k / WIDTH;

    shoal_store_request_init(&request);
    request.device = "cpu";
    request.vram_bytes = sizeof weights / 4;
    if (shoal_store_create(blocks, BLOCKS, &request, &store, &error) ||
        run(store, streamed, &error)) {
        fprintf(stderr, "%s\n", error.text);
        shoal_store_destroy(&store);
        return 1;
    }
    fputs(shoal_store_text(store), stdout);
    shoal_store_destroy(&store);

    for (int i = 0; i < STEPS * BLOCKS; i++)
        compute(plain, weights[i % BLOCKS]);
    for (int k = 0; k < WIDTH; k++)
        same = same && streamed[k] == plain[k];
    puts(same ? "the same numbers as without it" : "other numbers than without it");
    return !same;
}
