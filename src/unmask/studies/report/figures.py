"""What the figures of a report show: the frontier, and likelihood, the judge's nats and own entropy against NFE."""

from __future__ import annotations

from unmask.studies.report.plots import MARKERS, SERIES, Figure, Panel, Point, Series
from unmask.studies.report.tables import limits
from unmask.studies.results import Bound, Cell, Json, Results

_PLANS = [marker for marker in MARKERS if marker not in "DPX*"]
_GIVEN = {"real": "*", "control": "X", "ar": "D"}


def figures(results: Results) -> list[Figure]:
    made = [frontier(results), against_nfe(results)]
    return [figure for figure in made if figure is not None]


def _series(results: Results, model: str, plan: str | None, points: list[Point], cut: bool = False) -> Series:
    """A model on a plan looks the same in all figures; where its draw is cut, it has no line."""
    role = results.models[model]["role"]
    coloured = [name for name, about in results.models.items() if about["role"] not in ("real", "control")]
    colour = f"c{coloured.index(model) % SERIES}" if model in coloured else "ink"
    if role in _GIVEN:
        name = f"{model}, causal" if role == "ar" else model
        return Series(name, colour, _GIVEN[role], points, lined=role == "ar")
    if plan is None:
        return Series(model, colour, "P", points, lined=False)
    marker = _PLANS[results.plans.index(plan) % len(_PLANS)]
    if cut:
        return Series(f"{model}, {plan}, top-p", colour, "*", points, lined=False)
    return Series(f"{model}, {plan}", colour, marker, points, dashed=plan != results.analysis.get("best_plan"))


def frontier(results: Results) -> Figure | None:
    """One panel for every number of steps: the temperature paths of every model on every plan, and the teacher's cuts.

    Controls without a model have next to no entropy of their own: they would squeeze all others into a corner.
    """
    roles = {name: about["role"] for name, about in results.models.items()}
    cells = [cell for cell in results.cells if cell.comparable and roles[cell.model] != "control"]
    if not any(cell.steps in results.steps for cell in cells):
        return None
    panels = []
    for steps in results.steps:
        paths: dict[tuple[str, str | None, bool], list[Point]] = {}
        for cell in sorted(cells, key=lambda cell: (-(cell.temperature or 0), -cell.top_p)):
            if cell.steps in (None, steps):
                point = Point(cell.scores["sampler_entropy"]["value"], cell.scores["path_gap"]["value"], _says(cell))
                paths.setdefault((cell.model, cell.plan, cell.top_p < 1), []).append(point)
        order = sorted(paths, key=lambda path: list(roles).index(path[0]))
        series = [_series(results, model, plan, paths[model, plan, cut], cut) for model, plan, cut in order]
        panels.append(Panel(f"{steps} steps", "own entropy, nats/byte", "R, nats/byte", series))
    caption = (
        "The path gap R is the judge's nats a byte less the sampler's own entropy, so at one own entropy lower is "
        "likelier text. Each line is one model on one plan as its temperature falls (right to left); stars are the "
        "teacher with its draw cut. A student has gained where its line lies below both."
    )
    return Figure("frontier", "Path gap against own entropy", caption, panels, shared=True)


def _says(cell: Cell) -> str:
    """What a pointer over a point reads."""
    parts = [cell.model]
    if cell.steps:
        parts.append(f"{cell.plan}, {cell.steps} steps, NFE {cell.nfe:.1f}")
    if cell.temperature is not None:
        parts.append(f"T = {cell.temperature:g}" + (f", top-p {cell.top_p:g}" if cell.top_p < 1 else ""))
    named = ("judge_nll", "judge", 3), ("sampler_entropy", "own entropy", 3), ("path_gap", "R", 4)
    for name, label, digits in named:
        if name in cell.scores:
            parts.append(f"{label} {cell.value(name):.{digits}f} {limits(cell.scores[name], digits=digits)}")
    return "; ".join(parts)


def against_nfe(results: Results) -> Figure | None:
    """NELBO, the judge's nats and own entropy against NFE for every model, at the headline's temperature."""
    hot = [cell for cell in results.where(temperature=results.temperature) if cell.steps]
    shown: dict[tuple[str, str], list[tuple[Cell | Bound, Json]]] = {
        ("N-step NELBO on held-out text", "nats/token"):
            [(bound, bound.scores["per_token"]) for bound in results.bounds if bound.plan],
        ("Judge", "nats/byte"): [(cell, cell.scores["judge_nll"]) for cell in hot if cell.comparable],
        ("Own entropy", "nats/byte"):
            [(cell, cell.scores["sampler_entropy"]) for cell in hot if "sampler_entropy" in cell.scores],
    }  # fmt: skip
    panels = []
    for (title, unit), scored in shown.items():
        lines: dict[tuple[str, str | None], list[Point]] = {}
        for entry, score in scored:
            if entry.nfe:
                says = f"{entry.model}, {entry.plan}, NFE {entry.nfe:.1f}: {score['value']:.4g} {limits(score)}"
                point = Point(entry.nfe, score["value"], says, score["low"], score["high"])
                lines.setdefault((entry.model, entry.plan), []).append(point)
        if lines:
            series = [_series(results, *path, sorted(points, key=lambda p: p.x)) for path, points in lines.items()]
            panels.append(Panel(title, "NFE", unit, series, log_x=True))
    if not panels:
        return None
    title = ", ".join(panel.title for panel in panels) + " against NFE"
    caption = f"Every model at T = {results.temperature:g}, with 95% intervals."
    if any(panel.title == "Judge" for panel in panels):
        caption += " The judge's nats fall with the own entropy too: read the two together."
    return Figure("against-nfe", title, caption, panels)
