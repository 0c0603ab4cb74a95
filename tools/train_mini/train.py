"""Trains shoal-mini in four stages, each a command of its own; everything is kept in --work.

    python train.py pool       draw the training set, train the tokenizer         (1 min)
    python train.py vae        train the autoencoder, encode the training set     (4 min)
    python train.py dit        train transformer and text encoder together       (16 min)
    python train.py evaluate   measure, paint sample grids                        (1 min)

`encode` encodes the training set again with a trained autoencoder: after `pool --resume` changed it.

Times are for one H200 GPU. Schedules follow the clock (--seconds), not a step count, so a slower GPU
trains less, not longer. `--tiny` shrinks everything for a dry run on a CPU.
"""

import argparse
import json
import math
import os
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file

import augment
import nets

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"  # what Z-Image's chat template gives
TOKENS = 32  # caption length; Z-Image pads captions to a multiple of 32
VOCABULARY = 2048
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"

# Widths are multiples of 192: only then is the feed-forward's int(dim / 3 * 8) a multiple of 32 while the
# heads are 64 wide.
SHAPES = {
    "deep": dict(dim=192, n_layers=11, n_heads=3, axes_dims=(16, 24, 24)),
    "wide": dict(dim=288, n_layers=4, n_heads=3, axes_dims=(32, 32, 32)),
    "tiny": dict(dim=96, n_layers=1, n_heads=3, axes_dims=(8, 12, 12)),
}

SHOWN_PROMPTS = [
    "a red apple", "a cat", "a dog", "pizza", "a rocket", "grinning face", "a unicorn", "sunflower",
    "a house", "a car", "a strawberry", "a birthday cake", "an octopus", "a snowman", "a robot", "a standing cat",
    "a Blue Robot", "A CASTLE", "a yellow rose", "a dragon wearing a crown", "a ghost and a pumpkin",
    "two green apples", "three red cars", "a red cat and a blue dog", "a green ball", "a purple car on a green background",
    "pixel art of a rocket", "a sketch of a cat", "a small house", "a sad robot", "a house next to a tree",
    "a black and white lion",
]  # fmt: skip


def log(*words):
    print(f"[{time.strftime('%H:%M:%S')}]", *words, flush=True)


def autocast():
    return torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=GPU)


def to_u8(x):
    return ((x.float().clamp(-1, 1) + 1) * 127.5 + 0.5).to(torch.uint8)


def save_grid(rows, path, labels=None):
    """rows: lists of u8 [3, h, w]; labels: a text for each."""
    height = rows[0][0].shape[1]
    strip = 12 if labels else 0
    columns = max(len(row) for row in rows)
    sheet = Image.new("RGB", (columns * (height + 2), len(rows) * (height + 2 + strip)), (128, 128, 128))
    draw = ImageDraw.Draw(sheet)
    for y, row in enumerate(rows):
        for x, picture in enumerate(row):
            corner = (x * (height + 2), y * (height + 2 + strip))
            sheet.paste(Image.fromarray(picture.permute(1, 2, 0).cpu().numpy()), (corner[0], corner[1] + strip))
            if labels:
                draw.text((corner[0] + 1, corner[1]), labels[y][x][:24], fill=(255, 255, 255))
    sheet.save(path)


def save_bf16(module, path):
    tensors = {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in module.state_dict().items()}
    save_file(tensors, path + ".part", metadata={"format": "pt"})
    os.replace(path + ".part", path)  # a reader never sees half a file


# ---------------------------------------------------------------- tokenizer


