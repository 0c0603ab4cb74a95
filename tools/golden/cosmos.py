"""Golden Cosmos-Predict2 and Anima transformers: small random models of ComfyUI's MiniTrainDIT and Anima.

    python cosmos.py COMFYUI    the folder of a ComfyUI tree

in.latent [16,H,W], in.sigma [steps], in.context [n, context width] (of Anima: in.source and in.ids)
out.t<i>.sample: the model's own output, noise less picture
out.t<i>.<block>: the image's tokens after each block; out.context, out.<adapter block>: the adapter's
The same weights in diffusers' CosmosTransformer3DModel and AnimaTextConditioner give the same, to what is printed.
"""
import sys
from pathlib import Path

from common import fill, randn, torch, write

ROWS = 512  # of the context that the models are given: the prompt's and zeros

CASES = {
    # 2 heads of 16 (axes 8, 4, 4), 3x5 image tokens, 7 rows of context
    "cosmos_a": dict(dim=32, heads=2, layers=2, hw=(6, 10), context=7, sigma=[0.25, 0.984375], seed=31),
    # 1 head of 24 (axes 8, 8, 8), 5x3 image tokens; all rows of context are the prompt's
    "cosmos_b": dict(dim=24, heads=1, layers=1, hw=(10, 6), context=ROWS, sigma=[0.7], seed=32),
    # 5 T5 tokens attend to 9 rows of features 20 wide
    "anima_a": dict(dim=32, heads=2, layers=1, hw=(6, 10), context=9, sigma=[0.5], seed=33, ids=[17, 3, 0, 40, 1],
                    source=20, width=16, adapter_heads=2, adapter_layers=2, words=41),
}
LORA = 8  # 256 in the real models
CONTEXT = 16  # width of the context; 1024 there


def comfy_model(c):
    import comfy.ldm.anima.model
    import comfy.ldm.cosmos.predict2
    import comfy.ops

    width = c.get("width", CONTEXT)
    options = dict(
        max_img_h=240, max_img_w=240, max_frames=128, in_channels=16, out_channels=16, patch_spatial=2, patch_temporal=1,
        concat_padding_mask=True, model_channels=c["dim"], num_blocks=c["layers"], num_heads=c["heads"],
        crossattn_emb_channels=width, pos_emb_cls="rope3d", pos_emb_learnable=True, use_adaln_lora=True,
        adaln_lora_dim=LORA, rope_h_extrapolation_ratio=4.0, rope_w_extrapolation_ratio=4.0,
        rope_t_extrapolation_ratio=1.0, rope_enable_fps_modulation=False, dtype=torch.float32, device="cpu",
        operations=comfy.ops.disable_weight_init)
    model = comfy.ldm.cosmos.predict2.MiniTrainDIT(**options)
    if "ids" not in c:
        return model
    model.llm_adapter = comfy.ldm.anima.model.LLMAdapter(
        source_dim=c["source"], target_dim=width, model_dim=width, num_layers=c["adapter_layers"],
        num_heads=c["adapter_heads"], dtype=torch.float32, device="cpu", operations=comfy.ops.disable_weight_init)
    model.llm_adapter.embed = comfy.ops.disable_weight_init.Embedding(c["words"], width, dtype=torch.float32)
    return model


# ComfyUI's names -> diffusers', part by part.
NAMES = [
    ("t_embedder.1.", "time_embed.t_embedder."), ("t_embedding_norm.", "time_embed.norm."),
    ("adaln_modulation_self_attn.1.", "norm1.linear_1."), ("adaln_modulation_self_attn.2.", "norm1.linear_2."),
    ("adaln_modulation_cross_attn.1.", "norm2.linear_1."), ("adaln_modulation_cross_attn.2.", "norm2.linear_2."),
    ("adaln_modulation_mlp.1.", "norm3.linear_1."), ("adaln_modulation_mlp.2.", "norm3.linear_2."),
    ("self_attn.", "attn1."), ("cross_attn.", "attn2."), ("q_proj.", "to_q."), ("k_proj.", "to_k."),
    ("v_proj.", "to_v."), ("output_proj.", "to_out.0."), ("q_norm.", "norm_q."), ("k_norm.", "norm_k."),
    ("mlp.layer1.", "ff.net.0.proj."), ("mlp.layer2.", "ff.net.2."), ("x_embedder.proj.1.", "patch_embed.proj."),
    ("final_layer.adaln_modulation.1.", "norm_out.linear_1."), ("final_layer.adaln_modulation.2.", "norm_out.linear_2."),
    ("final_layer.linear.", "proj_out."),
]


def to_diffusers(state):
    out = {}
    for k, v in state.items():
        if k.startswith("llm_adapter."):
            continue
        if k.startswith("blocks."):
            k = "transformer_" + k
        for a, b in NAMES:
            k = k.replace(a, b)
        out[k] = v
    return out


