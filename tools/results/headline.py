"""The tables of the headline: how far everything is from the yardstick, and the fewest forwards that come near it.

Refuses to know files, pages and how distances are read (match.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tools.results.match import COOLED, by_arm
from tools.results.names import plan_name, plan_order
from tools.results.pivot import Record, Table, beside, forwards, marked, pivot
from tools.results.studies import Study
from tools.results.tables import Blocks, by_mauve, hot, plans, students, tables
from tools.results.uncooled import uncooled

MATCH = {
    "gen_ppl_cooled": "Gen PPL at equal entropy",
    "path_gap_cooled": "path gap R at equal entropy",
    "gen_ppl": "Gen PPL at T = 1",
    "path_gap": "path gap R at T = 1",
    "nelbo": "N-step NELBO",
}
PPL, GAP_MARGIN = 0.02, 0.005  # log Gen PPL, and nats per byte: with 0.02 nats per token each about 2% of a perplexity
MARGIN = {
    "gen_ppl_cooled": PPL, "path_gap_cooled": GAP_MARGIN, "nelbo": 0.02, "gen_ppl": PPL, "path_gap": GAP_MARGIN,
}  # fmt: skip
COOLING = "Each is cooled along its own temperatures until its texts have the yardstick's entropy (beneath: at which T)"
HOW = {
    "gen_ppl_cooled": f"{COOLING}; per cent of the yardstick's Gen PPL",
    "path_gap_cooled": f"{COOLING}; nats per byte",
    "nelbo": "Paired over held-out texts, no judge; nats per token",
    "gen_ppl": "Each at T = 1, the yardstick heated or cooled to the same entropy; per cent of the yardstick's Gen PPL",
    "path_gap": "Both at T = 1, whatever their entropy; nats per byte",
}
UNKNOWN = "not bracketed"
NEWCOMERS = ("iid", "golden", "stride")  # the teacher's plans that the README shows, beside the yardstick


def headline(study: Study) -> Blocks:
    """How few forwards match the teacher's many-step sampling, by several scores; in brief by the first judge."""
    entries = study.entries("matches")
    judges = list(dict.fromkeys(one["judge"] for one in entries))
    by_judge = [_arms([one for one in entries if one["judge"] == judge]) for judge in judges]
    return {
        "within": tables(*(_close(mine) for mine in by_judge)),
        "suffices": tables(*(_suffice(mine) for mine in by_judge)),
        "distances": tables(*_distances(by_judge)),
        "uncooled": tables(*(_uncooled(study, mine) for mine in by_judge)),
        "mauve": tables(*(by_mauve(hot(study.cells(judge), "teacher"), judge) for judge in study.judged())),
        "brief": tables(_brief(by_judge[0])) if by_judge else [],
    }


def scale(study: Study) -> Blocks:
    """The larger model: plans, how far they are from its own yardstick, then students."""
    apart = headline(study)
    near = {name: apart[name] for name in ("within", "distances", "uncooled")}
    return {**plans(study), **near, "students": students(study, lambda r: True, "Students")}


def _arms(entries: Sequence[Record]) -> list[Record]:
    """Arms with their seeds together; of what was measured twice, that with the larger n, else the first."""
    kept: dict[tuple[str, str, str], Record] = {}
    for one in sorted(entries, key=lambda one: -one["yardstick"]["n"]):
        kept.setdefault((one["score"], one["model"], one["plan"]), one)
    return [{**one, "n": _texts(one)} for one in by_arm(list(kept.values()))]


def _texts(record: Record) -> int:
    """The fewest of any point but the yardstick."""
    most = record["yardstick"]["n"]
    return min((p.get("n", most) for p in record["curve"] if not _is_point(record, p)), default=most)


