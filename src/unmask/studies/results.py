"""The record an evaluation leaves, which is the schema of results.json: cells of samples, likelihoods, their meaning.

A cell is n texts of one (model, plan, steps, temperature) with their scores and, for a joint bootstrap, the statistics
of each single text: so several runs can be merged (merge.py) and compared later without a judge. docs/evaluation.md
has the schema field by field.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from unmask.core.errors import UserError, reading
from unmask.core.files import read_json, write_text
from unmask.metrics.score import Ratio
from unmask.metrics.texts import clusters

FORMAT, VERSION = "unmask results", 1
NEEDED = ("steps", "plans", "temperatures", "n", "protocol", "seed", "length", "data")  # settings a report asks for
Json = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Cell:
    """n texts of one (model, plan, steps, temperature). Texts that nobody here drew have only a name."""

    model: str
    plan: str | None
    steps: int | None
    temperature: float | None
    n: int
    nfe: float | None  # mean forwards a text, as run
    seconds: float | None  # to draw all n
    tokens: int
    scores: dict[str, Json]  # name -> value, count, low, high, stderr, unit
    ratios: dict[str, Ratio] = field(default_factory=dict)  # ppl, entropy, gap: one entry a text
    samples: tuple[str, ...] = ()
    suspicions: tuple[str, ...] = ()
    record: Json = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)  # scores that these texts cannot have, and why

    @property
    def key(self) -> tuple[str, str | None, int | None, float | None]:
        return self.model, self.plan, self.steps, self.temperature

    @property
    def judged(self) -> bool:
        return "ppl" in self.ratios

    @property
    def tokens_per_second(self) -> float | None:
        return self.tokens / self.seconds if self.seconds else None

    @property
    def name(self) -> str:
        return f"{self.model} {self.plan} {self.steps} {self.temperature}"

    def value(self, score: str) -> float | None:
        return self.scores[score]["value"] if score in self.scores else None

    def to_json(self) -> Json:
        ratios = {name: _ratio_json(ratio) for name, ratio in self.ratios.items()}
        return {**vars(self), "ratios": ratios, "samples": list(self.samples), "suspicions": list(self.suspicions)}

    @classmethod
    def from_json(cls, said: Json) -> Cell:
        real = "source" in (said["record"].get("texts") or {})  # of blocks of held-out text
        ratios = {name: _ratio(ratio, real) for name, ratio in said["ratios"].items()}
        several = {name: tuple(said[name]) for name in ("samples", "suspicions")}
        return cls(**{**said, "ratios": ratios, **several})


def _ratio(said: Json, real: bool) -> Ratio:
    """Early files do not say what belongs together: there real text is one text."""
    top_n, bottom_n = (torch.tensor(said[name], dtype=torch.float64) for name in ("top", "bottom"))
    cluster_n = torch.tensor(said["clusters"]) if "clusters" in said else None
    if real and cluster_n is None:
        cluster_n = clusters(torch.zeros(len(top_n)))
    return Ratio(top_n, bottom_n, said["exponential"], cluster_n)


def _ratio_json(ratio: Ratio) -> Json:
    said = {"top": ratio.top_n.tolist(), "bottom": ratio.bottom_n.tolist(), "exponential": ratio.exponential}
    return said if ratio.cluster_n is None else {**said, "clusters": ratio.cluster_n.tolist()}


@dataclass(frozen=True, eq=False)
class Bound:
    """The N-step NELBO of one (model, plan, steps) on held-out text; without a plan, the model's ELBO."""

    model: str
    plan: str | None
    steps: int | None
    nfe: float | None
    scores: dict[str, Json]  # per_token, per_byte, perplexity
    ratio: Ratio  # nats per token, one entry a text: differences are paired
    record: Json = field(default_factory=dict)

    def pairs_with(self, other: Bound) -> bool:
        """Whether both are of the same texts, so that their difference may be taken text by text."""
        return len(self.ratio) == len(other.ratio) and texts_of(self).get("sha256") == texts_of(other).get("sha256")

    def to_json(self) -> Json:
        return {**vars(self), "ratio": _ratio_json(self.ratio)}

    @classmethod
    def from_json(cls, said: Json) -> Bound:
        return cls(**{**said, "ratio": _ratio(said["ratio"], real=True)})


