"""How tables of docs/ are written: names of plans and teachers, numbers in words, rows in Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.results.runs import Json, Run

Runs = Mapping[str, Run]
NOTHING = "–"
PLANS = {
    "iid": "`iid` (published)",
    "iid@cosine": "`iid` on the cosine grid",
    "permutation": "`permutation`",
    "golden": "`golden`",
    "van_der_corput": "`van_der_corput`",
    "stride": "`stride`",
    "dilated": "`dilated`",
    "rotation": "`rotation`",
    "comb": "`comb`",
    "left_to_right": "`left_to_right`",
    "rising": "`comb` in ascending order",
    "comb@uniform": "`comb` on the grid `uniform`",
    "hop": "`comb` that hops three places a step",
    "twice": "`comb` that sweeps over every second class, then over the others",
    "golden@cosine": "`golden` on the cosine grid",
    "golden@grid-golden.json": "`golden` on the fitted grid",
}
TEACHERS = {  # what it is: the run with its NELBOs, and the runs of its samples by judge; one not run yet has no row
    "`pocket`, 6.3M, L = 256": ("plans-study-judge", "headline"),
    "24M, L = 1024": ("teacher-24m", ""),
    "DiT small, L = 1024, first": ("scale-first-study-judge", "scale-first"),
    "DiT small, L = 1024, seed 0": ("scale-study-judge", "scale"),
    "DiT small, L = 1024, seed 1": ("scale-again-study-judge", "scale-again"),
}
JUDGES = ("study-judge", "smollm2")


@dataclass(frozen=True)
class Table:
    """A note, a head and rows; the note alone where nothing was measured."""

    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        if not self.rows:
            return self.note
        rule = ["---", *["---:"] * (len(self.head) - 1)]
        lines = ["| " + " | ".join(words) + " |" for words in (self.head, rule, *self.rows)]
        return "\n".join([self.note, "", *lines])


def not_yet(there: str = "../predictions.md") -> Table:
    """In place of the table of a study that was not run yet."""
    return Table(f"Not measured yet. What we expect is [registered]({there}).", [], [])


def signed(value: float | None, digits: int = 3) -> str:
    return NOTHING if value is None else f"{value:+.{digits}f}".replace("-", "−")


def half(score: Sequence[float] | None, digits: int = 3, sign: bool = False) -> str:
    """value ± half of the 95% interval."""
    if not score:
        return NOTHING
    value, low, high = score
    mark = "+" if sign else ""
    return f"{value:{mark}.{digits}f} ± {(high - low) / 2:.{digits}f}".replace("-", "−")


def ppl(cell: Json | None) -> str:
    """Gen PPL, with a digit behind the point only where it is small."""
    return half(cell["gen_ppl"], 1 if cell["gen_ppl"][0] < 100 else 0) if cell and "gen_ppl" in cell else NOTHING


def less(one: Sequence[float], other: Sequence[float]) -> str:
    """The difference of two scores whose texts have nothing in common."""
    spread = math.hypot(*((high - low) / 2 for _, low, high in (one, other)))
    return f"{signed(one[0] - other[0])} ± {spread:.3f}"
