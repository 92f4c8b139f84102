"""The record an evaluation leaves, which is the schema of results.json: cells of samples, likelihoods, their meaning.

A cell is n texts of one (model, plan, steps, temperature) with their scores and, for a joint bootstrap, the statistics
of each single text: so several runs can be merged and compared later without a judge. docs/evaluation.md tells the
schema field by field. Refuses to know how texts were drawn and what a page looks like.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from unmask.base.errors import UserError
from unmask.base.files import read_json, write_text
from unmask.evaluation.score import Ratio

FORMAT, VERSION = "unmask results", 1
ROLES = ("teacher", "student", "elbo", "ar", "real", "parrot")
Json = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Cell:
    """n texts of one way of writing. Real text and the parrot have no plan, steps and temperature."""

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

    @property
    def key(self) -> tuple[str, str | None, int | None, float | None]:
        return self.model, self.plan, self.steps, self.temperature

    @property
    def judged(self) -> bool:
        return "ppl" in self.ratios

    @property
    def tokens_per_second(self) -> float | None:
        return self.tokens / self.seconds if self.seconds else None

    def value(self, score: str) -> float | None:
        return self.scores[score]["value"] if score in self.scores else None

    def to_json(self) -> Json:
        ratios = {name: _ratio_json(ratio) for name, ratio in self.ratios.items()}
        return {**vars(self), "ratios": ratios, "samples": list(self.samples), "suspicions": list(self.suspicions)}

    @classmethod
    def from_json(cls, said: Json) -> Cell:
        ratios = {name: _ratio(ratio) for name, ratio in said["ratios"].items()}
        return cls(
            **{**said, "ratios": ratios, "samples": tuple(said["samples"]), "suspicions": tuple(said["suspicions"])}
        )


def _ratio(said: Json) -> Ratio:
    top_n, bottom_n = (torch.tensor(said[name], dtype=torch.float64) for name in ("top", "bottom"))
    return Ratio(top_n, bottom_n, said["exponential"])


def _ratio_json(ratio: Ratio) -> Json:
    """Eight digits are more than any score has."""

    def short(numbers: Any) -> list[float]:
        return [float(f"{number:.8g}") for number in numbers.tolist()]

    return {"top": short(ratio.top_n), "bottom": short(ratio.bottom_n), "exponential": ratio.exponential}


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

    def to_json(self) -> Json:
        return {**vars(self), "ratio": _ratio_json(self.ratio)}

    @classmethod
    def from_json(cls, said: Json) -> Bound:
        return cls(**{**said, "ratio": _ratio(said["ratio"])})


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
        return {
            "format": FORMAT,
            "version": VERSION,
            "settings": self.settings,
            "judge": self.judge,
            "models": self.models,
            "analysis": self.analysis,
            "notes": self.notes,
            "cells": [cell.to_json() for cell in self.cells],
            "likelihood": [bound.to_json() for bound in self.bounds],
            "provenance": self.provenance,
        }

    @classmethod
    def from_json(cls, said: Json) -> Results:
        return cls(
            models=said["models"],
            cells=[Cell.from_json(cell) for cell in said["cells"]],
            bounds=[Bound.from_json(bound) for bound in said["likelihood"]],
            settings=said["settings"],
            judge=said["judge"],
            notes=said["notes"],
            analysis=said["analysis"],
            provenance=said["provenance"],
        )


def write_results(results: Results, path: Path) -> None:
    """On one line: a study has millions of numbers, and indenting them takes longer than measuring a cell."""
    write_text(path, json.dumps(results.to_json(), ensure_ascii=False) + "\n")


def read_results(path: Path | str) -> Results:
    """A results.json, checked."""
    path = Path(path)
    if path.is_dir():
        path = path / "results.json"
    said = read_json(path, "results")
    if said.get("format") != FORMAT:
        raise UserError(f"{path} is not a results file of `unmask evaluate`: give a results.json it wrote")
    if said.get("version") != VERSION:
        raise UserError(
            f"{path} is of schema version {said.get('version')}, this unmask reads {VERSION}: "
            "evaluate again, or install the release that wrote it"
        )
    try:
        return Results.from_json(said)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise UserError(f"results {path} is damaged ({type(error).__name__}: {error}): evaluate again") from error


def merge(several: Sequence[Results]) -> Results:
    """Several runs as one. They must share judge and protocol: else their Gen PPLs are different numbers.

    Of a cell that several have, the one with the most texts stays. Of a bound the last one does: bounds are compared
    text by text, so that whoever merges must be able to say on which texts.
    """
    first = several[0]
    judges = {(run.judge or {}).get("id"): run for run in several}
    protocols = {run.settings["protocol"] for run in several if run.judge}
    if len(judges) > 1 or len(protocols) > 1:
        raise UserError(
            "these runs were judged by different judges or protocols, whose numbers do not compare: "
            "evaluate them again with one judge and one protocol"
        )
    if len({(run.settings["length"], run.settings["data"]) for run in several}) > 1:
        raise UserError(
            "these runs have texts of different lengths or other held-out text, and do not compare: evaluate again "
            "on the same"
        )
    models: dict[str, Json] = {}
    for run in several:
        for name, about in run.models.items():
            if models.setdefault(name, about)["sha256"] != about["sha256"]:
                raise UserError(f"two runs mean different models by {name!r}: give one of them another name")
    cells: dict[Any, Cell] = {}
    for cell in (cell for run in several for cell in run.cells):
        cells[cell.key] = max(cells.get(cell.key, cell), cell, key=lambda one: one.n)
    bounds = {(bound.model, bound.plan, bound.steps): bound for run in several for bound in run.bounds}
    settings = {**first.settings}
    for name in ("steps", "plans", "temperatures"):
        settings[name] = _union(run.settings[name] for run in several)
    return replace(
        first,
        models=models,
        cells=list(cells.values()),
        bounds=list(bounds.values()),
        settings=settings,
        notes=_union(run.notes for run in several),
        analysis={},
        provenance={**first.provenance, "merged": [run.provenance for run in several]}
        if len(several) > 1
        else first.provenance,
    )


def _union(lists: Iterable[Iterable[Any]]) -> list[Any]:
    found = list(dict.fromkeys(item for part in lists for item in part))
    return sorted(found) if all(isinstance(item, (int, float)) for item in found) else found
