"""Texts to be scored, drawn, real or anybody's, in one shape: token ids, what they spell, how many bytes that is.

A row may hold several documents with end-of-document tokens between them. Those tokens are not text: they spell
nothing, count no bytes, and a judge with another tokenizer reads its own end-of-document token in their place.

Shapes: T texts, L positions (shorter texts are padded with -1).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.core.errors import UserError, reading, unknown
from unmask.data import corpus
from unmask.data.loader import Loader, evenly
from unmask.data.prepare import Settings
from unmask.data.shards import INDEX, SPLITS, ShardSet, Tokens, check_tokenizer
from unmask.data.splits import divide, survey
from unmask.data.tokenizer import EOS, Tokenizer
from unmask.metrics.ngrams import Rows
from unmask.sampling.samples import Samples

SAMPLE = "sample"  # the bundled corpus, as a user calls it
FEW = 5  # documents that can be kept apart; fewer are taken for one text, which is cut into stretches
STRETCHES = 8
_CHUNK = 1 << 24  # tokens read at once
HELD_OUT = "validation"  # the split that is read unless another is named


@dataclass(frozen=True, eq=False)
class Texts:
    """T texts of one tokenizer. `log_q_T` is log q of each whole text where a sampler drew it, else None; of real text
    `document_T` says which document each is cut from."""

    tokens_TL: Tensor  # int64
    tokenizer: Tokenizer
    record: dict[str, Any] = field(default_factory=dict)
    log_q_T: Tensor | None = None
    prompted: bool = False  # some of the tokens were given to the sampler
    document_T: Tensor | None = None  # int64, None: each text stands alone

    def __post_init__(self) -> None:
        if self.tokens_TL.numel() == 0 or bool((self.tokens_TL < 0).all(1).any()):
            raise UserError("there is no text to score, or an empty one among the texts: draw more, or leave it out")
        if int(self.tokens_TL.max()) >= self.tokenizer.size:
            known = f"one of the {self.tokenizer.size} of the tokenizer {self.tokenizer.name!r}"
            raise UserError(f"token {int(self.tokens_TL.max())} is not {known}: a masked position, or another's token")

    def __len__(self) -> int:
        return len(self.tokens_TL)

    @cached_property
    def rows(self) -> list[list[int]]:
        """The ids of each text, without padding."""
        return [[token for token in row if token >= 0] for row in self.tokens_TL.tolist()]

    @cached_property
    def ngrams(self) -> Rows:
        """The same, with their n-grams counted as they are asked for."""
        return Rows(self.rows)

    @cached_property
    def documents(self) -> list[list[str]]:
        """What each text spells: one string more than it has end-of-document tokens, possibly empty."""
        return [[self.tokenizer.decode(part) for part in self._split(row)] for row in self.rows]

    def _split(self, row: list[int]) -> list[list[int]]:
        ends = [i for i, token in enumerate(row) if token in (self.tokenizer.eos_id, self.tokenizer.bos_id)]
        return [row[before + 1 : end] for before, end in pairwise([-1, *ends, len(row)])]

    @property
    def strings(self) -> list[str]:
        """Each text as a person reads it: a blank line between its documents."""
        return ["\n\n".join(document for document in documents if document) for documents in self.documents]

    @cached_property
    def bytes_T(self) -> Tensor:
        """UTF-8 bytes of each text. (A character cut in two at a text's edge counts as the sign that replaces it.)"""
        sizes = [sum(len(document.encode("utf-8")) for document in documents) for documents in self.documents]
        return torch.tensor(sizes, dtype=torch.int64)

    def take(self, count: int) -> Texts:
        log_q_T, document_T = (None if of_T is None else of_T[:count] for of_T in (self.log_q_T, self.document_T))
        return replace(self, tokens_TL=self.tokens_TL[:count], log_q_T=log_q_T, document_T=document_T)

    @cached_property
    def cluster_T(self) -> Tensor | None:
        """Which texts a bootstrap draws together; None: each stands alone."""
        return None if self.document_T is None else clusters(self.document_T)


def clusters(document_T: Tensor) -> Tensor:
    """Texts of one document belong together, for they are alike.

    Where documents are few, or one of them is most of it all, they say too little of their own spread, and the whole
    is taken for one text: neighbours belong together.
    """
    size_G, document_T = torch.unique(document_T, return_inverse=True, return_counts=True)[:0:-1]
    if len(size_G) >= FEW and 2 * int(size_G.max()) <= len(document_T):
        return document_T
    return torch.arange(len(document_T)) * min(STRETCHES, len(document_T)) // len(document_T)


def of_samples(samples: Samples, tokenizer: Tokenizer | None, **facts: Any) -> Texts:
    """Drawn texts, with what the sampler recorded; `facts` (the model's hash, its name) join the record.

    States beyond the tokenizer, the padding of a published vocabulary, spell nothing and are left out of a text.
    """
    if tokenizer is None:
        raise UserError("this model has no tokenizer, so that its samples are no text: score a model that has one")
    prompted = bool((samples.given & (samples.tokens >= 0)).any())
    beyond_TL = samples.tokens >= tokenizer.size
    order_TL = beyond_TL.byte().argsort(dim=1, stable=True)
    tokens_TL = samples.tokens.masked_fill(beyond_TL, -1).gather(1, order_TL)
    return Texts(tokens_TL, tokenizer, {**samples.record, **facts}, samples.log_q.sum(1), prompted)


def read_texts(path: str | Path) -> list[str]:
    """Anybody's texts. A line of a .jsonl file is a string, or an object with a "text". In a .txt file a line
    `<|endoftext|>` stands between two texts; where there is none, a blank line does."""
    with reading(path, cure="save it as text in UTF-8"):
        content = Path(path).read_text(encoding="utf-8-sig")
    if Path(path).suffix == ".jsonl":
        texts = [_of_line(line, f"{path}, line {i}") for i, line in enumerate(content.split("\n"), 1) if line.strip()]
    else:
        parts = re.split(rf"(?m)^{re.escape(EOS)}\r?$", content)
        texts = [part.strip("\r\n") for part in (parts if len(parts) > 1 else re.split(r"\n\s*\n", content))]
        texts = [text for text in texts if text.strip()]
    if not texts:
        raise UserError(f"{path} has no text in it: give a file with at least two")
    return texts


def _of_line(line: str, where: str) -> str:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UserError(f'{where}: not valid JSON ({error}); a line is a string, or an object with a "text"') from error
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str) or not text.strip():
        raise UserError(f'{where}: no text there; a line is a string, or an object with a "text"')
    return text


