"""The record an evaluation leaves, which is the schema of results.json: cells of samples, likelihoods, their meaning.

A cell is n texts of one (model, plan, steps, temperature) with their scores and, for a joint bootstrap, the statistics
of each single text: so several runs can be merged and compared later without a judge. docs/evaluation.md tells the
schema field by field. Refuses to know how texts were drawn and what a page looks like.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from unmask.core.errors import UserError
from unmask.core.files import read_json, write_text
from unmask.metrics.score import Ratio
from unmask.metrics.texts import clusters

FORMAT, VERSION = "unmask results", 1
NEEDED = ("steps", "plans", "temperatures", "n", "protocol", "seed", "length", "data")  # settings a report asks for
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
        given = said["plan"] is None
        ratios = {name: _ratio(ratio, given) for name, ratio in said["ratios"].items()}
        return cls(
            **{**said, "ratios": ratios, "samples": tuple(said["samples"]), "suspicions": tuple(said["suspicions"])}
        )


def _ratio(said: Json, real: bool) -> Ratio:
    """Early files do not say what belongs together: there real text is one text."""
    top_n, bottom_n = (torch.tensor(said[name], dtype=torch.float64) for name in ("top", "bottom"))
    cluster_n = torch.tensor(said["clusters"]) if "clusters" in said else None
    if real and cluster_n is None:
        cluster_n = clusters(torch.zeros(len(top_n)))
    return Ratio(top_n, bottom_n, said["exponential"], cluster_n)


def _ratio_json(ratio: Ratio) -> Json:
    """Eight digits are more than any score has."""

    def short(numbers: Any) -> list[float]:
        return [float(f"{number:.8g}") for number in numbers.tolist()]

    said = {"top": short(ratio.top_n), "bottom": short(ratio.bottom_n), "exponential": ratio.exponential}
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
        results = Results.from_json(said)
        _check(results)
        return results
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise UserError(f"results {path} is damaged ({type(error).__name__}: {error}): evaluate again") from error


def _check(results: Results) -> None:
    """What a report looks up is there, else a KeyError or ValueError says what is missing."""
    settings = results.settings
    if missing := [name for name in NEEDED if name not in settings]:
        raise KeyError(f"settings without {', '.join(missing)}")
    if not (results.steps and settings["plans"] and settings["temperatures"]) or not isinstance(settings["seed"], int):
        raise ValueError("settings without steps, plans, temperatures or a seed")
    if any(not {"role", "sha256", "provenance"} <= about.keys() for about in results.models.values()):
        raise KeyError("a model without role, sha256 or provenance")
    if nameless := {entry.model for entry in results.entries} - results.models.keys():
        raise KeyError(f"no model {', '.join(sorted(nameless))}")


def merge(several: Sequence[Results]) -> Results:
    """Several runs as one. They must share judge, protocol and held-out text, and mean the same by a model and a plan.
    Those that drew nothing have bounds alone, which know no judge, and join runs of any.

    Of a cell that several have, the one with the most texts stays; of a bound the one on the texts that most bounds are
    of, since bounds are compared text by text.
    """
    drawn = [run for run in several if run.cells] or several
    first = drawn[0]
    judges = {(run.judge or {}).get("id") for run in drawn}
    protocols = {run.settings["protocol"] for run in drawn if run.judge}
    if len(judges) > 1 or len(protocols) > 1:
        raise UserError(
            "these runs were judged by different judges or protocols, whose numbers do not compare: "
            "evaluate them again with one judge and one protocol"
        )
    if len({run.settings["length"] for run in several}) > 1:
        raise UserError("these runs have texts of different lengths, and do not compare: evaluate again with one")
    check_same_held_out(several)
    check_same_grids(several)
    models: dict[str, Json] = {}
    for run in several:
        for name, about in run.models.items():
            if not _same_model(models.setdefault(name, about), about):
                raise UserError(f"two runs mean different models by {name!r}: give one of them another name")
    cells: dict[Any, Cell] = {}
    for cell in (cell for run in several for cell in run.cells):
        cells[cell.key] = max(cells.get(cell.key, cell), cell, key=lambda one: one.n)
    bounds, about_bounds = _on_common_texts([bound for run in several for bound in run.bounds])
    settings = {**first.settings, "temperatures": _union(run.settings["temperatures"] for run in drawn)}
    for name in ("steps", "plans"):
        settings[name] = _union(run.settings[name] for run in several)
    return replace(
        first,
        models=models,
        cells=list(cells.values()),
        bounds=bounds,
        settings=settings,
        notes=_union([*(run.notes for run in drawn), about_bounds]),
        analysis={},
        provenance={**first.provenance, "merged": [run.provenance for run in several]}
        if len(several) > 1
        else first.provenance,
    )


def _on_common_texts(every: Sequence[Bound]) -> tuple[list[Bound], list[str]]:
    """Each bound once, on the texts that most bounds are of; and what to say if some are of other texts."""

    def texts(bound: Bound) -> Any:
        return texts_of(bound).get("sha256"), len(bound.ratio)

    common = Counter(map(texts, every))
    found: dict[Any, Bound] = {}
    for bound in every:
        key = (bound.model, bound.plan, bound.steps)
        found[key] = max(found.get(key, bound), bound, key=lambda one: (common[texts(one)], len(one.ratio)))
    counts = sorted({len(bound.ratio) for bound in found.values()}, reverse=True)
    if len({texts(bound) for bound in found.values()}) < 2:
        return list(found.values()), []
    numbers = " or ".join(f"{count:,}" for count in counts)
    return list(found.values()), [
        f"Bounds are of different held-out texts ({numbers} of them): compare like with like."
    ]


def _same_model(one: Json, other: Json) -> bool:
    """Equal weights, and equal schedule, shape and tokenizer where both runs say which."""
    whole = {about["identity"] for about in (one, other) if about.get("identity")}
    return bool(one["sha256"] == other["sha256"]) and len(whole) < 2


def check_same_held_out(several: Sequence[Results]) -> None:
    """Refuse runs whose held-out text differs, by what was really read.

    Equal numbers of blocks must be equal blocks, whatever the folder is called. With another n other blocks of a text
    are taken, and no hash tells whether it is one text: then it must be called the same.
    """
    names: dict[tuple[int | None, str], set[str]] = {}  # by number and hash of the blocks
    for said in (said for run in several for said in _held_out(run)):
        name = _name_of(said)
        names.setdefault((said.get("texts"), said.get("sha256", name)), set()).add(name)
    for ((count, _), mine), ((other_count, _), theirs) in itertools.combinations(names.items(), 2):
        if count == other_count or not mine & theirs:
            shown = " and ".join(sorted({min(mine), min(theirs)}))
            raise UserError(
                f"these runs have different held-out text ({shown}), and do not compare: evaluate again with one "
                "--data, --split and --n"
            )


def _held_out(run: Results) -> list[Json]:
    """What is recorded of the held-out texts of a run; where nothing is, what was asked for."""
    wanted = [entry for entry in run.entries if isinstance(entry, Bound) or run.models[entry.model]["role"] == "real"]
    found = [texts_of(entry) for entry in wanted]
    asked = {"source": run.settings["data"], "split": run.settings.get("split"), "wrap": run.settings.get("wrap")}
    return [said for said in found if "sha256" in said] or [asked]


def _name_of(said: Json) -> str:
    """What held-out text is called: its place, its split, and whether it was wrapped."""
    if said.get("source") is None:
        return "none"
    return f"{said['source']}, {said.get('split') or 'all of it'}" + (", wrapped" if said.get("wrap") else "")


def check_same_grids(several: Sequence[Results]) -> None:
    """Refuse runs that mean different grids by the name of one file."""
    times: dict[tuple[str, int | None], Any] = {}
    for run in several:
        for entry in run.entries:
            grid = (texts_of(entry) if isinstance(entry, Cell) else entry.record).get("grid")
            if entry.plan is None or not entry.plan.endswith(".json") or not grid:
                continue
            if times.setdefault((entry.plan, entry.steps), grid["times"]) != grid["times"]:
                raise UserError(
                    f"two runs mean different grids of {entry.steps} steps by {entry.plan}: evaluate one of them again "
                    "with its file under another name"
                )


def _union(lists: Iterable[Iterable[Any]]) -> list[Any]:
    found = list(dict.fromkeys(item for part in lists for item in part))
    return sorted(found) if all(isinstance(item, (int, float)) for item in found) else found
