"""Moves: what each step does to a batch, decided before the model is asked.

Locked plans know every move beforehand; adaptive ones name candidates and how many to keep; remasking ones toss
for both directions. Of processes that go by no plan: every.py.

Shapes: B sequences, L positions; flat positions M count through the (B, L) table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unmask.core.devices import to_device
from unmask.core.streams import uniforms
from unmask.plans.assignment import Assignment
from unmask.plans.confidence import TIE
from unmask.plans.grids import Grid
from unmask.plans.remask import Remask, reveal_chance
from unmask.processes.schedule import Schedule


@dataclass
class State:
    """A batch under way: on the model's device what the model reads, on the draw's what the draw needs."""

    z_BL: Tensor
    log_q_BL: Tensor
    uniform_BL: Tensor  # the noise each position's next draw uses
    nfe_B: Tensor  # on the model's device, as the rows of a move are
    rounds_B: Tensor  # there too: rounds of a step law that draws in rounds
    memory: Any = None  # a cache of keys and values for these rows (inference/cache.py)
    given_BL: Tensor | None = None  # for guidance: which tokens were given; on the model's device

    def masked_BL(self, mask_id: int) -> Tensor:
        return (self.z_BL == mask_id).cpu()


@dataclass(frozen=True)
class Move:
    """One step: positions to reveal, the rows they are in, positions to mask again.

    Positions and rows are on the model's device, quotas on the CPU; `local_M` counts through the table of those rows.
    `quota_B` and `tie_M` are for adaptive plans: of the candidates in `reveal_M` each row keeps so many, the most
    confident, of equally confident ones those with the lowest number. `gumbel_M` is the noise where they are drawn.
    """

    step: int
    steps: int
    reveal_M: Tensor
    rows_R: Tensor
    local_M: Tensor
    remask_M: Tensor | None = None
    quota_B: Tensor | None = None
    tie_M: Tensor | None = None
    gumbel_M: Tensor | None = None
    argmax: bool = False
    rank_M: Tensor | None = None  # u of each position, where a plan has one
    times: tuple[float, float] | None = None  # (t, s), for a process that draws from its posterior
    span_R3: Tensor | None = None  # on the CPU: each row, and from where to where its block has blanks; for a cache

    @classmethod
    def at(cls, step: int, steps: int, reveal_BL: Tensor, device: torch.device, **more: Any) -> Move:
        """A move from a table of what to reveal."""
        flat_M, (B, L), some_B = _flat(reveal_BL), reveal_BL.shape, reveal_BL.any(1)
        rows_R = some_B.nonzero()[:, 0]
        local_M = flat_M if len(rows_R) == B else (some_B.cumsum(0) - 1)[flat_M // L] * L + flat_M % L
        flat_M, rows_R, local_M = (to_device(part, device) for part in (flat_M, rows_R, local_M))
        return cls(step, steps, flat_M, rows_R, local_M, **more)


def _flat(where_BL: Tensor) -> Tensor:
    return where_BL.flatten().nonzero()[:, 0]


def join_moves(parts: list[tuple[Any, int, int]], rows: int, length: int, device: torch.device) -> Move:
    """Moves of several drafts as one on the table of so many rows that holds them.

    Each comes with its first row and the length of its texts: only one of a single text may be shorter than the table.
    `local_M` then counts through the positions of all texts, one after the other.
    """
    first = parts[0][0]
    if len(parts) == 1 and parts[0][1:] == (0, length) and first.reveal_M.device == device:
        return first

    def joined(name: str) -> Tensor | None:
        """A part of all moves, which draw alike: all have it, or none."""
        found = [getattr(move, name) for move, _, _ in parts]
        return None if any(part is None for part in found) else torch.cat(found)

    starts = torch.tensor([0, *(len(move.rows_R) * own for move, _, own in parts)]).cumsum(0).tolist()
    reveal = [move.reveal_M + at * length for move, at, _ in parts]
    rows_of = [move.rows_R + at for move, at, _ in parts]
    local = [move.local_M + start for (move, _, _), start in zip(parts, starts, strict=False)]
    reveal_M, rows_R, local_M = (to_device(torch.cat(each), device) for each in (reveal, rows_of, local))
    span_R3, quota_B = joined("span_R3"), None
    if span_R3 is not None:
        span_R3[:, 0] += torch.tensor([at for move, at, _ in parts for _ in range(len(move.span_R3))])
    if first.quota_B is not None:
        quota_B = torch.zeros(rows, dtype=torch.int64)
        for move, at, _ in parts:
            quota_B[at : at + len(move.quota_B)] = move.quota_B
    return replace(
        first, reveal_M=reveal_M, rows_R=rows_R, local_M=local_M, quota_B=quota_B, span_R3=span_R3,
        tie_M=joined("tie_M"), rank_M=joined("rank_M"), gumbel_M=joined("gumbel_M"),
    )  # fmt: skip


def locked_moves(assigned: Assignment, device: torch.device) -> Iterator[Move]:
    """Every step's positions and rows, read off the assignment.

    They go to the device in three transfers, before the first step: a transfer within the loop would wait for the step
    before it, and the device would stand idle while the next move is worked out.
    """
    B, L = assigned.step_BL.shape
    step_N = assigned.step_BL.flatten()
    narrow = torch.int16 if assigned.steps < 2**15 else torch.int64  # sorts by radix, ten times as fast
    order_N = step_N.to(narrow).argsort(stable=True)
    reveals_BK = torch.zeros(B, assigned.steps + 1, dtype=torch.bool).scatter_(1, assigned.step_BL + 1, True)
    local_row_BK = reveals_BK.cumsum(0) - 1  # a row's place among the rows that a step touches
    row_N = order_N // L
    local_N = local_row_BK[row_N, step_N[order_N] + 1] * L + order_N % L
    counts = torch.bincount(step_N + 1, minlength=assigned.steps + 1).tolist()
    rows_of = reveals_BK.sum(0).tolist()
    step_R, row_R = reveals_BK.T.nonzero().T
    rows = row_R.to(device).split(rows_of)
    block_BK = torch.zeros_like(reveals_BK, dtype=torch.int64).scatter_(1, assigned.step_BL + 1, assigned.block_BL)
    spans = assigned.spans(row_R, block_BK[row_R, step_R]).split(rows_of)
    ranks = [None] * len(counts) if assigned.u_BL is None else assigned.u_BL.flatten()[order_N].split(counts)
    parts = zip(order_N.to(device).split(counts), rows, local_N.to(device).split(counts), spans, ranks, strict=True)
    for step, (flat_M, rows_R, local_M, span_R3, rank_M) in enumerate(parts, start=-1):
        if step >= 0:
            yield Move(
                step, assigned.steps, flat_M, rows_R, local_M, argmax=step == assigned.argmax_step, rank_M=rank_M,
                span_R3=span_R3,
            )  # fmt: skip


def adaptive_moves(
    assigned: Assignment, state: State, mask_id: int, by_threshold: bool, device: torch.device
) -> Iterator[Move]:
    """Candidates: the masked positions of a step's block; with a threshold, of the first unfinished block."""
    assert assigned.tie_BL is not None
    last = torch.iinfo(torch.int64).max
    for step in range(assigned.steps):
        masked_BL = state.masked_BL(mask_id)
        if by_threshold:
            block_B1 = assigned.block_BL.masked_fill(~masked_BL, last).amin(1, keepdim=True)
            quota_B = torch.ones(len(masked_BL), dtype=torch.int64)
        else:
            now_BL = assigned.step_BL == step
            quota_B = now_BL.sum(1)
            block_B1 = assigned.block_BL.masked_fill(~now_BL, -1).amax(1, keepdim=True)
        candidate_BL = masked_BL & (assigned.block_BL == block_B1)
        row_R = candidate_BL.any(1).nonzero()[:, 0]
        more = {"tie_M": assigned.tie_BL[candidate_BL], "span_R3": assigned.spans(row_R, block_B1[row_R, 0])}
        if assigned.noise:
            more["gumbel_M"] = -(-uniforms(assigned.noise, candidate_BL.shape[1])[candidate_BL].log()).log()
        yield Move.at(step, assigned.steps, candidate_BL, device, quota_B=quota_B, **more)
        if by_threshold and not bool(state.masked_BL(mask_id).any()):
            return


