"""Make every golden file again, those of shoal-mini included."""
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MINI = ROOT / "models" / "shoal-mini"
OUT = ROOT / "tests" / "golden"
PICTURES = ["--guidance", "1", "--prompt", "a cat wearing a hat", "--prompt", "A Pink Elephant"]
SMALL = ["--steps", "2", "--size", "64x64"]

SCRIPTS = [
    ("gguf_files", []),
    ("fp8", []),
    ("noise", []),
    ("scheduler", []),
    ("tokenizer", ["--mini", MINI / "tokenizer" / "tokenizer.json"]),
    ("text", []),
    ("text_t5", []),
    ("dit", []),
    ("qwen_image", []),
    ("vae", []),
    ("vae_encoder", []),
    ("wan_vae", []),
    ("pipeline", [MINI, OUT / "pipeline_mini.safetensors", "--steps", "8", "--size", "128x128", *PICTURES]),
    ("pipeline", [MINI, OUT / "pipeline_mini_bf16.safetensors", "--dtype", "bfloat16", *SMALL, *PICTURES]),
    ("pipeline", [MINI, OUT / "pipeline_mini_f16.safetensors", "--dtype", "float16", *SMALL, *PICTURES]),
]

for name, arguments in SCRIPTS:
    subprocess.run([sys.executable, str(HERE / f"{name}.py"), *map(str, arguments)], check=True)
