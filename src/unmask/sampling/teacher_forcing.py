"""Teacher forcing: log q_u(x), the log-probability with which the sampler would have written a given text.

Given the plan u the sampler draws x_i from p(. | tokens visible when i's step starts), so log q_u(x) is a sum over
positions, and its mean over u and held-out x is the N-step NELBO: a bound on the few-step sampler's own negative
log-likelihood. Where each position is revealed is known before (locked plans), every step of every text is one view
that no other waits for: they are packed into full forwards, the head run on the positions of the step only. Adaptive
plans go step by step. Text i takes its u from the stream that sample i takes it from, so the log q that `sample`
recorded comes out again.

Refuses to know where texts come from, judges and scores. Remasking has no log q of this kind.

Shapes: T texts, L positions, W views (a text at a step), R views in a forward, M positions scored, V states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.core.streams import stream
from unmask.inference.ready import Body
from unmask.plans.grids import Grid
from unmask.plans.moves import Move, State, adaptive_moves, keep_surest
from unmask.plans.plan import Assignment, Blocks, Confidence, Plan
from unmask.processes.schedule import Schedule
from unmask.sampling import categorical
from unmask.sampling.categorical import Law

Advance = Callable[[int], None]  # told of views as they are done


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
    body: Body,
    x_TL: Tensor,
    plan: Plan,
    grid: Grid,
    schedule: Schedule,
    *,
    blank_TL: Tensor | None = None,
    law: Law | None = None,
    seed: int = 0,
    indices: Sequence[int] | None = None,
    rows: int = 8,
    advance: Advance | None = None,
) -> Forced:
    """log q_u of texts under a plan and a grid, u from the seed.

    Args:
        body: the model, prepared
        x_TL: token ids, without the mask
        plan: who is revealed together
        grid: in how many steps, and how far each goes
        schedule: the model's
        blank_TL: the positions to score; the others are given, as a prompt is (default: all)
        law: how logits become the law of a draw (default: plainly)
        seed: of the plans
        indices: the number of each text, which names its plan (default: 0, 1, 2, ...)
        rows: views in a forward
        advance: told how many views were done
    """
    law = law or Law()
    blank_TL = torch.ones_like(x_TL, dtype=torch.bool) if blank_TL is None else blank_TL
    generators = [stream(seed, "reveal", i) for i in (range(len(x_TL)) if indices is None else indices)]
    assigned = plan.assign(blank_TL, grid, schedule, generators)
    if plan.adaptive:
        return _adaptive(body, x_TL, blank_TL, plan, assigned, law, rows, advance)
    return _locked(body, x_TL, assigned, law, rows, advance)


def _locked(
    body: Body, x_TL: Tensor, assigned: Assignment, law: Law, rows: int, advance: Advance | None
) -> Forced:  # fmt: skip
    """Every view at once: text t as step k finds it."""
    step_TL = assigned.step_BL
    text_M, place_M = (step_TL >= 0).nonzero(as_tuple=True)
    view_W = torch.unique(text_M * assigned.steps + step_TL[text_M, place_M])
    log_q_TL = torch.zeros(x_TL.shape, dtype=torch.float64)
    for view_R in view_W.split(rows):
        text_R, k_R1 = view_R // assigned.steps, (view_R % assigned.steps)[:, None]
        x_RL, step_RL = x_TL[text_R], step_TL[text_R]
        z_RL = torch.where(step_RL < k_R1, x_RL, body.model.mask_id)
        argmax_R = None if assigned.argmax_step is None else k_R1[:, 0] == assigned.argmax_step
        log_q_RL = score_views(body, z_RL, x_RL, step_RL == k_R1, law, argmax_R)
        log_q_TL.index_add_(0, text_R, log_q_RL)  # 0 outside its step
        if advance:
            advance(len(view_R))
    return Forced(log_q_TL, step_TL)


def score_views(
    body: Body, z_RL: Tensor, x_RL: Tensor, scored_RL: Tensor, law: Law, argmax_R: Tensor | None = None
) -> Tensor:
    """log p(x_i | z) at the scored positions, 0 elsewhere: one forward, then the head on those positions in chunks."""
    h_ND = body.features(z_RL.to(body.device)).flatten(0, 1)
    flat_M = scored_RL.flatten().nonzero()[:, 0]
    log_p_N = torch.zeros(x_RL.numel(), dtype=torch.float64)
    for part_M in flat_M.split(body.chunk):
        logits_MV = body.logits(h_ND[part_M.to(h_ND.device)])
        argmax_M = None if argmax_R is None else argmax_R[part_M // x_RL.shape[1]]
        log_p_N[part_M] = _log_p(logits_MV, x_RL.flatten()[part_M], body.model.mask_id, law, argmax_M)
    return log_p_N.view_as(x_RL)


def _log_p(logits_MV: Tensor, x_M: Tensor, mask_id: int, law: Law, argmax_M: Tensor | None = None) -> Tensor:
    """log-probability of tokens under the law of a draw; where MDLM takes the likeliest token, a point mass on it."""
    shaped_MV = categorical.shape_logits(logits_MV, mask_id, law)
    at_M = x_M.to(shaped_MV.device)
    log_p_M = shaped_MV.gather(1, at_M[:, None])[:, 0] - shaped_MV.logsumexp(1)
    if argmax_M is not None and bool(argmax_M.any()):
        point_M = torch.where(shaped_MV.argmax(1) == at_M, 0.0, -torch.inf).to(log_p_M.dtype)
        log_p_M = torch.where(argmax_M.to(log_p_M.device), point_M, log_p_M)
    return log_p_M.cpu().double()  # no float64 on MPS


def _adaptive(
    body: Body, x_TL: Tensor, blank_TL: Tensor, plan: Plan, assigned: Assignment, law: Law, rows: int,
    advance: Advance | None,
) -> Forced:  # fmt: skip
    """Step by step: the plan chooses by the model's law at every candidate, then the text is shown there."""
    rule = plan.inner if isinstance(plan, Blocks) else plan
    assert isinstance(rule, Confidence)
    assert assigned.tie_BL is not None
    log_q_TL, step_TL = torch.zeros(x_TL.shape, dtype=torch.float64), torch.full(x_TL.shape, -1)
    for part in torch.arange(len(x_TL)).split(rows):
        x_BL = x_TL[part]
        z_BL = torch.where(blank_TL[part], body.model.mask_id, x_BL)
        state = State(z_BL, torch.zeros(x_BL.shape, dtype=torch.float64), torch.empty(0), torch.empty(0))
        share = Assignment(
            assigned.step_BL[part], assigned.block_BL[part], assigned.steps, tie_BL=assigned.tie_BL[part]
        )
        step_BL = torch.full(x_BL.shape, -1)
        for move in adaptive_moves(share, state, body.model.mask_id, rule.threshold is not None):
            if not move.reveal_M.numel():
                continue
            chosen = _choose(body, state.z_BL, x_BL, move, rule, law)
            state.z_BL.view(-1)[chosen.flat_M] = x_BL.flatten()[chosen.flat_M]
            state.log_q_BL.view(-1)[chosen.flat_M] = chosen.log_p_M
            step_BL.view(-1)[chosen.flat_M] = move.step
        log_q_TL[part], step_TL[part] = state.log_q_BL, step_BL
        if advance:
            advance(len(part) * assigned.steps)
    return Forced(log_q_TL, step_TL)