def _suffice(mine: Sequence[Record]) -> Table | None:
    """All models and plans. A score that says nothing of any but the yardstick is named and has no column."""
    told = {r["score"] for r in mine if r["needs"]["value"] is not None and not _is_yardstick(r)}
    silent = [name for score, name in MATCH.items() if score not in told and any(r["score"] == score for r in mine)]
    note = (
        f"To be as good as {_yardstick(mine)} at T = 1, read off between the steps that were run; beneath, how many "
        "times fewer. 95% intervals over texts (∞: perhaps never)."
    )
    note += " Of several training seeds the one that needs most, and beneath the best." if _seeded(mine) else ""
    note += "".join(f" {name}: not bracketed by the yardstick's temperatures." for name in silent)
    title = f"Forwards that suffice: judge {mine[0]['judge']}"
    return _by_score([r for r in mine if r["score"] in told], title, note, _needs)


def _close(mine: Sequence[Record]) -> Table | None:
    """Which steps that were run are as good but for a margin: what can be said where two curves end at one level."""
    note = (
        f"Of {_yardstick(mine)}: the fewest that were run whose distance is below {_margins(mine)} with 95% "
        "confidence, while no more of them are above it with as much; either is about 2% of a perplexity. Beneath, how "
        "many times fewer. Open: forwards that cannot be told from the margin, or were not bracketed; none is "
        "surely outside."
    )
    note += " With several training seeds the intervals of all seeds stay below it." if _seeded(mine) else ""
    return _by_score(_told(mine), f"Forwards within a margin: judge {mine[0]['judge']}", note, _within)


def _brief(mine: Sequence[Record]) -> Table | None:
    """For somebody who has read nothing else: what plans alone do. Names of students need the page."""
    told = {r["score"] for r in _told(mine)}
    preferred = [score for score in MATCH if score in told and not {k for k, v in COOLED.items() if v == score} & told]
    shown = [r for r in mine if r["score"] in preferred and _for_newcomers(r)]
    known = {_arm_plan(r) for r in shown if _within([r]) != UNKNOWN}
    shown = [r for r in shown if _arm_plan(r) in known]
    note = (
        f"The fewest runs of the network that are within {_margins(shown)} of {_yardstick(mine)}, 95% sure"
        f"{' for every training seed' if _seeded(shown) else ''}; beneath, how many times fewer that is. Samples are "
        f"judged by {mine[0]['judge']}. Open: runs that are neither surely within nor surely outside."
    )
    return _by_score(shown, "Forwards within a margin", note, _within)


def _for_newcomers(record: Record) -> bool:
    of, plan = record["yardstick"], record["plan"]
    return record["model"] == of["model"] and plan in (*NEWCOMERS, of["plan"])


def _yardstick(mine: Sequence[Record]) -> str:
    """The yardstick in words."""
    of = mine[0]["yardstick"]
    if (of["plan"], of["steps"]) == ("permutation", of.get("length")):
        return f"the teacher on permutation, one token a step ({of['nfe']:.0f} forwards)"
    return f"the teacher on {plan_name(of['plan'])} in {of['steps']} steps ({of['nfe']:.1f} forwards)"


def _margins(mine: Sequence[Record]) -> str:
    """The margins of the scores that tell anything."""
    kinds = {COOLED.get(r["score"], r["score"]) for r in _told(mine)}
    words = {
        "gen_ppl": f"{PPL:.0%} of Gen PPL",
        "path_gap": f"{GAP_MARGIN} nats per byte of R",
        "nelbo": f"{MARGIN['nelbo']} nats per token of NELBO",
    }
    return " or ".join(", ".join(word for kind, word in words.items() if kind in kinds).rsplit(", ", 1))


def _seeded(mine: Sequence[Record]) -> bool:
    return any(r["seeds"] > 1 for r in mine)


def _told(mine: Sequence[Record]) -> list[Record]:
    """Records of scores that say something of another point than the yardstick."""
    told = {r["score"] for r in mine for p in r["curve"] if p["distance"][2] is not None and not _is_point(r, p)}
    return [r for r in mine if r["score"] in told]


def _is_point(record: Record, point: Record) -> bool:
    """Whether a point of a curve is the yardstick itself."""
    of = record["yardstick"]
    return (record["model"], record["plan"], point["steps"]) == (of["model"], of["plan"], of["steps"])


