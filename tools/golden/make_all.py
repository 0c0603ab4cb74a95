"""Make every golden file again. `--mini PATH` is the tokenizer.json of the small trained model (optional)."""
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

for name in ("noise", "scheduler", "tokenizer", "text", "dit", "vae"):
    extra = sys.argv[1:] if name == "tokenizer" else []
    subprocess.run([sys.executable, str(HERE / f"{name}.py"), *extra], check=True)
