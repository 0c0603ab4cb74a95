"""Golden schedule: FlowMatchEulerDiscreteScheduler set up as ZImagePipeline does it, and a toy integration."""
from common import torch, write_json

from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.z_image.pipeline_z_image import calculate_shift, get_default_z_image_sigmas, retrieve_timesteps


def floats(t):
    return [float(v) for v in t]  # exact: every f32 value is printed as the f64 that equals it


def schedule(steps, image_seq_len=256, **config):
    s = FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, **config)
    mu = calculate_shift(image_seq_len, s.config.base_image_seq_len, s.config.max_image_seq_len,
                         s.config.base_shift, s.config.max_shift)
    timesteps, n = retrieve_timesteps(s, steps, "cpu", sigmas=get_default_z_image_sigmas(steps), mu=mu)
    assert n == steps
    s.set_begin_index(0)
    return s, timesteps, mu


def main():
    cases = []
    for shift in (1.0, 3.0, 6.0):
        for steps in (1, 4, 8, 9, 50):
            s, ts, _ = schedule(steps, shift=shift, use_dynamic_shifting=False)
            # what the transformer gets as t
            cases.append(dict(steps=steps, shift=shift, dynamic=False, sigmas=floats(s.sigmas), timesteps=floats(ts),
                              model_t=floats((1000 - ts) / 1000)))
    for seq in (64, 256, 1024, 4096):
        s, ts, mu = schedule(8, image_seq_len=seq, use_dynamic_shifting=True)
        cases.append(dict(steps=8, dynamic=True, image_seq_len=seq, mu=mu, sigmas=floats(s.sigmas),
                          timesteps=floats(ts), model_t=floats((1000 - ts) / 1000)))
    # Qwen-Image's: a line of its own, and a last level that all are stretched to
    for steps, seq in ((2, 4096), (4, 256), (50, 4096), (20, 8192)):
        s, ts, mu = schedule(steps, image_seq_len=seq, use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9,
                             base_image_seq_len=256, max_image_seq_len=8192, shift_terminal=0.02)
        cases.append(dict(steps=steps, dynamic=True, image_seq_len=seq, mu=mu, terminal=0.02,
                          sigmas=floats(s.sigmas), timesteps=floats(ts), model_t=floats((1000 - ts) / 1000)))
    # diffusers up to 0.36 called set_timesteps(n) with sigma_min = 0: n model calls, the last one with dt = 0
    old = []
    for steps, shift in ((5, 3.0), (9, 3.0), (9, 6.0)):
        s = FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=shift, use_dynamic_shifting=False)
        s.sigma_min = 0.0
        s.set_timesteps(steps, device="cpu", mu=0.5)
        old.append(dict(steps=steps, shift=shift, sigmas=floats(s.sigmas), timesteps=floats(s.timesteps)))
    toys = []
    for steps, shift in ((4, 3.0), (8, 1.0), (9, 6.0)):
        s, ts, _ = schedule(steps, shift=shift, use_dynamic_shifting=False)
        gen = torch.Generator("cpu").manual_seed(steps)
        x = torch.randn(1, 1, 2, 4, generator=gen)
        outs, xs = torch.randn(steps, 1, 1, 2, 4, generator=gen), [x]
        for i, t in enumerate(ts):
            x = s.step(outs[i], t, x, return_dict=False)[0]
            xs.append(x)
        toys.append(dict(steps=steps, shift=shift, model_output=[floats(o.flatten()) for o in outs],
                         latents=[floats(v.flatten()) for v in xs]))
    write_json("scheduler", dict(
        about="FlowMatchEulerDiscreteScheduler as ZImagePipeline calls it; f32 values printed exactly; model_output is "
              "what scheduler.step gets, that is the transformer's output already negated",
        num_train_timesteps=1000, cases=cases, cases_diffusers_0_36=old, toys=toys))


if __name__ == "__main__":
    main()
