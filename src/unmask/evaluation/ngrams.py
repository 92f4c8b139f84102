"""n-grams of token ids, exactly and fast: every n-gram gets a small number, equal n-grams the same.

Refuses to know what the tokens mean. Shapes: N occurrences of n-grams, G different ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Ngrams:
    """All n-grams of some rows, in order: which n-gram, and in which row."""

    gram_N: Ints  # 0 .. G-1
    row_N: Ints
    different: int  # G
    rows: int

    def per_row(self) -> Ints:
        """How many n-grams each row has."""
        return np.bincount(self.row_N, minlength=self.rows)

    def owners(self) -> Ints:
        """The row of each n-gram that only one row has, -1 for the others. (G)"""
        first_G, last_G = np.full(self.different, self.rows), np.full(self.different, -1)
        np.minimum.at(first_G, self.gram_N, self.row_N)
        np.maximum.at(last_G, self.gram_N, self.row_N)
        return np.where(first_G == last_G, first_G, -1)

    def counts(self) -> RowCounts:
        """How often each row has each of its n-grams."""
        pair, count = np.unique(self.gram_N * self.rows + self.row_N, return_counts=True)
        return RowCounts(pair // self.rows, pair % self.rows, count)


@dataclass(frozen=True, eq=False)
class RowCounts:
    """One entry for each n-gram of each row, in order of the n-gram."""

    gram_P: Ints
    row_P: Ints
    count_P: Ints

    def most_elsewhere(self) -> Ints:
        """The highest count that any *other* row has of the same n-gram. (P)"""
        order = np.lexsort((-self.count_P, self.gram_P))  # within an n-gram the highest count first
        gram, count = self.gram_P[order], self.count_P[order]
        start_P = np.searchsorted(gram, gram)  # where the run of each n-gram begins
        second_P = np.minimum(start_P + 1, len(gram) - 1)
        runner_up_P = np.where(gram[second_P] == gram, count[second_P], 0) * (second_P != start_P)
        best_P = np.where(np.arange(len(gram)) == start_P, runner_up_P, count[start_P])
        found = np.empty_like(best_P)
        found[order] = best_P
        return found


def ngrams(rows: Sequence[Sequence[int]], order: int) -> Ngrams:
    """The n-grams of rows of token ids; a row shorter than `order` has none."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    flat = np.fromiter((token for row in rows for token in row), dtype=np.int64, count=int(lengths.sum()))
    row_of = np.repeat(np.arange(len(rows)), lengths)
    gram, different = _numbered(flat)
    single = gram
    for step in range(1, order):
        gram, different = _numbered(gram[:-1] * (single.max(initial=0) + 1) + single[step:])
    inside = row_of[: len(gram)] == row_of[order - 1 :]
    gram, different = _numbered(gram[inside])
    return Ngrams(gram, row_of[: len(inside)][inside], different, len(rows))


def _numbered(values: Ints) -> tuple[Ints, int]:
    """Equal values, equal numbers from 0 on; so the next pairing cannot overflow."""
    found, number = np.unique(values, return_inverse=True)
    return number.reshape(-1).astype(np.int64), len(found)