def of_strings(strings: Sequence[str], tokenizer: Tokenizer, length: int | None = None, **facts: Any) -> Texts:
    """Texts that nobody here drew, at most the first `length` tokens of each; `<|endoftext|>` ends a document."""
    pieces = [string.split(EOS) for string in strings]
    encoded = iter(tokenizer.encode_batch([piece for several in pieces for piece in several]))
    rows = [join_documents([next(encoded) for _ in several], tokenizer.eos_id)[:length] for several in pieces]
    tokens_TL = torch.full((len(rows), max(map(len, rows))), -1)
    for i, row in enumerate(rows):
        tokens_TL[i, : len(row)] = torch.tensor(row, dtype=torch.int64)
    digest = hashlib.sha256(tokens_TL.numpy().tobytes()).hexdigest()
    record = {**facts, "texts": len(rows), "sha256": digest, "tokenizer": tokenizer.describe()}
    return Texts(tokens_TL, tokenizer, record)


def held_out(
    data: str | Path, tokenizer: Tokenizer, length: int, *,
    count: int | None = None, split: str | None = None, wrap: bool = False,
) -> Texts:  # fmt: skip
    """Real text as blocks of `length` tokens, `count` of them evenly spaced over the whole (default: all).

    `data` is a folder that `unmask prepare` wrote, a text file (also compressed, or JSON lines), a folder of them, or
    "sample" for what `unmask prepare sample` holds out. Prepared folders and the sample have splits (default:
    validation), plain text is read whole. `wrap`: blocks as MDLM makes them, BOS, length - 2 tokens, EOS.
    """
    if (Path(data) / INDEX).is_file():
        return prepared([data], tokenizer, length, count=count, split=split, wrap=wrap)
    split = _split_of(str(data), split)
    stream = _encode(_pieces(str(data), split), tokenizer)
    inside = length - 2 if wrap else length
    blocks = len(stream) // inside if inside > 0 else 0
    if blocks == 0:
        raise UserError(f"{data} has {len(stream)} tokens, less than one block of {inside}: give more text")
    chosen = evenly(blocks, count)
    tokens_TL = torch.from_numpy(stream[: blocks * inside].reshape(blocks, inside)[chosen].astype(np.int64))
    if wrap:
        edge_T1 = torch.ones(len(chosen), 1, dtype=torch.int64)
        tokens_TL = torch.cat([edge_T1 * tokenizer.bos_id, tokens_TL, edge_T1 * tokenizer.eos_id], dim=1)
    document_T = _documents([stream], inside, count, tokenizer)
    return real_text(tokens_TL, tokenizer, document_T, source=str(data), split=split, wrap=wrap)


