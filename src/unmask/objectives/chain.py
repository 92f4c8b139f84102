"""The chain: a causal head learns, beside a frozen body, the joint law of the tokens that one step reveals.

NELBO_N = E_k [ N · sum over the i that step k of N reveals of -log q(x_i | z_k, the x_j of this step before i) ]

Every text draws its plan and its k; N goes round from one optimiser step to the next. So the mean is that of the N-step
NELBOs a token over the plans and numbers of steps. The body runs once, without gradients; the vocabulary head is the
body's own, frozen.

With `teacher_steps` the x_i of step k are not the text's but what the body itself draws there in so many steps, from
the text around them. Its steps are cut from the same u, as the two views of MCD are; so the head learns the joint law
of many steps.

Shapes: B sequences, L positions, T = batch.total rows of the global batch, M positions that carry loss (flat, through
(B, L)), C of them in a piece, S slots, D features, W columns of logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from unmask.core.devices import to_device
from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.data.loader import Batch as Held
from unmask.inference.ready import draw_device
from unmask.models.chain import ChainHead, certainty, in_slots, token_table
from unmask.models.denoiser import MASK_LOGIT, check_whole_numbers, states_of
from unmask.models.family import plain
from unmask.objectives.base import IDENTITY, RECONSTRUCT, Batch, LossOutput, positions_where, rows_of
from unmask.objectives.distil.base import Source
from unmask.objectives.distil.teacher import Teacher
from unmask.objectives.divergences import cross_entropy
from unmask.objectives.head_loss import Fusible, piece_sizes
from unmask.plans.grids import assign_steps, make_grid
from unmask.plans.plan import PLANS, draw_u, locked_plan
from unmask.processes import Process
from unmask.processes.masked import hide
from unmask.processes.schedule import stratified

USUAL_PLANS = tuple(name for name in ("golden", "stride", "permutation", "comb") if name in PLANS)
USUAL_STEPS = (2, 4, 8, 16)


@dataclass(frozen=True, eq=False)
class Chaining(Fusible):
    """The N-step NELBO of a frozen body with a chain.

    Args:
        teacher: the body: a checkpoint or a model
        plans: of which each text takes one
        steps: numbers of steps; each optimiser step takes the next one of them
        teacher_steps: learn what the teacher draws in so many steps at the positions of a step; None: learn the text
        process: by default the teacher's
    """

    teacher: Source
    _: KW_ONLY
    plans: tuple[str, ...] = USUAL_PLANS
    steps: tuple[int, ...] = USUAL_STEPS
    teacher_steps: int | None = None
    process: Process | None = None

    forwards: ClassVar[float] = 3
    regions: ClassVar[tuple[str, ...]] = ("reconstruct",)

    def __post_init__(self) -> None:
        for plan in self.plans:
            locked_plan(plan)
        if not self.plans or not self.steps or min(self.steps) < 1:
            raise UserError("a chain is trained on at least one plan, in at least one step")
        if self.teacher_steps is not None:
            check_whole_numbers(self, "teacher_steps")
        teacher = Teacher.of(self.teacher)
        object.__setattr__(self, "teacher", teacher)
        object.__setattr__(self, "process", self.process or teacher.process)
        if not teacher.process.by_plan or teacher.model.mask_id is None:
            raise UserError(f"a chain is for a process that goes by a plan, not for {teacher.process.name}")
        token_table(plain(teacher.model))

    def compile(self) -> None:
        """Compile the body, and the loss of a piece of logits."""
        super().compile()
        self._body.compile()

    @property
    def _body(self) -> Teacher:
        assert isinstance(self.teacher, Teacher)
        return self.teacher

    def __call__(self, student: Any, batch: Batch, *, step: int, generator: torch.Generator) -> LossOutput:
        return self.loss(student, batch, self.steps[step % len(self.steps)], generator)

    def loss(self, student: ChainHead, batch: Batch, N: int, generator: torch.Generator) -> LossOutput:
        """The loss of one step of N in every text."""
        x0_BL, body, device = batch.tokens_BL, self._body, batch.tokens_BL.device
        step_BL, now_B1, u_BL = self._views(batch, N, generator)
        scored_BL, z_BL = step_BL == now_B1, hide(x0_BL, step_BL >= now_B1, states_of(body.model))
        h_ND = self._features(student, z_BL).flatten(0, 1)
        flat_M = positions_where(scored_BL)
        if self.teacher_steps:
            uniform_TL = torch.rand(batch.total, x0_BL.shape[1], generator=generator, dtype=torch.float64)
            x0_BL = self.taught(z_BL, x0_BL, scored_BL, u_BL, uniform_TL[rows_of(batch)])
        slots = in_slots(flat_M // x0_BL.shape[1], self._rank(student, h_ND, flat_M, u_BL))
        where_RS = flat_M[slots.which_RS]
        at_RS, chosen_M = to_device(where_RS, device), to_device(where_RS[slots.real_RS], device)
        vector_RSE = token_table(plain(body.prepared(device).model))(x0_BL.flatten()[at_RS]).detach()
        h_RSD = h_ND[at_RS]
        h_RSD = h_RSD + student(h_RSD, vector_RSE, at_RS % x0_BL.shape[1])
        h_MD = h_RSD.flatten(0, 1).index_select(0, to_device(positions_where(slots.real_RS), device))
        nll_M = self._nll(h_MD, x0_BL.flatten()[chosen_M])
        loss_BL = nll_M.new_zeros(x0_BL.numel()).index_put((chosen_M,), N * nll_M).view_as(x0_BL)
        region_BL = torch.where(scored_BL, RECONSTRUCT, IDENTITY).to(torch.int8)
        return LossOutput(loss_BL, torch.ones_like(loss_BL), to_device(region_BL, device))

    def scorer(self, student: ChainHead, first: Batch) -> Callable[[Tensor, slice], Tensor]:
        """For an evaluation: a function of texts and their places among all, nats a token of each; N of all kinds."""
        total, length = first.total, first.tokens_BL.shape[1]
        text = replace(self, teacher_steps=None) if self.teacher_steps else self

        def score(x0_BL: Tensor, places: slice) -> Tensor:
            batch = Held(x0_BL, places.start, total)
            losses = [text.loss(student, batch, N, stream(0, "evaluate", N)).loss_BL.sum(1) for N in self.steps]
            return torch.stack(losses).mean(0) / length

        return score

    def _views(self, batch: Batch, N: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """(the step of every position, the step that is scored, u), on the CPU, drawn for the whole global batch."""
        rows, L, T = rows_of(batch), batch.tokens_BL.shape[1], batch.total
        assert self.process is not None
        which_T = torch.randint(len(self.plans), (T,), generator=generator)
        now_T = (stratified(T, generator) * N).long().clamp(max=N - 1)
        u_TL = torch.empty(T, L, dtype=torch.float64)
        step_TL = torch.empty(T, L, dtype=torch.int64)
        for number, name in enumerate(self.plans):
            chosen_C = (which_T == number).nonzero()[:, 0]
            u_CL = u_TL[chosen_C] = draw_u((len(chosen_C), L), name, generator=generator, steps=N)
            blank_CL = torch.ones(u_CL.shape, dtype=torch.bool)
            cells = locked_plan(name).cells(N)
            step_TL[chosen_C] = assign_steps(u_CL, blank_CL, make_grid("rank", N), self.process.schedule, cells)
        return step_TL[rows], now_T[rows, None], u_TL[rows]

    def _features(self, student: ChainHead, z_BL: Tensor) -> Tensor:
        return self._body.features(z_BL)

    @torch.no_grad()
    def taught(self, z_BL: Tensor, x0_BL: Tensor, scored_BL: Tensor, u_BL: Tensor, uniform_BL: Tensor) -> Tensor:
        """The text with what the teacher draws at the positions of a step, in `teacher_steps` steps of equal counts."""
        body, device = self._body, z_BL.device
        assert self.process is not None
        assert self.teacher_steps is not None
        when_BL = assign_steps(u_BL, scored_BL, make_grid("rank", self.teacher_steps), self.process.schedule)
        z_BL, place = z_BL.clone(), draw_device(device)
        for now in range(self.teacher_steps):
            flat_M = positions_where(when_BL == now)
            at_M, uniform_M = to_device(flat_M, device), to_device(uniform_BL.flatten()[flat_M], place)
            h_ND = body.features(z_BL).flatten(0, 1)
            z_BL.view(-1)[at_M] = body.draw(h_ND, at_M, z_BL.shape[1], uniform_M).to(device)
        return torch.where(to_device(scored_BL, device), z_BL, x0_BL)

    def _rank(self, student: ChainHead, h_ND: Tensor, flat_M: Tensor, u_BL: Tensor) -> Tensor | None:
        """What the order of the slots goes by."""
        order = student.config.order
        if order == "confidence":
            chosen_M = to_device(flat_M, h_ND.device)
            sizes = piece_sizes(self._body.model, h_ND.device, len(flat_M))
            parts = [certainty(self._body.logits(h_ND[part])) for part in chosen_M.split(sizes)]
            return torch.cat(parts).neg().cpu()
        return u_BL.flatten()[flat_M] if order == "plan" else None

    def _nll(self, h_MD: Tensor, token_M: Tensor) -> Tensor:
        """-log p of tokens from corrected features."""
        sizes = piece_sizes(self._body.model, h_MD.device, len(token_M))
        ready, run = self._body.prepared(h_MD.device), self.fused(cross_entropy)
        states = states_of(self._body.model)
        nll_M: Tensor = _FrozenHeadLoss.apply(h_MD, token_M, ready, states, run, sizes)
        return nll_M


class _FrozenHeadLoss(torch.autograd.Function):
    """-log p of tokens under a head that is not trained, piece by piece: what is kept is as small as the features."""

    @staticmethod
    def forward(
        ctx: Any, h_MD: Tensor, token_M: Tensor, ready: Any, states: Any, run: Callable[..., Any], sizes: list[int]
    ) -> Tensor:
        grad_MD, nll_M, start = torch.empty_like(h_MD), h_MD.new_empty(len(h_MD), dtype=torch.float32), 0
        for size in sizes:
            part = slice(start, start := start + size)
            leaf_CD = h_MD[part].detach().requires_grad_(True)
            with torch.enable_grad(), ready.precision():
                logits_CW = ready.head(leaf_CD)
            table_CW = logits_CW.detach().clone()
            table_CW[:, states.size :].fill_(MASK_LOGIT)
            if states.mask is not None:
                table_CW[:, states.mask].fill_(MASK_LOGIT)
            scored = run(table_CW, token_M[part])
            nll_M[part] = scored.loss_C
            (grad_MD[part],) = torch.autograd.grad(logits_CW, leaf_CD, scored.slope_CV)
        ctx.save_for_backward(grad_MD)
        return nll_M

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad_MD,) = ctx.saved_tensors
        return grad_MD * grads[0][:, None].to(grad_MD.dtype), None, None, None, None, None
