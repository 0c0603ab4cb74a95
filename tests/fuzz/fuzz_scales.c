/*
 * Fuzz target: the input is a whole safetensors file, of which the scales of weights and what it
 * says of formats are read. What is accepted must be a number that makes no weight infinite.
 * `make fuzz` builds and runs it.
 */
#include "models/scales.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) abort();
}

static void check_refusal(enum shoal_status status, const struct shoal_error *error)
{
    require(error->status == status && error->text[0]);
    for (const char *c = error->text; *c; c++)
        require((unsigned char)*c >= 0x20);
}

static void find_all(const struct checkpoint *checkpoint, const struct scales *scales)
{
    for (size_t i = 0; i < checkpoint_count(checkpoint); i++) {
        const struct checkpoint_tensor *tensor = checkpoint_at(checkpoint, i);
        struct shoal_error error = {0};
        enum shoal_status status;
        float scale;

        status = scales_find(scales, tensor, &scale, &error);
        if (status) check_refusal(status, &error);
        if (!status) require(scale > 0 && scale < 1e37f);
        if (!status && !dtype_is_f8(tensor->dtype)) require(!(scale < 1) && !(scale > 1));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct checkpoint *checkpoint = NULL;
    struct shoal_error error = {0};
    struct scales scales;
    enum shoal_status status;
    char path[64];
    int file = memfd_create("fuzz.safetensors", 0);

    require(file >= 0 && write(file, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if (!checkpoint_open(path, &checkpoint, &error)) {
        status = scales_open(&scales, checkpoint, "", &error);
        if (status) check_refusal(status, &error);
        if (!status) find_all(checkpoint, &scales);
        scales_close(&scales);
        checkpoint_close(&checkpoint);
    }
    close(file);
    return 0;
}