def prepared(
    folders: Sequence[str | Path], tokenizer: Tokenizer | None, length: int, *,
    count: int | None = None, split: str | None = None, wrap: bool = False, owner: str = "the model",
) -> Texts:  # fmt: skip
    """The same of folders that `unmask prepare` wrote, one after the other. Without a tokenizer their own is taken."""
    split, several = split or HELD_OUT, [ShardSet.open(folder) for folder in folders]
    for shards in several:
        if tokenizer is not None:
            check_tokenizer(shards, tokenizer, owner)
    loader = Loader(several, length, split=split, wrap=wrap)
    tokenizer = tokenizer or loader.tokenizer
    tokens_TL = torch.cat([batch.tokens_BL for batch in loader.eval_batches(count, 1024)])
    streams = [shards.tokens(split) for shards in several]
    document_T = _documents(streams, length - 2 if wrap else length, count, tokenizer)
    return real_text(tokens_TL, tokenizer, document_T, source=" ".join(map(str, folders)), split=split, wrap=wrap)


def _documents(streams: Sequence[np.ndarray | Tokens], inside: int, count: int | None, tokenizer: Tokenizer) -> Tensor:
    """The document that the middle of each block lies in, numbered in the order of the text."""
    documents, before = [], 0
    for stream in streams:
        parts = [np.asarray(stream[start : start + _CHUNK]) for start in range(0, len(stream), _CHUNK)]
        ends = np.concatenate([i * _CHUNK + np.flatnonzero(part == tokenizer.eos_id) for i, part in enumerate(parts)])
        documents.append(before + np.searchsorted(ends, np.arange(len(stream) // inside) * inside + inside // 2))
        before += len(ends) + 1  # no document goes on in the next folder
    every = np.concatenate(documents)
    return torch.from_numpy(every[evenly(len(every), count)])


def real_text(tokens_TL: Tensor, tokenizer: Tokenizer, document_T: Tensor | None = None, **facts: Any) -> Texts:
    """Blocks of real text, named by their hash. Of what documents nobody says, it is one text."""
    digest = hashlib.sha256(tokens_TL.numpy().tobytes()).hexdigest()
    shape = {"texts": len(tokens_TL), "length": tokens_TL.shape[1], "sha256": digest}
    if document_T is None:
        document_T = torch.zeros(len(tokens_TL), dtype=torch.int64)
    record = {**facts, **shape, "tokenizer": tokenizer.describe()}
    return Texts(tokens_TL, tokenizer, record, document_T=document_T)


def _split_of(name: str, split: str | None) -> str | None:
    """The split that is read of something nobody prepared: the sample has the usual ones, other text has none."""
    if name != SAMPLE and split is not None:
        raise UserError(f"{name} is plain text and has no {split} split: leave --split out, or `unmask prepare` it")
    if split not in (None, *SPLITS):
        raise unknown("split", str(split), SPLITS)
    return (split or HELD_OUT) if name == SAMPLE else None


def _pieces(name: str, split: str | None) -> Iterator[tuple[str, bool]]:
    """Text in pieces, each with whether a document ends there; of a split, what `unmask prepare` would put there."""
    sources, reading = corpus.find(name), corpus.Reading()
    if split is None:
        yield from ((piece.text, piece.last) for source in sources for piece in source.pieces(reading))
        return
    usual = Settings()
    plan = divide(survey(sources, reading, lambda _: None), usual.validation, usual.test)
    yield from ((item.text, item.last) for item in plan.items(sources, reading) if item.split == split)


def _encode(pieces: Iterable[tuple[str, bool]], tokenizer: Tokenizer) -> np.ndarray:
    """Documents, each followed by the end-of-document token, as one stream."""
    parts = [np.array(tokenizer.encode(text) + [tokenizer.eos_id] * last, dtype=np.uint32) for text, last in pieces]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint32)


def check_same_tokenizer(texts: Texts, tokenizer: Tokenizer | None, owner: str) -> None:
    """Reject texts whose ids mean something else to `owner`."""
    if tokenizer is None or tokenizer.hash != texts.tokenizer.hash:
        theirs = "none" if tokenizer is None else repr(tokenizer.name)
        differ = f"the texts are in tokens of {texts.tokenizer.name!r}, {owner} has {theirs}"
        raise UserError(f"{differ}: read them again with the tokenizer of the model")


def join_documents(documents: Sequence[Sequence[int]], eos_id: int) -> list[int]:
    """Encoded documents with the end-of-document token between them."""
    ids = list(documents[0])
    for document in documents[1:]:
        ids += [eos_id, *document]
    return ids
