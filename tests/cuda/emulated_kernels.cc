/* All kernels by name. Each is compiled as C++ from its own .cu file. */
#include "cuda/emulator.h"

#include "device/cuda/kernels/list.h"

#include <string.h>

#define DECLARE(module, name) void name(struct name##_args);
CUDA_KERNELS(DECLARE)

namespace
{

template <typename args, void kernel(args)> void call(const void *given)
{
    static_assert(sizeof(args) <= 4096, "more arguments than a kernel can have");
    kernel(*(const args *)given);
}

struct named {
    const char *name;
    emulate_kernel *kernel;
    size_t args_bytes;
};

#define NAMED(module, name) {#name, call<struct name##_args, name>, sizeof(struct name##_args)},

const struct named kernels[] = {CUDA_KERNELS(NAMED){NULL, NULL, 0}};

} // namespace

emulate_kernel *emulate_find(const char *name, size_t *args_bytes)
{
    const struct named *k = kernels;

    while (k->name && strcmp(k->name, name) != 0)
        k++;
    *args_bytes = k->args_bytes;
    return k->kernel;
}
