"""The one table of the README: a few ways of writing against one token a step, by every score and both judges.

Refuses to know files and pages, and any number that is not in a study.
"""

from __future__ import annotations

from collections.abc import Sequence

from tools.results.headline import MARGIN
from tools.results.names import plan_name
from tools.results.pivot import NOTHING, Record, Table, marked
from tools.results.studies import Study
from tools.results.tables import hot
from tools.results.uncooled import largest, log_ratio

ROWS = (
    ("headline", "iid", 8), ("headline", "golden", 8), ("scale", "iid", 16), ("scale", "golden", 16),
    ("scale-again", "iid", 16), ("scale-again", "golden", 16),
)  # fmt: skip
HEAD = [
    "", "forwards, times fewer", "Gen PPL, equal entropy", "Gen PPL, nothing cooled", "R, equal entropy",
    "R, nothing cooled", "NELBO",
]  # fmt: skip
NOTE = (
    "A teacher in few steps, less itself writing one token a step in random order; below 0 is better. Gen PPL and R "
    f"(nats per byte): a line for each judge. NELBO: nats per token, no judge ({NOTHING}: not run). 95% intervals; "
    f"bold where all of it is below +{MARGIN['gen_ppl']:.0%} of Gen PPL, +{MARGIN['path_gap']} of R or "
    f"+{MARGIN['nelbo']} of NELBO: shown to be no worse than that. The judges: "
)
JUDGES = {"study-judge": "study-judge (27M, ours)", "smollm2 (bf16)": "SmolLM2 (135M, not ours)"}


def summary(studies: Sequence[Study]) -> Table | None:
    """The rows whose study has what they need."""
    known = {study.name: study for study in studies}
    asked = [(known[name], plan, steps) for name, plan, steps in ROWS if name in known]
    judges = list(dict.fromkeys(one["judge"] for study, *_ in asked for one in study.entries("matches")))
    rows = [row for study, plan, steps in asked if (row := _row(study, plan, steps, judges))]
    named = ", then ".join(JUDGES.get(judge, judge) for judge in judges)
    return Table("Against one token a step", f"{NOTE}{named}.", HEAD, rows) if rows else None


def _row(study: Study, plan: str, steps: int, judges: Sequence[str]) -> list[str]:
    entries = [one for one in study.entries("matches") if one["model"] == one["yardstick"]["model"]]
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
    seed = study.slims[0].said["models"][of["model"]].get("seed")
    fewer = of["nfe"] / best["nfe"]
    return [
        f"L = {of['length']}: {plan_name(plan)}, {steps} steps<br>{best['n']:,} texts"
        + (f", training seed {seed}" if seed is not None else ""),
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
    one, other = largest(records, plan, steps), largest(records, of["plan"], of["steps"])
    return _marked(log_ratio(one["gen_ppl"], other["gen_ppl"]), "gen_ppl") if one and other else NOTHING


def _marked(distance: Sequence[float | None], score: str) -> str:
    percent = score.startswith("gen_ppl")
    return " ".join(marked(distance, MARGIN[score], 0 if percent else 3 if score == "nelbo" else 4, percent))