def _forwards(points: Sequence[Record]) -> str:
    return ", ".join(f"{nfe:.0f}" for nfe in sorted(point["nfe"] for point in points))


def _within(records: Sequence[Record]) -> str:
    """The fewest forwards whose distance is below the margin for sure, down to where one is above it for sure.

    A point that cannot be told from the margin, or was not bracketed, decides nothing; it is named as open.
    """
    record, margin = records[0], MARGIN[records[0]["score"]]
    known = [p for p in record["curve"] if p["distance"][2] is not None]
    if not known:
        return UNKNOWN
    enough, between, still_open = None, [], []
    for point in sorted(record["curve"], key=lambda point: -point["nfe"]):
        _, low, high = point["distance"]
        if high is None or (high > margin and (low is None or low <= margin)):
            between.append(point)
        elif high > margin:
            break
        else:
            enough, still_open = point, list(between)
    if enough is None:
        undecided = [point for point in between if point in known]
        return f"open: {_forwards(undecided)}" if undecided else f"not in {max(point['nfe'] for point in known):.0f}"
    most = record["yardstick"]["nfe"]
    if _is_yardstick(record):
        return f"{most:.0f}: the yardstick"
    named = _forwards(still_open)
    beneath = f"<br>open: {named}" if named else ""
    return f"{enough['nfe']:.0f}<br>{most / enough['nfe']:.1f}x{_fewer_seeds(record, enough)}{beneath}"


def _fewer_seeds(record: Record, point: Record) -> str:
    ran, all_of_them = point.get("seeds", 1), record.get("seeds", 1)
    return f"<br>{ran} of {all_of_them} seeds" if ran < all_of_them else ""


def _by_score(
    records: Sequence[Record], title: str, note: str, cell: Callable[[Sequence[Record]], str]
) -> Table | None:
    note += " n counts the fewest texts of any number of steps."
    return pivot(
        records, title=title, note=note, rows=_arm_plan, cell=cell, corner="model, plan", row=_row, order=_row_order,
        columns=lambda r: (list(MATCH).index(r["score"]), r["score"]), column=lambda key: MATCH[key[1]],
    )  # fmt: skip


def _arm_plan(record: Record) -> tuple[str, int, str]:
    return record["model"], record["seeds"], record["plan"]


def _row(key: tuple[str, int, str]) -> str:
    model, seeds, plan = key
    return f"{model}{f' ({seeds} seeds)' if seeds > 1 else ''}, {plan_name(plan)}"


def _row_order(key: tuple[str, int, str]) -> tuple[bool, str, tuple[int, str]]:
    return key[0] != "teacher", key[0], plan_order(key[2])


def _is_yardstick(record: Record) -> bool:
    """Whether it is the yardstick's own curve, and no better in fewer steps."""
    of, value = record["yardstick"], record["needs"]["value"]
    own = (record["model"], record["plan"]) == (of["model"], of["plan"])
    return own and value is not None and math.isclose(value, of["nfe"], rel_tol=1e-3)


def _needs(records: Sequence[Record]) -> str:
    """n* with its interval; the yardstick's forwards over it where all of its interval is above 1."""
    said, most, best = records[0]["needs"], records[0]["yardstick"]["nfe"], _best_seed(records[0])
    if _is_yardstick(records[0]):
        return f"{most:.1f}: the yardstick"
    if said["value"] is None:
        return f"{UNKNOWN}{best}"
    if said["relation"] == ">":
        return f"not reached in {said['value']:.0f}{best}"
    sign = "≤ " if said["relation"] == "<" else ""
    low, high = said["low"], said["high"]
    needs = f"{sign}{said['value']:.1f} [{f'{low:.1f}' if low else '0'}, {f'{high:.1f}' if high else '∞'}]"
    if not high or most / high <= 1:
        return f"{needs}<br>too few texts to tell{best}"
    times = f"{'≥ ' if sign else ''}{most / said['value']:.1f}x"
    return f"{needs}<br>{times} [{most / high:.1f}, {f'{most / low:.1f}' if low else '∞'}]{best}"


