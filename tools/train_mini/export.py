"""Puts what train.py left in its work folder into diffusers' layout.

    python export.py --work work --out shoal-mini

Weights go out as they were saved: bf16, every tensor that diffusers and transformers ask for, no more.
"""

import argparse
import json
import os
import shutil

from safetensors import safe_open

# In effect what Z-Image's template gives for one user message with enable_thinking=True: no think block.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

# The plain class that does what tokenizer.json says. Qwen2Tokenizer would fit too, but since transformers 5
# it builds its own normalizer (NFC only) and so would drop the lowercasing.
TOKENIZER_CLASS = "PreTrainedTokenizerFast"

MODEL_INDEX = {
    "_class_name": "ZImagePipeline",
    "_diffusers_version": "0.36.0",
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "Qwen3Model"],
    "tokenizer": ["transformers", TOKENIZER_CLASS],
    "transformer": ["diffusers", "ZImageTransformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}

# Not in model_index.json: diffusers warns about keys there that it does not know.
DEFAULTS = {"width": 128, "height": 128, "steps": 8, "cfg": 2.0, "max_tokens": 32}

SCHEDULER = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "_diffusers_version": "0.36.0",
    "num_train_timesteps": 1000,
    "shift": 1.0,
    "use_dynamic_shifting": False,
}


def write_json(path, value):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")


def read_json(path):
    with open(path, encoding="utf8") as file:
        return json.load(file)


def copy_weights(source, target):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(source, target)
    with safe_open(target, framework="pt") as file:
        tensors = [file.get_slice(key) for key in file.keys()]
        assert all(t.get_dtype() == "BF16" for t in tensors)
    print(f"{target}: {len(tensors)} tensors, {os.path.getsize(target)} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", default="work")
    parser.add_argument("--out", default="shoal-mini")
    args = parser.parse_args()
    work, out = args.work, args.out
    dit, vae = read_json(f"{work}/dit.json"), read_json(f"{work}/vae.json")

    copy_weights(f"{work}/transformer.safetensors", f"{out}/transformer/diffusion_pytorch_model.safetensors")
    copy_weights(f"{work}/text_encoder.safetensors", f"{out}/text_encoder/model.safetensors")
    copy_weights(f"{work}/vae.safetensors", f"{out}/vae/diffusion_pytorch_model.safetensors")

    version = {"_diffusers_version": MODEL_INDEX["_diffusers_version"]}
    transformer = {"_class_name": "ZImageTransformer2DModel", **version, **dit["transformer"]}
    write_json(f"{out}/transformer/config.json", transformer)
    scaling = {"scaling_factor": vae["scaling_factor"], "shift_factor": vae["shift_factor"]}
    write_json(f"{out}/vae/config.json", {"_class_name": "AutoencoderKL", **version, **vae["vae"], **scaling})
    text_encoder = {
        "architectures": ["Qwen3Model"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 0,
        **dit["text_encoder"],
    }
    write_json(f"{out}/text_encoder/config.json", text_encoder)
    write_json(f"{out}/scheduler/scheduler_config.json", SCHEDULER)
    write_json(f"{out}/model_index.json", MODEL_INDEX)
    write_json(f"{out}/shoal.json", DEFAULTS)

    write_json(f"{out}/tokenizer/tokenizer.json", read_json(f"{work}/tokenizer.json"))
    special = {
        str(i): {
            "content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True,
        }
        for i, text in enumerate(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    }  # fmt: skip
    tokenizer = {
        "tokenizer_class": TOKENIZER_CLASS,
        "added_tokens_decoder": special,
        "bos_token": None,
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
        "add_prefix_space": False,
        "chat_template": CHAT_TEMPLATE,
    }
    write_json(f"{out}/tokenizer/tokenizer_config.json", tokenizer)

    sizes = [os.path.getsize(os.path.join(folder, f)) for folder, _, files in os.walk(out) for f in files]
    print(f"{out}: {sum(sizes)} bytes in {len(sizes)} files")


if __name__ == "__main__":
    main()
