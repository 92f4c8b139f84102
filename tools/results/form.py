"""How tables of docs/ are written: names of plans and teachers, numbers in words, rows in Markdown."""

from __future__ import annotations

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
    """A note, a head and rows. Without rows nothing was measured yet: the note says of what, and the table is empty."""

    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        if not self.rows:
            return ""
        rule = ["---", *["---:"] * (len(self.head) - 1)]
        lines = ["| " + " | ".join(words) + " |" for words in (self.head, rule, *self.rows)]
        return "\n".join([self.note, "", *lines])


def not_yet(what: str) -> Table:
    """In place of the table of a study that was not run yet; the page names it where it says what is open."""
    return Table(what, [], [])


def signed(value: float | None, digits: int = 3) -> str:
    return NOTHING if value is None else f"{value:+.{digits}f}".replace("-", "−")


def half(score: Sequence[float] | None, digits: int = 3, sign: bool = False) -> str:
    """value ± half of the 95% interval."""
    if not score:
        return NOTHING
    value, low, high = score
    mark = "+" if sign else ""
    return f"{value:{mark}.{digits}f} ± {(high - low) / 2:.{digits}f}".replace("-", "−")


def values(
    named: Mapping[str, Sequence[Sequence[float] | None]], digits: int = 3, sign: bool = True
) -> list[list[str]]:
    """Rows of values without their intervals, and below them how wide an interval of each column is at most."""
    mark = "+" if sign else ""
    rows = [
        [name, *(NOTHING if not one else f"{one[0]:{mark}.{digits}f}".replace("-", "−") for one in scores)]
        for name, scores in named.items()
    ]
    widest = [max((width(one) for one in column if one), default=None) for column in zip(*named.values(), strict=True)]
    return [*rows, ["± at most", *(NOTHING if one is None else f"{one:.{digits}f}" for one in widest)]]


def width(score: Sequence[float]) -> float:
    return (score[2] - score[1]) / 2


def ppl(cell: Json | None) -> str:
    """Gen PPL, with a digit behind the point only where it is small."""
    return half(cell["gen_ppl"], 1 if cell["gen_ppl"][0] < 100 else 0) if cell and "gen_ppl" in cell else NOTHING
