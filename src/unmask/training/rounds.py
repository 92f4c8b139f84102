"""Rounds of distillation: at the start of each the student as it is becomes the teacher, delta doubles and tau falls.

`Rounds` is an objective that changes every `round_steps` optimiser steps. The loop says when, and brings the weights;
optimiser, warm-up and average go on as if nothing had happened. What a round needs beside the step number is its
teacher, and that is the student of the round before, which lies in the run's folder: so a state holds no teacher.

Refuses to know the loop, files and what a method compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from unmask.base.errors import UserError, unknown
from unmask.checkpoint.io import Checkpoint
from unmask.models.denoiser import Denoiser
from unmask.objectives.base import Batch, LossOutput
from unmask.objectives.cd4lm import CD4LM
from unmask.objectives.distillation import Distillation
from unmask.objectives.mcd import MCD
from unmask.objectives.mdlm import MDLM
from unmask.objectives.sdtt import SDTT
from unmask.process.schedule import Schedule
from unmask.process.times import Curriculum

METHODS: dict[str, type[MCD] | type[SDTT] | type[CD4LM] | type[MDLM]] = {
    "mcd": MCD,
    "sdtt": SDTT,
    "cd4lm": CD4LM,
    "elbo": MDLM,
}
Snapshot = Literal["raw", "ema"]


@dataclass(eq=False)
class Rounds:
    """A method over the rounds of a curriculum. It becomes what round 1 is; the loop takes it on from there.

    CD4LM keeps its teacher, and the ELBO has none: their rounds are checkpoints at equal budget.

    Args:
        method: a distillation method with the first teacher, or MDLM (the control: the teacher trained on)
        curriculum: delta and tau of each round
        round_steps: optimiser steps in a round
        snapshot: which weights of the student become the next teacher: the raw ones, or their average
    """

    method: MCD | SDTT | CD4LM | MDLM
    curriculum: Curriculum
    round_steps: int
    snapshot: Snapshot = "raw"

    def __post_init__(self) -> None:
        if self.round_steps < 1:
            raise UserError(f"a round needs at least 1 optimiser step, not {self.round_steps}")
        if self.snapshot not in get_args(Snapshot):
            raise unknown("snapshot", str(self.snapshot), get_args(Snapshot))
        if isinstance(self.method, Distillation):
            self.method = self.method.at(1, self.curriculum, self.method.teacher)
        self.now: MCD | SDTT | CD4LM | MDLM = self.method
        self.round = 0  # not begun
        self._compiled = False

    # -- the objective -------------------------------------------------------------------------------------------

    @property
    def forwards(self) -> float:
        return self.now.forwards

    @property
    def regions(self) -> tuple[str, ...]:
        return self.now.regions

    @property
    def schedule(self) -> Schedule:
        assert self.method.schedule is not None
        return self.method.schedule

    def __call__(self, student: Denoiser, batch: Batch, *, step: int, generator: torch.Generator) -> LossOutput:
        return self.now(student, batch, step=step, generator=generator)

    def compile(self) -> None:
        """Compile what belongs to the method, in this round and the later ones."""
        self._compiled = True
        if isinstance(self.now, Distillation):
            self.now.compile()

    # -- the rounds ----------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Optimiser steps of all rounds."""
        return self.curriculum.rounds * self.round_steps

    def round_of(self, step: int) -> int:
        """The round that optimiser step `step` (0 is the first) belongs to; rounds count from 1."""
        return step // self.round_steps + 1

    def begins(self, step: int) -> bool:
        """Whether step `step` is the first of a round."""
        return step % self.round_steps == 0

    def enter(self, round: int, student: Checkpoint | None) -> None:
        """Begin or continue a round; `student` is the one that the round before ended with (None in round 1)."""
        assert (student is None) == (round == 1)
        self.round, self.now = round, self.method
        if student is not None and isinstance(self.method, Distillation):
            self.now = self.method.at(round, self.curriculum, student)
        if self._compiled:
            self.compile()

    # -- what it says of itself ----------------------------------------------------------------------------------

    @property
    def tau_product(self) -> float:
        """How much sharper than the first teacher the target now is: the temperatures on the way, multiplied."""
        if isinstance(self.method, CD4LM):  # its teacher stays, so that nothing adds up
            return self.curriculum.tau(self.round) if self.round else 1.0
        return self.curriculum.tau_product(self.round) if isinstance(self.method, Distillation) else 1.0

    def numbers(self) -> dict[str, float]:
        """Where it is, as numbers for a log."""
        here = {"round": self.round, "delta": getattr(self.now, "delta", None), "tau": getattr(self.now, "tau", None)}
        return {name: value for name, value in here.items() if value is not None}

    def about(self) -> dict[str, Any]:
        """What a checkpoint's provenance says of the round it was made in."""
        name = next((name for name, kind in METHODS.items() if isinstance(self.method, kind)), "custom")
        facts = {"rounds": self.curriculum.rounds, "round_steps": self.round_steps, "tau_product": self.tau_product}
        return {"method": name, **self.numbers(), **facts}
