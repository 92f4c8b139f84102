"""Seeded streams: every random number comes from a generator named by a seed and a key.

Nothing here is stateful: stream(seed, "train", step) is the same stream in every process and after every
restart, which is what makes resumed runs bit-identical and samples independent of the batch size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch


def seed_of(*key: int | str) -> int:
    """A 63-bit seed for a key. Different keys give unrelated seeds."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def stream(*key: int | str) -> torch.Generator:
    """A CPU generator for a key: stream(seed, "sample", i)."""
    generator = torch.Generator()
    generator.manual_seed(seed_of(*key))
    return generator


def uniforms(generators: Iterable[torch.Generator], length: int) -> torch.Tensor:
    """A row of float64 uniforms in [0, 1) from each generator."""
    return torch.stack([torch.rand(length, generator=one, dtype=torch.float64) for one in generators])
