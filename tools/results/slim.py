"""Makes a results.json small enough to commit: every score with its interval, and where it came from.

Paths of the machine it ran on are left out. What single texts gave goes into a compressed file beside it, from which
`check` works every interval out again. Differences of likelihood that are paired over texts are worked out here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tools.results.runs import FORMAT, VERSION, Json
from tools.results.tasks import kept
from tools.results.teacher import by_book

from unmask.core.errors import UserError
from unmask.core.files import read_json, sha256_file, write_bytes, write_text
from unmask.metrics.score import Score, paired_draws
from unmask.studies.entries import TEACHER
from unmask.studies.merge import merge
from unmask.studies.results import PER_TEXT, Bound, Cell, Results, pack, read_results, texts_of

RANDOM_ORDER = ("permutation", "iid")
SCORES = (
    "gen_ppl", "entropy", "path_gap", "judge_nll", "sampler_entropy", "distinct_4", "coverage_4", "repeated_4",
    "self_bleu", "mauve", "information_8", "information_16", "information_32", "energy_distance", "gradient_1",
    "gradient_2",
)  # fmt: skip
CHECKED = ("check_valid",)  # of a study that checks every text and asks no judge
MACHINE = ("unmask", "revision", "torch", "python", "device", "time", "processes")


def slim(sources: Sequence[str | Path], target: Path) -> int:
    """Write what is to be kept of files of one kind, the model `teacher` of NAME=PATH as NAME; returns its size in
    bytes."""
    named = [named_source(source) for source in sources]
    files = [path for _, path in named]
    for path in files:
        if not path.is_file():
            raise UserError(f"no results at {path}: run the study's command first, or name the file that it left")
    kinds = {_kind(read_json(path, "results")) for path in files}
    if len(kinds) > 1 or (len(files) > 1 and not kinds <= {"grid", "results"}):
        raise UserError(
            "grids of `fit-plan`, results of `evaluate`, a bench, a gate, a search, a seed of a task and MAUVE are "
            "runs of their own: slim them under different names"
        )
    single, (kind, *_) = b"", kinds
    if kind in KEPT:
        found = short(KEPT[kind](read_json(files[0], "results")))
    elif kind == "grid":
        found = _grids(files)
    else:
        whole, machines = merged([called(name, read_results(path)) for name, path in named])
        found, single = _results(whole, machines), pack(single_texts(whole))
        beside = single_file(target)
        write_bytes(beside, single)
        found["per_text"] = {"file": beside.name, "sha256": hashlib.sha256(single).hexdigest()}
    sources_json = [{"file": path.name, "sha256": sha256_file(path)} for path in files]
    text = lines({"format": FORMAT, "version": VERSION, **found, "sources": sources_json})
    write_text(target, text)
    return len(text.encode()) + len(single)


# what is kept of a task, of a gate, and of a bench, a search or MAUVE, which are short as they are
KEPT: dict[str, Callable[[Json], Json]] = {"task": kept, "gate": by_book, "plain": lambda said: said}


def single_file(target: Path) -> Path:
    """Where what single texts gave stands, beside a run's file."""
    return target.with_name(f"{target.stem}.{PER_TEXT}")


def merged(several: Sequence[Results]) -> tuple[Results, list[Json]]:
    """Several results as one, and the machines they came from."""
    return merge(several), _machines(run.provenance for run in several)


def single_texts(whole: Results) -> Json:
    """What single texts gave, cell by cell and bound by bound, of the scores that are kept."""
    said = whole.to_json()
    kept = _scores(whole)
    cells = [{name: ratio for name, ratio in cell["ratios"].items() if name in kept} for cell in said["cells"]]
    both = zip(said["likelihood"], whole.bounds, strict=True)
    bounds = [{key: one[key] for key in ("ratio", "bytes_n")} | {"texts": texts_of(b).get("sha256")} for one, b in both]
    return {"cells": cells, "likelihood": bounds}


