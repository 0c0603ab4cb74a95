"""Golden samplers and schedules: ComfyUI's own functions on a toy denoiser, in double precision.

Unlike its neighbours it needs a ComfyUI tree, and what that needs:
    samplers.py PATH_OF_COMFYUI
"""
import json
import os
import sys
import types

import torch

sys.path.insert(0, sys.argv[1])
sys.argv = sys.argv[:1] + ["--cpu"]
import comfy.options  # noqa: E402

comfy.options.enable_args_parsing()
import comfy.k_diffusion.sampling as k_sampling  # noqa: E402
import comfy.model_sampling as model_sampling  # noqa: E402
import comfy.samplers as samplers  # noqa: E402

OUT = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "golden", "samplers.json")
SAMPLERS = ("euler", "euler_ancestral", "heun", "dpmpp_2m", "uni_pc", "uni_pc_bh2")
SCHEDULES = ("simple", "normal", "karras", "exponential", "beta")
EDM = 0.0  # in place of a shift: the levels of Cosmos-Predict2
FLUX = 3.1581929  # this shift, e^1.15, stands for Qwen-Image's: 10000 levels to choose among
CASES = ((8, 3.0), (4, 1.0), (7, EDM))
SIZE = 4
NOISE = 16  # rows of noise: more than any case draws


class Toy:
    """Answers with the picture that it sees: x - sigma v, v = tanh(0.7 x + sigma / 2) + x / 4."""
    def __init__(self, sampling):
        inner = types.SimpleNamespace(model_sampling=sampling)
        patcher = types.SimpleNamespace(get_model_object=lambda name: sampling)
        self.inner_model = types.SimpleNamespace(inner_model=inner, model_patcher=patcher)

    def __call__(self, x, sigma, **kwargs):
        s = sigma.reshape(-1, 1)
        return x - s * (torch.tanh(0.7 * x + s / 2) + x / 4)


def floats(t):
    return [float(v) for v in t]


def levels_of(sampling, sampler, schedule, steps):
    if schedule != "model":
        patcher = types.SimpleNamespace(get_model_object=lambda name: sampling)
        return samplers.KSampler(patcher, steps, "cpu", sampler, schedule).sigmas
    skips = sampler in samplers.KSampler.DISCARD_PENULTIMATE_SIGMA_SAMPLERS
    if isinstance(sampling, model_sampling.ModelSamplingCosmosRFlow):  # Karras's are the model's own
        kept = k_sampling.get_sigmas_karras(steps + skips, float(sampling.sigma_min), float(sampling.sigma_max))
        return torch.cat([kept[:steps], torch.zeros(1)])
    t = torch.linspace(1, 1 / (steps + skips), steps + skips)
    return torch.cat([sampling.sigma(t)[:steps], torch.zeros(1)])


def sampling_of(shift):
    class RFlow(model_sampling.ModelSamplingCosmosRFlow, model_sampling.COSMOS_RFLOW):
        pass

    if shift == EDM:
        sampling = RFlow()
        sampling.set_parameters(0.002, 80.0, 1.0)
        return sampling

    class Flux(model_sampling.ModelSamplingFlux, model_sampling.CONST):
        pass

    if shift == FLUX:
        sampling = Flux()
        sampling.set_parameters(shift=1.15)
        return sampling

    class Flow(model_sampling.ModelSamplingDiscreteFlow, model_sampling.CONST):
        pass

    sampling = Flow()
    sampling.set_parameters(shift=shift, multiplier=1.0)
    return sampling


def main():
    levels = []
    for shift in (1.0, 3.0, 0.01, EDM, FLUX):
        for steps in (1, 2, 4, 9, 20, 60):
            for name in SCHEDULES:
                sigmas = samplers.calculate_sigmas(sampling_of(shift), name, steps)
                levels.append(dict(schedule=name, shift=shift, steps=steps, sigmas=floats(sigmas)))

    torch.set_default_dtype(torch.float64)
    gen = torch.Generator().manual_seed(5)
    start = torch.randn(1, SIZE, generator=gen)
    noise = torch.randn(NOISE, 1, SIZE, generator=gen)
    runs = []
    for steps, shift in CASES:
        for schedule in ("model",) + SCHEDULES:
            for name in SAMPLERS:
                torch.set_default_dtype(torch.float32)  # the tables are of that
                sampling = sampling_of(shift)
                sigmas = levels_of(sampling, name, schedule, steps).double()
                torch.set_default_dtype(torch.float64)
                model = Toy(sampling)
                extra = {}
                if name == "euler_ancestral":
                    drawn = iter(noise)
                    extra["noise_sampler"] = lambda sigma, sigma_next: next(drawn)
                function = samplers.sampler_object(name).sampler_function
                kept = sigmas.clone()  # uni_pc writes over its last level
                end = function(model, start.clone(), sigmas, extra_args={}, callback=None, disable=True, **extra)
                runs.append(dict(sampler=name, schedule=schedule, steps=steps, shift=shift,
                                 sigmas=floats(kept), latent=floats(end.flatten())))
    data = dict(start=floats(start.flatten()), noise=[floats(n.flatten()) for n in noise], levels=levels,
                runs=runs)
    with open(OUT, "w") as file:
        json.dump(data, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
