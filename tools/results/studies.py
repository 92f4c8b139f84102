"""The studies that docs/ tells of: studies.yaml, and the records in the slim files it names.

Refuses to know tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tools.results.names import parse
from tools.results.pivot import Record

from unmask.core.errors import UserError, os_errors, unknown
from unmask.core.files import read_json

STATUS = {"planned": "Not run yet", "partial": "Partial", "complete": "Complete"}
TEXTS = ("prose", "verse")
METHODS = {"mcd": "MCD", "sdtt": "SDTT", "cd4lm": "CD4LM", "elbo": "ELBO control"}
Json = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One evaluation: its name (docs/results/NAME.json), where the command leaves its results, what text it is on."""

    name: str
    out: list[str]
    text: str = "prose"


@dataclass(frozen=True)
class Slim:
    """A run that was made, as it is kept."""

    run: Run
    said: Json

    @property
    def judge(self) -> str:
        """Its name, and its precision where that is not the usual one: another precision is another judge."""
        said = self.said.get("judge")
        if not said:
            return "no judge"
        name = str(said["name"]).rsplit("/", 1)[-1]  # of a judge that lay in a folder
        return name + (f" ({said['dtype']})" if said.get("dtype") not in (None, "fp32") else "")

    def cells(self) -> list[Record]:
        """Cells of every temperature with what is known of their models; `hot` marks the headline's temperature."""
        comparisons = {_place(one): one for one in self.said.get("comparisons", [])}
        return [
            self._model(cell) | cell | _compared(cell, comparisons.get(_place(cell)))
            for cell in self.said.get("cells", [])
        ]

    def bounds(self) -> list[Record]:
        return [self._model(bound) | bound for bound in self.said.get("likelihood", [])]

    def _model(self, entry: Json) -> Record:
        about = self.said["models"][entry["model"]]
        hot = (self.said.get("analysis") or {}).get("temperature")
        return {
            "run": self.run.name,
            "text": self.run.text,
            "judge": self.judge,
            "role": about["role"],
            "arm": parse(entry["model"]).arm,
            "hot": entry.get("temperature") == hot,
            **_made(about, parse(entry["model"]).round),
        }


def _place(entry: Json) -> tuple[Any, ...]:
    return tuple(entry[name] for name in ("model", "plan", "steps", "temperature"))


def _made(about: Json, named: int | None) -> Record:
    """Method, round and whether tau is 1, of a distilled model."""
    said = about.get("distillation")
    if not said:
        return {"method": None, "round": named, "tau": None}
    curriculum = about.get("curriculum") or {}
    sharp = said.get("tau_product", 1) != 1 or curriculum.get("tau_drop", 0) != 0
    tau = None if said["method"] == "elbo" else "τ curriculum" if sharp else "τ = 1"
    plan = (about.get("objective") or {}).get("plan")
    along = f" along {plan}" if said["method"] in ("mcd", "sdtt") and plan not in (None, "iid") else ""
    return {"method": METHODS.get(said["method"], said["method"]) + along, "round": said.get("round"), "tau": tau}


def _compared(cell: Json, comparison: Json | None) -> Record:
    """What the teacher has at the same NFE and entropy: its Gen PPL, from the gap in log PPL."""
    if comparison is None or not cell.get("gen_ppl"):
        return {}
    gap, ppl = comparison["gap"], cell["gen_ppl"][0]
    found: Record = {"gap": gap, "speed_up": comparison["speed_up"], "alike": comparison.get("alike")}
    if None not in gap:
        value, low, high = gap
        found["teacher_ppl"] = [ppl * math.exp(-value), ppl * math.exp(-high), ppl * math.exp(-low)]
    return found


@dataclass(frozen=True)
class Study:
    """One entry of studies.yaml, with those of its runs that were made."""

    name: str
    about: str
    status: str
    missing: str
    commands: list[str]
    samples: int
    runs: list[Run]
    slims: list[Slim] = field(default_factory=list)

    @property
    def state(self) -> str:
        """What may be said of it: never more than its files bear out."""
        return "planned" if not self.slims else "complete" if self.status == "complete" else "partial"

    @property
    def absent(self) -> list[Run]:
        made = {slim.run.name for slim in self.slims}
        return [run for run in self.runs if run.name not in made]

    def judged(self) -> dict[str, list[Slim]]:
        """Runs that have cells, by judge: numbers of two judges never stand in one table."""
        found: dict[str, list[Slim]] = {}
        for slim in self.slims:
            if slim.said.get("cells") and slim.said.get("judge"):
                found.setdefault(slim.judge, []).append(slim)
        return found

    def cells(self, judge: str | None = None) -> list[Record]:
        return [record for slim in self.slims if judge in (None, slim.judge) for record in slim.cells()]

    def bounds(self, text: str | None = None) -> list[Record]:
        return [record for slim in self.slims if text in (None, slim.run.text) for record in slim.bounds()]

    def entries(self, kind: str) -> list[Json]:
        """What stands under a name in any slim file, with the judge it was judged by."""
        return [{**one, "judge": slim.judge} for slim in self.slims for one in slim.said.get(kind, [])]


def read_studies(folder: Path) -> list[Study]:
    """studies.yaml and the slim files beside it, checked."""
    path = folder / "studies.yaml"
    with os_errors("read", path):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [_study(name, said, folder) for name, said in content.items()]


def _study(name: str, said: Json, folder: Path) -> Study:
    allowed = ("about", "status", "missing", "commands", "samples", "runs")
    for key in said:
        if key not in allowed:
            raise unknown(f"field of the study {name}", key, allowed)
    if said["status"] not in STATUS:
        raise unknown(f"status of the study {name}", str(said["status"]), STATUS)
    runs = [_run(run, about) for run, about in (said.get("runs") or {}).items()]
    slims = [Slim(run, _read(folder / f"{run.name}.json")) for run in runs if (folder / f"{run.name}.json").is_file()]
    return Study(
        name, said.get("about") or "", said["status"], said.get("missing") or "",
        said.get("commands") or [], said["samples"], runs, slims,
    )  # fmt: skip


def check_complete(study: Study, folder: Path) -> None:
    """A study that is called complete must be."""
    if study.status == "complete" and study.absent:
        raise UserError(
            f"the study {study.name} is called complete, but {folder / study.absent[0].name}.json is missing: "
            f"make it with `slim {study.absent[0].name}`, or say `status: partial` and what is missing"
        )


def _run(name: str, about: Json) -> Run:
    text = about.get("text", "prose")
    if text not in TEXTS:
        raise unknown(f"text of the run {name}", text, TEXTS)
    out: Sequence[str] = about["out"] if isinstance(about["out"], list) else [about["out"]]
    return Run(name, list(out), text)


def _read(path: Path) -> Json:
    said = read_json(path, "slim results")
    if (said.get("format"), said.get("version")) != ("unmask slim results", 1):
        raise UserError(f"{path} was not written by `slim`: make it again")
    return said
