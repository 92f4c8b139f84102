"""The one table of the README: a few ways of writing against one token a step, by every score and both judges.

Refuses to know files and pages, and any number that is not in a study.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tools.results.headline import MARGIN
from tools.results.names import plan_name
from tools.results.pivot import NOTHING, Record, Table, ends
from tools.results.studies import Study
from tools.results.tables import hot
from tools.results.uncooled import log_ratio

ROWS = (("headline", "iid", 8), ("headline", "golden", 8), ("scale", "iid", 16), ("scale", "golden", 16))
HEAD = [
    "", "forwards, times fewer", "Gen PPL, equal entropy", "Gen PPL, nothing cooled", "R, equal entropy",
    "R, nothing cooled", "NELBO",
]  # fmt: skip
NOTE = (
    "A teacher in few steps, less itself writing one token a step in random order; below 0 is better. Gen PPL and R "
    "(nats per byte): first line to study-judge (27M, ours), second to SmolLM2 (135M, not ours). NELBO: nats per "
    f"token, no judge ({NOTHING}: not run). 95% intervals; bold where all of it is within {MARGIN['gen_ppl']:.0%} of "
    f"Gen PPL, {MARGIN['path_gap']} of R or {MARGIN['nelbo']} of NELBO."
)


def summary(studies: Sequence[Study]) -> Table | None:
    """The rows whose study has what they need."""
    known = {study.name: study for study in studies}
    rows = [_row(known[name], plan, steps) for name, plan, steps in ROWS if name in known]
    found = [row for row in rows if row]
    return Table("Against one token a step", NOTE, HEAD, found) if found else None


def _row(study: Study, plan: str, steps: int) -> list[str]:
    entries = [one for one in study.entries("matches") if one["model"] == one["yardstick"]["model"]]
    judges = list(dict.fromkeys(one["judge"] for one in entries))
    points = {
        (one["judge"], one["score"]): point
        for one in sorted(entries, key=lambda one: one["yardstick"]["n"])  # of two, that with more texts
        for point in one["curve"]
        if one["plan"] == plan and point["steps"] == steps
    }
    if not points:
        return []
    of = entries[0]["yardstick"]

    def by_judge(score: str) -> str:
        return "<br>".join(_told(points.get((judge, score)), score) for judge in judges)

    nelbo = next((points[judge, "nelbo"] for judge in judges if (judge, "nelbo") in points), None)
    best = max(points.values(), key=lambda point: point["n"])
    fewer = of["nfe"] / best["nfe"]
    return [
        f"L = {of['length']}: {plan_name(plan)}, {steps} steps<br>{best['n']:,} texts",
        f"{fewer:.0f}x",
        by_judge("gen_ppl_cooled"),
        "<br>".join(_uncooled(hot(study.cells(judge), "teacher"), of, plan, steps) for judge in judges),
        by_judge("path_gap_cooled"),
        by_judge("path_gap"),
        _told(nelbo, "nelbo"),
    ]


def _told(point: Record | None, score: str) -> str:
    if point is None or point["distance"][0] is None:
        return NOTHING
    return _marked(point["distance"], score)


def _uncooled(records: Sequence[Record], of: Record, plan: str, steps: int) -> str:
    def most(place: tuple[str, int]) -> Record | None:
        return max((r for r in records if (r["plan"], r["steps"]) == place), key=lambda r: r["n"], default=None)

    one, other = most((plan, steps)), most((of["plan"], of["steps"]))
    return _marked(log_ratio(one["gen_ppl"], other["gen_ppl"]), "gen_ppl") if one and other else NOTHING


def _marked(distance: Sequence[float | None], score: str) -> str:
    """A distance with its interval, of Gen PPL in per cent; bold where it is surely within the margin."""
    percent, high = score.startswith("gen_ppl"), distance[2]
    shown = [None if end is None else 100 * math.expm1(end) if percent else end for end in distance]
    number, rest = ends(shown, 0 if percent else 3 if score == "nelbo" else 4, True).split(" ", 1)
    mark = "**" * (high is not None and high <= MARGIN[score])
    return f"{mark}{number}{'%' * percent}{mark} {rest}"
