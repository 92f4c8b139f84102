"""The figures of a report: the frontier in two scores, and likelihood, Gen PPL and entropy against NFE.

Refuses to know pages.
"""

from __future__ import annotations

from dataclasses import dataclass

from unmask.studies.report.style import COLOURS, INK
from unmask.studies.report.svg import MARKERS, Axis, Key, Plot
from unmask.studies.results import Cell, Results


@dataclass(frozen=True)
class Figure:
    """Panels that share a legend; `name` is its file."""

    name: str
    title: str
    caption: str
    panels: list[Plot]
    keys: list[Key]


@dataclass(frozen=True)
class _Looks:
    """Which colour and marker each series has, the same in all figures."""

    results: Results

    def models(self) -> list[str]:
        """Teacher, students and the teacher trained on, in the order they were given."""
        return [name for name, about in self.results.models.items() if about["role"] in ("teacher", "student", "elbo")]

    def colour(self, model: str) -> int:
        drawn = [name for name, about in self.results.models.items() if about["role"] not in ("real", "parrot")]
        return drawn.index(model) % COLOURS if model in drawn else INK

    def marker(self, plan: str) -> str:
        return MARKERS[self.results.plans.index(plan) % len(MARKERS)]

    def dashed(self, plan: str) -> bool:
        return plan != self.results.analysis.get("best_plan")

    def keys(self, given: bool) -> list[Key]:
        """The legend; `given` with real text, the parrot and the causal model."""
        found = [
            Key(f"{model}, {plan}", self.colour(model), self.marker(plan), self.dashed(plan))
            for model in self.models()
            for plan in self.results.plans
        ]
        if given:
            found += [Key(f"{name}, causal", self.colour(name), "diamond") for name in self.results.named("ar")]
            found += [Key(name, INK, "star", lined=False) for name in self.results.named("real")]
            found += [Key(name, INK, "cross", lined=False) for name in self.results.named("parrot")]
        return found


def figures(results: Results) -> list[Figure]:
    """All that the results can show."""
    looks = _Looks(results)
    return [
        figure
        for figure in (
            frontier(results, looks, "gen_ppl"),
            frontier(results, looks, "path_gap"),
            against_nfe(results, looks),
        )
        if figure is not None
    ]


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


def frontier(results: Results, looks: _Looks, score: str) -> Figure | None:
    """One panel for every number of steps: the temperature paths of every model on every plan."""
    name, title, unit, caption = _FRONTIERS[score]
    cells = [
        cell for cell in results.cells if score in cell.scores and (cell.steps is None or cell.steps in results.steps)
    ]
    if not any(cell.steps for cell in cells):
        return None
    across = Axis.around("unigram entropy, nats", [float(cell.value("entropy") or 0) for cell in cells])
    up = Axis.around(unit, [float(cell.value(score) or 0) for cell in cells], log=score == "gen_ppl")
    panels = []
    for steps in results.steps:
        plot = Plot(f"{steps} steps", across, up)
        for real in (cell for cell in cells if results.models[cell.model]["role"] == "real"):
            plot.vertical(float(real.value("entropy") or 0), "real text's entropy")
        for model in looks.models():
            for plan in results.plans:
                _path(plot, looks, [c for c in cells if (c.model, c.plan, c.steps) == (model, plan, steps)], score)
        for cell_model in results.named("ar"):
            _path(plot, looks, [cell for cell in cells if cell.model == cell_model], score)
        for cell in cells:
            role = results.models[cell.model]["role"]
            if role in ("real", "parrot"):
                marker = "star" if role == "real" else "cross"
                plot.point(float(cell.value("entropy") or 0), float(cell.value(score) or 0), INK, marker, _says(cell))
        panels.append(plot)
    return Figure(name, title, caption, panels, looks.keys(given=True))


