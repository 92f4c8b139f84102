"""Which cells an evaluation draws, and in which order: the grid that was asked for, then whatever a bracket needs.

Students first, then the teacher in more steps. Then temperatures are lowered, or raised, until every student's entropy
lies between two of the teacher's, and real text's between two of everybody's; and one more teacher temperature is drawn
where its entropy meets the student's, so that nothing has to be read off a long chord. Refuses to know how a cell is
drawn and what it says.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from unmask.studies.entries import Entry
from unmask.studies.results import Cell
from unmask.studies.ways import Way
from unmask.studies.workshop import Workshop

COLDEST, HOTTEST = 0.4, 1.3  # beyond them nobody is a reference any more
STEP, NEAR = 0.1, 0.021  # between temperatures of a bracket; a meeting point this near to another is not drawn
MARGIN = 3.0  # standard errors: a bracket must hold in nearly all resamples


@dataclass(frozen=True, eq=False)
class Walk:
    """One evaluation's way through models, plans, steps and temperatures."""

    entries: Sequence[Entry]
    shop: Workshop
    ways: Sequence[Way]
    steps: Sequence[int]
    temperatures: Sequence[float]
    control_steps: Sequence[int]  # of the teacher
    real: Cell | None  # scored, where there is real text
    bracket: bool  # draw more temperatures than were asked for

    def cells(self) -> list[Cell]:
        """All of them."""
        teachers, others = self._of("teacher"), self._of("student") + self._of("elbo")
        control = self.control_steps if others else self.steps
        wanted = [(e, way, n, t) for e in others for way in self.ways for n in self.steps for t in self.temperatures]
        wanted += [(e, way, n, t) for e in teachers for way in self.ways for n in control for t in self.temperatures]
        causal = [(entry, t) for entry in self._of("ar") for t in self.temperatures]
        self.shop.plan(len(wanted) + len(causal))
        cells = [self.shop.cell(*one) for one in wanted] + [self.shop.causal(*one) for one in causal]
        if self.bracket and self.shop.measure.judge is not None and teachers and others:
            for way in self.ways:
                cells = self._bracketed(teachers[0], others, way, control, cells)
        return cells

    def _of(self, role: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.role == role]

    def _bracketed(
        self, teacher: Entry, others: Sequence[Entry], way: Way, control: Sequence[int], cells: Sequence[Cell]
    ) -> list[Cell]:
        """The cells so far, with more temperatures on one plan."""
        made = list(cells)
        real = [] if self.real is None else [self.real]
        for entry in others:
            made += self._brackets(entry, way, self.steps, _path(made, entry, way), real)
        names = {entry.name for entry in others}
        hot = max(self.temperatures)
        mine = [cell for cell in made if cell.model in names and cell.plan == way.name]
        students = [cell for cell in mine if cell.temperature == hot]
        made += self._brackets(teacher, way, control, _path(made, teacher, way), students + real)
        path = _path(made, teacher, way)
        drawn = {float(cell.temperature or 0) for cell in path}
        for temperature in sorted({meeting(path, student) for student in students} - {None}):  # type: ignore[type-var]
            if temperature is not None and min(abs(temperature - one) for one in drawn) > NEAR:
                drawn.add(temperature)
                made += self._row(teacher, way, control, temperature)
        return made

    def _brackets(
        self, entry: Entry, way: Way, steps: Sequence[int], path: Sequence[Cell], targets: Sequence[Cell]
    ) -> list[Cell]:
        """Cells at temperatures beyond those of a path, until its entropies enclose the targets' at all its steps."""
        coldest, hottest = min(self.temperatures), max(self.temperatures)
        cold, hot = ([cell for cell in path if cell.temperature == t] for t in (coldest, hottest))
        more: list[Cell] = []
        while coldest > COLDEST and any(_entropy(a, -MARGIN) < _entropy(b) for a in targets for b in cold):
            coldest = round(max(COLDEST, coldest - STEP), 3)
            more += (cold := self._row(entry, way, steps, coldest))
        while hottest < HOTTEST and any(_entropy(a, MARGIN) > _entropy(b) for a in targets for b in hot):
            hottest = round(min(HOTTEST, hottest + STEP), 3)
            more += (hot := self._row(entry, way, steps, hottest))
        return more

    def _row(self, entry: Entry, way: Way, steps: Sequence[int], temperature: float) -> list[Cell]:
        self.shop.plan(len(steps))
        return [self.shop.cell(entry, way, n, temperature) for n in steps]


def _path(cells: Sequence[Cell], entry: Entry, way: Way) -> list[Cell]:
    return [cell for cell in cells if (cell.model, cell.plan) == (entry.name, way.name)]


def _entropy(cell: Cell, errors: float = 0.0) -> float:
    """A cell's entropy, some standard errors beside itself."""
    said = cell.scores["entropy"]
    return float(said["value"] + errors * (said["stderr"] or 0))


def meeting(teacher: Sequence[Cell], student: Cell) -> float | None:
    """The temperature, to 0.02, at which the teacher's entropy at the same steps meets the student's."""
    path = sorted((cell for cell in teacher if cell.steps == student.steps), key=lambda cell: -(cell.temperature or 0))
    target = _entropy(student)
    for hot, cold in itertools.pairwise(path):
        above, below = _entropy(hot), _entropy(cold)
        if below <= target <= above and below < above:
            way, start, end = (
                (above - target) / (above - below),
                float(hot.temperature or 0),
                float(cold.temperature or 0),
            )
            return round(0.02 * round((start + way * (end - start)) / 0.02), 2)
    return None
