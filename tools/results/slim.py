"""A results.json made small enough to commit: every number a table prints, its interval, and where it came from.

Leaves out what is one entry a text, and paths of the machine it ran on. What needs entries of single texts (paired
differences between seeds, what it takes to match the teacher) is therefore worked out here. Refuses to know pages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tools.results.match import against, matches, yardstick
from tools.results.tables import LAGS

from unmask.core.errors import UserError
from unmask.core.files import read_json, sha256_file, write_text
from unmask.metrics.score import Score
from unmask.studies.analysis import analyse
from unmask.studies.results import Cell, Json, Results, merge, read_results

FORMAT, VERSION = "unmask slim results", 1
LIMIT = 200_000  # bytes
FRONTIER = ("gen_ppl", "entropy", "path_gap")  # of every cell; those of the headline's temperature have the rest too
SCORES = (
    *FRONTIER, "judge_nll", "sampler_entropy", "distinct_4", "coverage_4", "repeated_4", "self_bleu", "mauve",
    *(f"information_{lag}" for lag in LAGS),
)  # fmt: skip
MACHINE = ("unmask", "revision", "torch", "python", "device", "time", "processes")
TEMPERATURE = 1.0
TEXT = 700  # characters of a sample


def slim(sources: Sequence[Path], target: Path) -> int:
    """Write what is to be kept of one or several files of one kind; returns its size in bytes."""
    files = [file_of(path) for path in sources]
    for path in files:
        if not path.is_file():
            raise UserError(f"no results at {path}: run the study's command first, or name the file that it left")
    fitted = ["fitting_half" in read_json(path, "results") for path in files]
    if any(fitted) and not all(fitted):
        raise UserError("grids of `fit-grid` and results of `evaluate` are two runs: slim them under two names")
    found = _grids(files) if all(fitted) else _results([read_results(path) for path in files])
    found = {"format": FORMAT, "version": VERSION, **found, "sources": [_source(path) for path in files]}
    text = lines(found)
    if len(text.encode()) > LIMIT:
        raise UserError(
            f"{target.name} would be {len(text.encode()):,} bytes, more than {LIMIT:,}: slim its parts under two names"
        )
    write_text(target, text)
    return len(text.encode())


def file_of(path: Path) -> Path:
    """A results file, or the one in the folder of an evaluation."""
    return path / "results.json" if path.is_dir() else path


def _source(path: Path) -> Json:
    return {"file": path.name, "sha256": sha256_file(path)}


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


# --- results of `unmask evaluate` ------------------------------------------------------------------------------------


def _results(several: Sequence[Results]) -> Json:
    merged = _without_folders(merge(several))
    seed = int(merged.settings["seed"])
    whole = analyse(replace(merged, settings=_read_at(merged.settings)), seed=seed)
    found = whole.analysis
    return {
        "scores are": "[value, low, high]: low and high bound 95% of the bootstrap, over texts that were drawn, over "
        "documents of held-out text",
        "settings": _no_paths(whole.settings),
        "judge": whole.judge and _no_paths(whole.judge),
        "machine": _machines(run.provenance for run in several),
        "models": {name: _model(about) for name, about in whole.models.items()},
        "analysis": {name: found.get(name) for name in ("teacher", "temperature", "base_plan", "best_plan")}
        | {"student": (found.get("headline") or {}).get("model")},
        "notes": [note for note in whole.notes if "/" not in note],
        "cells": [_cell(_anew(cell, seed), cell.temperature in (None, whole.temperature)) for cell in whole.cells],
        "likelihood": _bounds(whole, seed),
        "comparisons": [_comparison(one) for one in found.get("comparisons", [])],
        "matches": short(matches(whole, seed)),
        "against": short(against(whole, seed)),
        "samples": _samples(whole),
    }


def _read_at(settings: Json) -> Json:
    """Studies are read at T = 1: hotter cells are there to bracket an entropy, and make no headline."""
    cooler = [t for t in settings["temperatures"] if t <= TEMPERATURE]
    return {**settings, "temperatures": cooler or settings["temperatures"]}


def _without_folders(results: Results) -> Results:
    """Plans on a grid from a file go by the file's name alone."""

    def plan(name: str | None) -> str | None:
        return name and re.sub(r"@.*/", "@", name)

    return replace(
        results,
        cells=[replace(cell, plan=plan(cell.plan)) for cell in results.cells],
        bounds=[replace(bound, plan=plan(bound.plan)) for bound in results.bounds],
        settings={**results.settings, "plans": [plan(name) for name in results.settings["plans"]]},
    )


def _machines(records: Iterable[Json]) -> list[Json]:
    said = [{name: record[name] for name in MACHINE if name in record} for record in records]
    return [one for i, one in enumerate(said) if one not in said[:i]]


def _no_paths(said: Json) -> Json:
    """A path of the machine it ran on says nothing elsewhere: its last part stays."""
    return {k: Path(v).name if isinstance(v, str) and v.startswith("/") else v for k, v in said.items()}


