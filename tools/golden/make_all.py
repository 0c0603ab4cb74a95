"""Make every golden file again, those of shoal-mini included."""
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MINI = ROOT / "models" / "shoal-mini"

SCRIPTS = {
    "gguf_files": [],
    "noise": [],
    "scheduler": [],
    "tokenizer": ["--mini", MINI / "tokenizer" / "tokenizer.json"],
    "text": [],
    "dit": [],
    "vae": [],
    "pipeline": [MINI, ROOT / "tests" / "golden" / "pipeline_mini.safetensors", "--steps", "8", "--guidance", "1",
                 "--size", "128x128", "--prompt", "a cat wearing a hat", "--prompt", "A Pink Elephant"],
}

for name, arguments in SCRIPTS.items():
    subprocess.run([sys.executable, str(HERE / f"{name}.py"), *map(str, arguments)], check=True)
