"""Packed tokens on disk: a folder of flat binary shards and the index that describes them.

The stream of a split is its documents in order, each followed by the end-of-document token. It is cut into shards of
a fixed number of tokens, little-endian uint16 where every state (the mask included) fits and uint32 where not.
`index.json` is written last, so a folder that has one is whole:

    version, unmask         of this format, and of the package that wrote it
    tokenizer               name, size (without the mask), hash (the sha256 of its file), file
    dtype                   uint16 or uint32
    splits                  train, test, validation: tokens, documents, text_bytes, and shards, a list of
                            file, tokens, documents, text_bytes (of the pieces that begin in it), sha256
    split_by                documents, or characters where there were too few documents
    settings, inputs        what the folder was prepared with; an input by its name and fingerprint: `sha256:` and
                            the hash of a file; for standard input that of its text, for a dataset its name
"""

from __future__ import annotations

import bisect
import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.core.errors import UserError, os_errors, reading, unknown
from unmask.core.files import kind_of, read_json, sha256_file, sync_path, temporary
from unmask.data.tokenizer import Tokenizer

INDEX, UNFINISHED = "index.json", "unfinished.json"
VERSION = 1
SPLITS = ("train", "test", "validation")  # in the order of the text
DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


def dtype_for(tokenizer: Tokenizer) -> str:
    """The narrowest type that holds every state, the mask (id `size`) included."""
    return "uint16" if tokenizer.size < 1 << 16 else "uint32"


def damaged(path: Path, why: str) -> UserError:
    """The error for a file of a corpus that is not what was written."""
    return UserError(f"{path} is damaged ({why}): restore it from a copy, or prepare the text again in a new folder")


class Tokens:
    """One split as one flat, memory-mapped stream: `tokens[a:b]` reads across shards, `len(tokens)` counts."""

    def __init__(self, paths: list[Path], counts: list[int], dtype: np.dtype[Any]) -> None:
        self._dtype, self._ends = dtype, np.cumsum(counts, dtype=np.int64).tolist()
        self._maps: list[np.ndarray] = []
        for path in paths:
            with os_errors("read", path):
                # as a plain array: slices of a memmap, which are memmaps too, are slow to make
                self._maps.append(np.asarray(np.memmap(path, dtype=dtype, mode="r")))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, step = part.indices(len(self))
        assert step == 1, "the stream is read in order"
        found = []
        shard = bisect.bisect_right(self._ends, start)
        while start < stop:
            first = self._ends[shard - 1] if shard else 0
            end = min(stop, self._ends[shard])
            found.append(self._maps[shard][start - first : end - first])
            start, shard = end, shard + 1
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.empty(0, self._dtype)


@dataclass(frozen=True)
class Shard:
    """One file of a split, as the index has it."""

    path: Path
    tokens: int
    sha256: str


class ShardSet:
    """A prepared corpus: `index` is the content of index.json, `shards` the files of each split."""

    def __init__(self, folder: Path, index: dict[str, Any]) -> None:
        self.folder, self.index = folder, index
        self._dtype = DTYPES[index["dtype"]]
        about = index["tokenizer"]
        self.tokenizer_hash, self._tokenizer_name = str(about["hash"]), f"{about['name']}"
        self._tokenizer_path = folder / os.fsdecode(os.fsencode(about["file"]))

        def shard(said: dict[str, Any]) -> Shard:
            file = os.fsdecode(os.fsencode(said["file"]))  # a text that can be a file's name
            return Shard(folder / file, int(said["tokens"]), str(said["sha256"]))

        self.shards = {split: [*map(shard, found["shards"])] for split, found in index["splits"].items()}
        self.counts = {
            split: {what: int(found[what]) for what in ("tokens", "documents", "text_bytes")}
            for split, found in index["splits"].items()
        }
        if any(self.counts[split]["tokens"] != sum(one.tokens for one in own) for split, own in self.shards.items()):
            raise ValueError("its tokens do not add up")
        self._streams: dict[str, Tokens] = {}
        self._tokenizer: Tokenizer | None = None
        self._verified: set[str] = set()  # splits

    @classmethod
    def open(cls, folder: Path | str) -> ShardSet:
        folder = Path(folder)
        if not (folder / INDEX).is_file():
            raise _no_corpus(folder)
        index = read_json(folder / INDEX, "the index")
        if index.get("version") != VERSION:
            raise UserError(
                f"{folder} has index version {index.get('version')!r}, known is {VERSION}: prepare the text again"
            )
        with reading(folder / INDEX, "the index", "prepare the text again in a new folder"):
            shards = cls(folder, index)
        for shard in (shard for found in shards.shards.values() for shard in found):
            with os_errors("read", shard.path):
                size = shard.path.stat().st_size
            if size != shard.tokens * shards._dtype.itemsize:
                raise damaged(shard.path, f"{size} bytes where the index says {shard.tokens} tokens")
        return shards

    def verify(self) -> None:
        """Read everything and compare with the index's sha256; raises UserError for the first damaged file."""
        self.tokenizer()
        for split in self.shards:
            self.verify_once(split)

    def verify_once(self, split: str) -> None:
        """The same for the shards of a split, when it is first read.

        Most damage of the right size looks like text: zeros where a copy was cut off, the shard of another corpus.
        Only the hash tells, for about a second a GB: 10 s for 10 GB at every start of a run, before its first step.
        """
        if split not in self._verified:
            for shard in self._split(split):
                if sha256_file(shard.path) != shard.sha256:
                    raise damaged(shard.path, "its sha256 is not the index's")
            self._verified.add(split)

    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            tokenizer = Tokenizer.read(self._tokenizer_path, self._tokenizer_name)
            if tokenizer.hash != self.tokenizer_hash:
                raise damaged(self._tokenizer_path, "it is not the tokenizer of the index")
            self._tokenizer = tokenizer
        return self._tokenizer

    def tokens(self, split: str = "train") -> Tokens:
        """The flat token stream of a split."""
        if split not in self._streams:
            shards = self._split(split)
            self._streams[split] = Tokens([one.path for one in shards], [one.tokens for one in shards], self._dtype)
        return self._streams[split]

    def count(self, split: str = "train", what: str = "tokens") -> int:
        """How many `tokens`, `documents` or `text_bytes` a split has."""
        self._split(split)
        return self.counts[split][what]

    def _split(self, split: str) -> list[Shard]:
        if split not in self.shards:
            raise UserError(f"{self.folder}: {unknown('split', split, self.shards)}")
        return self.shards[split]