def train_tokenizer(prompts, path):
    """Byte-level BPE with Qwen's pre-tokenising, plus lowercasing: "A Red Apple" is "a red apple"."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    qwen = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(qwen), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(prompts + ["user\n", "assistant\n"] * 3000, trainer)
    tokenizer.save(path)


class Captions:
    """Prompts to token ids [n, 32] and lengths [n]."""

    def __init__(self, path):
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(path)

    def __call__(self, prompts):
        encoded = self.tokenizer.encode_batch([CHAT.format(p) for p in prompts], add_special_tokens=False)
        ids = torch.zeros(len(prompts), TOKENS, dtype=torch.long)
        for row, e in enumerate(encoded):
            kept = e.ids[:TOKENS]
            ids[row, : len(kept)] = torch.tensor(kept)
        lengths = torch.tensor([len(e.ids) for e in encoded])
        return ids, lengths


# ---------------------------------------------------------------- stage: pool


def stage_pool(args):
    emoji, entries = augment.load_emoji(f"{args.work}/emoji.npz", DEVICE)
    if args.tiny:
        emoji, entries = emoji[:400], entries[:400]
        held_out = []
    composer = augment.Composer(emoji, entries)
    if not args.tiny:
        held_out = composer.held_out_tests()
    pool = composer.build(scale=0.01 if args.tiny else 1.0)
    prompts = [p for some in pool.prompts for p in some]
    if not args.resume:  # trained weights only fit the tokenizer they were trained with
        train_tokenizer(prompts, f"{args.work}/tokenizer.json")
    ids, lengths = Captions(f"{args.work}/tokenizer.json")(prompts)
    counts = torch.tensor([len(some) for some in pool.prompts])
    torch.save(
        dict(
            pictures=torch.cat(pool.pictures).cpu(), weights=torch.tensor(pool.weights), kinds=pool.kinds,
            sources=pool.sources, prompts=pool.prompts, names=composer.words.names,
            nouns=[composer.words.noun(i) for i in range(len(entries))], held_out=held_out,
            ids=ids.short(), lengths=lengths, counts=counts, offsets=counts.cumsum(0) - counts,
        ),
        f"{args.work}/pool.pt",
    )  # fmt: skip
    log(
        f"pool: {len(counts)} pictures, {len(prompts)} prompts, {lengths.float().mean():.1f} tokens on average,"
        f" {(lengths > TOKENS).float().mean():.4f} of them over {TOKENS}"
    )
    log({kind: pool.kinds.count(kind) for kind in augment.KIND_SHARE})


def load_pool(args):
    return torch.load(f"{args.work}/pool.pt", weights_only=False)


# ---------------------------------------------------------------- Muon


def orthogonalised(x):
    """Newton-Schulz iteration: the nearest (roughly) orthogonal matrices to a batch of matrices."""
    x = x.to(torch.bfloat16 if GPU else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(5):
        s = x @ x.mT
        x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
    return x.mT if tall else x


class Muon:
    """Momentum, orthogonalised; matrices of one shape are handled in one batch. Convolutions count as matrices."""

    def __init__(self, parameters, weight_decay=0.0):
        self.weight_decay = weight_decay
        self.groups = {}
        for p in parameters:
            self.groups.setdefault((p.shape[0], p.numel() // p.shape[0]), []).append(p)
        self.momenta = {k: torch.zeros(len(v), *k, device=v[0].device) for k, v in self.groups.items()}

    @torch.no_grad()
    def step(self, rate, momentum):
        for shape, parameters in self.groups.items():
            gradient = torch.stack([p.grad.reshape(shape) for p in parameters])
            average = self.momenta[shape]
            average.lerp_(gradient, 1 - momentum)
            update = orthogonalised(gradient.lerp(average, momentum)).float() * (0.2 * math.sqrt(max(shape)))
            updates = [u.view(p.shape) for u, p in zip(update.unbind(0), parameters)]
            if self.weight_decay:
                torch._foreach_mul_(parameters, 1 - rate * self.weight_decay)
            torch._foreach_add_(parameters, updates, alpha=-rate)


class Average:
    """Exponential moving average of the parameters; `into_model` puts it in their place."""

    def __init__(self, parameters, decay):
        self.parameters, self.decay, self.steps = parameters, decay, 0
        self.values = [p.detach().clone() for p in parameters]

    @torch.no_grad()
    def update(self):
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        torch._foreach_lerp_(self.values, [p.detach() for p in self.parameters], 1 - decay)

    @torch.no_grad()
    def swap(self):
        for p, v in zip(self.parameters, self.values):
            kept = p.detach().clone()
            p.copy_(v)
            v.copy_(kept)


# ---------------------------------------------------------------- stage: vae


def vae_losses(vae, x, pooled):
    with autocast():
        mean, log_variance = vae.encode(x)
        log_variance = log_variance.clamp(-12, 6)
        z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        difference = vae.decoder(z).float() - x
        absolute = difference.abs().mean()
        edges = sum(difference.diff(dim=d).abs().mean() for d in (2, 3))
        coarse = F.avg_pool2d(difference, 4).abs().mean()
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
        loss = absolute + 0.5 * edges + 0.5 * coarse + difference.square().mean() + 5e-4 * kl
        if pooled:  # a halved latent shall decode to a halved picture: makes latents smooth, easier to generate
            half = vae.decoder(F.avg_pool2d(z, 2)).float() - F.avg_pool2d(x, 2)
            loss = loss + 0.25 * half.abs().mean()
    return loss, torch.stack([absolute.detach(), kl.detach()])


@torch.no_grad()
def vae_quality(vae, pictures, count=512):
    """PSNR in dB of decoded means: (mean, median, 5th percentile), and some (picture, decoded) pairs."""
    chosen = torch.randint(0, len(pictures), (count,), generator=torch.Generator().manual_seed(5))
    psnr, shown = [], None
    for part in chosen.split(128):
        x = pictures[part.to(pictures.device)].float() / 127.5 - 1
        with autocast():
            decoded = vae.decoder(vae.encode(x)[0]).float().clamp(-1, 1)
        psnr.append(-10 * ((decoded - x) / 2).square().flatten(1).mean(1).log10())
        shown = shown or (to_u8(x[:16]), to_u8(decoded[:16]))
    psnr = torch.cat(psnr).clamp_max(60)
    return [round(v, 2) for v in (psnr.mean().item(), psnr.median().item(), psnr.quantile(0.05).item())], shown


@torch.no_grad()
def encode_all(vae, pictures):
    means = []
    for part in pictures.split(512):
        with autocast():
            means.append(vae.encode(part.float() / 127.5 - 1)[0].to(torch.bfloat16))
    return torch.cat(means)


def stage_vae(args):
    pool = load_pool(args)
    pictures, weights = pool["pictures"].to(DEVICE), pool["weights"].to(DEVICE)
    torch.manual_seed(0)
    vae = nets.Autoencoder().to(DEVICE, memory_format=torch.channels_last)
    count = nets.parameter_count
    log(f"vae: {count(vae)} parameters, encoder {count(vae.encoder)}, decoder {count(vae.decoder)}")
    parameters = dict(vae.named_parameters())
    matrices = [p for n, p in parameters.items() if p.ndim >= 2 and "conv_in" not in n and "conv_out" not in n]
    chosen = {id(p) for p in matrices}
    rest = [p for p in parameters.values() if id(p) not in chosen]
    muon = Muon(matrices)
    adam = torch.optim.AdamW(rest, lr=0, betas=(0.9, 0.95), weight_decay=1e-4, fused=GPU)
    everything = list(parameters.values())
    average = Average(everything, 0.99)
    start, step, totals = time.time(), 0, torch.zeros(2, device=DEVICE)
    batch = 16 if args.tiny else args.vae_batch
    while (progress := (time.time() - start) / args.seconds) < 1:
        rate = 1.5e-3 * min(1, (step + 1) / 100) * min(1, (1 - progress) / 0.6)
        adam.param_groups[0]["lr"] = rate
        # small crops first: more variety a second; whole pictures to the end
        n, crop = (batch, 64) if progress < 0.6 else (batch // 4, 128)
        x = pictures[torch.multinomial(weights, n, replacement=True)]
        if crop < 128:
            corners = [(random.randint(0, 128 - crop), random.randint(0, 128 - crop)) for _ in range(8)]
            x = torch.cat([p[:, :, a : a + crop, b : b + crop] for p, (a, b) in zip(x.chunk(8), corners)])
        if step % 2:
            x = x.flip(3)
        x = (x.float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)
        loss, parts = vae_losses(vae, x, pooled=step % 4 == 0)
        loss.backward()
        nn.utils.clip_grad_norm_(everything, 1.0)
        adam.step()
        muon.step(rate, 0.93)
        for p in everything:
            p.grad = None
        step += 1
        totals += parts
        if step % 4 == 0:
            average.update()
        if step % 1000 == 0:
            log(f"vae step {step}, {time.time() - start:.0f} s, l1 %.4f kl %.2f" % tuple((totals / 1000).tolist()))
            totals.zero_()
    if average.steps > 50:
        average.swap()
    vae.eval()
    quality, shown = vae_quality(vae, pictures)
    log(f"vae done: {step} steps, PSNR mean {quality[0]}, median {quality[1]}, 5th percentile {quality[2]} dB")
    save_grid([list(shown[0]), list(shown[1])], f"{args.work}/vae.png")
    save_bf16(vae, f"{args.work}/vae.safetensors")
    facts = dict(vae=vae.config, psnr=quality, steps=step)
    encode_pool(args, pictures, facts)


def encode_pool(args, pictures, facts):
    """Latents of the training set, with mean 0 and deviation 1 by the factors in `facts` (made if it has none)."""
    vae = nets.Autoencoder().to(DEVICE, memory_format=torch.channels_last)
    vae.load_state_dict(load_file(f"{args.work}/vae.safetensors"))  # from the rounded weights, as they are shipped
    latents = encode_all(vae, pictures)
    if "shift_factor" not in facts:
        facts["shift_factor"] = latents.float().mean().item()
        facts["scaling_factor"] = 1 / latents.float().std().item()
        json.dump(facts, open(f"{args.work}/vae.json", "w"), indent=1)
    latents = ((latents.float() - facts["shift_factor"]) * facts["scaling_factor"]).to(torch.bfloat16)
    torch.save(latents.cpu(), f"{args.work}/latents.pt")
    log(f"latents {tuple(latents.shape)}, shift {facts['shift_factor']:.5f}, scale {facts['scaling_factor']:.5f}")


def stage_encode(args):
    pictures = load_pool(args)["pictures"].to(DEVICE)
    encode_pool(args, pictures, json.load(open(f"{args.work}/vae.json")))


# ---------------------------------------------------------------- stage: dit


class Painter(nn.Module):
    """Text encoder and transformer, trained as one."""

    def __init__(self, shape):
        super().__init__()
        self.text_encoder = nets.TextEncoder(VOCABULARY)
        self.transformer = nets.ZImage(**SHAPES[shape])

    def forward(self, latents, t, ids, lengths):
        caption = self.text_encoder(ids)
        valid = torch.arange(TOKENS, device=ids.device)[None] < lengths[:, None]
        return self.transformer(latents, t, caption, valid)


class Batches:
    """Draws (latents, token ids, lengths) by weight; pictures and prompts lie on the GPU."""

    def __init__(self, pool, latents, captions, batch):
        self.batch = batch
        self.latents, self.weights = latents.to(DEVICE), pool["weights"].to(DEVICE)
        self.ids, self.lengths = pool["ids"].to(DEVICE), pool["lengths"].clamp_max(TOKENS).to(DEVICE)
        self.counts, self.offsets = pool["counts"].to(DEVICE), pool["offsets"].to(DEVICE)
        self.empty_ids, self.empty_length = (a.to(DEVICE) for a in captions([""]))
        self.drawn, self.next = None, 0

    def draw(self):
        if self.drawn is None or self.next == len(self.drawn):  # multinomial is slow: draw many at once
            self.drawn = torch.multinomial(self.weights, 200 * self.batch, replacement=True).view(200, self.batch)
            self.next = 0
        chosen = self.drawn[self.next]
        self.next += 1
        prompt = self.offsets[chosen] + (torch.rand(self.batch, device=DEVICE) * self.counts[chosen]).long()
        dropped = torch.rand(self.batch, device=DEVICE) < 0.1  # for classifier-free guidance
        ids = torch.where(dropped[:, None], self.empty_ids, self.ids[prompt].long())
        lengths = torch.where(dropped, self.empty_length, self.lengths[prompt])
        return self.latents[chosen].float(), ids, lengths


def noise_levels(n):
    """Sigma: logit-normal, with a third uniform so that the ends are seen too."""
    sigma = torch.sigmoid(torch.randn(n, device=DEVICE))
    return torch.where(torch.rand(n, device=DEVICE) < 0.35, torch.rand(n, device=DEVICE), sigma)


@torch.no_grad()
def fixed_loss(model, latents, ids, lengths):
    """Flow loss at five noise levels with fixed noise."""
    generator = torch.Generator().manual_seed(9)
    total = 0.0
    for sigma in (0.1, 0.3, 0.5, 0.7, 0.9):
        for part in torch.arange(len(latents)).split(256):
            clean = latents[part.to(latents.device)].to(DEVICE).float()
            noise = torch.randn(clean.shape, generator=generator).to(DEVICE)
            t = torch.full((len(part),), 1 - sigma, device=DEVICE)
            here = part.to(ids.device)
            with autocast():
                v = model((1 - sigma) * clean + sigma * noise, t, ids[here].to(DEVICE), lengths[here].to(DEVICE))
            total += (v.float() - (clean - noise)).square().mean().item() * len(part)
    return total / 5 / len(latents)


def save_painter(model, work):
    save_bf16(model.transformer, f"{work}/transformer.safetensors")
    save_bf16(model.text_encoder, f"{work}/text_encoder.safetensors")


def load_painter(work, shape):
    model = Painter(shape)
    model.transformer.load_state_dict(load_file(f"{work}/transformer.safetensors"))
    model.text_encoder.load_state_dict(load_file(f"{work}/text_encoder.safetensors"))
    return model.float().to(DEVICE)


def stage_dit(args):
    out = args.out or args.work
    os.makedirs(out, exist_ok=True)
    pool = load_pool(args)
    captions = Captions(f"{args.work}/tokenizer.json")
    batches = Batches(pool, torch.load(f"{args.work}/latents.pt"), captions, 16 if args.tiny else args.batch)
    plain = torch.tensor([i for i, k in enumerate(pool["kinds"]) if k == "plain"][:1024])
    plain_prompts = pool["offsets"][plain]
    check = [batches.latents[plain.to(DEVICE)], pool["ids"][plain_prompts].long(), pool["lengths"][plain_prompts]]

    torch.manual_seed(1)
    model = load_painter(args.work, args.shape) if args.resume else Painter(args.shape).to(DEVICE)
    count = nets.parameter_count
    log(f"dit {args.shape}: transformer {count(model.transformer)}, text encoder {count(model.text_encoder)} parameters")
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    # Muon for the matrices of attention and feed-forward; AdamW for embeddings, modulation and vectors
    inner = lambda n: ".layers." in n or "refiner." in n  # noqa: E731
    matrices = {n for n, p in named.items() if p.ndim == 2 and inner(n) and "adaLN" not in n}
    decayed = [p for n, p in named.items() if n not in matrices and p.ndim == 2 and "embed_tokens" not in n and "pad_" not in n]
    chosen = {id(p) for p in decayed} | {id(named[n]) for n in matrices}
    plain_parameters = [p for p in named.values() if id(p) not in chosen]
    muon = Muon([named[n] for n in matrices], 0.01)
    adam = torch.optim.AdamW(
        [dict(params=decayed, weight_decay=0.01), dict(params=plain_parameters, weight_decay=0.0)],
        lr=0, betas=(0.9, 0.98), fused=GPU,
    )  # fmt: skip
    everything = list(named.values())
    average = Average(everything, 0.999)
    if GPU:
        torch._dynamo.config.cache_size_limit = 64
        transformer = model.transformer
        blocks = [*transformer.noise_refiner, *transformer.context_refiner, *transformer.layers]
        for block in [*blocks, *model.text_encoder.layers[:-1]]:
            block.compile(dynamic=False)

    warm_steps, step, start, total = (1 if args.tiny else 10), 0, None, torch.zeros((), device=DEVICE)
    next_report, curve = args.report, []
    while True:
        if step == warm_steps:  # compiling is over: the clock starts
            if GPU:
                torch.cuda.synchronize()
            start = time.time()
            log("compiled")
        elapsed = 0.0 if start is None else time.time() - start
        progress = elapsed / args.seconds
        if progress >= 1:
            break
        rate = args.rate * min(1, (step + 1) / 150) * min(1, (1 - progress) / 0.5)
        for group in adam.param_groups:
            group["lr"] = 0.75 * rate
        clean, ids, lengths = batches.draw()
        sigma = noise_levels(len(clean))
        noise = torch.randn_like(clean)
        s = sigma[:, None, None, None]
        with autocast():
            v = model((1 - s) * clean + s * noise, 1 - sigma, ids, lengths)
        loss = (v.float() - (clean - noise)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(everything, 1.0)
        adam.step()
        muon.step(rate, min(0.95, 0.85 + 0.1 * step / 300))
        for p in everything:
            p.grad = None
        average.update()
        step += 1
        total += loss.detach()
        if elapsed >= next_report:
            steps_since = step - (curve[-1][1] if curve else 0)
            curve.append((round(elapsed), step, round(total.item() / steps_since, 5)))
            total.zero_()
            next_report += args.report
            average.swap()
            with torch.compiler.set_stance("force_eager"):
                log(f"dit {args.shape}: {elapsed:.0f} s, step {step}, loss {curve[-1][2]}, average's {fixed_loss(model, *check):.5f}")
            if len(curve) % 4 == 0:
                save_painter(model, out)
            average.swap()
    average.swap()
    save_painter(model, out)
    torch.compiler.set_stance("force_eager")
    facts = dict(
        transformer=model.transformer.config, text_encoder=model.text_encoder.config, shape=args.shape, steps=step,
        batch=batches.batch, seconds=round(elapsed), curve=curve, fixed_loss=fixed_loss(model, *check),
    )  # fmt: skip
    json.dump(facts, open(f"{out}/dit.json", "w"), indent=1)
    log(f"dit done: {step} steps of {batches.batch}, {elapsed:.0f} s, fixed loss {facts['fixed_loss']:.5f}")


# ---------------------------------------------------------------- stage: evaluate


class Sampler:
    """Euler steps as the pipeline takes them. `guidance` means what diffusers' ZImagePipeline means by it:
    cond + guidance * (cond - uncond), 0 is off."""

    def __init__(self, work, shape, out):
        facts = json.load(open(f"{work}/vae.json"))
        self.shift, self.scale = facts["shift_factor"], facts["scaling_factor"]
        self.vae = nets.Autoencoder().to(DEVICE)
        self.vae.load_state_dict(load_file(f"{work}/vae.safetensors"))
        self.model = load_painter(out, shape).eval()
        self.captions = Captions(f"{work}/tokenizer.json")

    @torch.no_grad()
    def __call__(self, prompts, steps=8, guidance=1.0, seed=0):
        ids, lengths = (a.to(DEVICE) for a in self.captions(prompts))
        empty_ids, empty_length = (a.to(DEVICE) for a in self.captions([""]))
        n = len(prompts)
        lengths = lengths.clamp_max(TOKENS)
        ids = torch.cat([ids, empty_ids.expand(n, -1)])
        lengths = torch.cat([lengths, empty_length.expand(n)])
        x = torch.randn(n, 16, 16, 16, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
        sigmas = torch.linspace(1, 0, steps + 1).tolist()
        for sigma, following in zip(sigmas, sigmas[1:]):
            t = torch.full((2 * n,), 1 - sigma, device=DEVICE)
            with autocast():
                cond, uncond = self.model(torch.cat([x, x]), t, ids, lengths).float().chunk(2)
            x = x + (sigma - following) * (cond + guidance * (cond - uncond))
        with autocast():
            return torch.cat([to_u8(self.vae.decoder(p / self.scale + self.shift)) for p in x.split(256)])


def thumbnails(u8):
    return torch.cat([F.interpolate(p.to(DEVICE).float() / 255, size=(32, 32), mode="area").flatten(1) for p in u8.split(1024)])


def compare(painted, right, gallery, gallery_small):
    """Whether the nearest picture of the gallery is one of the right ones (a list of indices for each painted
    picture), and the PSNR in dB to the best of those. Mirrored pictures count as the same."""
    flipped = gallery_small.view(-1, 3, 32, 32).flip(3).flatten(1)
    small = thumbnails(painted)
    nearest = torch.minimum(torch.cdist(small, gallery_small), torch.cdist(small, flipped)).argmin(1).tolist()
    hits = torch.tensor([float(n in r) for n, r in zip(nearest, right)])
    psnr = []
    for x, r in zip(painted.float() / 255, right):
        truth = gallery[r].to(DEVICE).float() / 255
        errors = torch.stack([(x - truth).square().flatten(1).mean(1), (x - truth.flip(3)).square().flatten(1).mean(1)])
        psnr.append(-10 * errors.min().clamp_min(1e-8).log10().item())
    return hits, torch.tensor(psnr)


def stage_evaluate(args):
    pool, out = load_pool(args), args.out or args.work
    paint = Sampler(args.work, args.shape, out)
    result = {}

    # 1. names it was trained on: is the picture painted for a name nearest to that emoji's?
    first_of = {}
    for i, (kind, source) in enumerate(zip(pool["kinds"], pool["sources"])):
        if kind == "plain":
            first_of.setdefault(source, i)
    gallery = pool["pictures"][list(first_of.values())]
    chosen = random.Random(3).sample(range(len(gallery)), min(512, len(gallery)))
    prompts = [augment.with_article(pool["nouns"][list(first_of)[i]]) for i in chosen]
    small = thumbnails(gallery)
    for steps, guidance in ((4, 1.0), (8, 0.0), (8, 0.5), (8, 1.0), (8, 2.0), (8, 3.0), (16, 1.0), (16, 2.0), (32, 1.0)):
        painted = torch.cat([paint(prompts[k : k + 256], steps, guidance, 100 + k) for k in range(0, len(prompts), 256)])
        hits, psnr = compare(painted, [[i] for i in chosen], gallery, small)
        key = f"{steps} steps, guidance {guidance}"
        result[f"names, {key}"] = dict(top1=round(hits.mean().item(), 4), psnr=round(psnr.median().item(), 2))
        log(key, result[f"names, {key}"])

    # 2. held-out compositions among the whole training set and each other: 4 seeds each
    held = pool["held_out"]
    gallery = torch.cat([pool["pictures"], *(p for _, _, p in held)])
    small = thumbnails(gallery)
    ends = torch.tensor([len(p) for _, _, p in held]).cumsum(0) + len(pool["pictures"])
    right = [list(range(end - len(p), end)) for end, (_, _, p) in zip(ends.tolist(), held)]
    for guidance in (1.0, 2.0, 3.0):
        kinds, rows = {}, []
        for seed in range(4):
            painted = paint([p for _, p, _ in held], 8, guidance, seed)
            rows.append(list(painted))
            hits, psnr = compare(painted, right, gallery, small)
            for (kind, prompt, _), hit, value in zip(held, hits.tolist(), psnr.tolist()):
                for k in (kind, "all", prompt):
                    kinds.setdefault(k, []).append((hit, value))
        summary = {
            k: dict(top1=round(sum(h for h, _ in v) / len(v), 3), psnr=round(torch.tensor([p for _, p in v]).median().item(), 2))
            for k, v in kinds.items()
        }
        result[f"held out, guidance {guidance}"] = summary
        log(f"held out, 8 steps, guidance {guidance}", {k: v for k, v in summary.items() if len(kinds[k]) > 4})
        if guidance == 1.0:
            labels = [[p for _, p, _ in held]] * 5
            save_grid([[p[0] for _, _, p in held], *rows], f"{out}/held_out.png", labels)

    # 3. compositions it was trained on
    for kind in augment.KIND_SHARE:
        chosen = random.Random(4).sample([i for i, k in enumerate(pool["kinds"]) if k == kind], 256)
        painted = paint([pool["prompts"][i][0] for i in chosen], 8, 1.0, 7)
        twins = {}  # an emoji and its mirrored copy are both in the pool
        if kind == "plain":
            for i, (k, source) in enumerate(zip(pool["kinds"], pool["sources"])):
                if k == kind:
                    twins.setdefault(source, []).append(i)
        right = [twins.get(pool["sources"][i], [i]) for i in chosen]
        hits, psnr = compare(painted, right, gallery, small)
        result[f"trained, {kind}"] = dict(top1=round(hits.mean().item(), 4), psnr=round(psnr.median().item(), 2))
        log("trained", kind, result[f"trained, {kind}"])

    rows = [paint(SHOWN_PROMPTS, 8, g, s) for g, s in ((1.0, 1), (2.0, 1), (1.0, 2), (2.0, 2))]
    rows = [list(r[k : k + 16]) for k in (0, 16) for r in rows]
    labels = [SHOWN_PROMPTS[k : k + 16] for k in (0, 16) for _ in range(4)]
    save_grid(rows, f"{out}/samples.png", labels)
    json.dump(result, open(f"{out}/evaluation.json", "w"), indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=["pool", "vae", "encode", "dit", "evaluate"])
    parser.add_argument("--work", default="work", help="folder with emoji.npz; everything else is put there")
    parser.add_argument("--out", help="other folder for what dit and evaluate write (to compare shapes)")
    parser.add_argument("--seconds", type=float, default=None, help="how long to train")
    parser.add_argument("--shape", choices=SHAPES, default="deep")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--vae-batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--report", type=float, default=30, help="seconds between checks; every 4th is saved")
    parser.add_argument("--resume", action="store_true", help="go on with the tokenizer and weights in --work")
    parser.add_argument("--tiny", action="store_true", help="a dry run for a CPU")
    args = parser.parse_args()
    if args.seconds is None:
        args.seconds = {"vae": 210, "dit": 930}.get(args.stage, 0)
    if GPU:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    dict(pool=stage_pool, vae=stage_vae, encode=stage_encode, dit=stage_dit, evaluate=stage_evaluate)[args.stage](args)


if __name__ == "__main__":
    main()
