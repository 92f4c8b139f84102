"""The figures of the studies, drawn from records: scores against steps, the frontier, the students, the headline.

The same records give the same bytes. Refuses to know files, and how a figure looks (drawing.py).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tools.results.drawing import (
    INK,
    LOOKS,
    OTHERS,
    RULE,
    SOFT,
    STUDENT,
    STUDENTS,
    STYLE,
    legend,
    looks,
    ppl_axis,
    sheet,
    steps_axis,
    svg,
    times_axis,
)  # fmt: skip
from tools.results.headline import MARGIN
from tools.results.match import COOLED, IID_ORDER, by_arm
from tools.results.names import SUPERSEDED, plan_name, plan_order
from tools.results.pivot import Record
from tools.results.studies import Slim, Study
from tools.results.tables import label

from unmask.bench.plans_figure import Look

PANELS = {
    "nelbo": "NELBO, nats per token",
    "path_gap": "Path gap R, nats per byte",
    "gen_ppl": "Gen PPL at equal entropy, × yardstick",
}
COOLED_PANELS = {
    "gen_ppl_cooled": "Gen PPL, %,\nat equal entropy",
    "path_gap_cooled": "Path gap R, nats per byte,\nat equal entropy",
    "nelbo": "NELBO, nats per token,\nof held-out text",
}
APART = 0.3  # nats of entropy that rounds must span for their last one to be named
MARGINS = 10  # how many margins above the yardstick are shown


def figures(study: Study) -> dict[str, bytes]:
    """The figures of a study by name, those that it has records for."""
    from matplotlib import rc_context

    found: dict[str, bytes | None] = {}
    with rc_context(STYLE):
        if study.name == "plans":
            found["nelbo"] = nelbo(study)
            for judge in study.judged():
                found[f"frontier-{_slug(judge)}"] = frontier(study, judge)
                found[f"mauve-{_slug(judge)}"] = mauve(study, judge)
        if study.name == "rounds":
            for judge in study.judged():
                found[f"students-{_slug(judge)}"] = students(study, judge)
        if study.name in ("headline", "scale", "scale-again"):
            for judge in study.judged():
                found[f"{study.name}-{_slug(judge)}"] = headline(study, judge)
    return {name: drawn for name, drawn in found.items() if drawn}


def _slug(judge: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", judge.lower()).strip("-")


# --- the five --------------------------------------------------------------------------------------------------------


def nelbo(study: Study) -> bytes | None:
    """NELBO_N of the teacher against N, a line a plan, whole and magnified; the many-step iid level dashed."""
    slim = next((slim for slim in study.slims if slim.run.text == "prose" and _curves(slim, "nelbo")), None)
    if slim is None:
        return None
    curves = {plan: curve for (model, plan), curve in _curves(slim, "nelbo").items() if model == "teacher"}
    curves |= _beyond(study, curves, max(r["n"] for r in slim.bounds()))
    curves = {plan: curve for plan, curve in curves.items() if plan not in SUPERSEDED}
    figure, axes = sheet(2, 3.9)
    for axis in axes:
        for plan, look in looks(list(curves)).items():
            _line(axis, curves[plan], look, plan_name(plan), "steps")
        _level(axis, slim, "nelbo")
        steps_axis(axis, [point.steps for curve in curves.values() for point in curve], "steps N")
    _magnify(axes[1], [point for curve in curves.values() for point in curve], _yardstick(slim, "nelbo"), 0.25)
    axes[0].set_title("N-step NELBO, nats per token", pad=6)
    axes[1].set_title("the same, magnified", pad=6)
    legend(figure, axes[0])
    return svg(figure)


def _beyond(study: Study, known: Collection[str], n: int) -> dict[str, list[Point]]:
    """Plans that another run has on the same n texts: without intervals, since nothing in that run pairs with them."""
    found: dict[str, list[Point]] = {}
    for r in study.bounds("prose"):
        if r["role"] == "teacher" and r["plan"] and r["plan"] not in known and r["n"] == n:
            found.setdefault(r["plan"], []).append(Point(r["steps"], r["nfe"], [r["per_token"][0], None, None]))
    return found


def mauve(study: Study, judge: str) -> bytes | None:
    """R and MAUVE of the teacher's plans against steps, at the headline's temperature; where there is MAUVE."""
    cells = [r for r in _largest(study.cells(judge)) if r["hot"] and r["role"] == "teacher" and r.get("mauve")]
    if len({r["steps"] for r in cells}) < 2:
        return None
    figure, axes = sheet(2, 3.9)
    for axis, score, title in zip(
        axes, ("path_gap", "mauve"), (PANELS["path_gap"], f"MAUVE, features of {judge}"), strict=True
    ):
        for plan, look in looks(list({r["plan"] for r in cells})).items():
            mine = sorted((r for r in cells if r["plan"] == plan), key=lambda r: r["steps"])
            _line(axis, [Point(r["steps"], r["nfe"], r[score]) for r in mine], look, plan_name(plan), "steps")
        steps_axis(axis, [r["steps"] for r in cells], "steps N")
        axis.set_title(title, pad=6)
    legend(figure, axes[0])
    return svg(figure)


def _largest(records: Sequence[Record]) -> list[Record]:
    """Of what was measured twice the one with more texts."""
    found: dict[tuple[Any, ...], Record] = {}
    for r in records:
        place = tuple(r[name] for name in ("model", "plan", "steps", "temperature"))
        found[place] = max(found.get(place, r), r, key=lambda one: one["n"])
    return list(found.values())


def frontier(study: Study, judge: str) -> bytes | None:
    """Gen PPL against entropy along the temperatures of each plan, at 8 and at 32 steps; not of one temperature."""
    cells = [r for r in _largest(study.cells(judge)) if r.get("gen_ppl") and r["plan"] not in SUPERSEDED]
    drawn = [r for r in cells if r["role"] == "teacher" and r["steps"] in (8, 32)]
    panels = sorted({r["steps"] for r in drawn})
    if len({r["temperature"] for r in drawn}) < 2:
        return None
    figure, axes = sheet(len(panels), 4.3, sharey=True)
    chosen = looks(list({r["plan"] for r in drawn}))
    real = next((r for r in cells if r["role"] == "real"), None)
    for axis, steps in zip(axes, panels, strict=True):
        for plan, look in chosen.items():
            path = [r for r in drawn if (r["plan"], r["steps"]) == (plan, steps)]
            told: Literal["left"] | None = "left" if plan == "iid" else None
            _path(axis, sorted(path, key=lambda r: -r["temperature"]), look, plan_name(plan), told)
        if real:
            at = real["entropy"][0], real["gen_ppl"][0]
            axis.plot(*at, marker="*", color=INK, markersize=12, linestyle="none", zorder=5, label="real text")
        _plane(axis, drawn + ([real] if real else []), f"{steps} steps")
    axes[0].set_ylabel(f"Gen PPL, judge {judge}")
    legend(figure, axes[0])
    return svg(figure)


def students(study: Study, judge: str) -> bytes | None:
    """Students round by round at 8 steps beside the teacher as its temperature falls: below its line is better."""
    cells = [r for r in study.cells(judge) if r.get("gen_ppl") and r["steps"] == 8]
    drawn = [r for r in cells if r["role"] in ("student", "elbo") and r["hot"]]
    panels = sorted({r["plan"] for r in drawn}, key=plan_order)
    if not drawn or len({r["temperature"] for r in cells if r["role"] == "teacher"}) < 2:
        return None
    figure, axes = sheet(len(panels), 4.3, sharey=True)
    marks = dict(zip(sorted({label(r) for r in drawn}), itertools.cycle(STUDENTS), strict=False))
    for axis, plan in zip(axes, panels, strict=True):
        cooled = {r["temperature"]: r for r in cells if r["role"] == "teacher" and r["plan"] == plan}
        path = [cooled[temperature] for temperature in sorted(cooled, reverse=True)]
        _path(axis, path, LOOKS["iid"], "teacher, cooled", "right")
        for name, look in marks.items():
            _rounds(axis, [r for r in drawn if r["plan"] == plan and label(r) == name], look, name.replace("`", ""))
        _plane(axis, [r for r in cells if r["role"] == "teacher"] + drawn, f"{plan_name(plan)}, 8 steps, by round")
    axes[0].set_ylabel(f"Gen PPL, judge {judge}")
    legend(figure, axes[0])
    return svg(figure)


def _rounds(axis: Any, records: Sequence[Record], look: Look, name: str) -> None:
    """A student from round to round, the last one marked large, and numbered where they do not lie on each other."""
    path = sorted(records, key=lambda r: r["round"] or 0)
    x, y = [r["entropy"][0] for r in path], [r["gen_ppl"][0] for r in path]
    axis.plot(
        x, y, color=look.color, linewidth=1.1, marker=look.marker, markersize=4, markevery=slice(0, -1), zorder=4,
        markeredgewidth=0,
    )  # fmt: skip
    axis.plot(x[-1:], y[-1:], look.marker, color=look.color, markersize=7, zorder=5, label=name)
    if len(path) > 1 and abs(x[-1] - x[0]) > APART:
        axis.annotate(
            f"round {path[-1]['round']}", (x[-1], y[-1]), xytext=(0, 7), textcoords="offset points", ha="center",
            fontsize=7.5, color=look.color,
        )  # fmt: skip


def _plane(axis: Any, records: Sequence[Record], title: str) -> None:
    """Gen PPL against entropy, wide enough for all records."""
    axis.margins(x=0.14)
    ppl_axis(axis, records)
    axis.set_title(title, pad=6)
    axis.set_xlabel("unigram entropy, nats")


def _path(axis: Any, path: Sequence[Record], look: Look, name: str, told: Literal["left", "right"] | None) -> None:
    """A plan as its temperature falls; the temperatures are written beside one plan only, on the side that is free."""
    x, y = [r["entropy"][0] for r in path], [r["gen_ppl"][0] for r in path]
    axis.plot(
        x, y, color=look.color, linestyle=look.style, linewidth=look.width, marker=look.marker, markersize=5, label=name
    )
    for record in path if told else ():
        axis.annotate(
            f"T={record['temperature']:g}", (record["entropy"][0], record["gen_ppl"][0]),
            xytext=(-6, 3) if told == "left" else (5, -9), ha="right" if told == "left" else "left",
            textcoords="offset points", fontsize=7.5, color=SOFT,
        )  # fmt: skip


def headline(study: Study, judge: str) -> bytes | None:
    """Scores against NFE: at equal entropy, as distances to the yardstick, where they can be read so; else at T = 1."""
    slim = study.judged()[judge][0]
    chosen = _lines(slim)
    cooled = {score: title for score, title in COOLED_PANELS.items() if _tells(_curves(slim, score), chosen)}
    if set(cooled) & set(COOLED):
        return _headline(slim, chosen, cooled, apart=True)
    panels = {score: title for score, title in PANELS.items() if _tells(_curves(slim, score), chosen)}
    return _headline(slim, chosen, panels, apart=False) if panels else None


def _headline(slim: Slim, chosen: Mapping[tuple[str, str], Look], panels: Mapping[str, str], *, apart: bool) -> bytes:
    figure, axes = sheet(len(panels), 3.5)
    for axis, (score, title) in zip(axes, panels.items(), strict=True):
        curves = _curves(slim, score, apart)
        for (model, plan), look in chosen.items():
            if (model, plan) in curves:
                _line(axis, curves[model, plan], look, f"{model}, {plan_name(plan)}", "nfe")
        _level(axis, slim, score, apart)
        points = [point for key in chosen for point in curves.get(key, []) if point.score[0] is not None]
        steps_axis(axis, [point.nfe for point in points], "forwards a text (NFE)")
        axis.set_title(title, pad=6)
        if apart:
            _around(axis, points, _height(score, MARGIN[score]))
        elif score == "gen_ppl":
            times_axis(axis)
        else:
            _magnify(axis, points, _yardstick(slim, score), 0.45)
    if apart:
        axes[0].set_ylabel("distance to the yardstick")
    legend(figure, *axes)
    return svg(figure)


def _lines(slim: Slim) -> dict[tuple[str, str], Look]:
    """The models and plans that are drawn, each with its look."""
    entries = by_arm(slim.said.get("matches", []))
    teacher, spare = slim.said["analysis"]["teacher"], iter((STUDENT, *OTHERS) * 8)
    found = {(teacher, plan): LOOKS[plan] for plan in ("iid", "golden", "stride")}
    arms = dict.fromkeys((one["model"], one["plan"]) for one in entries if one["model"] != teacher)
    return found | {arm: next(spare) for arm in arms if arm[1] not in IID_ORDER}


def _tells(curves: dict[tuple[str, str], list[Point]], chosen: Iterable[tuple[str, str]]) -> bool:
    """Whether there is more to see than the yardstick itself."""
    return sum(point.score[0] is not None for key in chosen for point in curves.get(key, [])) > 1


# --- curves ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    steps: int
    nfe: float
    score: list[float | None]  # value, low, high


def _yardstick(slim: Slim, score: str, apart: bool = False) -> float:
    """The level that curves are drawn against: the teacher's many-step score, 1 where a ratio is drawn, or nought."""
    if apart:
        return 0.0
    if score == "gen_ppl":
        return 1.0
    of = next(one["yardstick"] for one in slim.said["matches"] if one["score"] == score)
    place = (of["model"], of["plan"], of["steps"])
    if score == "nelbo":
        found = next(r for r in slim.bounds() if (r["model"], r["plan"], r["steps"]) == place)
        return float(found["per_token"][0])
    found = next(r for r in slim.cells() if r["hot"] and (r["model"], r["plan"], r["steps"]) == place)
    return float(found["path_gap"][0])


