"""Teacher forcing: log q_u(x), the log-probability with which the sampler would have written a given text.

Given the plan u a step draws its tokens from the step law given what is visible when the step starts, so log q_u(x) is
a sum over steps, and its mean over u and held-out x is the N-step NELBO: a bound on the few-step sampler's own negative
log-likelihood. Where each position is revealed is known before (locked plans), every step of every text is one view
that no other waits for: they are packed into full forwards, the head run on the positions of the step only. Adaptive
plans go step by step. Text i takes its u from the stream that sample i takes it from, so the log q that `sample`
recorded comes out again. Remasking has no log q of this kind.

Shapes: T texts, L positions, W views (a text at a step), R views in a forward, M positions scored, V states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.core.streams import stream
from unmask.inference import categorical
from unmask.inference.categorical import Law
from unmask.inference.ready import Ready
from unmask.inference.step_law import Factorised, Step, StepLaw
from unmask.plans.assignment import Assignment
from unmask.plans.grids import Grid
from unmask.plans.moves import State, adaptive_moves
from unmask.plans.plan import Plan, by_threshold
from unmask.processes.schedule import Schedule
from unmask.sampling.drafts import choose

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Forced:
    """Of every token, log q under the law the sampler draws it from and the step that draws it; 0 and -1 where given.

    log q is -inf where the law rules the text out: beyond top-p or top-k, or in MDLM's argmax tail.
    """

    log_q_TL: Tensor  # float64
    step_TL: Tensor  # int64

    @property
    def nats_T(self) -> Tensor:
        """-log q_u(x) of each text, in nats per token that was not given."""
        return -self.log_q_TL.sum(1) / (self.step_TL >= 0).sum(1)

    @property
    def nfe_T(self) -> Tensor:
        """Steps that reveal something, which are the forwards the sampler would have run."""
        step_TL = self.step_TL.sort(dim=1).values
        return (step_TL[:, 1:] != step_TL[:, :-1]).sum(1) + 1 - (step_TL[:, 0] < 0).long()


@torch.inference_mode()
def teacher_force(
    ready: Ready, x_TL: Tensor, plan: Plan, grid: Grid, schedule: Schedule, *, step_law: StepLaw | None = None,
    blank_TL: Tensor | None = None, law: Law | None = None, seed: int = 0, indices: Sequence[int] | None = None,
    rows: int = 8, advance: Advance | None = None,
) -> Forced:  # fmt: skip
    """log q_u of texts under a plan and a grid, u from the seed and the number of each text (default: 0, 1, 2, ...).

    Only the positions in `blank_TL` are scored (default: all); the others are given, as a prompt is.
    `rows` views go into a forward; `advance` is given the number of views that were done.
    """
    assert ready.states.mask is not None, "only a process with a mask goes by a plan"
    forcing = _Forcing(ready, ready.states.mask, step_law or Factorised(), law or Law(), rows, advance)
    blank_TL = torch.ones_like(x_TL, dtype=torch.bool) if blank_TL is None else blank_TL
    generators = [stream(seed, "reveal", i) for i in (range(len(x_TL)) if indices is None else indices)]
    assigned = plan.assign(blank_TL, grid, schedule, generators)
    return forcing.adaptive(x_TL, blank_TL, plan, assigned) if plan.rule else forcing.locked(x_TL, assigned)


@dataclass(frozen=True)
class _Forcing:
    """What stays the same from view to view."""

    ready: Ready
    mask_id: int
    step_law: StepLaw
    law: Law
    rows: int
    advance: Advance | None

    def locked(self, x_TL: Tensor, assigned: Assignment) -> Forced:
        """Every view at once: text t as step k finds it."""
        step_TL = assigned.step_BL
        text_M, place_M = (step_TL >= 0).nonzero(as_tuple=True)
        view_W = torch.unique(text_M * assigned.steps + step_TL[text_M, place_M])
        log_q_TL = torch.zeros(x_TL.shape, dtype=torch.float64)
        for view_R in view_W.split(self.rows):
            text_R, k_R1 = view_R // assigned.steps, (view_R % assigned.steps)[:, None]
            x_RL, step_RL = x_TL[text_R], step_TL[text_R]
            z_RL = torch.where(step_RL < k_R1, x_RL, self.mask_id)
            argmax_R = None if assigned.argmax_step is None else k_R1[:, 0] == assigned.argmax_step
            u_RL = None if assigned.u_BL is None else assigned.u_BL[text_R]
            h_ND = self.ready.features(z_RL.to(self.ready.device)).flatten(0, 1)
            log_q_RL = score_features(self.ready, h_ND, x_RL, step_RL == k_R1, self.law, self.step_law, argmax_R, u_RL)
            log_q_TL.index_add_(0, text_R, log_q_RL)  # 0 outside its step
            if self.advance:
                self.advance(len(view_R))
        return Forced(log_q_TL, step_TL)

    def adaptive(self, x_TL: Tensor, blank_TL: Tensor, plan: Plan, assigned: Assignment) -> Forced:
        """Step by step: the plan chooses by the model's law at every candidate, then the text is shown there."""
        assert assigned.tie_BL is not None
        log_q_TL, step_TL = torch.zeros(x_TL.shape, dtype=torch.float64), torch.full(x_TL.shape, -1)
        for part in torch.arange(len(x_TL)).split(self.rows):
            z_BL = torch.where(blank_TL[part], self.mask_id, x_TL[part])
            share = replace(
                assigned, step_BL=assigned.step_BL[part], block_BL=assigned.block_BL[part],
                tie_BL=assigned.tie_BL[part], noise=assigned.noise[part[0] : part[-1] + 1],
            )  # fmt: skip
            log_q_TL[part], step_TL[part] = self._adaptive_batch(x_TL[part], z_BL, plan, share)
            if self.advance:
                self.advance(len(part) * assigned.steps)
        return Forced(log_q_TL, step_TL)

    def _adaptive_batch(self, x_BL: Tensor, z_BL: Tensor, plan: Plan, assigned: Assignment) -> tuple[Tensor, Tensor]:
        """(log q, step) of each position of one batch."""
        state = State(z_BL, torch.zeros(x_BL.shape, dtype=torch.float64), *[torch.empty(0)] * 3)
        step_BL = torch.full(x_BL.shape, -1)
        for move in adaptive_moves(assigned, state, self.mask_id, by_threshold(plan), z_BL.device):
            if not move.reveal_M.numel():
                continue
            h_ND = self.ready.features(state.z_BL[move.rows_R].to(self.ready.device)).flatten(0, 1)
            local_M = move.local_M.to(h_ND.device)
            step = Step(self.ready, h_ND, local_M, move.reveal_M.to(h_ND.device), x_BL.shape[1], self.law)
            keep_M = choose(plan.rule, step, move)
            flat_M = move.reveal_M[keep_M]
            kept = step.chosen(keep_M.nonzero()[:, 0].to(h_ND.device))
            state.log_q_BL.view(-1)[flat_M] = self.step_law.log_prob(kept, x_BL.flatten()[flat_M])
            state.z_BL.view(-1)[flat_M] = x_BL.flatten()[flat_M]
            step_BL.view(-1)[flat_M] = move.step
        return state.log_q_BL, step_BL


