"""What every distillation method has: a frozen teacher, the temperature of its target, a plan; and its rounds.

A method is an objective for one round. `at(round, curriculum, teacher)` is the same method in another round: the rounds
code asks for one after the other, the engine trains on each.

Shapes: B sequences, L positions, T = batch.total rows of the global batch, N chosen positions (flat, through (B, L)),
C of them in a piece, D features, W columns of logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from unmask.checkpoint.io import Checkpoint
from unmask.core.devices import to_device
from unmask.core.errors import UserError
from unmask.models.denoiser import Denoiser, states_of
from unmask.objectives.base import (
    DISTIL,
    IDENTITY,
    RECONSTRUCT,
    Batch,
    LossOutput,
    keep_given,
    positions_where,
)
from unmask.objectives.distil.curriculum import Curriculum
from unmask.objectives.distil.teacher import Teacher
from unmask.objectives.divergences import DIVERGENCES, compare
from unmask.objectives.head_loss import Score, compiled, loss_at
from unmask.plans.plan import draw_u, locked_plan
from unmask.processes import Pair, Process
from unmask.processes.process import condition_at

Self = TypeVar("Self", bound="Distillation")
Source = Checkpoint | Denoiser | Teacher


@dataclass(frozen=True, eq=False)
class Distillation(ABC):
    """The settings that all methods share.

    Args:
        teacher: a checkpoint or model to learn from; it is copied and frozen as it is now
        tau: temperature of the teacher's target; below 1 the target is sharper than the teacher
        plan: the law of u, so that a student can be distilled along the trajectories that it will be sampled on
        plan_steps: the number of sampling steps, for a plan that is made for one number (stride, comb, rotation); of
            two numbers each text draws its own between them, evenly by its logarithm
        process: by default the teacher's
    """

    teacher: Source
    _: KW_ONLY
    tau: float = 1.0
    plan: str = "iid"
    plan_steps: int | Sequence[int] | None = None
    process: Process | None = None

    regions: ClassVar[tuple[str, ...]] = ("distil", "reconstruct")
    curriculum: ClassVar[Curriculum] = Curriculum(tau_start=1.0, tau_drop=0.0)

    def __post_init__(self) -> None:
        if not self.tau > 0:
            raise UserError(f"tau is the temperature of the teacher's target: above 0, not {self.tau}")
        plan = locked_plan(self.plan)
        if self.plan_steps is not None and not plan.for_steps:
            raise UserError(
                "plan_steps is for a plan made for one number of steps (stride, comb, rotation): leave it out of "
                f"{self.plan}"
            )
        least, most = self._steps or (1, 1)
        if not 1 <= least <= most:
            raise UserError(f"plan_steps is a number of sampling steps, or the least and the most: at least 1, not "
                            f"{self.plan_steps}")  # fmt: skip
        teacher = Teacher.of(self.teacher)
        object.__setattr__(self, "teacher", teacher)
        object.__setattr__(self, "process", self.process or teacher.process)

    @property
    @abstractmethod
    def forwards(self) -> float:
        """What a step costs, in forward passes of the student."""

    @abstractmethod
    def __call__(self, student: Denoiser, batch: Batch, *, step: int, generator: torch.Generator) -> LossOutput:
        """The loss of one micro-batch."""

    @abstractmethod
    def at(self: Self, round: int, curriculum: Curriculum, teacher: Source) -> Self:
        """The same method in another round (the first is 1), with the student so far as its teacher."""

    def compile(self) -> None:
        """Compile what belongs to the method: the teacher's body, and the loss of a piece of logits."""
        self._frozen.compile()

    @property
    def _steps(self) -> tuple[int, int] | None:
        """The least and the most steps that the plan is made for, where the user says them."""
        said = (self.plan_steps,) if isinstance(self.plan_steps, int) else self.plan_steps
        if said is not None and len(said) not in (1, 2):
            raise UserError(f"plan_steps is one number of sampling steps, or the least and the most, not {list(said)}")
        return None if said is None else (said[0], said[-1])

    @property
    def _frozen(self) -> Teacher:
        assert isinstance(self.teacher, Teacher)
        return self.teacher

    @property
    def _process(self) -> Process:
        assert self.process is not None
        return self.process

    def _noise(self, batch: Batch, steps: int | None, generator: torch.Generator, student: Denoiser) -> Tensor:
        """The noise of the whole global batch, (T, L, ...) on the CPU. `steps`: where the user gives no plan_steps."""
        shape, ends = (batch.total, batch.tokens_BL.shape[1]), self._steps
        if ends is None or ends[0] == ends[1]:
            u_TL = draw_u(shape, self.plan, generator=generator, steps=ends[0] if ends else steps)
        else:
            u_TL = draw_u_between(shape, self.plan, *ends, generator)
        return keep_given(self._process.noise(u_TL, states_of(student), generator), batch, self._process)

    def _loss_of(
        self, student: Denoiser, x0_BL: Tensor, pair: Pair, score_of: Callable[[Tensor, Tensor], Score],
        weight_BL: Tensor | None = None, scale: float = 1.0,
    ) -> LossOutput:  # fmt: skip
        """The student's loss on z_t: first where the teacher's law is the target, then where the token itself is.

        `score_of`: of the teacher's features at the first and of the tokens at all of them; a piece lies among the
        first or behind them. `weight_BL`, on the CPU: of every position; None: alike.
        """
        device, distil_D, reconstruct_R = x0_BL.device, positions_where(pair.distil), positions_where(pair.reconstruct)
        counts, chosen_N = (len(distil_D), len(reconstruct_R)), to_device(torch.cat([distil_D, reconstruct_R]), device)
        taught_BLD = self._frozen.features(pair.z_s, condition_at(self._process, pair.s, device), x0_BL)
        target_ND = taught_BLD.flatten(0, 1).index_select(0, chosen_N[: counts[0]])
        weight_BL = to_device((pair.scored if weight_BL is None else weight_BL).float(), device)
        loss_BL = loss_at(
            student, pair.z_t, chosen_N, score_of(target_ND, x0_BL.flatten()[chosen_N]), counts=counts, x0_BL=x0_BL,
            weight_N=weight_BL.flatten()[chosen_N], time_B=condition_at(self._process, pair.t, device),
        )  # fmt: skip
        region_BL = torch.where(pair.distil, DISTIL, torch.where(pair.reconstruct, RECONSTRUCT, IDENTITY))
        return LossOutput(scale * loss_BL, weight_BL, to_device(region_BL.to(torch.int8), device))

    def _fused(self, function: Any) -> Any:
        return compiled(function) if self._frozen.compiled else function

    def _against(self, target_ND: Tensor, divergence: str) -> Score:
        """The loss of a piece: a divergence from what the teacher's head makes of its features."""
        teacher, run = self._frozen, self._fused(compare)
        return lambda logits_CW, part: run(
            DIVERGENCES[divergence], logits_CW, teacher.logits(target_ND[part], logits_CW.shape[1]), self.tau
        )


def draw_u_between(shape: tuple[int, int], plan: str, least: int, most: int, generator: torch.Generator) -> Tensor:
    """u_TL of a plan made for a number of steps N, each text's own: log N is uniform, least <= N <= most."""
    share_T = torch.rand(shape[0], generator=generator, dtype=torch.float64)
    steps_T = (least * ((most + 1) / least) ** share_T).long().clamp(max=most)
    u_TL = torch.empty(shape, dtype=torch.float64)
    for steps in steps_T.unique().tolist():
        here_T = steps_T == steps
        u_TL[here_T] = draw_u((int(here_T.sum()), shape[1]), plan, generator=generator, steps=steps)
    return u_TL


def check_gap(delta: float) -> None:
    if not 0 <= delta < 1:
        raise UserError(f"delta is a gap in time: 0 <= delta < 1, not {delta}")


def steps_of_gap(delta: float) -> int | None:
    """How many jumps of delta lead from all masked to clean: the sampling steps a student of this gap is meant for."""
    return round(1 / delta) if delta else None
