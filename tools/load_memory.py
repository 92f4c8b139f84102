"""How much host memory `unmask.load` takes: writes a LLaDA of random weights in bf16 shards, loads it, says the peak.

python -m tools.load_memory FOLDER --blocks 2                          # 2.9 GB
python -m tools.load_memory FOLDER --blocks 32                         # LLaDA-8B: 16 GB
python -m tools.load_memory FOLDER --blocks 32 --device_map disk       # all blocks but the first on disk
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

WIDTH, MLP, HEADS, STATES = 4096, 12288, 32, 126464
PER_BLOCK = {
    "q_proj": (WIDTH, WIDTH), "k_proj": (WIDTH, WIDTH), "v_proj": (WIDTH, WIDTH), "attn_out": (WIDTH, WIDTH),
    "ff_proj": (MLP, WIDTH), "up_proj": (MLP, WIDTH), "ff_out": (WIDTH, MLP), "attn_norm": (WIDTH,),
    "ff_norm": (WIDTH,),
}  # fmt: skip
PREFIX = "model.transformer."


def write(folder: Path, blocks: int, states: int) -> None:
    """A folder as the hub has it, a shard for each block; nothing is kept in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    where: dict[str, str] = {}
    outer = {"wte": (states, WIDTH), "ln_f": (WIDTH,), "ff_out": (states, WIDTH)}
    parts = [{f"{PREFIX}{name}.weight": shape for name, shape in outer.items()}]
    for n in range(blocks):
        parts.append({f"{PREFIX}blocks.{n}.{name}.weight": shape for name, shape in PER_BLOCK.items()})
    for n, part in enumerate(parts):
        file = f"model-{n + 1:05}-of-{len(parts):05}.safetensors"
        generator = torch.Generator().manual_seed(n)
        row = torch.randn(WIDTH, generator=generator).mul(0.02).bfloat16()
        save_file({name: row.repeat(*shape[:-1], shape[-1] // WIDTH) for name, shape in part.items()}, folder / file)
        where |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    config = {
        "model_type": "llada", "d_model": WIDTH, "n_heads": HEADS, "n_layers": blocks, "mlp_hidden_size": MLP,
        "vocab_size": states, "embedding_size": states, "max_sequence_length": 4096, "rope_theta": 500000.0,
        "mask_token_id": states - 128, "weight_tying": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def resident(which: str) -> int:
    """Memory of this process now (VmRSS) or at its peak (VmHWM), in bytes; what is mapped from files counts."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(which))


def measure(folder: Path, device_map: str | None) -> dict[str, float]:
    """Loads in this process: what the weights hold, and by how much the peak of the process rose, in bytes."""
    import transformers.models.llama.modeling_llama  # noqa: F401  what it takes is not the model's

    import unmask

    unmask.load("pocket")
    places = None
    if device_map == "disk":
        places = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers": "disk", "model.norm": "cpu"}
        blocks = json.loads((folder / "config.json").read_text())["n_layers"]
        del places["model.layers"]
        places |= {f"model.layers.{n}": "disk" for n in range(1, blocks)} | {"lm_head": "cpu"}
    before = resident("VmRSS")
    model = unmask.load(folder, device_map=places or device_map).model
    after = resident("VmHWM")
    held = sum(value.nbytes for value in model.parameters() if value.device.type == "cpu")  # type: ignore[attr-defined]
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return {"files": size, "held": held, "peak": after - before, "ratio": (after - before) / size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--states", type=int, default=STATES)
    parser.add_argument("--device_map")
    parser.add_argument("--measure", action="store_true", help="load only, in this process")
    said = parser.parse_args()
    if said.measure:
        print(json.dumps(measure(said.folder, said.device_map)))
        return
    if not (said.folder / "config.json").exists():
        write(said.folder, said.blocks, said.states)
    command = [sys.executable, "-m", "tools.load_memory", str(said.folder), "--measure"]
    subprocess.run(command + (["--device_map", said.device_map] if said.device_map else []), check=True)


if __name__ == "__main__":
    main()
