"""Read a `torch.save` file without executing anything in it.

A pickle is a small program that may call any function it names. Here every name resolves to one of three things:
a rebuilder of ours that notes where a tensor lies, a plain container, or an inert placeholder that swallows its
arguments and state. No foreign module is imported and no foreign code runs.

Refuses to know what the file is for.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.core.errors import UserError, os_errors

STORAGE_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


class Inert:
    """Stands for an object of a class we do not know. Keeps its state to look at, and does nothing with it."""

    state: Any = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Inert:  # takes any arguments, and forgets them
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __call__(self, *args: Any, **kwargs: Any) -> Inert:
        return Inert()

    def __setitem__(self, key: Any, value: Any) -> None:  # a foreign dict is filled through this
        self.state = {**(self.state if isinstance(self.state, dict) else {}), key: value}

    def append(self, value: Any) -> None:  # and a foreign list through this
        return None


@dataclass(frozen=True)
class LazyTensor:
    """Where a tensor lies in its file. A checkpoint is mostly optimiser state: only what is asked for is read."""

    file: Path
    entry: str
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def read(self) -> Tensor:
        """The tensor itself, on the CPU, in memory of its own."""
        try:
            with os_errors("read", self.file), zipfile.ZipFile(self.file) as archive:
                flat = torch.frombuffer(bytearray(archive.read(self.entry)), dtype=self.dtype)
            return flat.as_strided(self.shape, self.stride, self.offset).clone()
        except (zipfile.BadZipFile, KeyError, RuntimeError, ValueError) as error:
            raise _damaged(self.file, error) from error


@dataclass(frozen=True)
class _Storage:
    entry: str
    dtype: torch.dtype


def _damaged(path: Path, error: Exception) -> UserError:
    reason = str(error) or type(error).__name__
    return UserError(f"{path} is damaged or half-written ({reason}): copy or download it again")


class _Reader(pickle.Unpickler):
    def __init__(self, path: Path, archive: zipfile.ZipFile, program: str) -> None:
        super().__init__(io.BytesIO(archive.read(program)))
        self.path, self.folder = path, program.removesuffix("data.pkl")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) in (("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_tensor")):
            return self._tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda data, *_: data
        if module == "torch" and name in STORAGE_DTYPES:
            return STORAGE_DTYPES[name]
        return Inert

    def persistent_load(self, pid: Any) -> Any:
        kind, dtype, key = pid[0], pid[1], pid[2]
        if kind != "storage" or not isinstance(dtype, torch.dtype):
            return Inert()
        return _Storage(f"{self.folder}data/{key}", dtype)

    def _tensor(self, storage: Any, offset: int, shape: Any, stride: Any, *_: Any) -> Any:
        if not isinstance(storage, _Storage):
            return Inert()
        return LazyTensor(self.path, storage.entry, storage.dtype, offset, tuple(shape), tuple(stride))


def read_torch_file(path: Path) -> Any:
    """The object a `torch.save` file holds: plain containers, LazyTensors, and Inert placeholders for all else."""
    with os_errors("read", path):
        if not zipfile.is_zipfile(path):
            raise UserError(
                f"{path} is not a whole torch checkpoint (no zip directory at its end): "
                "it is half-written, or of the format before torch 1.6; copy it again or re-save it"
            )
        try:
            with zipfile.ZipFile(path) as archive:
                programs = [name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl"]
                if len(programs) != 1:
                    raise UserError(f"{path} is a zip file but no torch checkpoint: give a Lightning .ckpt or a folder")
                return _Reader(path, archive, programs[0]).load()
        except (UserError, OSError, MemoryError):
            raise
        except Exception as error:  # a damaged pickle can fail in any way
            raise _damaged(path, error) from error


def plain(value: Any, _above: tuple[int, ...] = ()) -> Any:
    """Metadata as dicts, lists and scalars: a placeholder becomes its state (OmegaConf's nodes their content)."""
    if id(value) in _above:  # OmegaConf's nodes know their parents
        return None
    above = (*_above, id(value))
    if isinstance(value, Inert):
        state = value.state if isinstance(value.state, dict) else {}
        return plain(state.get("_content", state.get("_val", state)), above)
    if isinstance(value, dict):
        return {str(key): plain(item, above) for key, item in value.items() if key != "_parent"}
    if isinstance(value, (list, tuple)):
        return [plain(item, above) for item in value]
    return value if isinstance(value, (str, int, float, bool)) else None
