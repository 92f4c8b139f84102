"""Which weights these are: a hash that names a network whatever file it came from.

Refuses to know formats and folders.
"""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def weights_hash(model: object) -> str | None:
    """sha256 over the names, types, shapes and bytes of a network's tensors; None for what is no network (oracles)."""
    if not isinstance(model, nn.Module):
        return None
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        name = name.removeprefix("_orig_mod.")  # torch.compile's mark
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(memoryview(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()