def _model(about: Json) -> Json:
    """Role and weights, and how it was made: method, round, tau, seed, steps, held-out score."""
    said, kept = about["provenance"], {"role": about["role"], "sha256": about["sha256"]}
    config = said.get("config") or {}
    objective, trainer = config.get("objective") or {}, config.get("trainer") or {}
    how = {key: value for key, value in (objective.get("method") or objective).items() if key not in ("teacher",)}
    facts = {
        "seed": trainer.get("seed"),
        "step": said.get("step"),
        "distillation": said.get("distillation"),
        "objective": how,
        "curriculum": objective.get("curriculum"),
        "trainer": {key: trainer[key] for key in ("steps", "batch", "lr", "warmup", "decay", "ema") if key in trainer},
        "model": config.get("model"),
        "data": config.get("data"),
        "held_out": said.get("score"),
        "made": {key: said[key] for key in MACHINE if key in said},
    }
    return kept | {key: value for key, value in facts.items() if value not in (None, {})}


def _scores(scores: dict[str, Json], names: Iterable[str]) -> Json:
    return {name: triple(scores[name]) for name in names if name in scores}


def triple(score: Json) -> list[float | None]:
    return [_digits(score[end]) for end in ("value", "low", "high")]


def _digits(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.6g}")


def short(said: Any) -> Any:
    """Six digits are more than any score has."""
    if isinstance(said, dict):
        return {key: short(value) for key, value in said.items()}
    if isinstance(said, (list, tuple)):
        return [short(value) for value in said]
    return _digits(said) if isinstance(said, float) else said


def _anew(cell: Cell, seed: int) -> Cell:
    """Real text with new intervals, by documents: older files resampled its blocks one by one."""
    if cell.plan is not None:
        return cell
    named = {"gen_ppl": cell.ratios.get("ppl"), "entropy": cell.ratios.get("entropy")}
    new = {name: Score.of(ratio, "", {}, seed=seed).to_json() for name, ratio in named.items() if ratio is not None}
    return replace(cell, scores={**cell.scores, **new})


def _cell(cell: Cell, whole: bool) -> Json:
    place = {name: getattr(cell, name) for name in ("model", "plan", "steps", "temperature", "n")}
    if not whole:
        return {**place, "nfe": _digits(cell.nfe), **_scores(cell.scores, FRONTIER)}
    facts = {"seed": cell.record.get("texts", {}).get("seed"), "suspicions": list(cell.suspicions)}
    kept = {name: value for name, value in facts.items() if value not in (None, [])}
    return {**place, "nfe": _digits(cell.nfe), "seconds": _digits(cell.seconds), **kept, **_scores(cell.scores, SCORES)}


def _bounds(whole: Results, seed: int) -> list[Json]:
    """Every bound, and what it is less the first plan's, paired. Intervals are new: older files resampled texts."""
    less = {(one["model"], one["plan"], one["steps"]): one for one in whole.analysis.get("plan_likelihood", [])}
    found = []
    for bound in whole.bounds:
        said = {name: getattr(bound, name) for name in ("model", "plan", "steps")}
        value = Score.of(bound.ratio, "nats/token", {}, seed=seed).to_json()
        said |= {"n": len(bound.ratio), "nfe": _digits(bound.nfe), "per_token": triple(value)}
        if one := less.get((bound.model, bound.plan, bound.steps)):
            said |= {"to": one["to"], "less": triple(one)}
        found.append(said)
    return found


def _comparison(one: Json) -> Json:
    place = {name: one[name] for name in ("model", "plan", "steps", "temperature")}
    speed = {name: _digits(one["speed_up"][name]) for name in ("value", "low", "high")}
    return {
        **place,
        "speed_up": {"relation": one["speed_up"]["relation"], **speed},
        "gap": triple(one["gap"]),
        "gap_at_real": triple(one["gap_at_real"]) if one["gap_at_real"] else None,
        "alike": one.get("alike") and _alike(one["alike"]),
    }


def _alike(said: Json) -> Json:
    return {who: _digits(said[who]["value"]) for who in ("student", "teacher")} | {"differ": said["differ"]}


def _samples(results: Results) -> list[Json]:
    """The beginning of one text each: the yardstick, the teacher on the best plan in 8 steps, and the student."""
    found, hot = results.analysis, results.temperature
    teacher, student = found.get("teacher"), (found.get("headline") or {}).get("model")
    _, plan, _ = yardstick(results) or (None, found.get("base_plan"), None)
    base = results.where(model=teacher, plan=plan, temperature=hot)
    eight = [
        results.one(model=name, plan=found.get("best_plan"), steps=8, temperature=hot) for name in (teacher, student)
    ]
    shown = [max(base, key=lambda cell: cell.steps or 0, default=None), *eight]
    return [
        {"model": c.model, "plan": c.plan, "steps": c.steps, "temperature": c.temperature, "text": c.samples[0][:TEXT]}
        for c in shown
        if c is not None and c.samples
    ]


# --- grids of `unmask fit-grid` --------------------------------------------------------------------------------------


def _grids(files: Sequence[Path]) -> Json:
    said = [read_json(path, "fitted grid") for path in files]
    return {
        "scores are": "nats per token with its standard error, on the half that was not fitted",
        "machine": _machines(one["record"] for one in said),
        "grids": [_grid(one) for one in said],
    }


def _grid(said: Json) -> Json:
    record, texts = said["record"], said["record"]["texts"]
    facts = {name: record[name] for name in ("levels", "seed", "forwards", "precision")}
    facts |= {name: texts[name] for name in ("fitted_on", "measured_on", "length", "sha256", "split")}
    times = said["fitting_half"][-1]["times"]
    return short({"plan": said["plan"], "steps": said["steps"], "times": times, "nelbo": said["nelbo"], **facts})