def texts_of(entry: Cell | Bound) -> Json:
    """What is recorded of the texts behind an entry: their hash, where they came from, what drew them."""
    found: Json = entry.record.get("texts") or {}
    return found


@dataclass(frozen=True, eq=False)
class Results:
    """One evaluation, or several merged. `models` maps a name to its role, the hash of its weights and provenance."""

    models: dict[str, Json]
    cells: list[Cell]
    bounds: list[Bound]
    settings: Json
    judge: Json | None
    notes: list[str] = field(default_factory=list)
    analysis: Json = field(default_factory=dict)
    provenance: Json = field(default_factory=dict)
    questions: list[Json] = field(default_factory=list)  # a row for each model and number of steps (questions.py)

    @property
    def entries(self) -> list[Cell | Bound]:
        return [*self.cells, *self.bounds]

    def named(self, role: str) -> list[str]:
        """Models of a role, in the order they were given."""
        return [name for name, about in self.models.items() if about["role"] == role]

    def where(self, **wanted: Any) -> list[Cell]:
        """Cells whose fields have these values."""
        return [cell for cell in self.cells if all(getattr(cell, name) == value for name, value in wanted.items())]

    def one(self, **wanted: Any) -> Cell | None:
        return next(iter(self.where(**wanted)), None)

    @property
    def plans(self) -> list[str]:
        """Of masked models, in the order they were given."""
        drawn = [cell.plan for cell in self.cells if cell.plan and cell.steps]
        return list(dict.fromkeys(drawn + [bound.plan for bound in self.bounds if bound.plan]))

    @property
    def steps(self) -> list[int]:
        """The step counts that were asked for; the teacher may have more."""
        return [int(step) for step in self.settings["steps"]]

    @property
    def temperature(self) -> float:
        """The one that headlines are read at: the highest that was asked for."""
        return float(max(self.settings["temperatures"]))

    def to_json(self) -> Json:
        said = {name: item for name, item in vars(self).items() if name not in ("cells", "bounds")}
        cells, bounds = [cell.to_json() for cell in self.cells], [bound.to_json() for bound in self.bounds]
        return {"format": FORMAT, "version": VERSION, **said, "cells": cells, "likelihood": bounds}

    @classmethod
    def from_json(cls, said: Json) -> Results:
        cells, bounds = map(Cell.from_json, said["cells"]), map(Bound.from_json, said["likelihood"])
        names = ("models", "settings", "judge", "notes", "analysis", "provenance")
        rows = said.get("questions", [])
        return cls(cells=list(cells), bounds=list(bounds), questions=rows, **{name: said[name] for name in names})


def write_results(results: Results, path: Path) -> None:
    """On one line: a study has millions of numbers, and indenting them takes longer than measuring a cell."""
    write_text(path, json.dumps(results.to_json(), ensure_ascii=False) + "\n")


def read_results(path: Path | str) -> Results:
    """A results.json, or that of a folder, checked."""
    path = Path(path) / "results.json" if Path(path).is_dir() else Path(path)
    said = read_json(path, "results")
    if said.get("format") != FORMAT:
        raise UserError(f"{path} is not a results file of `unmask evaluate`: give a results.json it wrote")
    if said.get("version") != VERSION:
        raise UserError(f"{path} is of schema version {said.get('version')}, not {VERSION}: evaluate again")
    with reading(path, "results", "evaluate again"):
        _check(results := Results.from_json(said))
        return results


def _check(results: Results) -> None:
    """What a report looks up is there, else a KeyError or ValueError says what is missing."""
    settings = results.settings
    if missing := [name for name in NEEDED if name not in settings]:
        raise KeyError(f"settings without {', '.join(missing)}")
    drawn = bool(results.bounds) or any(cell.plan for cell in results.cells)
    if drawn and not (results.steps and settings["plans"]):
        raise ValueError("settings without steps or plans")
    if not settings["temperatures"] or not isinstance(settings["seed"], int):
        raise ValueError("settings without temperatures or a seed")
    if any(not {"role", "sha256", "provenance"} <= about.keys() for about in results.models.values()):
        raise KeyError("a model without role, sha256 or provenance")
    if nameless := {entry.model for entry in results.entries} - results.models.keys():
        raise KeyError(f"no model {', '.join(sorted(nameless))}")
