"""Golden Qwen3 and Qwen2.5-VL text encoders: small random models of transformers' Qwen3Model and
Qwen2_5_VLForConditionalGeneration, the latter with a vision model that text does not use.

in.ids [n] I64; out.hidden.0 is the embedding, out.hidden.<i> the output of layer i-1 (before the final norm);
out.text = hidden_states[-2], what the Z-Image pipeline takes: the input of the last layer;
out.last_hidden_state = hidden_states[-1], after the final norm: what the Qwen-Image pipeline takes.
The run as the pipeline does it (padded on the right, with a mask) is compared and printed, not stored.
"""
from common import fill, torch, write

from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen3Config, Qwen3Model

CASES = {
    "gqa": dict(hidden=32, inter=56, layers=3, heads=6, kv=2, head_dim=32, vocab=96, theta=1e6, n=13, seed=21),
    "hd128": dict(hidden=24, inter=40, layers=2, heads=2, kv=1, head_dim=128, vocab=64, theta=1e6, n=13, seed=22),
    "theta1e4": dict(hidden=24, inter=40, layers=2, heads=4, kv=4, head_dim=16, vocab=64, theta=1e4, n=37, seed=23),
}


def build(c):
    config = Qwen3Config(
        vocab_size=c["vocab"], hidden_size=c["hidden"], intermediate_size=c["inter"], num_hidden_layers=c["layers"],
        num_attention_heads=c["heads"], num_key_value_heads=c["kv"], head_dim=c["head_dim"], rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": c["theta"]}, tie_word_embeddings=True,
        max_position_embeddings=512, hidden_act="silu", attention_bias=False, use_cache=False,
        pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )
    model = fill(Qwen3Model(config), c["seed"])
    assert model.rotary_emb.config.rope_parameters["rope_theta"] == c["theta"]
    plain = dict(
        architectures=["Qwen3Model"], model_type="qwen3", vocab_size=c["vocab"], hidden_size=c["hidden"],
        intermediate_size=c["inter"], num_hidden_layers=c["layers"], num_attention_heads=c["heads"],
        num_key_value_heads=c["kv"], head_dim=c["head_dim"], rms_norm_eps=1e-6, rope_theta=c["theta"],
        tie_word_embeddings=True, max_position_embeddings=512, hidden_act="silu", attention_bias=False,
    )
    return model, plain


VL = {
    "vl": dict(hidden=32, inter=40, layers=3, heads=4, kv=2, head_dim=8, vocab=64, n=23, seed=24),
}


def build_vl(c):
    text = dict(
        model_type="qwen2_5_vl_text", vocab_size=c["vocab"], hidden_size=c["hidden"], intermediate_size=c["inter"],
        num_hidden_layers=c["layers"], num_attention_heads=c["heads"], num_key_value_heads=c["kv"],
        rms_norm_eps=1e-6, max_position_embeddings=512, hidden_act="silu", use_sliding_window=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]},
        pad_token_id=None, bos_token_id=None, eos_token_id=None, use_cache=False,
    )
    vision = dict(depth=1, hidden_size=8, intermediate_size=12, num_heads=2, out_hidden_size=c["hidden"],
                  patch_size=2, spatial_merge_size=1, temporal_patch_size=1, window_size=4, fullatt_block_indexes=[0])
    config = Qwen2_5_VLConfig(text_config=dict(text), vision_config=vision, tie_word_embeddings=True,
                              image_token_id=60, video_token_id=61, vision_start_token_id=62, vision_end_token_id=63)
    model = fill(Qwen2_5_VLForConditionalGeneration(config), c["seed"])
    model.tie_weights()
    plain = dict(architectures=["Qwen2_5_VLForConditionalGeneration"], model_type="qwen2_5_vl", text_config=text,
                 vision_config=vision)
    return model, plain


@torch.no_grad()
def run(model, ids, mask=None):
    layer_out, hooks = [], []
    inner = getattr(getattr(model, "model", model), "language_model", model)
    for layer in inner.layers:
        hooks.append(layer.register_forward_hook(
            lambda _m, _i, o: layer_out.append((o[0] if isinstance(o, tuple) else o)[0].clone())))
    r = model(input_ids=ids[None], attention_mask=None if mask is None else mask[None], output_hidden_states=True)
    for h in hooks:
        h.remove()
    hs = [h[0] for h in r.hidden_states]
    n = len(inner.layers)
    assert len(hs) == n + 1 and torch.equal(hs[-2], layer_out[n - 2]) and torch.equal(hs[0], inner.embed_tokens(ids))
    assert torch.equal(hs[-1], inner.norm(layer_out[-1]))  # the last one is after the final norm
    return [hs[0]] + layer_out, hs[-1], hs[-2]


def main():
    for name, c in {**CASES, **VL}.items():
        model, config = (build_vl if name in VL else build)(c)
        gen = torch.Generator("cpu").manual_seed(2000 + c["seed"])
        ids = torch.randint(0, c["vocab"], (c["n"],), generator=gen)
        hidden, last, text = run(model, ids)
        out = {f"out.hidden.{i}": h for i, h in enumerate(hidden)}
        out["out.last_hidden_state"], out["out.text"] = last, text
        # as the pipeline runs it: padded on the right to max_sequence_length, masked, then cut to the real tokens
        padded = torch.cat([ids, torch.zeros(19, dtype=ids.dtype)])
        _, final, again = run(model, padded, (torch.arange(len(padded)) < len(ids)).long())
        gap = [float((a[: len(ids)] - b).abs().max()) for a, b in ((again, text), (final, last))]
        print(" ", name, [round(float(h.pow(2).mean().sqrt()), 2) for h in hidden], "padded run differs by", gap)
        state = {"weights." + k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
        about = f"{type(model).__name__} in f32, transformers names"
        write(f"text_{name}", {**state, "in.ids": ids, **out}, config, about)


if __name__ == "__main__":
    main()
