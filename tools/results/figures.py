"""The figures of docs/results.md, drawn from records: NELBO against steps, the frontier, the headline.

The same records give the same bytes. A figure follows the reader's light or dark scheme and brings its own ground, so
that it can be read on any page; where a viewer knows no style sheets it is the light one. Refuses to know files.
"""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tools.results.headline import MARGIN
from tools.results.match import COOLED, IID_ORDER, by_arm
from tools.results.names import plan_name, plan_order
from tools.results.pivot import Record
from tools.results.studies import Slim, Study
from tools.results.tables import label

from unmask.bench.plans_figure import Look

WIDTH = 700 / 96  # inches: 700 px on a page
INK, SOFT, RULE, PAPER = "#1d2126", "#5c6470", "#e4e2db", "#fffffe"
DARK = {
    INK: "#f0ede6", SOFT: "#a9b0bb", RULE: "#30363f", PAPER: "#15181d",
    "#d55e00": "#ff9142", "#2a6fbb": "#6fb1f5", "#0f8b8d": "#4fd0d0", "#2e8b57": "#6fd39b", "#8b8f98": "#8b929d",
    "#7b4fb5": "#bd98f0", "#c05fa0": "#f08fcf", "#a67c00": "#e0b94a",
}  # fmt: skip
STYLE = {
    "font.family": "DejaVu Sans", "font.size": 8.5, "axes.spines.top": False, "axes.spines.right": False,
    "axes.titlelocation": "left", "axes.titlesize": 9.5, "axes.titleweight": "bold", "axes.titlecolor": INK,
    "axes.edgecolor": SOFT, "axes.labelcolor": SOFT, "text.color": INK, "xtick.color": SOFT, "ytick.color": SOFT,
    "axes.grid": True, "grid.color": RULE, "grid.linewidth": 0.7, "axes.axisbelow": True, "legend.frameon": False,
    "axes.facecolor": PAPER, "figure.facecolor": PAPER, "savefig.facecolor": PAPER, "svg.hashsalt": "unmask",
    "svg.fonttype": "path", "xtick.minor.size": 0, "ytick.minor.size": 0, "lines.markeredgecolor": PAPER,
    "lines.markeredgewidth": 0.7,
}  # fmt: skip


LOOKS = {
    "iid": Look(INK, "o", width=2.1),
    "golden": Look("#d55e00", "o", width=2.4),
    "van_der_corput": Look("#2a6fbb", "s"),
    "stride": Look("#0f8b8d", "D"),
    "dilated": Look("#2e8b57", "^"),
    "permutation": Look("#8b8f98", "v"),
    "confidence": Look("#c05fa0", "X", "--"),
}
OTHERS = (Look("#7b4fb5", "P", "--"), Look("#a67c00", "*", "--"), Look("#c05fa0", "<", ":"), Look("#0f8b8d", ">", ":"))
STUDENT = Look("#2a6fbb", "s", width=2.4)
STUDENTS = tuple(
    Look(color, marker)
    for color, marker in zip(
        ("#d55e00", "#a67c00", "#8b8f98", "#2a6fbb", "#0f8b8d", "#2e8b57", "#7b4fb5", "#c05fa0"),
        "sDXo^vP<",
        strict=True,
    )
)
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
LONG = 26  # characters: four such names do not stand side by side
APART = 0.3  # nats of entropy that rounds must span for their last one to be named
MARGINS = 10  # how many margins above the yardstick are shown


def looks(plans: Sequence[str]) -> dict[str, Look]:
    """A look for every plan; plans on a grid of their own take the free ones in order."""
    spare = iter(OTHERS * 8)
    return {plan: LOOKS[plan] if plan in LOOKS else next(spare) for plan in sorted(plans, key=plan_order)}


def figures(study: Study) -> dict[str, bytes]:
    """The figures of a study by name, those that it has records for."""
    from matplotlib import rc_context

    found: dict[str, bytes | None] = {}
    with rc_context(STYLE):
        if study.name == "plans":
            found["nelbo"] = nelbo(study)
            for judge in study.judged():
                found[f"frontier-{_slug(judge)}"] = frontier(study, judge)
        if study.name == "rounds":
            for judge in study.judged():
                found[f"students-{_slug(judge)}"] = students(study, judge)
        if study.name == "headline":
            for judge in study.judged():
                found[f"headline-{_slug(judge)}"] = headline(study, judge)
    return {name: drawn for name, drawn in found.items() if drawn}