def score_features(
    ready: Ready, h_ND: Tensor, x_RL: Tensor, scored_RL: Tensor, law: Law, step_law: StepLaw | None = None,
    argmax_R: Tensor | None = None, u_RL: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """log q(x_i | z) at the scored positions, 0 elsewhere, from the features of N = R L positions.

    Where MDLM takes the likeliest token (`argmax_R`), the law is a point mass on it.
    """
    flat_M = scored_RL.flatten().nonzero()[:, 0]
    at_M, token_M = flat_M.to(h_ND.device), x_RL.flatten()[flat_M]
    rank_M = None if u_RL is None else u_RL.flatten()[flat_M]
    step = Step(ready, h_ND, at_M, at_M, x_RL.shape[1], law, rank_M=rank_M)
    log_p_N = torch.zeros(x_RL.numel(), dtype=torch.float64)
    log_p_N[flat_M] = (step_law or Factorised()).log_prob(step, token_M)
    if argmax_R is not None and bool(argmax_R.any()):
        drawn = categorical.join([categorical.argmax(step.logits(p), ready.states.mask, law) for p in step.parts()])
        point_M = torch.where(drawn.token_M.cpu() == token_M, 0.0, -torch.inf).double()
        log_p_N[flat_M] = torch.where(argmax_R[flat_M // x_RL.shape[1]], point_M, log_p_N[flat_M])
    return log_p_N.view_as(x_RL)
