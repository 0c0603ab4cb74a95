"""Golden noise: torch.randn on the CPU for many seeds and sizes, and a bit-exact reimplementation in numpy.

The reimplementation is the specification (docs/models.md says it in words). `python noise.py check` compares it
with torch on many more seeds and sizes, also under the other values of ATEN_CPU_CAPABILITY.
"""
import math
import os
import subprocess
import sys

import numpy as np

from common import torch, write

SEEDS = [0, 1, 7, 42, 2**32 - 1, 2**32, 2**63 - 1, 1234567890123]
SIZES = [1, 5, 15, 16, 17, 24, 31, 1000, 16 * 9 * 11]
F = np.float32


class MT19937:
    """The 32-bit Mersenne Twister; only the low 32 bits of the seed matter."""

    def __init__(self, seed):
        s = [0] * 624
        s[0] = seed & 0xFFFFFFFF
        for j in range(1, 624):
            s[j] = (1812433253 * (s[j - 1] ^ (s[j - 1] >> 30)) + j) & 0xFFFFFFFF
        self.s, self.i = s, 624

    def u32(self):
        if self.i == 624:
            s = self.s
            for j in range(624):
                y = (s[j] & 0x80000000) | (s[(j + 1) % 624] & 0x7FFFFFFF)
                s[j] = s[(j + 397) % 624] ^ (y >> 1) ^ (0x9908B0DF if y & 1 else 0)
            self.i = 0
        y = self.s[self.i]
        self.i += 1
        y ^= y >> 11
        y ^= (y << 7) & 0x9D2C5680
        y ^= (y << 15) & 0xEFC60000
        return y ^ (y >> 18)


def fma(a, b, c):
    """float32 a*b+c with one rounding: the product is exact in f64; the sum is rounded to odd before the cast."""
    a, b, c = (np.asarray(v, np.float64) for v in (a, b, c))
    p = a * b
    s = p + c
    bb = s - p
    err = (p - (s - bb)) + (c - bb)  # exact error of the f64 sum
    bits = np.atleast_1d(s).view(np.int64).copy()
    e, sv = np.atleast_1d(err), np.atleast_1d(s)
    fix = (e != 0) & ((bits & 1) == 0)
    toward = np.where((e > 0) == (sv > 0), 1, -1)
    bits = np.where(fix, bits + toward, bits)
    return bits.view(np.float64).astype(F).reshape(np.shape(s))


def log_avx2(x):
    """Cephes logf as it comes out of torch's AVX2 kernel; x in (0, 1]."""
    bits = x.astype(F).view(np.int32)
    e = ((bits >> 23) - 126).astype(F)
    x = ((bits & 0x007FFFFF) | 0x3F000000).view(F)  # mantissa into [0.5, 1)
    small = x < F(0.70710677)
    e = e - np.where(small, F(1), F(0))
    x = np.where(small, (x - F(1)) + x, x - F(1))
    z = x * x
    y = np.full_like(x, F(7.0376836292e-2))
    for c in (-1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
              2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1):
        y = fma(y, x, F(c))
    y = y * x
    y = fma(y, z, e * F(-2.12194440e-4))
    y = fma(z, F(-0.5), y)
    return fma(e, F(0.693359375), x + y)


def sincos_avx2(x):
    """Cephes sinf and cosf together as they come out of torch's AVX2 kernel; x >= 0."""
    j = ((x * F(1.27323954473516)).astype(np.int32) + 1) & ~1
    y = j.astype(F)
    sin_neg = (j & 4) != 0
    cos_neg = (~(j - 2) & 4) != 0
    swap = (j & 2) != 0  # the sine takes the cosine's polynomial and the other way round
    x = fma(y, F(-0.78515625), x)
    x = fma(y, F(-2.4187564849853515625e-4), x)
    x = fma(y, F(-3.77489497744594108e-8), x)
    z = x * x
    c = fma(F(2.443315711809948e-5), z, F(-1.388731625493765e-3))
    c = fma(c, z, F(4.166664568298827e-2))
    c = c * z
    c = fma(c, z, z * F(-0.5)) + F(1)
    s = fma(F(-1.9515295891e-4), z, F(8.3321608736e-3))
    s = fma(s, z, F(-1.6666654611e-1))
    s = s * z
    s = fma(s, x, x)
    sin, cos = np.where(swap, c, s), np.where(swap, s, c)
    return np.where(sin_neg, -sin, sin), np.where(cos_neg, -cos, cos)


def fill16(u):
    """Box-Muller on blocks of 16: u is [n, 16] uniforms; the first 8 of a block go with the last 8."""
    u1, u2 = F(1) - u[:, :8], u[:, 8:]
    radius = np.sqrt(F(-2) * log_avx2(u1))
    sin, cos = sincos_avx2(F(2 * math.pi) * u2)
    return np.concatenate([radius * cos, radius * sin], 1) + F(0)  # + 0: no negative zero comes out


