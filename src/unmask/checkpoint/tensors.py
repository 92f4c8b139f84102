"""Tensors in safetensors files, with what can go wrong said in one line.

Refuses to know what the tensors are called.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.core.errors import UserError, from_os_error, os_errors


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, on the CPU."""
    try:
        with os_errors("read", path), open(path, "rb"):  # opened here too, since the library's errors lack a number
            return load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path} is damaged or half-written ({error}): copy or download it again") from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> None:
    """Write all tensors, their floating-point values cast to `dtype` if one is given."""
    plain = {}
    for name, tensor in tensors.items():
        cast = tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
        plain[name] = cast.detach().cpu().contiguous()
    try:
        with os_errors("write", path):
            save_file(plain, path, metadata={"format": "pt"})
            path.chmod(0o666 & ~_umask())  # its writer leaves it to the owner alone
    except SafetensorError as error:  # its writer hides the operating system's error number in the text
        number = re.search(r"(?:os error |code: )(\d+)", str(error))  # the one or the other, by its version
        if number is None:
            raise
        raise from_os_error(OSError(int(number[1]), str(error), str(path)), "write") from error


def _umask() -> int:
    """What new files are not to allow; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
