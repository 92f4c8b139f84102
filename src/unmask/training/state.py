"""A training state on disk, written by all processes together and read back by any number of them.

A folder holds one safetensors file a process and `index.json`, which says for every tensor its whole shape and which
rows of it lie in which file. It is written aside and takes its name only when every file of it is on the disk, so a
process killed at any moment leaves whole states only. No pickle anywhere.

Refuses to know what the tensors are. A tensor is plain (the same on every process) or a DTensor in row shards (FSDP2).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unmask.core.errors import UserError, os_errors
from unmask.core.files import read_json, sha256_file, swap_in, sync_path, write_json
from unmask.core.ranks import Ranks
from unmask.training.distributed import is_sharded

INDEX = "index.json"
VERSION = 1
_DTYPES = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class Rows:
    """Rows start..stop of a tensor, as values on this process. A scalar counts as one row."""

    values: Tensor
    start: int
    stop: int


def rows_here(tensor: Tensor) -> Rows:
    """The rows of a tensor that this process holds."""
    if not is_sharded(tensor):
        return Rows(tensor, 0, tensor.shape[0] if tensor.ndim else 1)
    shards: Any = tensor  # a DTensor
    assert [placement.is_shard(0) for placement in shards.placements] == [True], shards.placements
    mesh, total = shards.device_mesh, shards.shape[0]
    chunk = -(-total // mesh.size())  # torch.chunk's rule: equal parts, the last ones shorter or empty
    start = min(mesh.get_local_rank() * chunk, total)
    local = shards.to_local()
    return Rows(local, start, start + local.shape[0])


def _mine(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Rows]:
    """What this process writes: its rows of sharded tensors and a fair share of the plain ones, largest dealt first."""
    load = [0] * ranks.world
    mine: dict[str, Rows] = {}
    for name in sorted(tensors, key=lambda name: (-tensors[name].numel(), name)):
        tensor = tensors[name]
        if is_sharded(tensor):
            owned = True
        else:
            owner = load.index(min(load))
            load[owner] += tensor.numel()
            owned = owner == ranks.rank
        if owned and (rows := rows_here(tensor)).stop > rows.start:
            mine[name] = rows
    return mine


def _write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write the safetensors format one tensor at a time (no second copy in memory); returns the file's sha256."""
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with os_errors("write", path), open(path, "wb") as handle:

        def put(data: Any) -> None:
            handle.write(data)
            digest.update(data)

        put(len(text).to_bytes(8, "little"))
        put(text)
        for tensor in tensors.values():
            put(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        handle.flush()
        os.fsync(handle.fileno())
    return digest.hexdigest()


def _write_mine(folder: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Any]:
    """Write this process's file; say what is in it."""
    mine = _mine(tensors, ranks)
    file = f"rank-{ranks.rank:05d}-of-{ranks.world:05d}.safetensors"
    sha256 = _write_safetensors(folder / file, {name: rows.values for name, rows in mine.items()})
    return {"file": file, "sha256": sha256, "rows": {name: [rows.start, rows.stop] for name, rows in mine.items()}}


def _seal(aside: Path, path: Path, tensors: Mapping[str, Tensor], facts: dict[str, Any], written: list[Any]) -> None:
    """Write the index and give the folder its name. The first process does this after all others have written."""
    for part in written:
        if not (aside / part["file"]).is_file():
            raise UserError(
                f"{part['file']} was written by another machine and is not seen here: "
                f"all machines must share the folder {path.parent}"
            )
    table = {
        name: {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "parts": [{"file": part["file"], "rows": part["rows"][name]} for part in written if name in part["rows"]],
        }
        for name, tensor in tensors.items()
    }
    files = {part["file"]: part["sha256"] for part in written}
    index = {"format": "unmask-state", "version": VERSION, "facts": facts, "files": files, "tensors": table}
    with os_errors("write", path):
        write_json(aside / INDEX, index)
        sync_path(aside)
        swap_in(aside, path)


def _empty(folder: Path) -> None:
    with os_errors("write", folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)


def save_state(path: Path, tensors: Mapping[str, Tensor], facts: dict[str, Any], ranks: Ranks) -> None:
    """Write a state; all processes call this together. If it fails, nothing of it is left and older states stand."""
    aside = path.with_name(f".{path.name}.new-unsealed")  # one name for all processes; base.files sweeps it
    try:
        ranks.on_first(lambda: _empty(aside))
        written = ranks.together(lambda: _write_mine(aside, tensors, ranks))
        ranks.on_first(lambda: _seal(aside, path, tensors, facts, written))
    except UserError:
        if ranks.first:
            shutil.rmtree(aside, ignore_errors=True)
        raise


def read_facts(path: Path) -> dict[str, Any]:
    """The facts saved with a state."""
    index = read_json(path / INDEX, "the training state's index")
    if index.get("format") != "unmask-state" or index.get("version") != VERSION:
        raise UserError(f"{path} was not written by this version of unmask: use the one that wrote it, or remove it")
    return index["facts"]


def _check_files(path: Path, files: dict[str, str], ranks: Ranks) -> None:
    """Compare the files with the hashes in the index, each process its share."""
    for file in sorted(files)[ranks.rank :: ranks.world]:
        if not (path / file).is_file():
            raise UserError(f"{file} is missing")
        if sha256_file(path / file) != files[file]:
            raise UserError(f"{file} is not what was written")


@torch.no_grad()
def _fill(path: Path, tensors: Mapping[str, Tensor], index: dict[str, Any]) -> None:
    """Copy the rows this process holds out of whichever files have them."""
    if missing := sorted(tensors.keys() ^ index["tensors"].keys()):
        raise UserError(f"it has other tensors than this run ({missing[0]}, {len(missing)} in all)")
    opened = cache(lambda file: safe_open(path / file, framework="pt"))  # a file holds hundreds of tensors
    for name, tensor in tensors.items():
        entry = index["tensors"][name]
        if entry["shape"] != list(tensor.shape) or entry["dtype"] != _DTYPES[tensor.dtype]:
            raise UserError(f"{name} has the shape {entry['shape']} in it and {list(tensor.shape)} in this run")
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


def load_state(path: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Any]:
    """Fill tensors in place with a saved state, however many processes wrote it; returns its facts.

    Raises UserError saying what is damaged; all processes call this together.
    """
    facts = read_facts(path)
    index = read_json(path / INDEX, "the training state's index")

    def work() -> None:
        try:
            _check_files(path, index["files"], ranks)
            _fill(path, tensors, index)
        except torch.OutOfMemoryError:  # no fault of the state, which nobody should remove for it
            raise
        except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
            raise UserError(f"{type(error).__name__}: {error}") from error

    ranks.together(work)
    return facts
