"""Several runs as one: only what was really read and meant alike goes together."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from unmask.core.errors import UserError
from unmask.studies.results import Bound, Cell, Json, Results, texts_of


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
        raise UserError("these runs have different judges or protocols, and do not compare: evaluate again with one")
    if len({run.settings["length"] for run in several}) > 1:
        raise UserError("these runs have texts of different lengths, and do not compare: evaluate again with one")
    _check_same_held_out(several)
    _check_same_grids(several)
    models: dict[str, Json] = {}
    for run in several:
        for name, about in run.models.items():
            if any(models.setdefault(name, about).get(hash_) != about.get(hash_) for hash_ in ("sha256", "identity")):
                raise UserError(f"two runs mean different models by {name!r}: give one of them another name")
    cells: dict[Any, Cell] = {}
    for cell in (cell for run in several for cell in run.cells):
        cells[cell.key] = max(cells.get(cell.key, cell), cell, key=lambda one: one.n)
    bounds, about_bounds = _on_common_texts([bound for run in several for bound in run.bounds])
    settings = {**first.settings, "temperatures": _union(run.settings["temperatures"] for run in drawn)}
    settings["top_ps"] = _union(run.settings.get("top_ps") or [] for run in drawn)
    for name in ("steps", "plans"):
        settings[name] = _union(run.settings[name] for run in several)
    merged = {"merged": [run.provenance for run in several]} if len(several) > 1 else {}
    return replace(
        first, models=models, cells=list(cells.values()), bounds=bounds, settings=settings, analysis={},
        questions=[row for run in several for row in run.questions],
        notes=_union([*(run.notes for run in drawn), about_bounds]), provenance={**first.provenance, **merged},
    )  # fmt: skip


def _on_common_texts(every: Sequence[Bound]) -> tuple[list[Bound], list[str]]:
    """Each bound once, on the texts that most bounds are of; and what to say if some are of other texts."""

    def texts(bound: Bound) -> Any:
        return texts_of(bound).get("sha256"), len(bound.ratio)

    common = Counter(map(texts, every))
    chosen: dict[Any, Bound] = {}
    for bound in every:
        key = (bound.model, bound.plan, bound.steps)
        chosen[key] = max(chosen.get(key, bound), bound, key=lambda one: (common[texts(one)], len(one.ratio)))
    kept = list(chosen.values())
    if len(set(map(texts, kept))) < 2:
        return kept, []
    numbers = " or ".join(f"{count:,}" for count in sorted({len(bound.ratio) for bound in kept}, reverse=True))
    return kept, [f"Bounds are of different held-out texts ({numbers} of them): compare like with like."]


def _check_same_held_out(several: Sequence[Results]) -> None:
    """Reject runs whose held-out text differs, by what was really read.

    Equal numbers of blocks must be equal blocks, whatever the folder is called. With another n other blocks of a text
    are taken, and no hash tells whether it is one text: then it must be called the same.
    """
    names: dict[tuple[int | None, str], set[str]] = {}  # by number and hash of the blocks
    for record in (record for run in several for record in _held_out(run)):
        name = _name_of(record)
        names.setdefault((record.get("texts"), record.get("sha256", name)), set()).add(name)
    for ((count, _), mine), ((other_count, _), theirs) in itertools.combinations(names.items(), 2):
        if count == other_count or not mine & theirs:
            differ = f"these runs have different held-out text ({' and '.join(sorted({min(mine), min(theirs)}))})"
            raise UserError(f"{differ}, and do not compare: evaluate again with one --data, --split and --n")


def _held_out(run: Results) -> list[Json]:
    """What is recorded of the held-out texts of a run; where nothing is, what was asked for."""
    entries = [entry for entry in run.entries if isinstance(entry, Bound) or run.models[entry.model]["role"] == "real"]
    records = [texts_of(entry) for entry in entries]
    named = {"source": run.settings["data"], "split": run.settings.get("split"), "wrap": run.settings.get("wrap")}
    return [record for record in records if "sha256" in record] or [named]


def _name_of(record: Json) -> str:
    """What held-out text is called: its place, its split, and whether it was wrapped."""
    if record.get("source") is None:
        return "none"
    return f"{record['source']}, {record.get('split') or 'all of it'}" + (", wrapped" if record.get("wrap") else "")


def _check_same_grids(several: Sequence[Results]) -> None:
    """Reject runs that mean different grids by the name of one file."""
    times: dict[tuple[str, int | None], Any] = {}
    for run in several:
        for entry in run.entries:
            grid = (texts_of(entry) if isinstance(entry, Cell) else entry.record).get("grid")
            if entry.plan is None or not entry.plan.endswith(".json") or not grid:
                continue
            if times.setdefault((entry.plan, entry.steps), grid["times"]) != grid["times"]:
                differ = f"two runs mean different grids of {entry.steps} steps by {entry.plan}"
                raise UserError(f"{differ}: evaluate one of them again with its file under another name")


def _union(lists: Iterable[Iterable[Any]]) -> list[Any]:
    items = list(dict.fromkeys(item for part in lists for item in part))
    return sorted(items) if all(isinstance(item, (int, float)) for item in items) else items