def _curves(slim: Slim, score: str, apart: bool = False) -> dict[tuple[str, str], list[Point]]:
    """Each arm and plan against forwards. Intervals are those of the distance to the yardstick, which is what counts:
    what is hard for all models alike is not in them. `apart`: the distances themselves."""
    entries = [one for one in by_arm(slim.said.get("matches", [])) if one["score"] == score]
    apart = apart or score in COOLED
    level = _yardstick(slim, score, apart) if entries else 0.0

    def height(distance: float | None) -> float | None:
        if distance is None or apart:
            return None if distance is None else _height(score, distance)
        return math.exp(distance) if score == "gen_ppl" else level + distance

    def points(curve: Sequence[dict[str, Any]]) -> list[Point]:
        return [Point(p["steps"], p["nfe"], [height(end) for end in p["distance"]]) for p in curve]

    return {(one["model"], one["plan"]): points(one["curve"]) for one in entries}


def _height(score: str, distance: float) -> float:
    """A distance as it is drawn: of log Gen PPL in per cent."""
    return 100 * math.expm1(distance) if COOLED.get(score, score) == "gen_ppl" else distance


# --- parts -----------------------------------------------------------------------------------------------------------


def _line(axis: Any, curve: Sequence[Point], look: Look, name: str, along: str) -> None:
    """A line with its 95% intervals."""
    known = [(getattr(point, along), *point.score) for point in curve if point.score[0] is not None]
    if not known:
        return
    axis.plot(
        [at for at, *_ in known], [value for _, value, *_ in known], color=look.color, linestyle=look.style, label=name,
        linewidth=look.width, marker=look.marker, markersize=5.5 if look.width > 2 else 4.5,
        zorder=4 if look.width > 2 else 3,
    )  # fmt: skip
    for at, _, low, high in known:
        if low is not None and high is not None:
            axis.plot([at, at], [low, high], color=look.color, linewidth=1.3, alpha=0.6, zorder=2)


