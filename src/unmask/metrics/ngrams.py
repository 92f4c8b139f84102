"""n-grams of token ids, exactly and fast: every n-gram gets a small number, equal n-grams the same.

Shapes: N places in all rows, G different n-grams, P pairs of an n-gram and a row that has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Ngrams:
    """The n-grams of some rows, counted row by row: one entry for each n-gram of each row, in order of the n-gram."""

    gram_P: Ints  # 0 .. different-1
    row_P: Ints
    count_P: Ints
    different: int
    rows: int

    def per_row(self) -> Ints:
        """How many n-grams each row has."""
        return np.bincount(self.row_P, weights=self.count_P, minlength=self.rows).astype(np.int64)

    def different_per_row(self) -> Ints:
        return np.bincount(self.row_P, minlength=self.rows)

    def total(self) -> Ints:
        """How often each n-gram occurs in all rows. (G)"""
        return np.bincount(self.gram_P, weights=self.count_P, minlength=self.different).astype(np.int64)

    @cached_property
    def owner_G(self) -> Ints:
        """The row of each n-gram that only one row has, -1 for the others."""
        owner_G = np.full(self.different, -1)
        owner_G[self.gram_P] = self.row_P
        owner_G[np.bincount(self.gram_P, minlength=self.different) != 1] = -1
        return owner_G

    def most_elsewhere(self) -> Ints:
        """The highest count that any *other* row has of the same n-gram. (P)"""
        start_P = np.flatnonzero(np.diff(self.gram_P, prepend=-1))  # where the run of each n-gram begins
        run_P = np.cumsum(np.diff(self.gram_P, prepend=-1) != 0) - 1
        best_P = np.maximum.reduceat(self.count_P, start_P)[run_P]
        leads_P = self.count_P == best_P
        leaders_P = np.add.reduceat(leads_P.astype(np.int64), start_P)[run_P]
        runner_up_P = np.maximum.reduceat(np.where(leads_P, 0, self.count_P), start_P)[run_P]
        return np.where(leads_P & (leaders_P == 1), runner_up_P, best_P)

    def among(self, first: int, last: int) -> Ngrams:
        """Those of rows first .. last, under the same numbers."""
        here_P = (self.row_P >= first) & (self.row_P < last)
        return Ngrams(
            self.gram_P[here_P], self.row_P[here_P] - first, self.count_P[here_P], self.different, last - first
        )


class Rows:
    """Rows of token ids laid end to end, and their n-grams of every order; each order builds on the one before."""

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self.length_T = np.array([len(row) for row in rows], dtype=np.int64)
        self.flat_N = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
        self.row_N = np.repeat(np.arange(len(rows)), self.length_T)
        self._numbers = [_numbered(self.flat_N)]  # of the n-gram that starts at each place, for n = 1, 2, ...
        self._counted: dict[int, Ngrams] = {}

    def __len__(self) -> int:
        return len(self.length_T)

    def starts(self, span: int) -> Ints:
        """The places from which a row goes on for `span` tokens."""
        N = len(self.flat_N)
        return np.flatnonzero(self.row_N[: max(0, N - span + 1)] == self.row_N[span - 1 :])

    def ngrams(self, order: int) -> Ngrams:
        """All n-grams; a row shorter than `order` has none. Counted once."""
        if order not in self._counted:
            self._counted[order] = self._count(order)
        return self._counted[order]

    def _count(self, order: int) -> Ngrams:
        single_N = self._numbers[0]
        while len(self._numbers) < order:
            span = len(self._numbers) + 1
            start = self.starts(span)
            number_N = np.zeros_like(single_N)
            pair = self._numbers[-1][start] * (single_N.max() + 1) + single_N[start + span - 1]
            number_N[start] = _numbered(pair)  # small again, so that the next pairing cannot overflow
            self._numbers.append(number_N)
        start, T = self.starts(order), len(self)
        gram = self._numbers[order - 1][start]
        pair, count = np.unique(gram * T + self.row_N[start], return_counts=True)
        return Ngrams(pair // T, pair % T, count, int(gram.max(initial=-1)) + 1, T)


def _numbered(values: Ints) -> Ints:
    """Equal values, equal numbers from 0 on."""
    return np.unique(values, return_inverse=True)[1].reshape(-1)
