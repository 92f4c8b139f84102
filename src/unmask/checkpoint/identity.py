"""Which model this is: hashes that name a network, and all that decides what it writes, whatever file it came from."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING

import torch
from torch import nn

from unmask.core.hashing import key_of
from unmask.inference.step_law import step_law_to_json
from unmask.processes.process import process_to_json

if TYPE_CHECKING:
    from unmask.checkpoint.io import Checkpoint


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


def identity_of(checkpoint: Checkpoint) -> str:
    """A hash of all that decides what it writes: weights, shape, process, step law (with its head's weights),
    tokenizer."""
    config = getattr(checkpoint.model, "config", None)
    shape = dataclasses.asdict(config) if dataclasses.is_dataclass(config) and not isinstance(config, type) else None
    process, step_law = process_to_json(checkpoint.process), step_law_to_json(checkpoint.step_law)
    if (head := weights_hash(getattr(checkpoint.step_law, "head", None))) is not None:
        step_law = {**step_law, "weights": head}
    spelling = None if checkpoint.tokenizer is None else checkpoint.tokenizer.hash
    return key_of(weights_hash(checkpoint.model), shape, process, step_law, spelling)