def _level(axis: Any, slim: Slim, score: str, apart: bool = False) -> None:
    """What the yardstick reaches, and where distances are drawn the margin above it."""
    level = _yardstick(slim, score, apart)
    of = next(one["yardstick"] for one in slim.said["matches"] if one["score"] == score)
    name = f"teacher, {of['plan']}, {of['steps']} steps"
    axis.axhline(level, color=SOFT, linestyle=(0, (4, 3)), linewidth=1.1, zorder=1, label=name)
    if apart:
        axis.axhspan(level, _height(score, MARGIN[score]), color=RULE, linewidth=0, zorder=0.5, label="margin")


def _around(axis: Any, points: Sequence[Point], margin: float) -> None:
    """Show some margins above nought, and all that is below; what is further off leaves through the roof."""
    values = [end for point in points for end in point.score[:2] if end is not None]
    axis.set_ylim(min(-2 * margin, 1.1 * min(values, default=0.0)), MARGINS * margin)


def _magnify(axis: Any, points: Sequence[Point], level: float, share: float) -> None:
    """Show the lowest share of what lies above the level; the rest leaves through the roof."""
    values = [point.score[0] for point in points if point.score[0] is not None]
    room = max(values) - level
    if room > 0:
        axis.set_ylim(min(values) - 0.05 * (max(values) - min(values)), level + share * room)