def _kind(said: Json) -> str:
    plain = dict.fromkeys(("ratios", "features", "matmul_tflops", "search", "drawn"), "plain")
    marks = {"fitting_half": "grid", "task": "task", "attention": "gate", **plain}
    return next((kind for mark, kind in marks.items() if mark in said), "results")


def named_source(source: str | Path) -> tuple[str | None, Path]:
    """NAME=PATH or PATH."""
    name, equals, path = str(source).partition("=")
    return (name, file_of(Path(path))) if equals and "/" not in name else (None, file_of(Path(source)))


def called(name: str | None, run: Results) -> Results:
    """The same with its `teacher` called by a name."""
    if name is None:
        return run
    new = {TEACHER: name}
    return replace(
        run, models={new.get(old, old): about for old, about in run.models.items()},
        cells=[replace(cell, model=new.get(cell.model, cell.model)) for cell in run.cells],
        bounds=[replace(bound, model=new.get(bound.model, bound.model)) for bound in run.bounds],
    )  # fmt: skip


def file_of(path: Path) -> Path:
    """A results file, or the one in the folder of an evaluation."""
    return path / "results.json" if path.is_dir() else path


def lines(said: Json) -> str:
    """JSON with one line for every entry of a list or mapping at the top: a diff then shows which cell changed."""

    def packed(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    parts = []
    for name, value in said.items():
        if isinstance(value, list) and value:
            parts.append(f'"{name}": [\n  ' + ",\n  ".join(map(packed, value)) + "\n ]")
        elif isinstance(value, dict) and value:
            inner = ",\n  ".join(f"{packed(key)}: {packed(item)}" for key, item in value.items())
            parts.append(f'"{name}": {{\n  {inner}\n }}')
        else:
            parts.append(f'"{name}": {packed(value)}')
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def short(said: Any) -> Any:
    """Six digits are more than any score has; of a path its last part says enough elsewhere."""
    if isinstance(said, dict):
        return {key: short(value) for key, value in said.items()}
    if isinstance(said, (list, tuple)):
        return [short(value) for value in said]
    if isinstance(said, str) and said.startswith("/"):
        return Path(said).name
    return float(f"{said:.6g}") if isinstance(said, float) else said


def _results(whole: Results, machines: list[Json]) -> Json:
    seed = int(whole.settings["seed"])
    return {
        "scores are": "[value, low, high]: low and high bound 95% of the bootstrap, over texts that were drawn, over "
        "documents of held-out text",
        "settings": short(whole.settings),
        "judge": short(whole.judge),
        "machine": machines,
        "models": {name: _model(about) for name, about in whole.models.items()},
        "notes": [note for note in whole.notes if "/" not in note],
        "cells": [_cell(cell, _scores(whole)) for cell in whole.cells],
        "likelihood": [_bound(bound, seed) for bound in whole.bounds],
        "matches": matches(whole.bounds, seed),
    }


def _machines(records: Iterable[Json]) -> list[Json]:
    said = [{name: record[name] for name in MACHINE if name in record} for record in records]
    return [one for i, one in enumerate(said) if one not in said[:i]]


def _model(about: Json) -> Json:
    """Role, weights and how it was made: the method, its round, the seed, the steps, the held-out score."""
    said = about["provenance"]
    config = said.get("config") or {}
    objective, trainer = config.get("objective") or {}, config.get("trainer") or {}
    facts = {
        "seed": trainer.get("seed"), "step": said.get("step"), "distillation": said.get("distillation"),
        "head_steps": (said.get("chain") or {}).get("step"),
        "objective": {k: v for k, v in (objective.get("method") or objective).items() if k != "teacher"},
        "curriculum": objective.get("curriculum"), "model": config.get("model"), "held_out": said.get("score"),
        "trainer": {k: trainer[k] for k in ("steps", "batch", "lr", "warmup", "beta2", "decay", "ema") if k in trainer},
    }  # fmt: skip
    kept = {key: short(value) for key, value in facts.items() if value not in (None, {})}
    return {"role": about["role"], "sha256": about["sha256"], **kept}


def _triple(score: Json) -> list[float | None]:
    return [short(score[end]) for end in ("value", "low", "high")]


def _plan(name: str | None) -> str | None:
    """A plan on a grid from a file goes by the file's name alone."""
    return name and re.sub(r"@.*/", "@", name)


def _scores(whole: Results) -> tuple[str, ...]:
    return CHECKED if whole.settings.get("check") and whole.judge is None else SCORES


def _cell(cell: Cell, kept: tuple[str, ...]) -> Json:
    place = {name: getattr(cell, name) for name in ("model", "steps", "temperature", "n")}
    place |= {} if cell.top_p == 1 else {"top_p": cell.top_p}
    place |= {"timed": short(cell.timed)} if cell.timed else {}
    scores = {name: _triple(cell.scores[name]) for name in kept if name in cell.scores}
    return {**place, "plan": _plan(cell.plan), "nfe": short(cell.nfe), "seconds": short(cell.seconds), **scores}


def _bound(bound: Bound, seed: int) -> Json:
    value = Score.of(bound.ratio, "nats/token", {}, seed=seed).to_json()
    byte = bound.per_byte
    more = {} if byte is None else {"per_byte": _triple(Score.of(byte, "nats/byte", {}, seed=seed).to_json())}
    place = {"model": bound.model, "plan": _plan(bound.plan), "steps": bound.steps, "n": len(bound.ratio)}
    return {**place, "nfe": short(bound.nfe), "per_token": _triple(value), **more}


def matches(bounds: Sequence[Bound], seed: int) -> list[Json]:
    """N-step NELBOs less that of the teacher's most steps, paired over texts; a curve for each plan.

    Against two yardsticks: most steps in random order, and in the best order that was run in as many.
    """
    mine = [bound for bound in bounds if bound.model == "teacher" and bound.plan]
    usual = max((b for b in mine if b.plan in RANDOM_ORDER), key=lambda b: (b.nfe or 0, b.plan == "permutation"),
                default=None)  # fmt: skip
    if usual is None:
        return []
    best = min((b for b in mine if b.steps == usual.steps and b.pairs_with(usual)), key=lambda b: b.ratio.value)
    yards = {"random": usual} if best is usual else {"random": usual, "best": best}
    return [curve for order, yard in yards.items() for curve in _curves(bounds, yard, order, seed)]


def _curves(bounds: Sequence[Bound], yard: Bound, order: str, seed: int) -> list[Json]:
    """Every model and plan against one yardstick."""
    curves: dict[tuple[str, str], list[Json]] = {}
    for bound in bounds:
        if bound.plan and bound.steps and bound.pairs_with(yard):
            value = bound.ratio.value - yard.ratio.value
            ends = paired_draws(bound.ratio, yard.ratio, seed=seed).quantile(torch.tensor([0.025, 0.975]).double())
            point = {"steps": bound.steps, "nfe": bound.nfe, "distance": [value, *ends.tolist()]}
            curves.setdefault((bound.model, str(_plan(bound.plan))), []).append(short(point))
    reference = {"model": yard.model, "plan": yard.plan, "steps": yard.steps, "nfe": yard.nfe, "order": order}
    return [
        {"score": "nelbo", "model": model, "plan": plan, "reference": reference, "curve": curve}
        for (model, plan), curve in curves.items()
    ]


def _grids(files: Sequence[Path]) -> Json:
    said = [read_json(path, "fitted grid") for path in files]
    grids = []
    for one in said:
        record, texts = one["record"], one["record"]["texts"]
        facts = {name: record[name] for name in ("levels", "seed", "forwards", "precision")}
        facts |= {name: texts[name] for name in ("fitted_on", "measured_on", "length", "sha256", "split")}
        times = one["fitting_half"][-1]["times"]
        grids.append(
            short({"plan": one["plan"], "steps": one["steps"], "times": times, "nelbo": one["nelbo"], **facts})
        )
    return {
        "scores are": "nats per token with its standard error, on the half that was not fitted",
        "machine": _machines(one["record"] for one in said),
        "grids": grids,
    }