def config_of(c):
    return dict(
        in_channels=16, out_channels=16, num_attention_heads=c["heads"], attention_head_dim=c["dim"] // c["heads"],
        num_layers=c["layers"], mlp_ratio=4.0, text_embed_dim=c.get("width", CONTEXT), adaln_lora_dim=LORA,
        max_size=[128, 240, 240], patch_size=[1, 2, 2], rope_scale=[1.0, 4.0, 4.0], concat_padding_mask=True,
        extra_pos_embed_type=None)


def diffusers_model(c, state):
    from diffusers import CosmosTransformer3DModel

    model = CosmosTransformer3DModel(**config_of(c)).float().eval()
    model.load_state_dict(to_diffusers(state))
    return model


def padded(rows):
    return torch.nn.functional.pad(rows, (0, 0, 0, ROWS - rows.shape[0]))


def inputs(c):
    gen = torch.Generator("cpu").manual_seed(1000 + c["seed"])
    return randn(gen, 16, *c["hw"]), randn(gen, c["context"], c.get("source", CONTEXT))


@torch.no_grad()
def adapt(c, model, source):
    """Anima's context of 512 rows, and what its blocks give."""
    ids, got, hooks = torch.tensor([c["ids"]]), {}, []
    for i, block in enumerate(model.llm_adapter.blocks):
        hooks.append(block.register_forward_hook(
            lambda _m, _i, o, name=f"out.llm_adapter.blocks.{i}": got.update({name: o[0].clone()})))
    out = model.llm_adapter(source[None], ids)[0]
    for h in hooks:
        h.remove()
    got["out.context"] = out

    from diffusers.models import AnimaTextConditioner
    other = AnimaTextConditioner(source_dim=c["source"], target_dim=c["width"], model_dim=c["width"],
                                 num_layers=c["adapter_layers"], num_attention_heads=c["adapter_heads"],
                                 target_vocab_size=c["words"]).float().eval()
    other.load_state_dict(model.llm_adapter.state_dict())
    ones = lambda n: torch.ones(1, n, dtype=torch.int64)
    same = other(source[None], ids, ones(ids.shape[1]), ones(source.shape[0]))[0]
    print("  adapter: diffusers is off by", float((same - padded(out)).abs().max()))
    return padded(out), got


@torch.no_grad()
def run(c, model, latent, context, i):
    """One step. Returns {name: tensor}."""
    got, hooks, sigma = {}, [], torch.tensor([c["sigma"][i]])
    for b, block in enumerate(model.blocks):
        hooks.append(block.register_forward_hook(
            lambda _m, _i, o, name=f"out.t{i}.blocks.{b}": got.update({name: o.reshape(-1, c["dim"]).clone()})))
    out = model(latent[None, :, None], sigma, context[None])[0, :, 0]
    for h in hooks:
        h.remove()
    got[f"out.t{i}.sample"] = out.clone()
    other = diffusers_model(c, {k: v for k, v in model.state_dict().items()})
    same = other(latent[None, :, None], sigma, context[None], padding_mask=torch.zeros(1, 1, *c["hw"]),
                 return_dict=False)[0][0, :, 0]
    print("  step", i, ": diffusers is off by", float((same - out).abs().max()))
    return got


def main(comfy):
    sys.path.insert(0, comfy)
    sys.argv = sys.argv[:1] + ["--cpu"]  # as ComfyUI reads it
    import comfy.options

    comfy.options.enable_args_parsing()
    for name, c in CASES.items():
        model = fill(comfy_model(c), c["seed"], True)
        if "ids" in c:  # normal, as other embeddings are; the root is a power of two, so still BF16-exact
            with torch.no_grad():
                model.llm_adapter.embed.weight *= c["width"] ** 0.5
        latent, rows = inputs(c)
        ins = {"in.latent": latent, "in.sigma": torch.tensor(c["sigma"])}
        outs, context = {}, padded(rows) if "ids" not in c else None
        if "ids" in c:
            ins.update({"in.source": rows, "in.ids": torch.tensor(c["ids"], dtype=torch.float32)})
            context, outs = adapt(c, model, rows)
        else:
            ins["in.context"] = rows
        for i in range(len(c["sigma"])):
            outs.update(run(c, model, latent, context, i))
        print(" ", name, {k: round(float(v.pow(2).mean().sqrt()), 2) for k, v in outs.items()})
        state = {k: v.bfloat16() for k, v in model.state_dict().items() if not k.startswith("pos_embedder.")}
        about = "in f32 by ComfyUI; weights stored as BF16 (exact)"
        config = dict(config_of(c), _class_name="CosmosTransformer3DModel")
        write(name, {**{"weights.net." + k: v for k, v in state.items()}, **ins, **outs}, config, name + " " + about)
        if name == "cosmos_a":
            write("cosmos_a_diffusers", {**{"weights." + k: v for k, v in to_diffusers(state).items()}, **ins, **outs},
                  config, "cosmos_a under diffusers' names")


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()))
