"""Golden T5 and UMT5 encoders: small random models of transformers' T5EncoderModel and UMT5EncoderModel.

in.ids [n] I64; out.hidden.0 is the embedding, out.hidden.<i> the output of layer i-1 (before the final norm);
out.last_hidden_state is after the final norm. Long enough that every bucket of distances is met.
The run as pipelines do it (padded on the right, with a mask) is compared and printed, not stored.
"""
from common import fill, torch, write

from transformers import T5Config, T5EncoderModel, UMT5Config, UMT5EncoderModel

SIZES = dict(d_model=16, d_ff=40, d_kv=8, num_heads=3, num_layers=3, vocab_size=48)
CASES = {
    "t5": dict(model=T5EncoderModel, config=T5Config, forward="relu", n=141, seed=25),  # v1, T5-11B's kind
    "t5_gated": dict(model=T5EncoderModel, config=T5Config, forward="gated-gelu", n=13, seed=26),  # v1.1
    "umt5": dict(model=UMT5EncoderModel, config=UMT5Config, forward="gated-gelu", n=37, seed=27),
}


def build(c):
    config = c["config"](**SIZES, feed_forward_proj=c["forward"], relative_attention_num_buckets=32,
                         relative_attention_max_distance=128, layer_norm_epsilon=1e-6, dropout_rate=0.0)
    model = fill(c["model"](config), c["seed"])
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("SelfAttention.q.weight"):
                p.mul_(SIZES["d_kv"] ** -0.5)  # scores are not scaled: T5's weights are
            if "relative_attention_bias" in name:
                p.mul_(2)  # as large as scores are, so that they matter
            if name == "shared.weight":
                p.mul_(SIZES["d_model"] ** 0.5)
    plain = dict(SIZES, architectures=[c["model"].__name__], model_type=config.model_type,
                 feed_forward_proj=c["forward"], relative_attention_num_buckets=32,
                 relative_attention_max_distance=128, layer_norm_epsilon=1e-6)
    return model, plain


@torch.no_grad()
def run(model, ids, mask):
    layer_out, hooks = [], []
    for block in model.encoder.block:
        hooks.append(block.register_forward_hook(
            lambda _m, _i, o: layer_out.append((o[0] if isinstance(o, tuple) else o)[0].clone())))
    r = model(input_ids=ids[None], attention_mask=mask[None])
    for h in hooks:
        h.remove()
    return [model.shared(ids)] + layer_out, r.last_hidden_state[0]


def main():
    for name, c in CASES.items():
        model, config = build(c)
        gen = torch.Generator("cpu").manual_seed(2000 + c["seed"])
        ids = torch.randint(2, SIZES["vocab_size"], (c["n"],), generator=gen)
        ids[-1] = 1  # the end of the text
        hidden, last = run(model, ids, torch.ones(len(ids), dtype=torch.int64))
        padded = torch.cat([ids, torch.zeros(19, dtype=ids.dtype)])
        _, again = run(model, padded, (torch.arange(len(padded)) < len(ids)).long())
        gap = float((again[: len(ids)] - last).abs().max())
        print(" ", name, [round(float(h.pow(2).mean().sqrt()), 2) for h in hidden], "padded run differs by", gap)
        # encoder.embed_tokens is shared.weight again, and files leave it out.
        state = {"weights." + k: v for k, v in model.state_dict().items() if "embed_tokens" not in k}
        out = {f"out.hidden.{i}": h for i, h in enumerate(hidden)}
        write(f"text_{name}", {**state, "in.ids": ids, **out, "out.last_hidden_state": last}, config,
              f"{c['model'].__name__} in f32, transformers names")


if __name__ == "__main__":
    main()
