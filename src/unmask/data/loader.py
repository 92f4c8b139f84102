"""Batches of token blocks, computed from the step alone: nothing to save, nothing to restore.

Step s of a run with `total` rows a step holds places s*total .. (s+1)*total - 1 of an endless sequence of blocks. One
epoch of a corpus is a fresh permutation of its blocks, each exactly once. Resuming is asking for the same step; a
rank or a micro-batch asks for its own rows of the global batch, and any division gives the same global batch.

Several corpora without weights are one pool of blocks. With weights, each is its own pool with its own epochs, and
corpus j fills a share w_j / sum(w) of the places, evenly spread (shuffle.interleave).

Shapes: B rows, L positions.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from unmask.core.errors import UserError
from unmask.core.streams import seed_of
from unmask.data.shards import ShardSet, check_tokenizer
from unmask.data.shuffle import interleave, permuted


@dataclass(frozen=True)
class Batch:
    """Rows start .. start+B of a global batch of `total` rows."""

    tokens_BL: torch.Tensor  # int64
    start: int
    total: int
    prompts_T: torch.Tensor | None = None  # of all `total` rows: how many tokens at the beginning are given


@dataclass(frozen=True)
class _Pool:
    """Corpora shuffled together: one permutation over all their blocks."""

    sources: list[int]
    ends: np.ndarray  # running totals of blocks over `sources`
    name: int  # keeps the permutations of different pools apart

    @property
    def blocks(self) -> int:
        return int(self.ends[-1])


class Loader:
    """Blocks of `length` tokens from prepared corpora, whose shards are compared with their hashes first.

    Args:
        sources: prepared corpora, all with one tokenizer.
        length: tokens in a row.
        split: which split to read.
        weights: how often each corpus is read relative to the others; by default every block is read equally often.
        seed: names the order of the blocks.
        wrap: rows as MDLM makes them: BOS, length-2 tokens of the stream, EOS.
    """

    def __init__(
        self,
        sources: Sequence[ShardSet],
        length: int,
        *,
        split: str = "train",
        weights: Sequence[float] | None = None,
        seed: int = 0,
        wrap: bool = False,
    ) -> None:
        _check_arguments(sources, length, weights, wrap)
        self.sources, self.length, self.split, self.seed, self.wrap = list(sources), length, split, seed, wrap
        self.tokenizer = self.sources[0].tokenizer()
        for other in self.sources[1:]:
            check_tokenizer(other, self.tokenizer, owner=f"{self.sources[0].folder}")
        self._stride = length - 2 if wrap else length  # tokens of the stream in one row
        counts = [self._blocks_of(source) for source in self.sources]
        for source in self.sources:  # here and not as shards come up, so that every rank refuses, not one of them
            source.verify_once(split)
        self._everything = _Pool(list(range(len(counts))), np.cumsum(counts), 0)
        self._pools, self.weights = [self._everything], None
        if weights is not None:
            self._pools = [_Pool([j], np.array([count]), j) for j, count in enumerate(counts)]
            self.weights = [float(weight) for weight in weights]

    def _blocks_of(self, source: ShardSet) -> int:
        tokens = source.count(self.split)
        if tokens < self._stride:
            raise UserError(f"the {self.split} split of {source.folder} has {tokens} tokens, less than one block of "
                            f"{self._stride}: use a shorter length or more text")  # fmt: skip
        return tokens // self._stride

    @property
    def blocks(self) -> int:
        """Blocks in one epoch of everything."""
        return self._everything.blocks

    def batch(self, step: int, start: int, count: int, total: int) -> Batch:
        """Rows start .. start+count of the global batch of `total` rows at `step`."""
        assert step >= 0
        assert 0 <= start < start + count <= total
        places = np.arange(step * total + start, step * total + start + count, dtype=np.int64)
        tokens_BL = np.empty((count, self.length), dtype=np.int64)
        for pool, (rows, turns) in zip(self._pools, interleave(places, self.weights or [1.0]), strict=True):
            tokens_BL[rows] = self._read(pool, shuffled(turns, pool.blocks, self.seed, pool.name))
        return Batch(torch.from_numpy(tokens_BL), start, total)

    def eval_batches(self, count: int | None, batch: int) -> Iterator[Batch]:
        """A fixed pass in the order of the text: `count` blocks evenly spaced over the split (None: all of them)."""
        chosen = evenly(self.blocks, count)
        for start in range(0, len(chosen), batch):
            tokens_BL = self._read(self._everything, chosen[start : start + batch])
            yield Batch(torch.from_numpy(tokens_BL), start, len(chosen))

    def held_out(self) -> Loader:
        """The validation split of the same corpora."""
        return Loader(self.sources, self.length, split="validation", wrap=self.wrap)

    def tokens(self, first: int, stop: int, total: int) -> int:
        """Tokens in the global batches of steps first .. stop - 1."""
        return (stop - first) * total * self.length

    def describe(self) -> dict[str, Any]:
        """What it reads, by content: moving a corpus to another folder changes nothing."""
        content = json.dumps([source.index["splits"] for source in self.sources], sort_keys=True)
        settings = {name: getattr(self, name) for name in ("length", "weights", "wrap", "seed", "split")}
        hashed = hashlib.sha256(content.encode()).hexdigest()
        return {"content": hashed[:16], "tokenizer": self.tokenizer.hash[:16], **settings}

    def _read(self, pool: _Pool, blocks: np.ndarray) -> np.ndarray:
        tokens_BL = np.empty((len(blocks), self.length), dtype=np.int64)
        if self.wrap:
            tokens_BL[:, 0], tokens_BL[:, -1] = self.tokenizer.bos_id, self.tokenizer.eos_id
        inside = slice(1, -1) if self.wrap else slice(None)
        members = np.searchsorted(pool.ends, blocks, side="right")
        firsts = (blocks - np.insert(pool.ends, 0, 0)[members]) * self._stride
        streams = [self.sources[source].tokens(self.split) for source in pool.sources]
        for row, member, first in zip(tokens_BL[:, inside], members.tolist(), firsts.tolist(), strict=True):
            row[:] = streams[member][first : first + self._stride]
        return tokens_BL


def shuffled(turns: np.ndarray, blocks: int, seed: int, name: int) -> np.ndarray:
    """The blocks read at some turns: turn i is place i mod n of epoch i div n."""
    epochs, places = np.divmod(turns, blocks)
    found = np.empty_like(turns)
    for epoch in np.unique(epochs).tolist():
        now = epochs == epoch
        found[now] = permuted(places[now], blocks, seed_of(seed, "blocks", name, epoch))
    return found


def evenly(blocks: int, count: int | None) -> np.ndarray:
    """`count` of so many blocks, evenly spaced (None, or more than there are: all of them)."""
    total = blocks if count is None else min(count, blocks)
    return np.arange(total, dtype=np.int64) * blocks // total


def _check_arguments(sources: Sequence[ShardSet], length: int, weights: Sequence[float] | None, wrap: bool) -> None:
    if not sources:
        raise UserError("no corpus given: name at least one folder made by `unmask prepare`")
    if length < (3 if wrap else 1):
        raise UserError(f"a block of {length} tokens is too short: at least {3 if wrap else 1}")
    if weights is None:
        return
    if len(weights) != len(sources):
        raise UserError(f"{len(weights)} weights for {len(sources)} corpora: give one weight for each")
    if not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise UserError(f"weights must be positive numbers, not {', '.join(map(str, weights))}")
