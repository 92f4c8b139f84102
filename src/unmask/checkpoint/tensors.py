"""Tensors in safetensors files, and what is checked of them before a network is built."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from unmask.core.errors import UserError, from_os_error, os_errors, reading

PORTION = 2**26  # bytes that are mapped at a time


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, on the CPU, in the precision they are stored in."""
    return {name: tensor for part in _portions(path) for name, tensor in part.items()}


def mapped_tensors(path: Path) -> dict[str, Tensor]:
    """The same, all in the file itself: what nobody looks at takes no memory."""
    with reading(path, cure="copy or download it again"), open(path, "rb"), safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in list(file.keys())}


def _portions(path: Path) -> Iterator[dict[str, Tensor]]:
    """The tensors of a file, some at a time.

    The file is mapped anew for each portion: what was read of a mapping counts as memory of this process until it is
    let go, so that copies from one mapping would take twice the file.
    """
    with reading(path, cure="copy or download it again"), open(path, "rb"):  # the library's own errors lack a number
        with safe_open(path, "pt") as file:
            names = list(file.keys())
        while names:
            found, size = {}, 0
            with safe_open(path, "pt") as file:
                while names and size < PORTION:
                    tensor = file.get_tensor(names[0])
                    # one that lies askew in the file is copied: how a product sums, and so its last digit, hangs on it
                    found[names.pop(0)] = tensor.clone() if tensor.data_ptr() % 64 else tensor
                    size += tensor.nbytes
                del tensor
            yield found


def check_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse weights with a NaN or an infinity, of which a model writes text that means nothing."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or tensor.numel() == 0:
            continue
        wide = tensor if tensor.element_size() > 1 else tensor.float()  # float8 knows no minimum
        low, high = torch.aminmax(wide.detach())  # one pass and no mask; both are NaN if any value is
        if not (torch.isfinite(low) and torch.isfinite(high)):
            kind = "NaN" if torch.isnan(low) else "an infinite value"
            raise UserError(f"{where} holds {kind} in {name!r}: its training diverged or the file is damaged; "
                            "use an earlier checkpoint or copy it again")  # fmt: skip


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
