"""Golden pictures: diffusers' own ZImagePipeline on the CPU, in f32 unless told otherwise.

    python pipeline.py MODEL_DIR OUT.safetensors [--prompt P ...] [--seed N] [--steps N] [--guidance G]
                       [--size WxH] [--negative P] [--max-sequence-length N] [--dtype D] [--png DIR] [--all]

Per prompt i: p<i>.ids, p<i>.latents (final, before scaling), p<i>.u8 [H,W,3]; with --all also p<i>.embeds (after
the template, cut to the real tokens), p<i>.noise, p<i>.latents_step<k>, p<i>.image (before the clamp); neg.embeds
once. Metadata: "config" with the arguments. Each prompt is a run of its own with a fresh generator of the same seed.
"""
import argparse
import json
from pathlib import Path

import numpy as np

from common import save, torch, versions

from diffusers import ZImagePipeline

def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("model", type=Path)
    ap.add_argument("out", type=Path)
    ap.add_argument("--prompt", action="append")
    ap.add_argument("--negative", default="")
    ap.add_argument("--seed", type=int, default=7)
    ap.add_argument("--steps", type=int)
    ap.add_argument("--guidance", type=float)
    ap.add_argument("--size")
    ap.add_argument("--max-sequence-length", type=int)
    ap.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    ap.add_argument("--png", type=Path)
    ap.add_argument("--all", action="store_true")
    a = ap.parse_args()
    torch.set_num_threads(2)
    pipe = ZImagePipeline.from_pretrained(a.model, torch_dtype=getattr(torch, a.dtype), local_files_only=True)
    pipe.set_progress_bar_config(disable=True)
    prompts = a.prompt or ["a red apple", "a photo of a small blue house"]
    steps = a.steps or 8
    guidance = a.guidance or 0.0
    w, h = (int(v) for v in a.size.split("x")) if a.size else (1024, 1024)
    msl = a.max_sequence_length or 512

    t = {}
    for i, prompt in enumerate(prompts):
        p = f"p{i}."
        embeds, negative = pipe.encode_prompt([prompt], "cpu", guidance > 0, negative_prompt=[a.negative],
                                              max_sequence_length=msl)
        t[p + "embeds"] = embeds[0]
        if guidance > 0:
            t["neg.embeds"] = negative[0]
        text = pipe.tokenizer.apply_chat_template([{"role": "user", "content": prompt}], tokenize=False,
                                                  add_generation_prompt=True, enable_thinking=True)
        t[p + "ids"] = torch.tensor(pipe.tokenizer(text, truncation=True, max_length=msl).input_ids)
        assert len(t[p + "ids"]) == len(embeds[0])
        noise = torch.randn((1, 16, h // 8, w // 8), generator=torch.Generator("cpu").manual_seed(a.seed))
        t[p + "noise"] = noise[0]

        def keep(_pipe, k, _t, kw):
            t[f"{p}latents_step{k}"] = kw["latents"][0].clone()
            return kw

        picture = pipe([prompt], height=h, width=w, num_inference_steps=steps, guidance_scale=guidance,
                       negative_prompt=[a.negative], generator=torch.Generator("cpu").manual_seed(a.seed),
                       max_sequence_length=msl, callback_on_step_end=keep).images[0]
        t[p + "latents"] = t.pop(f"{p}latents_step{steps - 1}")
        t[p + "u8"] = torch.from_numpy(np.array(picture))
        with torch.no_grad():
            z = t[p + "latents"][None] / pipe.vae.config.scaling_factor + pipe.vae.config.shift_factor
            t[p + "image"] = pipe.vae.decode(z.to(pipe.vae.dtype), return_dict=False)[0][0]
        if a.png:
            a.png.mkdir(parents=True, exist_ok=True)
            picture.save(a.png / f"{a.out.stem}_{i}.png")
    if not a.all:
        t = {k: v for k, v in t.items() if k.split(".")[-1] in ("ids", "latents", "u8")}
    config = dict(prompts=prompts, negative=a.negative, seed=a.seed, steps=steps, guidance=guidance, width=w, height=h,
                  max_sequence_length=msl, dtype=a.dtype)
    a.out.parent.mkdir(parents=True, exist_ok=True)
    save(a.out, t, {"config": json.dumps(config), "about": f"diffusers ZImagePipeline, CPU, {a.dtype}",
                    "versions": json.dumps(versions(), sort_keys=True)})
    print(f"{a.out.name}: {a.out.stat().st_size} bytes", config)


if __name__ == "__main__":
    main()