def _no_corpus(folder: Path) -> UserError:
    if folder.is_file():
        return UserError(f"{folder} is a file, not a prepared corpus: give a folder made by `unmask prepare`")
    if str(folder) == "sample" and not folder.exists():  # other verbs read the bundled text by this name
        return UserError(
            "sample is text, and a prepared corpus is needed: make one with `unmask prepare sample --out FOLDER` "
            "and give that folder"
        )
    with os_errors("read", folder):
        os.listdir(folder)
    if kind_of(folder) == "corpus":
        return UserError(f"{folder} is not finished: run the same `unmask prepare` command again, it goes on")
    return UserError(f"{folder} holds no prepared corpus: make one with `unmask prepare TEXT --out {folder}`")


def check_tokenizer(shards: ShardSet, tokenizer: Tokenizer, owner: str = "the model") -> None:
    """Refuse a corpus whose token ids mean something else to `owner`."""
    if shards.tokenizer_hash != tokenizer.hash:
        theirs, ours = shards.index["tokenizer"], tokenizer.describe()
        shown = [f"{one['name']!r} ({one['size']} tokens, {one['hash'][:12]})" for one in (theirs, ours)]
        raise UserError(
            f"wrong tokenizer: {shards.folder} was prepared with {shown[0]}, but {owner} uses {shown[1]}; "
            f"prepare the text again with --tokenizer {_named(tokenizer, owner) or f'set to the one of {owner}'}"
        )


def _named(tokenizer: Tokenizer, owner: str) -> str | None:
    """What `--tokenizer` takes for it: its owner's folder or name, or its own where the owner keeps no file of it."""
    for name in (tokenizer.name,) if Path(owner).is_file() else (owner, tokenizer.name):  # a file: of weights
        with suppress(UserError):
            if Tokenizer.load(name).hash == tokenizer.hash:
                return name
    return None


class ShardWriter:
    """One shard while it grows: hashed on the way, and renamed into place when it is whole."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.path, self.dtype = path, DTYPES[dtype]
        self.tokens = 0
        self._writing = temporary(path)
        self._digest = hashlib.sha256()
        with os_errors("write", path):
            self._handle = open(self._writing, "wb")  # noqa: SIM115  closed by finish or discard

    def write(self, ids: np.ndarray) -> None:
        raw = ids.astype(self.dtype, copy=False).tobytes()
        with os_errors("write", self.path):
            self._handle.write(raw)
        self._digest.update(raw)
        self.tokens += len(ids)

    def finish(self) -> str:
        """Put the shard in its place; returns its sha256."""
        with os_errors("write", self.path):
            self._handle.flush()
            os.fsync(self._handle.fileno())
            self._handle.close()
            os.replace(self._writing, self.path)
            sync_path(self.path.parent)
        return self._digest.hexdigest()

    def discard(self) -> None:
        """Leave nothing behind of a shard that will not be finished."""
        with suppress(OSError):  # a full disk, already reported by the write
            self._handle.close()
        self._writing.unlink(missing_ok=True)
