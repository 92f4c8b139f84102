"""What the figures of a report show: the frontier in two scores, and likelihood, Gen PPL and entropy against NFE."""

from __future__ import annotations

from unmask.studies.report.plots import MARKERS, SERIES, Figure, Panel, Point, Series
from unmask.studies.report.tables import limits
from unmask.studies.results import Bound, Cell, Json, Results

_PLANS = [marker for marker in MARKERS if marker not in "DPX*"]
_GIVEN = {"real": "*", "parrot": "X", "ar": "D"}
_FRONTIERS = {
    "gen_ppl": (
        "frontier-gen-ppl",
        "Gen PPL against entropy",
        "Gen PPL",
        "Each line is one model on one plan as its temperature falls (right to left). Lower is better only at the same "
        "entropy: a student has gained where its line lies below the teacher's.",
    ),
    "path_gap": (
        "frontier-path-gap",
        "Path gap R against entropy",
        "R, nats/byte",
        "R takes the sampler's own entropy off what the judge says, so that dullness does not help. Lower is better.",
    ),
}


def figures(results: Results) -> list[Figure]:
    """All that the results can show."""
    made = [frontier(results, "gen_ppl"), frontier(results, "path_gap"), against_nfe(results)]
    return [figure for figure in made if figure is not None]


def _series(results: Results, model: str, plan: str | None, points: list[Point]) -> Series:
    """A model on a plan looks the same in all figures."""
    role = results.models[model]["role"]
    coloured = [name for name, about in results.models.items() if about["role"] not in ("real", "parrot")]
    colour = f"c{coloured.index(model) % SERIES}" if model in coloured else "ink"
    if role in _GIVEN:
        name = f"{model}, causal" if role == "ar" else model
        return Series(name, colour, _GIVEN[role], points, lined=role == "ar")
    if plan is None:
        return Series(model, colour, "P", points, lined=False)
    marker = _PLANS[results.plans.index(plan) % len(_PLANS)]
    return Series(f"{model}, {plan}", colour, marker, points, dashed=plan != results.analysis.get("best_plan"))


def frontier(results: Results, score: str) -> Figure | None:
    """One panel for every number of steps: the temperature paths of every model on every plan."""
    name, title, unit, caption = _FRONTIERS[score]
    cells = [cell for cell in results.cells if score in cell.scores and "entropy" in cell.scores]
    if not any(cell.steps in results.steps for cell in cells):
        return None
    real = next((cell.value("entropy") for cell in cells if results.models[cell.model]["role"] == "real"), None)
    panels = []
    for steps in results.steps:
        paths: dict[tuple[str, str | None], list[Cell]] = {}
        for cell in sorted(cells, key=lambda cell: -(cell.temperature or 0)):
            if cell.steps in (None, steps):
                paths.setdefault((cell.model, cell.plan), []).append(cell)
        order = sorted(paths, key=lambda path: list(results.models).index(path[0]))
        points = {
            path: [
                Point(cell.scores["entropy"]["value"], cell.scores[score]["value"], _says(cell)) for cell in paths[path]
            ]
            for path in order
        }
        series = [_series(results, *path, found) for path, found in points.items()]
        across, log = "unigram entropy, nats", score == "gen_ppl"
        panels.append(Panel(f"{steps} steps", across, unit, series, log_y=log, rule=real))
    if real is not None:
        caption += " The dotted line is at real text's entropy."
    return Figure(name, title, caption, panels, shared=True)


def _says(cell: Cell) -> str:
    """What a pointer over a point reads."""
    parts = [cell.model]
    if cell.steps:
        parts.append(f"{cell.plan}, {cell.steps} steps, NFE {cell.nfe:.1f}")
    if cell.temperature is not None:
        parts.append(f"T = {cell.temperature:g}")
    for name, label, digits in (("gen_ppl", "Gen PPL", 1), ("entropy", "entropy", 3), ("path_gap", "R", 4)):
        if name in cell.scores:
            parts.append(f"{label} {cell.value(name):.{digits}f} {limits(cell.scores[name], digits=digits)}")
    return "; ".join(parts)


def against_nfe(results: Results) -> Figure | None:
    """NELBO, Gen PPL and entropy against NFE for every model, at the headline's temperature."""
    hot = [cell for cell in results.cells if cell.steps and cell.temperature == results.temperature]
    shown: dict[tuple[str, str, bool], list[tuple[Cell | Bound, Json]]] = {
        ("N-step NELBO on held-out text", "nats/token", False): [
            (bound, bound.scores["per_token"]) for bound in results.bounds if bound.plan
        ],
        ("Gen PPL", "perplexity", True): [(cell, cell.scores["gen_ppl"]) for cell in hot if "gen_ppl" in cell.scores],
        ("Unigram entropy", "nats", False): [
            (cell, cell.scores["entropy"]) for cell in hot if "entropy" in cell.scores
        ],
    }
    panels = []
    for (title, unit, log), scored in shown.items():
        lines: dict[tuple[str, str | None], list[Point]] = {}
        for entry, said in scored:
            if entry.nfe:
                says = f"{entry.model}, {entry.plan}, NFE {entry.nfe:.1f}: {said['value']:.4g} {limits(said)}"
                point = Point(entry.nfe, said["value"], says, said["low"], said["high"])
                lines.setdefault((entry.model, entry.plan), []).append(point)
        if lines:
            series = [_series(results, *path, sorted(points, key=lambda p: p.x)) for path, points in lines.items()]
            panels.append(Panel(title, "NFE", unit, series, log_x=True, log_y=log))
    if not panels:
        return None
    title = ", ".join(panel.title for panel in panels) + " against NFE"
    caption = f"Every model at T = {results.temperature:g}, with 95% intervals."
    if any(panel.title == "Gen PPL" for panel in panels):
        caption += " Gen PPL falls with entropy too: read the two together."
    return Figure("against-nfe", title, caption, panels)