def keep_most_confident(
    confidence_M: Tensor, row_M: Tensor, quota_B: Tensor, tie_M: Tensor, passing_M: Tensor | None
) -> Tensor:
    """Which candidates to reveal: of each row the `quota` most confident ones, and all that pass.

    Whoever is within TIE of the last one that fits ties with it, and of those the lowest in `tie` go first.
    """
    by_confidence = confidence_M.argsort(descending=True, stable=True)
    order = by_confidence[row_M[by_confidence].argsort(stable=True)]  # rows together, the most confident first in each
    counts_B = torch.bincount(row_M, minlength=len(quota_B))
    start_B = counts_B.cumsum(0) - counts_B
    last_B = start_B + quota_B.minimum(counts_B).clamp(min=1) - 1  # the place of the last one that fits
    ahead_M = confidence_M - confidence_M[order][last_B.clamp(max=len(order) - 1)][row_M]
    class_M = torch.where(ahead_M.abs() < TIE, 1, torch.where(ahead_M > 0, 0, 2))  # surely in, tied, out
    by_tie = tie_M.argsort(stable=True)
    by_class = by_tie[class_M[by_tie].argsort(stable=True)]
    order = by_class[row_M[by_class].argsort(stable=True)]
    keep_M = torch.zeros_like(row_M, dtype=torch.bool)
    keep_M[order] = torch.arange(len(row_M)) - start_B[row_M[order]] < quota_B[row_M[order]]
    return keep_M if passing_M is None else keep_M | passing_M


def remasking_moves(
    remask: Remask, grid: Grid, schedule: Schedule, blank_BL: Tensor, state: State, mask_id: int,
    generators: list[torch.Generator], device: torch.device,
) -> Iterator[Move]:  # fmt: skip
    """From t to s every masked blank is revealed, and every visible one masked again, each by its own coin."""
    L = blank_BL.shape[1]
    gammas = schedule.gamma(torch.tensor(grid.times, dtype=torch.float64)).tolist()
    first = gammas[0]
    visible_share = [(gamma - first) / (1 - first) for gamma in gammas]  # sampling starts all masked
    steps = grid.steps + grid.argmax_tail
    for step in range(steps):
        masked_BL = state.masked_BL(mask_id)
        visible_BL = blank_BL & ~masked_BL
        if step == grid.steps:
            yield Move.at(step, steps, masked_BL, device, argmax=True)
            return
        gamma_t, gamma_s = visible_share[step], visible_share[step + 1]
        coin_3BL = torch.stack([torch.rand(3, L, generator=g, dtype=torch.float64) for g in generators], dim=1)
        state.uniform_BL.copy_(coin_3BL[2])
        sigma = remask.sigma(gamma_t, gamma_s, visible_BL, state.log_q_BL.exp().cpu())
        sigma_of_masked = torch.zeros(()) if remask.rule == "confidence" else sigma  # as published, see remask.py
        chance = reveal_chance(gamma_t, gamma_s, sigma_of_masked)
        reveal_BL = masked_BL & (coin_3BL[0] < chance)
        lost_M = _flat(visible_BL & (coin_3BL[1] < sigma))
        yield Move.at(step, steps, reveal_BL, device, remask_M=lost_M)
