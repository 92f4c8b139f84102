"""A folder as the hub has it: which family reads it, its weights and small files. Code that lies there is never run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from unmask.checkpoint.tensors import mapped_tensors, read_tensors
from unmask.core.errors import UserError
from unmask.core.files import read_json
from unmask.data.tokenizer import FILE as TOKENIZER
from unmask.data.tokenizer import Tokenizer, has_tokenizer
from unmask.models.dit.published import LOADABLE
from unmask.models.family import FAMILIES, Family

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth", "model.ckpt")


def family_that_reads(config: Mapping[str, Any], where: Path) -> Family:
    """The family of a published config.json: one that knows its `model_type`, else one that knows its other marks."""
    try:
        for family in sorted(FAMILIES.values(), key=lambda family: not family.model_types):
            if family.reads(config):
                return family
        raise UserError(f"{where} is a checkpoint of no family that is known; {LOADABLE}")
    except UserError as error:
        if "auto_map" in config:
            raise UserError(f"{error}; code that lies beside the weights (auto_map) is never run") from error
        raise


Stored = dict[int, tuple[Path, str]]  # of a tensor, by its address: its file, and its name there


def published_tensors(folder: Path, stored: Stored | None) -> dict[str, Tensor]:
    """All tensors of a folder, from one file or from the shards of its index."""
    return {name: tensor for path in weight_files(folder) for name, tensor in stored_tensors(path, stored).items()}


def stored_tensors(path: Path, stored: Stored | None) -> dict[str, Tensor]:
    """The tensors of a file; where `stored` is asked for they stay in the file, and it learns where each lies."""
    if stored is None:
        return read_tensors(path)
    tensors = mapped_tensors(path)
    stored.update((tensor.data_ptr(), (path, name)) for name, tensor in tensors.items())
    return tensors


def weight_files(folder: Path) -> list[Path]:
    """The safetensors of a folder; each one that its index names has to be there."""
    if (folder / WEIGHTS).is_file() or not (folder / INDEX).is_file():
        if not (folder / WEIGHTS).is_file() and (pickle := next((p for p in PICKLES if (folder / p).is_file()), None)):
            raise UserError(f"{folder} holds its weights as a pickle ({pickle}), which is a program and is never run: "
                            "take a revision with safetensors, or convert it where you trust it")  # fmt: skip
        return [folder / WEIGHTS]
    listed = read_json(folder / INDEX, "index of weights").get("weight_map")
    if not isinstance(listed, Mapping) or not all(isinstance(name, str) for name in listed.values()):
        raise UserError(f"{folder / INDEX} names no files (no weight_map): download it again")
    names = sorted(set(listed.values()))
    for name in names:
        if Path(name).name != name:
            raise UserError(f"{folder / INDEX} names a file outside its folder, {name!r}: download it again")
        if not (folder / name).is_file():
            raise UserError(f"{folder} is incomplete: of its {len(names)} files of weights {name} is missing; "
                            "download it again")  # fmt: skip
    return [folder / name for name in names]


def published_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of a folder, with what the files beside it say; None: there is none."""
    return Tokenizer.load(folder / TOKENIZER) if has_tokenizer(folder) else None


def check_mask(tokenizer: Tokenizer | None, mask: int | None, folder: Path) -> None:
    """Refuse a tokenizer that spells the mask as a word: every such word in a text would be a blank."""
    if tokenizer is None or mask is None or mask >= tokenizer.size:
        return
    if mask != tokenizer.mask_id and not tokenizer.is_special(mask):
        raise UserError(f"{folder}: the model's mask is the state {mask}, and the tokenizer spells it "
                        f"{tokenizer.decode([mask])!r}, an ordinary token: they do not belong together")  # fmt: skip
