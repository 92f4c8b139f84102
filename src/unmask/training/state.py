"""A training state on disk, written by all processes together and read back by any number of them.

A folder holds one safetensors file a process and `index.json`, which says for every tensor its whole shape and which
rows of it lie in which file. It is written under another name and gets its own only when every file of it is on the
disk, so a process killed at any moment leaves whole states only. No pickle anywhere.

A tensor is plain (the same on every process) or a DTensor in row shards (FSDP2).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from unmask.checkpoint.tensors import write_tensors
from unmask.core.errors import UserError, os_errors, reading
from unmask.core.files import sha256_file, swap_in, sync_path, write_json
from unmask.core.ranks import Ranks
from unmask.training.distributed import is_sharded

INDEX = "index.json"
VERSION = 1


@dataclass(frozen=True)
class Rows:
    """Rows start..stop of a tensor, as values on this process. A scalar counts as one row."""

    values: Tensor
    start: int
    stop: int


def rows_here(tensor: Tensor) -> Rows:
    if not is_sharded(tensor):
        return Rows(tensor, 0, tensor.shape[0] if tensor.ndim else 1)
    shards: Any = tensor  # a DTensor
    assert [placement.is_shard(0) for placement in shards.placements] == [True], shards.placements
    mesh, total = shards.device_mesh, shards.shape[0]
    chunk = -(-total // mesh.size())  # torch.chunk's rule: equal parts, the last ones shorter or empty
    start = min(mesh.get_local_rank() * chunk, total)
    local = shards.to_local()
    return Rows(local, start, start + local.shape[0])


def save_state(path: Path, tensors: Mapping[str, Tensor], facts: dict[str, Any], ranks: Ranks) -> None:
    """Write a state; all processes call this together. If it fails, nothing of it is left and older states stand."""
    filling = path.with_name(f".{path.name}.new-unsealed")  # one name for all processes; core.files sweeps it
    try:
        ranks.on_first(lambda: _empty(filling))
        written = ranks.together(lambda: _write_mine(filling, tensors, ranks))
        ranks.on_first(lambda: _seal(filling, path, tensors, facts, written))
    except UserError:
        if ranks.first:
            shutil.rmtree(filling, ignore_errors=True)
        raise


def _empty(folder: Path) -> None:
    with os_errors("write", folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)


def _write_mine(folder: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Any]:
    """Write this process's file; say what is in it."""
    mine = _mine(tensors, ranks)
    file = folder / f"rank-{ranks.rank:05d}-of-{ranks.world:05d}.safetensors"
    write_tensors(file, {name: rows.values for name, rows in mine.items()})
    sync_path(file)
    places = {name: [rows.start, rows.stop] for name, rows in mine.items()}
    return {"file": file.name, "sha256": sha256_file(file), "rows": places}


def _mine(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Rows]:
    """What this process writes: its rows of sharded tensors and a fair share of the plain ones, largest dealt first."""
    load = [0] * ranks.world
    mine: dict[str, Rows] = {}
    for name in sorted(tensors, key=lambda name: (-tensors[name].numel(), name)):
        tensor = tensors[name]
        owner = ranks.rank if is_sharded(tensor) else load.index(min(load))
        if not is_sharded(tensor):
            load[owner] += tensor.numel()
        if owner == ranks.rank and (rows := rows_here(tensor)).stop > rows.start:
            mine[name] = rows
    return mine


def _seal(filling: Path, path: Path, tensors: Mapping[str, Tensor], facts: dict[str, Any], written: list[Any]) -> None:
    """Write the index and give the folder its name. The first process does this after all others have written."""
    for part in written:
        if not (filling / part["file"]).is_file():
            raise UserError(f"{part['file']} is not seen here: all machines must share the folder {path.parent}")
    table = {
        name: {
            "dtype": str(tensor.dtype),
            "shape": list(tensor.shape),
            "parts": [{"file": part["file"], "rows": part["rows"][name]} for part in written if name in part["rows"]],
        }
        for name, tensor in tensors.items()
    }
    files = {part["file"]: part["sha256"] for part in written}
    index = {"format": "unmask-state", "version": VERSION, "facts": facts, "files": files, "tensors": table}
    with os_errors("write", path):
        write_json(filling / INDEX, index)
        sync_path(filling)
        swap_in(filling, path)


def load_state(path: Path, tensors: Mapping[str, Tensor], ranks: Ranks, cure: str) -> dict[str, Any]:
    """Fill tensors in place with a saved state; returns its facts. `cure` is for a damaged one. For all processes
    together."""

    def work() -> Any:
        with reading(path, "the training state", cure):
            index = json.loads(_there(path / INDEX).read_text("utf-8"))
            if (index["format"], index["version"]) != ("unmask-state", VERSION):
                raise ValueError("it was written by another version of unmask")
            for file in sorted(index["files"])[ranks.rank :: ranks.world]:  # each process checks its share
                if sha256_file(_there(path / file)) != index["files"][file]:
                    raise ValueError(f"{file} is not what was written")
            _fill(path, tensors, index["tensors"])
            return index["facts"]

    return ranks.together(work)[0]


def _there(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"{path.name} is missing")
    return path


@torch.no_grad()
def _fill(path: Path, tensors: Mapping[str, Tensor], table: dict[str, Any]) -> None:
    """Copy the rows this process holds out of whichever files have them."""
    if other := sorted(tensors.keys() ^ table.keys()):
        raise ValueError(f"it has other tensors than this run ({other[0]}, {len(other)} in all)")
    opened = cache(lambda file: safe_open(path / file, framework="pt"))  # a file holds hundreds of tensors
    for name, tensor in tensors.items():
        entry = table[name]
        if entry["shape"] != list(tensor.shape) or entry["dtype"] != str(tensor.dtype):
            raise ValueError(f"{name} has the shape {entry['shape']} in it and {list(tensor.shape)} in this run")
        here = rows_here(tensor)
        for part in entry["parts"]:
            low, high = max(here.start, part["rows"][0]), min(here.stop, part["rows"][1])
            if low >= high:
                continue
            file = opened(part["file"])
            if tensor.ndim == 0:
                here.values.copy_(file.get_tensor(name))
            else:
                values = file.get_slice(name)[low - part["rows"][0] : high - part["rows"][0]]
                here.values[low - here.start : high - here.start].copy_(values)
