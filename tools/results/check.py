"""Works out again what a committed run says, from what single texts gave: scores, intervals, paired differences.

A value must agree to five digits, the ends of an interval to a tenth of its width: a bootstrap has that much chance in
it. What a run has no single texts for (MAUVE, distances between two laws) is not checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.results.runs import Json, Run
from tools.results.slim import matches, single_file

from unmask.core.errors import UserError
from unmask.metrics.score import Ratio, Score
from unmask.studies.results import Bound, ratio_of, unpack

DIGITS, WIDTH = 1e-5, 0.1


def check(run: Run, path: Path) -> tuple[int, list[str]]:
    """How many intervals were worked out again, and what does not agree; (0, []) for a run without single texts."""
    if "per_text" not in run.said:
        return 0, []
    beside = single_file(path)
    if not beside.is_file():
        return 0, [f"{beside.name} is not there"]
    if hashlib.sha256(beside.read_bytes()).hexdigest() != run.said["per_text"]["sha256"]:
        return 0, [f"{beside.name} is of another run"]
    single, _ = unpack(beside)
    if [len(single[part]) for part in ("cells", "likelihood")] != [len(run.said[p]) for p in ("cells", "likelihood")]:
        return 0, [f"{beside.name} has other cells"]
    seed, wrong, count = int(run.said["settings"]["seed"]), [], 0
    for what, said, ratio in _pairs(run, single):
        found = Score.of(ratio, "", {}, seed=seed)
        count += 1
        if not agree(said, [found.value, found.low, found.high]):
            wrong.append(f"{what}: {said} is {found.value:.6g} [{found.low:.6g}, {found.high:.6g}]")
    again = matches(bounds_of(run, single), seed)
    points, kept = (_points(curves) for curves in (again, run.said.get("matches", [])))
    count += len(points)
    if points.keys() != kept.keys():
        wrong.append("paired differences are of other plans")
    wrong += [
        f"{key}: {kept[key]} is {new}" for key, new in points.items() if key in kept and not agree(kept[key], new)
    ]
    return count, wrong


def agree(said: Sequence[float | None], found: Sequence[float]) -> bool:
    """Whether two [value, low, high] are the same, but for chance."""
    value, low, high = said
    if value is None or abs(value - found[0]) > DIGITS * max(abs(value), abs(found[0])) + 1e-9:
        return False
    if low is None or high is None:  # one text has no interval
        return bool(found[1] != found[1])
    off = max(abs(low - found[1]), abs(high - found[2]))
    return bool(off <= WIDTH * (high - low) + DIGITS * abs(value) + 1e-9)


def _pairs(run: Run, single: Json) -> Iterator[tuple[str, Any, Ratio]]:
    """Each score that a run says, and what it is a statistic of."""
    for cell, ratios in zip(run.said["cells"], single["cells"], strict=True):
        where = " ".join(str(cell.get(name)) for name in ("model", "plan", "steps", "temperature", "top_p"))
        for name, ratio in ratios.items():
            yield f"{where}: {name}", cell[name], ratio_of(ratio)
    for bound, kept in zip(run.said["likelihood"], bounds_of(run, single), strict=True):
        where = " ".join(str(bound[name]) for name in ("model", "plan", "steps"))
        yield f"{where}: NELBO", bound["per_token"], kept.ratio
        if kept.per_byte is not None:
            yield f"{where}: NELBO a byte", bound["per_byte"], kept.per_byte


def bounds_of(run: Run, single: Json) -> list[Bound]:
    """The bounds of a run with what single texts gave."""
    found = []
    for said, one in zip(run.said["likelihood"], single["likelihood"], strict=True):
        sizes = None if one["bytes_n"] is None else tuple(one["bytes_n"])
        where = (said["model"], said["plan"], said["steps"], said["nfe"])
        found.append(Bound(*where, {}, ratio_of(one["ratio"]), {"texts": {"sha256": one["texts"]}}, sizes))
    return found


def _points(curves: Sequence[Json]) -> dict[str, list[float]]:
    return {
        f"{curve['model']} {curve['plan']} in {point['steps']} less {curve['reference'].get('order', 'random')} order":
        point["distance"]
        for curve in curves for point in curve["curve"]
    }  # fmt: skip


def check_runs(runs: dict[str, Run], folder: Path) -> int:
    """Check runs and say what came out; an error if something does not agree."""
    faults = 0
    for name, run in runs.items():
        count, wrong = check(run, folder / f"{name}.json")
        if count or wrong:
            print(f"{name}: {count} intervals, {len(wrong)} do not agree")
        for line in wrong:
            print(f"  {line}")
        faults += len(wrong)
    if not any("per_text" in run.said for run in runs.values()):
        print("no run here has what single texts gave")
    if faults:
        raise UserError(f"{faults} numbers do not follow from the single texts beside them: slim those runs again")
    return 0