def _path(plot: Plot, looks: _Looks, cells: list[Cell], score: str) -> None:
    """A temperature path, hottest first."""
    cells = sorted(cells, key=lambda cell: -(cell.temperature or 0))
    points = [(float(cell.value("entropy") or 0), float(cell.value(score) or 0)) for cell in cells]
    for i, (cell, (x, y)) in enumerate(zip(cells, points, strict=True)):
        causal = cell.steps is None
        colour, marker = looks.colour(cell.model), "diamond" if causal else looks.marker(str(cell.plan))
        if i == 0:
            plot.line(points, colour, not causal and looks.dashed(str(cell.plan)))
        plot.point(x, y, colour, marker, _says(cell))


def _says(cell: Cell) -> str:
    """What a pointer over a point reads."""
    parts = [cell.model]
    if cell.steps:
        parts.append(f"{cell.plan}, {cell.steps} steps, NFE {cell.nfe:.1f}")
    if cell.temperature is not None:
        parts.append(f"T = {cell.temperature:g}")
    for name, label, digits in (("gen_ppl", "Gen PPL", 1), ("entropy", "entropy", 3), ("path_gap", "R", 4)):
        if name in cell.scores:
            said = cell.scores[name]
            ends = "" if said["low"] is None else f" [{said['low']:.{digits}f}, {said['high']:.{digits}f}]"
            parts.append(f"{label} {said['value']:.{digits}f}{ends}")
    return "; ".join(parts)


def against_nfe(results: Results, looks: _Looks) -> Figure | None:
    """NELBO and Gen PPL against NFE for every model, entropy beneath."""
    hot = [cell for cell in results.cells if cell.steps and cell.temperature == results.temperature]
    series: list[tuple[str, str, bool, dict[tuple[str, str], list[tuple[float, float, float, float]]]]] = []
    bounds: dict[tuple[str, str], list[tuple[float, float, float, float]]] = {}
    for bound in results.bounds:
        if bound.plan and bound.nfe:
            bounds.setdefault((bound.model, bound.plan), []).append(_ends(bound.nfe, bound.scores["per_token"]))
    series.append(("N-step NELBO on held-out text", "nats/token", False, bounds))
    for score, title, unit, log in (
        ("gen_ppl", "Gen PPL", "perplexity", True),
        ("entropy", "Unigram entropy", "nats", False),
    ):
        found: dict[tuple[str, str], list[tuple[float, float, float, float]]] = {}
        for cell in hot:
            if score in cell.scores and cell.nfe:
                found.setdefault((cell.model, str(cell.plan)), []).append(_ends(cell.nfe, cell.scores[score]))
        series.append((title, unit, log, found))
    series = [one for one in series if one[3]]
    if not series:
        return None
    every = [x for *_, lines in series for points in lines.values() for x, *_ in points]
    ticks = [tick for tick in (2**k for k in range(11)) if min(every) * 0.9 <= tick <= max(every) * 1.1]
    panels = []
    for title, unit, log, lines in series:
        values = [number for points in lines.values() for _, *rest in points for number in rest]
        plot = Plot(title, Axis.around("NFE", every, log=True), Axis.around(unit, values, log), x_ticks=ticks)
        for (model, plan), points in lines.items():
            points.sort()
            colour = looks.colour(model)
            plot.line([(x, y) for x, y, _, _ in points], colour, looks.dashed(plan))
            for x, y, low, high in points:
                plot.bar(x, low, high, colour)
                plot.point(
                    x, y, colour, looks.marker(plan), f"{model}, {plan}, NFE {x:.1f}: {y:.4g} [{low:.4g}, {high:.4g}]"
                )
        panels.append(plot)
    at = f"at T = {results.temperature:g}"
    caption = f"Every model and round {at}, with 95% intervals. Gen PPL falls with entropy too: read the two together."
    return Figure(
        "against-nfe", "Likelihood, Gen PPL and entropy against NFE", caption, panels, looks.keys(given=False)
    )


def _ends(x: float, said: dict[str, float]) -> tuple[float, float, float, float]:
    value = said["value"]
    return x, value, value if said["low"] is None else said["low"], value if said["high"] is None else said["high"]