def _slug(judge: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", judge.lower()).strip("-")


# --- the three -------------------------------------------------------------------------------------------------------


def nelbo(study: Study) -> bytes | None:
    """NELBO_N of the teacher against N, a line a plan, whole and magnified; the many-step iid level dashed."""
    slim = next((slim for slim in study.slims if slim.run.text == "prose" and _curves(slim, "nelbo")), None)
    if slim is None:
        return None
    curves = {plan: curve for (model, plan), curve in _curves(slim, "nelbo").items() if model == "teacher"}
    figure, axes = _sheet(2, 3.9)
    for axis in axes:
        for plan, look in looks(list(curves)).items():
            _line(axis, curves[plan], look, plan_name(plan), "steps")
        _level(axis, slim, "nelbo")
        _steps_axis(axis, [point.steps for curve in curves.values() for point in curve], "steps N")
    _magnify(axes[1], [point for curve in curves.values() for point in curve], _yardstick(slim, "nelbo"), 0.25)
    axes[0].set_title("N-step NELBO, nats per token", pad=6)
    axes[1].set_title("the same, magnified", pad=6)
    _legend(figure, axes[0])
    return _svg(figure)


def frontier(study: Study, judge: str) -> bytes | None:
    """Gen PPL against entropy along the temperatures of each plan, at 8 and at 32 steps; not of one temperature."""
    cells = [r for r in study.cells(judge) if r.get("gen_ppl")]
    drawn = [r for r in cells if r["role"] == "teacher" and r["steps"] in (8, 32)]
    panels = sorted({r["steps"] for r in drawn})
    if len({r["temperature"] for r in drawn}) < 2:
        return None
    figure, axes = _sheet(len(panels), 4.3, sharey=True)
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
    _legend(figure, axes[0])
    return _svg(figure)


def students(study: Study, judge: str) -> bytes | None:
    """Students round by round at 8 steps beside the teacher as its temperature falls: below its line is better."""
    cells = [r for r in study.cells(judge) if r.get("gen_ppl") and r["steps"] == 8]
    drawn = [r for r in cells if r["role"] in ("student", "elbo") and r["hot"]]
    panels = sorted({r["plan"] for r in drawn}, key=plan_order)
    if not drawn or len({r["temperature"] for r in cells if r["role"] == "teacher"}) < 2:
        return None
    figure, axes = _sheet(len(panels), 4.3, sharey=True)
    marks = dict(zip(sorted({label(r) for r in drawn}), itertools.cycle(STUDENTS), strict=False))
    for axis, plan in zip(axes, panels, strict=True):
        cooled = {r["temperature"]: r for r in cells if r["role"] == "teacher" and r["plan"] == plan}
        path = [cooled[temperature] for temperature in sorted(cooled, reverse=True)]
        _path(axis, path, LOOKS["iid"], "teacher, cooled", "right")
        for name, look in marks.items():
            _rounds(axis, [r for r in drawn if r["plan"] == plan and label(r) == name], look, name.replace("`", ""))
        _plane(axis, [r for r in cells if r["role"] == "teacher"] + drawn, f"{plan_name(plan)}, 8 steps, by round")
    axes[0].set_ylabel(f"Gen PPL, judge {judge}")
    _legend(figure, axes[0])
    return _svg(figure)


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
    _ppl_axis(axis, records)
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
    figure, axes = _sheet(len(panels), 3.5)
    for axis, (score, title) in zip(axes, panels.items(), strict=True):
        curves = _curves(slim, score, apart)
        for (model, plan), look in chosen.items():
            if (model, plan) in curves:
                _line(axis, curves[model, plan], look, f"{model}, {plan_name(plan)}", "nfe")
        _level(axis, slim, score, apart)
        points = [point for key in chosen for point in curves.get(key, []) if point.score[0] is not None]
        _steps_axis(axis, [point.nfe for point in points], "forwards a text (NFE)")
        axis.set_title(title, pad=6)
        if apart:
            _around(axis, points, _height(score, MARGIN[score]))
        elif score == "gen_ppl":
            _times_axis(axis)
        else:
            _magnify(axis, points, _yardstick(slim, score), 0.45)
    if apart:
        axes[0].set_ylabel("distance to the yardstick")
    _legend(figure, *axes)
    return _svg(figure)


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


def _sheet(panels: int, height: float, **shared: bool) -> tuple[Any, Sequence[Any]]:
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.09, wspace=0.04)
    return figure, figure.subplots(1, panels, squeeze=False, **shared)[0]


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


def _times_axis(axis: Any) -> None:
    """Ratios around 1, with as many ticks as there is room for."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    wide = (0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20)
    _plain_ticks(
        axis, [t for t in (wide if high / low > 2.2 else (0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5)) if low < t < high]
    )


def _steps_axis(axis: Any, steps: Sequence[float], name: str) -> None:
    axis.set_xscale("log", base=2)
    ticks = [2**k for k in range(12) if min(steps, default=2) / 1.5 < 2**k < max(steps, default=2) * 1.5]
    ticks = ticks[1::2] if len(ticks) > 7 else ticks  # no room for more beside each other
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.set_xlabel(name)
    axis.minorticks_off()


def _ppl_axis(axis: Any, records: Sequence[Record]) -> None:
    axis.set_yscale("log")
    values = [r["gen_ppl"][0] for r in records]
    ticks = [
        t * 10**k for k in range(6) for t in (1, 1.5, 2, 3, 5, 7) if min(values) / 1.2 < t * 10**k < max(values) * 1.2
    ]
    _plain_ticks(axis, ticks)


def _plain_ticks(axis: Any, ticks: Sequence[float]) -> None:
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()


def _legend(figure: Any, *axes: Any) -> None:
    """Along the foot, in the order of the lines, what is in several panels once; as many columns as there is room."""
    found = [pair for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
    handles = {name: handle for handle, name in reversed(found)}
    names = list(dict.fromkeys(name for _, name in found))
    figure.legend(
        [handles[name] for name in names], names, loc="outside lower center", handlelength=2.4, columnspacing=1.6,
        ncols=3 if max(map(len, names)) > LONG else 4, fontsize=8.5,
    )  # fmt: skip


def _svg(figure: Any) -> bytes:
    """As bytes that depend on nothing but what is drawn, with a dark scheme."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    )
    style = f"<style>@media(prefers-color-scheme:dark){{{rules}}}</style>"
    text = buffer.getvalue().decode()
    return re.sub(r"(<svg [^>]*>)", lambda found: found[1] + "\n " + style, text, count=1).encode()
