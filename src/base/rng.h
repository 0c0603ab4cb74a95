/*
 * Random numbers: the CPU generator that PyTorch has, so that a seed means the same picture here.
 *
 * rng_normal gives bit for bit what torch.randn gives on an x86-64 machine with AVX2, on any
 * machine. It is not a cryptographic generator.
 */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RNG_WORDS 624

struct rng {
    uint32_t state[RNG_WORDS];
    uint32_t used;  /* words of state already handed out */
    bool has_spare; /* draws of fewer than 16 come in pairs; the other one waits here */
    double spare;
};

/* As torch.manual_seed: only the low 32 bits of the seed matter. */
void rng_init(struct rng *rng, uint64_t seed);

uint32_t rng_next(struct rng *rng);

/*
 * `count` normal values as one torch.randn(count) would draw them. Draws from one generator are
 * not additive: two draws of 16 differ from one of 32.
 */
void rng_normal(struct rng *rng, float *out, size_t count);

#endif
