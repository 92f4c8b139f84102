"""A published model is loaded in little more host memory than its files are long: no second copy, none in float32."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("transformers")

WIDTH, MLP, STATES, BLOCKS = 2048, 6144, 4096, 8  # 0.9 GB in bf16
PER_BLOCK = {
    "q_proj": (WIDTH, WIDTH), "k_proj": (WIDTH, WIDTH), "v_proj": (WIDTH, WIDTH), "attn_out": (WIDTH, WIDTH),
    "ff_proj": (MLP, WIDTH), "up_proj": (MLP, WIDTH), "ff_out": (WIDTH, MLP), "attn_norm": (WIDTH,),
    "ff_norm": (WIDTH,),
}  # fmt: skip
MEASURE = """
import sys
from pathlib import Path
import transformers.models.llama.modeling_llama  # what it takes is not the model's
import unmask

def resident(which):  # memory now (VmRSS) or at its peak (VmHWM); what is mapped from files counts
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(which))

unmask.load("pocket")
before = resident("VmRSS")
model = unmask.load(sys.argv[1]).model
print(resident("VmHWM") - before, sum(value.nbytes for value in model.parameters()))
"""


def write(folder: Path) -> int:
    """A LLaDA of the hub's layout, a shard for each block; its bytes."""
    prefix, where = "model.transformer.", {}
    parts = [{"wte": (STATES, WIDTH), "ln_f": (WIDTH,), "ff_out": (STATES, WIDTH)}]
    parts += [{f"blocks.{n}.{name}": shape for name, shape in PER_BLOCK.items()} for n in range(BLOCKS)]
    for n, part in enumerate(parts):
        named = {
            f"{prefix}{name}.weight": torch.full(shape, 0.01, dtype=torch.bfloat16) for name, shape in part.items()
        }
        save_file(named, folder / f"model-{n}.safetensors")
        where |= dict.fromkeys(named, f"model-{n}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    config = {
        "model_type": "llada", "d_model": WIDTH, "n_heads": 16, "n_layers": BLOCKS, "mlp_hidden_size": MLP,
        "vocab_size": STATES, "embedding_size": STATES, "max_sequence_length": 4096, "rope_theta": 500000.0,
        "mask_token_id": STATES - 128, "weight_tying": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_loading_takes_less_than_1_2_times_the_files(tmp_path):
    size = write(tmp_path)
    done = subprocess.run([sys.executable, "-c", MEASURE, str(tmp_path)], check=True, capture_output=True, text=True)
    peak, held = map(int, done.stdout.split())
    assert held > 0.99 * size > 8e8
    assert peak < 1.2 * size
