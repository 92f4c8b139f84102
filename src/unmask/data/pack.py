"""Encode the divided text and pack it into shards, from wherever the finished shards end.

A shard is a fixed number of tokens of one split. With each finished shard goes the place where the next one begins:
which item of which source, and how many of that item's tokens are already packed. Starting there gives the same bytes
as never having stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from unmask.data.folder import Folder
from unmask.data.shards import ShardWriter, dtype_for
from unmask.data.splits import Item
from unmask.data.tokenizer import Tokenizer

JOB = 1 << 22  # characters encoded at once, on all cores


def pack(
    items_from: Callable[[int], Iterator[Item]],
    folder: Folder,
    tokenizer: Tokenizer,
    shard_tokens: int,
    on_bytes: Callable[[int], None],
) -> list[dict[str, Any]]:
    """Write the shards that are still missing; `items_from(source)` reads the corpus from a source on."""
    shards: list[dict[str, Any]] = folder.state.get("shards", [])
    source, number, packed = shards[-1]["next"] if shards else (0, 0, 0)
    items = (item for item in items_from(source) if (item.source, item.number) >= (source, number))
    packer = _Packer(folder, shards, tokenizer, shard_tokens, packed)
    try:
        for job in _jobs(items):
            for item, ids in zip(job, tokenizer.encode_batch([item.text for item in job]), strict=True):
                size = len(item.text.encode("utf-8"))
                packer.add(item, np.array(ids, dtype=np.uint32), size)
                on_bytes(size)
        packer.end()
    finally:
        packer.discard()
    return shards


def _jobs(items: Iterable[Item]) -> Iterator[list[Item]]:
    job: list[Item] = []
    size = 0
    for item in items:
        job.append(item)
        size += len(item.text) + 1
        if size >= JOB:
            yield job
            job, size = [], 0
    if job:
        yield job


class _Packer:
    """Fills one shard after another with the items it is given, in order."""

    def __init__(
        self, folder: Folder, shards: list[dict[str, Any]], tokenizer: Tokenizer, shard_tokens: int, packed: int
    ) -> None:
        self._folder, self._shards, self._shard_tokens = folder, shards, shard_tokens
        self._dtype = dtype_for(tokenizer)
        self._eos = np.array([tokenizer.eos_id], dtype=np.uint32)
        self._packed = packed  # tokens of the first item that an earlier run has written
        self._split, self._after = "", 0
        self._documents = self._text_bytes = 0
        self._writer: ShardWriter | None = None

    def add(self, item: Item, ids: np.ndarray, size: int) -> None:
        """Append an item's tokens; its `size` in bytes counts for the shard in which it begins."""
        if self._writer is not None and item.split != self._split:
            self._finish(self._writer, item.source, item.number, 0)
        if item.last:
            ids = np.concatenate([ids, self._eos])
        done, self._packed = self._packed, 0
        self._after = item.source + 1
        self._text_bytes += size if done == 0 else 0
        while done < len(ids):
            writer = self._writer or self._begin(item.split)
            part = ids[done : done + self._shard_tokens - writer.tokens]
            writer.write(part)
            done += len(part)
            self._documents += item.last and done == len(ids)
            if writer.tokens == self._shard_tokens:
                self._finish(writer, item.source, item.number, done)

    def end(self) -> None:
        """There is no more text: the last shard may be a short one."""
        if self._writer is not None:
            self._finish(self._writer, self._after, 0, 0)

    def discard(self) -> None:
        """Leave nothing behind of a shard that was not finished."""
        if self._writer is not None:
            self._writer.discard()

    def _begin(self, split: str) -> ShardWriter:
        number = sum(shard["split"] == split for shard in self._shards)
        self._split = split
        self._writer = ShardWriter(self._folder.path / f"{split}-{number:05d}.bin", self._dtype)
        return self._writer

    def _finish(self, writer: ShardWriter, source: int, number: int, tokens: int) -> None:
        counts = {"tokens": writer.tokens, "documents": self._documents, "text_bytes": self._text_bytes}
        about = {"split": self._split, "file": writer.path.name, **counts, "sha256": writer.finish()}
        self._shards.append({**about, "next": [source, number, tokens]})
        self._folder.save(shards=self._shards)
        self._documents = self._text_bytes = 0
        self._writer = None