class Generator:
    def __init__(self, seed):
        self.mt, self.cached = MT19937(seed), None  # cached: second f64 value of the scalar path

    def u24(self):
        return F((self.mt.u32() & 0xFFFFFF) * 2.0**-24)

    def u53(self):
        hi = self.mt.u32()
        return (((hi << 32) | self.mt.u32()) & ((1 << 53) - 1)) * 2.0**-53

    def randn(self, n):
        if n >= 16:
            u = np.array([self.u24() for _ in range(n)], F)
            out = u.copy()
            k = n // 16 * 16
            out[:k] = fill16(u[:k].reshape(-1, 16)).reshape(-1)
            if n % 16:  # the last 16 are drawn anew and overwritten
                v = np.array([self.u24() for _ in range(16)], F)
                out[-16:] = fill16(v[None])[0]
            return out
        out = np.empty(n, F)
        for i in range(n):
            if self.cached is not None:
                v, self.cached = self.cached, None
            else:
                a, b = self.u53(), self.u53()
                r = math.sqrt(-2.0 * math.log1p(-b))
                theta = 2.0 * math.pi * a
                self.cached = r * math.sin(theta)
                v = r * math.cos(theta)
            out[i] = F(v)
        return out


def torch_randn(seed, *sizes):
    g = torch.Generator("cpu").manual_seed(seed)
    return [torch.randn(n, generator=g, dtype=torch.float32).numpy() for n in sizes]


def ulps(a, b):
    def order(v):
        i = v.view(np.int32).astype(np.int64)
        return np.where(i < 0, -(i & 0x7FFFFFFF), i)

    return np.abs(order(a) - order(b))


def check():
    """Per path: values, how many differ in bits, largest difference in ulp and absolute."""
    res = {}
    for label, sizes in (("scalar", (1, 5, 15)), ("blocks", (16, 17, 24, 31, 1000, 4096 + 5, 16 * 64 * 64))):
        total = bad = worst = 0
        gap = 0.0
        for seed in SEEDS + [2, 3, 99]:
            for n in sizes:
                a, b = torch_randn(seed, n)[0], Generator(seed).randn(n)
                d = ulps(a, b)
                total, bad, worst = total + n, bad + int((d > 0).sum()), max(worst, int(d.max()))
                gap = max(gap, float(np.abs(a - b).max()))
        res[label] = (total, bad, worst, gap)
    print(torch.backends.cpu.get_cpu_capability(), res)


def main():
    t, names = {}, []
    for seed in SEEDS:
        for n in SIZES:
            t[f"out.s{seed}_n{n}"] = torch.from_numpy(torch_randn(seed, n)[0])
        # two draws from one generator: after a multiple of 16, after a tail, and with a cached second value
        for a, b in ((16, 16), (24, 17), (5, 5), (5, 16), (1, 1)):
            x, y = torch_randn(seed, a, b)
            t[f"out.s{seed}_n{a}_then_n{b}"] = torch.from_numpy(np.concatenate([x, y]))
    cap = torch.backends.cpu.get_cpu_capability()
    assert cap in ("AVX2", "AVX512"), f"noise goldens must come from the AVX2 path, this is {cap}"
    # One generator, batch 2: drawn as one tensor. A list of generators: one draw each.
    from diffusers.utils.torch_utils import randn_tensor

    one = randn_tensor((2, 16, 3, 3), generator=torch.Generator("cpu").manual_seed(7), dtype=torch.float32)
    two = randn_tensor((2, 16, 3, 3), generator=[torch.Generator("cpu").manual_seed(s) for s in (7, 8)],
                       dtype=torch.float32)
    t["out.batch2_one_generator_s7"], t["out.batch2_generators_s7_s8"] = one, two
    # the specification must give the same bits
    worst = 0
    for k, v in t.items():
        if "_n" in k:
            parts = k[5:].split("_")
            g = Generator(int(parts[0]))
            mine = np.concatenate([g.randn(int(p[1:])) for p in parts[1:] if p != "then"])
            worst = max(worst, int(ulps(mine, v.numpy()).max()))
    print(f"specification against torch: {worst} ulp at most")
    assert worst == 0
    write("noise_cpu", t, {"seeds": SEEDS, "sizes": SIZES},
          "torch.randn f32 on the CPU (AVX2 path); out.s<seed>_n<size>, and two draws from one generator")


if __name__ == "__main__":
    if sys.argv[1:] == ["check"]:
        check()
        for cap in ("default", "avx2"):
            if "ATEN_CPU_CAPABILITY" not in os.environ:
                subprocess.run([sys.executable, __file__, "check"], env=dict(os.environ, ATEN_CPU_CAPABILITY=cap),
                               check=True)
    else:
        main()
