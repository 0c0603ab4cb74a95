/* Which of the codecs this CPU has. */
#include "wire/tile.h"

const struct wire_path *wire_path_at(int index)
{
    const struct wire_path *list[3] = {&wire_path_reference};
    int count = 1;

#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
        __builtin_cpu_supports("popcnt")) {
        list[count++] = &wire_path_avx2;
        if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi") &&
            __builtin_cpu_supports("avx512vbmi2"))
            list[count++] = &wire_path_avx512;
    }
#endif
    return index < count ? list[index] : NULL;
}
