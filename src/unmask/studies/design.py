"""Which cells an evaluation draws, and in which order: the grid that was asked for, then whatever a bracket needs.

Students first, then the teacher in more steps, its draw also cut (top-p). Then the teacher's temperature is lowered, or
raised, until every student's own entropy lies between two of the teacher's; and one more teacher temperature is drawn
where its entropy meets the student's, so that nothing has to be read off a long chord.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unmask.metrics.score import Unavailable
from unmask.metrics.texts import Texts
from unmask.studies.cells import CellMaker, CellSpec
from unmask.studies.entries import Entry
from unmask.studies.plans_on_grids import COMB, EVERY, PlanOnGrid
from unmask.studies.results import Bound, Cell

COLDEST, HOTTEST = 0.4, 1.3  # beyond them nobody is a reference any more
STEP, NEAR = 0.1, 0.021  # between temperatures of a bracket; a meeting point this near to another is not drawn
MARGIN = 3.0  # standard errors: a bracket must hold in nearly all resamples


@dataclass(frozen=True, eq=False)
class Design:
    """The cells of one study: models x plans x steps x temperatures."""

    entries: Sequence[Entry]
    plans: Sequence[PlanOnGrid]
    steps: Sequence[int]
    control_steps: Sequence[int]  # of the teacher, where there is something to compare it with
    temperatures: Sequence[float]
    top_ps: Sequence[float] = ()  # of the teacher, at the highest temperature
    brackets: bool = False  # draw further temperatures
    draws: bool = True  # else there are bounds only

    @property
    def teachers(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.role == "teacher"]

    @property
    def others(self) -> list[Entry]:
        """What is compared with the teacher: students, then the teacher trained on."""
        return [entry for role in ("student", "elbo") for entry in self.entries if entry.role == role]

    @property
    def control(self) -> Sequence[int]:
        """The teacher's numbers of steps."""
        return self.control_steps if self.others else self.steps

    @property
    def compares(self) -> bool:
        return bool(self.teachers and self.others)

    def plans_of(self, entry: Entry) -> Sequence[PlanOnGrid]:
        """Those of the plans that were asked for that are of its process, or the process's usual one."""
        by_plan = entry.checkpoint.process.by_plan
        return [plan for plan in self.plans if plan.every_position != by_plan] or [COMB if by_plan else EVERY]

    @property
    def every_plan(self) -> list[PlanOnGrid]:
        return list(dict.fromkeys(plan for entry in self.teachers + self.others for plan in self.plans_of(entry)))

    def grid(self) -> list[CellSpec]:
        """The cells that were asked for."""
        if not self.draws:
            return []
        masked = [(entry, self.steps) for entry in self.others] + [(entry, self.control) for entry in self.teachers]
        asked = [
            CellSpec(entry, plan, n, t)
            for entry, steps in masked for plan in self.plans_of(entry) for n in steps for t in self.temperatures
        ]  # fmt: skip
        hottest = max(self.temperatures)
        cut = [
            CellSpec(entry, plan, n, hottest, top_p)
            for entry in self.teachers for plan in self.plans_of(entry) for n in self.control for top_p in self.top_ps
        ]  # fmt: skip
        causal = [entry for entry in self.entries if entry.role == "ar"]
        return asked + cut + [CellSpec(entry, None, None, t) for entry in causal for t in self.temperatures]

    def bounds(self) -> list[tuple[Entry, PlanOnGrid | None, int]]:
        """Every model's ELBO; NELBO of every other model on each of its plans in every number of steps."""
        drawn = [entry for entry in self.entries if entry.role != "ar"]
        usual: list[tuple[Entry, PlanOnGrid | None, int]] = [(entry, None, 0) for entry in self.entries]
        scored = [(entry, plan) for entry in drawn for plan in self.plans_of(entry) if not plan.greedy]
        return usual + [(entry, plan, n) for entry, plan in scored for n in self.steps]

    def most_more(self) -> int:
        """How many cells the brackets can add at the most."""
        if not self.brackets:
            return 0
        cold, hot = min(self.temperatures) - COLDEST, HOTTEST - max(self.temperatures)
        rows = sum(max(0, math.ceil(round(width / STEP, 6))) for width in (cold, hot))
        return len(self.every_plan) * (rows + len(self.others) * len(self.steps)) * len(self.control)

    def make(self, maker: CellMaker) -> list[Cell]:
        cells = [maker.cell(spec) for spec in self.grid()]
        if self.brackets:
            for plan in self.every_plan:
                cells += self._bracketed(maker, plan, cells)
        return cells

    def make_bounds(self, maker: CellMaker, texts: Texts) -> tuple[list[Bound], list[str]]:
        """Bounds, and a sentence for each that cannot be had."""
        bounds, missing = [], []
        for entry, plan, steps in self.bounds():
            try:
                bounds.append(maker.bound(entry, plan, steps, texts))
            except Unavailable as error:
                which = f"NELBO on {plan.name} in {steps} steps" if plan else "ELBO"
                missing.append(f"No {which} of {entry.name}: {error}.")
        return bounds, missing

    def _bracketed(self, maker: CellMaker, plan: PlanOnGrid, cells: Sequence[Cell]) -> list[Cell]:
        """More temperatures of the teacher on one plan."""
        teacher = self.teachers[0]
        if plan not in self.plans_of(teacher):
            return []
        mine = [cell for cell in cells if cell.plan == plan.name and cell.top_p == 1 and cell.comparable]
        names = {entry.name for entry in self.others}
        students = [cell for cell in mine if cell.model in names and cell.temperature == max(self.temperatures)]
        path = [cell for cell in mine if cell.model == teacher.name]

        def row(temperature: float) -> list[Cell]:
            maker.progress.total += len(self.control)
            return [maker.cell(CellSpec(teacher, plan, n, temperature)) for n in self.control]

        more = self._beyond(row, path, students)
        drawn = {float(cell.temperature or 0) for cell in [*path, *more]}
        met = {meeting_temperature([*path, *more], student) for student in students}
        for temperature in sorted(one for one in met if one is not None):
            if min(abs(temperature - one) for one in drawn) > NEAR:
                drawn.add(temperature)
                more += row(temperature)
        return more

    def _beyond(self, row: Callable[[float], list[Cell]], path: Sequence[Cell], targets: Sequence[Cell]) -> list[Cell]:
        """Cells at temperatures beyond those of a path, until its entropies enclose the targets' at all its steps."""
        more: list[Cell] = []
        for sign, end, last in ((-1, min(self.temperatures), COLDEST), (1, max(self.temperatures), HOTTEST)):
            cells = [cell for cell in path if cell.temperature == end]
            while sign * end < sign * last and any(
                sign * _entropy(target, sign * MARGIN) > sign * _entropy(cell) for target in targets for cell in cells
            ):
                end = sign * round(min(sign * last, sign * end + STEP), 3)
                more += (cells := row(end))
        return more


def _entropy(cell: Cell, errors: float = 0.0) -> float:
    """A cell's own entropy, some standard errors beside itself."""
    score = cell.scores["sampler_entropy"]
    return float(score["value"] + errors * (score["stderr"] or 0))


def meeting_temperature(teacher: Sequence[Cell], student: Cell) -> float | None:
    """The temperature, to 0.02, at which the teacher's own entropy at the same steps meets the student's."""
    path = sorted((cell for cell in teacher if cell.steps == student.steps), key=lambda cell: -(cell.temperature or 0))
    target = _entropy(student)
    for hot, cold in itertools.pairwise(path):
        above, below = _entropy(hot), _entropy(cold)
        if below <= target <= above and below < above:
            start, end = float(hot.temperature or 0), float(cold.temperature or 0)
            exact = start + (above - target) / (above - below) * (end - start)
            return round(0.02 * round(exact / 0.02), 2)
    return None
