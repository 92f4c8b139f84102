"""Reads docs/results: studies.yaml says which commands make what, RUN.json keeps what was measured; and how
tables of it are written. A score is [value, low, high], the ends of its 95% interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from unmask.core.errors import UserError, os_errors, unknown
from unmask.core.files import read_json

FORMAT, VERSION = "unmask slim results", 1
Json = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """Commands, and for each run where they leave its results; several are merged."""

    name: str
    commands: list[str]
    runs: dict[str, list[str]]


def read_studies(folder: Path) -> dict[str, Study]:
    """The studies of studies.yaml by name."""
    path = folder / "studies.yaml"
    with os_errors("read", path):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = {}
    for name, said in content.items():
        for key in said:
            if key not in ("commands", "runs"):
                raise unknown(f"field of the study {name}", key, ("commands", "runs"))
        runs = {run: [out] if isinstance(out, str) else out for run, out in (said.get("runs") or {}).items()}
        found[name] = Study(name, said.get("commands") or [], runs)
    return found


@dataclass(frozen=True)
class Run:
    """One committed file: cells of samples, N-step NELBOs, and where they came from."""

    name: str
    said: Json
    path: Path | None = None  # where it stands

    @property
    def judge(self) -> str:
        name = str((self.said.get("judge") or {}).get("name", "no judge")).rsplit("/", 1)[-1]
        return {"smollm2": "SmolLM2"}.get(name, name)

    def cell(self, model: str, plan: str | None, steps: int | None, temperature: float | None = 1.0) -> Json | None:
        """A cell of samples; of two, the one with more texts."""
        place = {"model": model, "plan": plan, "steps": steps, "temperature": temperature}
        found = [cell for cell in _where(self.said.get("cells", []), place) if "top_p" not in cell]
        return max(found, key=lambda cell: cell["n"], default=None)

    def bound(self, model: str, plan: str | None, steps: int | None) -> Json | None:
        """An N-step NELBO; the ELBO without a plan."""
        return next(_where(self.said.get("likelihood", []), {"model": model, "plan": plan, "steps": steps}), None)

    def nats(self, model: str, plan: str, steps: int) -> float | None:
        """The N-step NELBO itself, in nats a token."""
        found = self.bound(model, plan, steps)
        return found["per_token"][0] if found else None

    def above(self, model: str, plan: str, steps: int) -> list[float] | None:
        """The N-step NELBO less that of the teacher's most steps in random order, paired over texts."""
        every = _where(self.said.get("matches", []), {"score": "nelbo", "model": model, "plan": plan})
        curves = [one for one in every if one["reference"].get("order", "random") == "random"]
        points = (point for curve in curves for point in curve["curve"] if point["steps"] == steps)
        return next((point["distance"] for point in points), None)


def _where(records: list[Json], wanted: Json) -> Any:
    return (record for record in records if all(record[key] == value for key, value in wanted.items()))


class Runs(Mapping[str, Run]):
    """The files of a folder, each read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> Run:
        path = self.folder / f"{name}.json"
        said = read_json(path, "slim results")
        if (said.get("format"), said.get("version")) != (FORMAT, VERSION):
            raise UserError(f"{path} was not written by `slim`: make it again")
        return Run(name, said, path)

    def __iter__(self) -> Any:
        return (path.stem for path in sorted(self.folder.glob("*.json")))

    def __contains__(self, name: object) -> bool:
        return (self.folder / f"{name}.json").is_file()

    def __len__(self) -> int:
        return len(list(iter(self)))


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
