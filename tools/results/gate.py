"""The gate of the 24M teacher (studies/teacher/gate.py): what is kept of it, and what follows.

Books are taken as independent; an interval is 1.96 standard errors of their mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from tools.results.form import Runs, Table, half, not_yet
from tools.results.runs import Json, Run

GATES = ("teacher-24m-gate", "teacher-24m-s1-gate", "teacher-24m-s2-gate")
MOST, AIM, LESS, LEAST = 1.02, 0.98, 0.02, 1.0  # as registered


def by_book(said: Json) -> Json:
    """Of every block its nats are summed over its book; that is all that the criteria ask."""
    books: dict[int, list[float]] = {}
    blocks = zip(said["book"], said["bytes"], said["nats"]["teacher"], said["nats"]["other"], strict=True)
    for book, *values in blocks:
        books[book] = [a + b for a, b in zip(books.get(book, (0, 0, 0)), values, strict=True)]
    return {
        "books are": "[bytes, nats of the teacher, nats of pocket]; attention is the median entropy of each block",
        "machine": said.get("machine", []), "books": list(books.values()), "attention": said["attention"],
        "views": said["views"], "texts": said["texts"],
    }  # fmt: skip


@dataclass(frozen=True)
class Gate:
    """Nats a byte, [value, low, high] over books; `whole` and `other` are over all bytes."""

    whole: float
    other: float
    teacher: Sequence[float]
    less: Sequence[float]
    attention: Sequence[float]


def gate_of(run: Run) -> Gate:
    books = run.said["books"]
    size, mine, theirs = (sum(column) for column in zip(*books, strict=True))
    each = [(ours / n, other / n) for n, ours, other in books]
    less = [ours - other for ours, other in each]
    return Gate(mine / size, theirs / size, _mean([ours for ours, _ in each]), _mean(less), run.said["attention"])


def _mean(values: Sequence[float]) -> list[float]:
    spread = 1.96 * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return [mean(values), mean(values) - spread, mean(values) + spread]


def teacher_gate(runs: Runs) -> Table:
    """The teacher beside pocket on the held-out books."""
    named = {seed: runs[name] for seed, name in enumerate(GATES) if name in runs}
    if not named:
        return not_yet("the gate of a 24M teacher by `unmask train`")
    said = next(iter(named.values())).said
    note = (
        f"ELBO in nats a byte on {len(said['books'])} held-out books, the same tokens, {said['views']} views a block; "
        "± is half of the 95% interval over books. Attention: the least median entropy of a block, in nats."
    )
    rows = []
    for seed, found in ((seed, gate_of(run)) for seed, run in named.items()):
        rows.append([
            f"24M, seed {seed}", f"{found.whole:.4f}", half(found.teacher, 4), f"{found.other:.4f}",
            half(found.less, 4, sign=True), f"{min(found.attention):.2f}",
        ])  # fmt: skip
    head = ["teacher", "all bytes", "mean over books", "`pocket`, all bytes", "less `pocket`, by book", "attention"]
    return Table(note, head, rows)
