"""Streams are named: the same key gives the same numbers, any other key unrelated ones."""

import torch

from unmask.core.streams import seed_of, stream


def test_a_key_names_a_stream() -> None:
    first, again = torch.rand(4, generator=stream(0, "sample", 3)), torch.rand(4, generator=stream(0, "sample", 3))
    assert torch.equal(first, again)
    assert len({seed_of(*key) for key in [(0, "a"), (0, "b"), (1, "a"), ("0", "a"), (0, "a", 0), ("0a",)]}) == 6


def test_neighbouring_streams_are_uncorrelated() -> None:
    rows = torch.stack([torch.rand(2000, generator=stream(0, "x", i), dtype=torch.float64) for i in range(8)])
    off_diagonal = torch.corrcoef(rows) - torch.eye(8)
    assert off_diagonal.abs().max() < 5 / 2000**0.5