@dataclass(frozen=True)
class _Chosen:
    flat_M: Tensor
    log_p_M: Tensor


def _choose(body: Body, z_BL: Tensor, x_BL: Tensor, move: Move, rule: Confidence, law: Law) -> _Chosen:
    """The candidates that an adaptive plan reveals, and log p of the text there."""
    assert move.quota_B is not None
    assert move.tie_M is not None
    mask_id, x_M = body.model.mask_id, x_BL.flatten()[move.reveal_M]
    h_ND = body.features(z_BL[move.rows_R].to(body.device)).flatten(0, 1)
    sureties, log_ps = [], []
    for local_M, token_M in zip(move.local_M.split(body.chunk), x_M.split(body.chunk), strict=True):
        logits_MV = body.logits(h_ND[local_M.to(h_ND.device)])
        sureties.append(rule.surety(categorical.shape_logits(logits_MV, mask_id, law).log_softmax(-1)).cpu())
        log_ps.append(_log_p(logits_MV, token_M, mask_id, law))
    surety_M, log_p_M = torch.cat(sureties), torch.cat(log_ps)
    passing_M = None if rule.threshold is None else rule.passes(surety_M)
    keep_M = keep_surest(surety_M, move.reveal_M // x_BL.shape[1], move.quota_B, move.tie_M, passing_M)
    return _Chosen(move.reveal_M[keep_M], log_p_M[keep_M])
