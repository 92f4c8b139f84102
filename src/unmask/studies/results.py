"""The record an evaluation leaves, which is the schema of results.json: cells of samples, likelihoods, their meaning.

A cell is n texts of one (model, plan, steps, temperature, top-p) with their scores. What single texts gave stands
beside results.json in per-text.json.xz: so several runs can be merged (merge.py) and compared later without a judge,
and anybody can work out an interval again. docs/evaluation.md has the schema field by field.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from unmask.core.errors import UserError, os_errors, reading
from unmask.core.files import read_json, write_bytes, write_text
from unmask.metrics.score import Ratio

FORMAT, VERSION = "unmask results", 2
PER_TEXT = "per-text.json.xz"
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
    ratios: dict[str, Ratio] = field(default_factory=dict)  # of the scores that have one: an entry a text
    samples: tuple[str, ...] = ()
    suspicions: dict[str, str] = field(default_factory=dict)  # in what it looks wrong, by score
    record: Json = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)  # scores that these texts cannot have, and why
    top_p: float = 1.0
    timed: dict[str, float] = field(default_factory=dict)  # batch -> seconds a text, where that was asked for

    @property
    def key(self) -> tuple[str, str | None, int | None, float | None, float]:
        return self.model, self.plan, self.steps, self.temperature, self.top_p

    @property
    def comparable(self) -> bool:
        """Whether it has a place on the frontier: what a judge says, and an entropy of its own."""
        return {"judge_nll", "sampler_entropy"} <= self.ratios.keys()

    @property
    def tokens_per_second(self) -> float | None:
        return self.tokens / self.seconds if self.seconds else None

    @property
    def name(self) -> str:
        cut = "" if self.top_p == 1 else f" {self.top_p}"
        return f"{self.model} {self.plan} {self.steps} {self.temperature}{cut}"

    def value(self, score: str) -> float | None:
        return self.scores[score]["value"] if score in self.scores else None

    def to_json(self) -> Json:
        ratios = {name: _ratio_json(ratio) for name, ratio in self.ratios.items()}
        return {**vars(self), "ratios": ratios, "samples": list(self.samples)}

    @classmethod
    def from_json(cls, data: Json) -> Cell:
        ratios = {name: ratio_of(ratio) for name, ratio in data["ratios"].items()}
        return cls(**{**data, "ratios": ratios, "samples": tuple(data["samples"])})


def ratio_of(data: Json) -> Ratio:
    """A bottom that is one number is that of all."""
    top_n, bottom = (torch.tensor(data[part], dtype=torch.float64) for part in ("top", "bottom"))
    bottom_n = bottom.expand_as(top_n).contiguous()
    cluster_n = torch.tensor(data["clusters"]) if "clusters" in data else None
    return Ratio(top_n, bottom_n, data["exponential"], cluster_n)


def _ratio_json(ratio: Ratio) -> Json:
    bottom = ratio.bottom_n.tolist()
    short = bottom[0] if bottom and len(set(bottom)) == 1 else bottom
    data = {"top": ratio.top_n.tolist(), "bottom": short, "exponential": ratio.exponential}
    return data if ratio.cluster_n is None else {**data, "clusters": ratio.cluster_n.tolist()}


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
    bytes_n: tuple[int, ...] | None = None  # of the texts

    @property
    def key(self) -> tuple[str, str | None, int | None]:
        return self.model, self.plan, self.steps

    @property
    def per_byte(self) -> Ratio | None:
        """Nats per byte, one entry a text."""
        if self.bytes_n is None:
            return None
        return replace(self.ratio, bottom_n=torch.tensor(self.bytes_n, dtype=torch.float64))

    def pairs_with(self, other: Bound) -> bool:
        """Whether both are of the same texts, so that their difference may be taken text by text."""
        return len(self.ratio) == len(other.ratio) and texts_of(self).get("sha256") == texts_of(other).get("sha256")

    def to_json(self) -> Json:
        return {**vars(self), "ratio": _ratio_json(self.ratio), "bytes_n": self.bytes_n and list(self.bytes_n)}

    @classmethod
    def from_json(cls, data: Json) -> Bound:
        sizes = data["bytes_n"]
        return cls(**{**data, "ratio": ratio_of(data["ratio"]), "bytes_n": None if sizes is None else tuple(sizes)})


def texts_of(entry: Cell | Bound) -> Json:
    """What is recorded of the texts behind an entry: their hash, where they came from, what drew them."""
    return entry.record.get("texts") or {}


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
        return [name for name, about in self.models.items() if about["role"] == role]

    def where(self, **fields: Any) -> list[Cell]:
        """Cells whose fields have these values; those whose draw was cut only where a top_p is named."""
        fields = {"top_p": 1.0, **fields}
        return [cell for cell in self.cells if all(getattr(cell, name) == value for name, value in fields.items())]

    def one(self, **fields: Any) -> Cell | None:
        return next(iter(self.where(**fields)), None)

    def bound(self, model: str | None, plan: str | None, steps: int | None) -> Bound | None:
        """The NELBO of a model on a plan in so many steps; without a plan and steps, its ELBO."""
        return next((bound for bound in self.bounds if bound.key == (model, plan, steps)), None)

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
        """All of it, single texts included."""
        others = {name: item for name, item in vars(self).items() if name not in ("cells", "bounds")}
        cells, bounds = [cell.to_json() for cell in self.cells], [bound.to_json() for bound in self.bounds]
        return {"format": FORMAT, "version": VERSION, **others, "cells": cells, "likelihood": bounds}

    @classmethod
    def from_json(cls, data: Json) -> Results:
        cells, bounds = map(Cell.from_json, data["cells"]), map(Bound.from_json, data["likelihood"])
        names = ("models", "settings", "judge", "notes", "analysis", "provenance", "questions")
        return cls(cells=list(cells), bounds=list(bounds), **{name: data[name] for name in names})


SINGLE = {"cells": ("ratios",), "likelihood": ("ratio", "bytes_n")}  # what stands in the file of single texts


def write_results(results: Results, path: Path) -> None:
    """On one line each: a study has millions of numbers, and indenting them takes longer than measuring a cell."""
    data = results.to_json()
    single = {part: [{name: one.pop(name) for name in names} for one in data[part]] for part, names in SINGLE.items()}
    packed = pack(single)
    write_bytes(path.with_name(PER_TEXT), packed)
    data["per_text"] = {"file": PER_TEXT, "sha256": hashlib.sha256(packed).hexdigest()}
    write_text(path, json.dumps(data, ensure_ascii=False) + "\n")


def pack(data: Json) -> bytes:
    """JSON, compressed: the same numbers give the same bytes."""
    return lzma.compress(json.dumps(data, separators=(",", ":")).encode(), preset=1)


def unpack(path: Path) -> tuple[Json, str]:
    """The content of a file of single texts, and its sha256."""
    with os_errors("read", path):
        packed = path.read_bytes()
    try:
        content: Json = json.loads(lzma.decompress(packed))
    except (lzma.LZMAError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}): evaluate again") from error
    return content, hashlib.sha256(packed).hexdigest()


def read_results(path: Path | str) -> Results:
    """A results.json, or that of a folder, with what stands beside it."""
    path = Path(path) / "results.json" if Path(path).is_dir() else Path(path)
    data = read_json(path, "results")
    if data.get("format") != FORMAT:
        raise UserError(f"{path} is not a results file of `unmask evaluate`: give a results.json it wrote")
    if data.get("version") != VERSION:
        raise UserError(f"{path} is of schema version {data.get('version')}, not {VERSION}: evaluate again")
    with reading(path, "results", "evaluate again"):
        return Results.from_json(_with_single_texts(data, path))


def _with_single_texts(data: Json, path: Path) -> Json:
    """What stands in the file beside it goes where it belongs."""
    beside = path.with_name(data["per_text"]["file"])
    if not beside.is_file():
        raise UserError(f"{path} lacks {beside.name}, what single texts gave: put that file beside it")
    single, digest = unpack(beside)
    if digest != data["per_text"]["sha256"]:
        raise UserError(f"{beside} is of other results than {path}: put the two of one evaluation together")
    parts = {part: [{**a, **b} for a, b in zip(data[part], single[part], strict=True)] for part in SINGLE}
    return {**data, **parts}
