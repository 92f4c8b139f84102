"""Which text goes to which split: counted once, then known for every piece by its place in the corpus.

The rule: the last 5% of the documents are validation, the 5% before them test, the rest is for training. A corpus with
too few documents for that (a single book) is divided in the same way by its characters. The splits follow each other
in the order of the text, so one pass writes all three.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from unmask.core.errors import UserError
from unmask.data.corpus import Piece, Reading, Source, safe_cut
from unmask.data.shards import SPLITS


class Item(NamedTuple):
    """A piece of a document in its split, and where it is: the number-th item of the source-th source."""

    split: str
    text: str
    last: bool
    source: int
    number: int


@dataclass(frozen=True)
class Counts:
    """What one source holds."""

    documents: int
    characters: int
    bytes: int
    fingerprint: str  # of the file


class SourceChanged(UserError):
    """A source is not the one that was counted."""


@dataclass(frozen=True)
class Division:
    """The division of a corpus. `starts` says where test and validation begin, in documents or characters."""

    counts: list[Counts]
    split_by: str  # "documents" or "characters"
    starts: tuple[int, int]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Division:
        first, second = value["starts"]
        return cls([Counts(**one) for one in value["counts"]], value["split_by"], (first, second))

    def total(self, what: str, sources: int | None = None) -> int:
        """`documents`, `characters` or `bytes` of the first few sources (None: of all)."""
        return sum(getattr(one, what) for one in self.counts[:sources])

    def items(self, sources: list[Source], reading: Reading, first: int = 0) -> Iterator[Item]:
        """All pieces from source `first` on, each in its split. SourceChanged where one is not what was counted."""
        for index in range(first, len(sources)):
            place = self.total(self.split_by, index)
            number = 0
            for piece in sources[index].pieces(reading):
                for split, text, last in self._divide(piece, place):
                    yield Item(split, text, last, index, number)
                    number += 1
                place += len(piece.text) if self.split_by == "characters" else piece.last
            if self.counts[index].fingerprint != sources[index].hashed():
                raise SourceChanged(
                    f"{sources[index].name} changed while it was being prepared, so what was made is removed: "
                    "run the same command again when nobody writes to it"
                )

    def _divide(self, piece: Piece, place: int) -> Iterator[tuple[str, str, bool]]:
        """The parts of a piece that starts at `place`, each with its split; a split that ends also ends a document."""
        after = place + (len(piece.text) if self.split_by == "characters" else 0)
        done = 0
        for split, start, end in zip(SPLITS, (0, *self.starts), (*self.starts, math.inf), strict=True):
            if end <= place or start == end:
                continue
            if after < end:
                yield split, piece.text[done:], piece.last
                return
            cut = len(piece.text) if after == end else safe_cut(piece.text, done, int(end) - place)
            yield split, piece.text[done:cut], True
            done = cut
            if after == end:
                return


def survey(sources: list[Source], reading: Reading, on_read: Callable[[int], None]) -> list[Counts]:
    """Read everything once and count it."""
    counts = []
    for source in sources:
        fingerprint = source.hashed()  # before: what is written to it meanwhile does not belong to it
        documents = characters = size = 0
        for piece in source.pieces(reading, on_read):
            documents += piece.last
            characters += len(piece.text)
            size += len(piece.text.encode("utf-8"))
        counts.append(Counts(documents, characters, size, fingerprint))
    return counts


def check_fractions(validation: float, test: float) -> None:
    for name, fraction in (("validation", validation), ("test", test)):
        if not 0 <= fraction < 1:
            raise UserError(f"--{name} {fraction} is not a fraction: it must be at least 0 and less than 1")
    if validation + test >= 1:
        raise UserError(f"--validation {validation} and --test {test} leave nothing to train on: keep the sum below 1")


def divide(counts: list[Counts], validation: float, test: float) -> Division:
    """Where the splits begin: by documents if every split that was asked for gets one, else by characters."""
    for unit in ("documents", "characters"):
        total = sum(getattr(one, unit) for one in counts)
        in_test, in_validation = round(total * test), round(total * validation)
        training = total - in_test - in_validation
        if training and (in_test or not test) and (in_validation or not validation):
            break
    return Division(counts, unit, (training, training + in_test))


def training_sample(
    division: Division, sources: list[Source], reading: Reading, limit: int, on_text: Callable[[int], None]
) -> Iterator[str]:
    """About `limit` characters of the training split: every so many-th piece, so evenly over its whole length."""
    rate = min(1.0, limit / division.total("characters"))
    for count, item in enumerate(division.items(sources, reading)):
        if item.split != "train":
            return
        on_text(len(item.text))
        if math.floor((count + 1) * rate) > math.floor(count * rate):
            yield item.text