def _best_seed(record: Record) -> str:
    """How few forwards the best of several seeds needs, where it gets there at all."""
    said = record.get("best") or record["needs"]
    if record.get("seeds", 1) < 2 or said["value"] is None or said["relation"] == ">":
        return ""
    return f"<br>best seed {'≤ ' if said['relation'] == '<' else ''}{said['value']:.1f}"


# --- how far from the yardstick --------------------------------------------------------------------------------------


def _distances(by_judge: Sequence[Sequence[Record]]) -> list[Table | None]:
    """A table for every reading and judge: not only where a margin is met, but how far off everything else is."""
    by_samples = [
        _distance([r for r in mine if r["score"] == kind], kind)
        for mine in by_judge
        for kind in MATCH
        if kind != "nelbo"
    ]
    bounds = [r for mine in by_judge for r in mine if r["score"] == "nelbo"]
    same = [r for r in bounds if _yardstick([r]) == _yardstick(bounds)]  # they stand with every judge: shown once
    return [*by_samples, _distance(same, "nelbo")]


def _distance(mine: Sequence[Record], kind: str) -> Table | None:
    if not _told(mine):
        return None
    mine = [r for r in mine if any(p["each"] for p in r["curve"])]  # rows that tell anything
    by = "" if kind == "nelbo" else f", judge {mine[0]['judge']}"
    note = (
        f"To {_yardstick(mine)}. {HOW[kind]}; below 0 is better. 95% intervals over texts; bold where all of it is "
        f"below {_margins(mine)}."
    )
    if _seeded(mine):
        note += " Of several training seeds the mean (least to largest), beneath what holds the intervals of all."
    return pivot(
        [{**r, **p, "n": p.get("n", r["n"]), "point": p, "seeds": r["seeds"]} for r in mine for p in r["curve"]],
        title=f"Distance by {MATCH[kind]}{by}", note=note, rows=_arm_plan, columns="steps", row=_row,
        cell=beside(_how_far, _met_at, forwards), corner="model, plan \\ steps", order=_row_order,
    )  # fmt: skip


def _uncooled(study: Study, mine: Sequence[Record]) -> Table | None:
    judge = mine[0]["judge"]
    return uncooled(hot(study.cells(judge), "teacher"), mine[0]["yardstick"], judge, PPL)


def _how_far(records: Sequence[Record]) -> str:
    """The distance with its interval; of several seeds the mean, least and largest, then what holds all intervals."""
    record, point = records[0], records[0]["point"]
    if _is_point(record, point):
        return "0: the yardstick"
    in_percent = COOLED.get(record["score"], record["score"]) == "gen_ppl"
    if point["distance"][0] is None:
        known = f" for {point['seeds'] - len(point['each'])} of {point['seeds']} seeds" if point["seeds"] > 1 else ""
        return f"{UNKNOWN}{known}"
    digits = 1 if in_percent else 4
    number, rest = marked(point["distance"], MARGIN[record["score"]], digits, in_percent)
    if point["seeds"] > 1:
        least, largest = (_percent(end) if in_percent else end for end in (point["each"][0], point["each"][-1]))
        rest = f"({least:+.{digits}f} to {largest:+.{digits}f})<br>".replace("-", "−") + rest
    return f"{number} {rest}{_fewer_seeds(record, point)}"


def _percent(log_ratio: float) -> float:
    return 100 * math.expm1(log_ratio)


def _met_at(records: Sequence[Record]) -> str:
    """The temperatures at which the yardstick's entropy is met."""
    found = sorted({f"{temperature:.3f}" for temperature in records[0]["point"]["temperatures"]})
    told = found and not _is_point(records[0], records[0]["point"])
    return f"T = {' to '.join(dict.fromkeys([found[0], found[-1]]))}" if told else ""
