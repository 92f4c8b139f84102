"""The sampler: at each step run the body once, and the head and the draw only on the positions that the step draws.

Where the process goes by a plan, u is drawn first and says when every position is revealed; other processes draw all
blank positions at every step. Pictures, streams and progress come in through a callback. Sample number i draws the same
noise from the same seed whatever the batch size or the number of processes.

Shapes: B sequences of a batch, R of them in a forward, L positions, M positions drawn, D features, V states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.checkpoint.io import Checkpoint
from unmask.core import provenance
from unmask.core.errors import UserError
from unmask.core.ranks import Ranks
from unmask.core.streams import seed_of, stream
from unmask.inference import categorical
from unmask.inference.categorical import Law
from unmask.inference.ready import Ready, usual_batch
from unmask.inference.step_law import Step, StepLaw, step_law_to_json
from unmask.plans.grids import Grid
from unmask.plans.moves import (
    Move,
    State,
    adaptive_moves,
    every_move,
    keep_most_confident,
    locked_moves,
    remasking_moves,
)  # fmt: skip
from unmask.plans.plan import Plan, by_threshold, make_plan
from unmask.plans.remask import Remask
from unmask.processes.process import process_to_json
from unmask.sampling.ancestral import ancestral, masked_shares
from unmask.sampling.samples import Samples, StepView

LEGACY = "legacy_fp32"
Callback = Callable[[StepView], None]
Finished = Callable[[Samples, list[int]], None]  # a batch of this process that is done, and the numbers of its samples


def start_run(
    checkpoint: Checkpoint, ready: Ready, *, plan: str | Plan | None, grid: Grid, law: Law | None = None
) -> Run:
    """The loop by itself on a model made ready before, for measurements."""
    made = None if plan is None else make_plan(plan)
    return Run(How(checkpoint, made, grid, None, law or Law(), False, 0, checkpoint.step_law, None), ready)


@dataclass(frozen=True)
class How:
    """Everything that is asked for."""

    checkpoint: Checkpoint
    plan: Plan | None
    grid: Grid
    remask: Remask | None
    law: Law
    legacy: bool
    seed: int
    step_law: StepLaw
    callback: Callback | None

    def check(self) -> None:
        """Options that exclude one another."""
        name, law = self.plan.name if self.plan else None, self.law
        other = self.remask or law.top_p < 1 or law.top_k or self.step_law.name != "factorised"
        if self.legacy and (name != "iid" or self.grid.name != "mdlm" or other):
            raise UserError(f"{LEGACY} is the published algorithm as it stands: take plan iid, grid mdlm, and no "
                            "remask, top_p, top_k or other step law")  # fmt: skip
        if self.remask is not None and (name != "iid" or self.grid.by != "time"):
            raise UserError("remasking goes position by position: take plan iid and the grid uniform, cosine or mdlm")


@dataclass(frozen=True)
class Row:
    """One finished sample."""

    index: int
    tokens_L: Tensor
    log_q_L: Tensor
    nfe: int
    drawn_in: str

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "tokens_L": self.tokens_L.tolist(), "log_q_L": self.log_q_L.tolist()}

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> Row:
        log_q_L = torch.tensor(said["log_q_L"], dtype=torch.float64)
        return cls(**{**said, "tokens_L": torch.tensor(said["tokens_L"]), "log_q_L": log_q_L})


class Run:
    """The loop, on a model that is ready."""

    def __init__(self, how: How, ready: Ready) -> None:
        self.how, self.ready = how, ready
        self.process, self.mask_id = how.checkpoint.process, ready.states.mask

    def all(
        self, wanted: list[Tensor], batch: int | None, ranks: Ranks, report: Callable[[list[Row]], None]
    ) -> list[Row]:
        """This process's share, batches of equal length together; then everybody's, in order."""
        size = batch or usual_batch(self.ready.model, self.ready.device)
        by_length: dict[int, list[int]] = {}
        for index in range(ranks.rank, len(wanted), ranks.world):
            by_length.setdefault(len(wanted[index]), []).append(index)
        rows: list[Row] = []
        for indices in by_length.values():
            for start in range(0, len(indices), size):
                part = indices[start : start + size]
                rows += self.batch(part, torch.stack([wanted[index] for index in part]))
                report(rows[-len(part) :])
        if ranks.world > 1:
            shares = ranks.gather([row.to_json() for row in rows])
            rows = [Row.from_json(row) for share in shares for row in share]
        return sorted(rows, key=lambda row: row.index)

    @torch.inference_mode()
    def batch(self, indices: list[int], given_BL: Tensor) -> list[Row]:
        """The loop: for every step a move, one forward of the rows it touches, head and draw where it draws."""
        blank_BL = given_BL < 0
        self.ready.expect(*given_BL.shape)  # a step may touch fewer rows
        state = self._start(indices, given_BL)
        drawn_in = LEGACY if self.how.legacy else ""
        for move in self._moves(indices, blank_BL, state):
            if move.reveal_M.numel():
                drawn_in = self._draw(state, move)
            if move.remask_M is not None:
                assert self.mask_id is not None
                state.z_BL.view(-1)[move.remask_M.to(state.z_BL.device)] = self.mask_id
                state.log_q_BL.view(-1)[move.remask_M.to(state.log_q_BL.device)] = 0
            if self.how.callback:
                now_BL = state.z_BL.to("cpu", copy=True)
                self.how.callback(StepView(move.step + 1, move.steps, now_BL, ~blank_BL, tuple(indices), self.mask_id))
        z_BL, log_q_BL, nfe = state.z_BL.cpu(), state.log_q_BL.cpu(), state.nfe_B.tolist()
        assert self.mask_id is None or not bool(z_BL.eq(self.mask_id).any()), "a position was never revealed"
        if not (self.how.legacy or bool(torch.isfinite(log_q_BL).all())):
            raise UserError("the model gave a law that is not finite: its weights are damaged, or too large for "
                            f"{self.ready.precision}; take another checkpoint, or precision fp32")  # fmt: skip
        if not self.process.by_plan:
            log_q_BL.fill_(torch.nan)  # what was drawn is a path; the law of the text alone is not known
        return [Row(i, z_BL[b], log_q_BL[b], nfe[b], drawn_in) for b, i in enumerate(indices)]

    def _start(self, indices: list[int], given_BL: Tensor) -> State:
        """Nothing drawn yet; the noise of every sample from its own stream."""
        B, L = given_BL.shape
        noise = [torch.rand(L, generator=stream(self.how.seed, "draw", i), dtype=torch.float64) for i in indices]
        prior = [self.process.prior(L, self.ready.states, stream(self.how.seed, "prior", i)) for i in indices]
        z_BL = torch.where(given_BL < 0, torch.stack(prior), given_BL)
        return State(
            z_BL=z_BL.to(self.ready.device),
            log_q_BL=torch.zeros(B, L, dtype=torch.float64, device=self.ready.draw_device),
            uniform_BL=torch.stack(noise).to(self.ready.draw_device),
            nfe_B=torch.zeros(B, dtype=torch.int64, device=self.ready.device),
        )

    def _moves(self, indices: list[int], blank_BL: Tensor, state: State) -> Iterator[Move]:
        """The steps of this batch."""
        how, schedule = self.how, self.process.schedule
        if how.legacy:
            yield from self._legacy_moves(indices, state)
            return
        generators = [stream(how.seed, "reveal", i) for i in indices]
        if how.plan is None:
            yield from every_move(how.grid, blank_BL, state, generators)
            return
        assert self.mask_id is not None
        if how.remask is not None:
            yield from remasking_moves(how.remask, how.grid, schedule, blank_BL, state, self.mask_id, generators)
            return
        assigned = how.plan.assign(blank_BL, how.grid, schedule, generators)
        if how.plan.rule:
            yield from adaptive_moves(assigned, state, self.mask_id, by_threshold(how.plan))
        else:
            yield from locked_moves(assigned, self.ready.device)

    def _draw(self, state: State, move: Move) -> str:
        """One forward of the rows that draw something, then the draw; returns the dtype it was really done in."""
        B, L = state.z_BL.shape
        z_RL = state.z_BL if len(move.rows_R) == B else state.z_BL[move.rows_R]
        time_R, posterior = None, None
        if move.times is not None:
            t = torch.full((len(z_RL),), move.times[0], dtype=torch.float64)
            if (time_R := self.process.condition(t)) is not None:
                time_R = time_R.to(state.z_BL.device)
            posterior = self._posterior(state.z_BL.flatten()[move.reveal_M], move.times)
        h_ND = self.ready.features(z_RL, time_R).flatten(0, 1)
        state.nfe_B[move.rows_R] += 1
        step = Step(self.ready, h_ND, move.local_M, move.reveal_M, L, self.how.law, posterior)
        if move.quota_B is not None:
            assert self.how.plan is not None
            step = step.chosen(choose(self.how.plan.rule, step, move).to(move.reveal_M.device).nonzero()[:, 0])
        at_M = step.flat_M.to(state.uniform_BL.device)
        if move.argmax:
            parts = [categorical.argmax(step.logits(part), self.mask_id, self.how.law) for part in step.parts()]
            drawn = categorical.join(parts)
        else:
            drawn = self.how.step_law.draw(step, state.uniform_BL.view(-1)[at_M])
        state.z_BL.view(-1)[step.flat_M] = drawn.token_M.to(state.z_BL.device)
        state.log_q_BL.view(-1)[at_M] = drawn.log_q_M.to(at_M.device).double()  # no float64 on MPS
        return str(drawn.dtype).removeprefix("torch.")

    def _posterior(self, z_M: Tensor, times: tuple[float, float]) -> Callable[[Tensor, Tensor], Tensor]:
        """The law of z_s at some of the M positions, from the law of x_0 there."""
        t, s = (torch.tensor(time, dtype=torch.float64) for time in times)

        def law(log_p_CV: Tensor, part: Tensor) -> Tensor:
            z_C = z_M[part].to(log_p_CV.device)
            return self.process.posterior(log_p_CV, z_C, s, t, self.ready.states)

        return law

    def _legacy_moves(self, indices: list[int], state: State) -> Iterator[Move]:
        """The published algorithm does its own drawing: the moves only say that a step has passed."""
        device, seed = self.ready.device, self.how.seed
        assert self.mask_id is not None
        generators = [torch.Generator(device).manual_seed(seed_of(seed, "legacy", i)) for i in indices]

        def noise(shape: torch.Size, dtype: torch.dtype) -> Tensor:
            return torch.stack([torch.rand(shape[1:], generator=g, dtype=dtype, device=device) for g in generators])

        nothing_BL = torch.zeros(state.nfe_B.shape[0], 1, dtype=torch.bool)
        shares = masked_shares(self.how.grid.times, self.process.schedule)
        path = ancestral(
            self.ready, state.z_BL, shares, states=self.ready.states.size, mask_id=self.mask_id,
            temperature=self.how.law.temperature, dtype=torch.float32, noise=noise,
        )  # fmt: skip
        for step, z_BL in enumerate(path):
            state.z_BL, state.nfe_B = z_BL, state.nfe_B + 1
            yield Move.at(step, self.how.grid.steps + 1, nothing_BL, device)
        state.log_q_BL.fill_(torch.nan)  # a race in which the mask takes part has no law of its own to record


def choose(rule: Any, step: Step, move: Move) -> Tensor:
    """Which candidates of a step an adaptive plan reveals: (M,) bool on the CPU."""
    assert move.quota_B is not None and move.tie_M is not None  # noqa: PT018
    parts = [rule.confidence(step.shaped(part).log_softmax(-1)).cpu() for part in step.parts()]
    confidence_M = torch.cat(parts)
    passing_M = None if rule.threshold is None else rule.passes(confidence_M)
    return keep_most_confident(confidence_M, step.row_M.cpu(), move.quota_B, move.tie_M, passing_M)


def collect(rows: list[Row], wanted: list[Tensor], forwards: int, run: Run) -> Samples:
    """The samples and their record."""
    n, longest = len(rows), max(map(len, wanted))
    tokens_nL = torch.full((n, longest), -1)
    log_q_nL = torch.zeros(n, longest, dtype=torch.float64)
    given_nL = torch.ones(n, longest, dtype=torch.bool)
    for i, (row, template_L) in enumerate(zip(rows, wanted, strict=True)):
        here = slice(len(template_L))
        tokens_nL[i, here], given_nL[i, here] = row.tokens_L, template_L >= 0
        log_q_nL[i, here] = torch.where(template_L < 0, row.log_q_L, 0)
    nfe_n = torch.tensor([row.nfe for row in rows])
    codec = run.how.checkpoint.tokenizer
    text = codec.decode_batch([row.tokens_L.tolist() for row in rows]) if codec else []
    return Samples(tokens_nL, given_nL, log_q_nL, nfe_n, text, _record(rows, nfe_n, forwards, run))


def _record(rows: list[Row], nfe_n: Tensor, forwards: int, run: Run) -> dict[str, Any]:
    """What was really run: the dtype of the draw and the forwards are observed, not repeated from the options."""
    how, law = run.how, run.how.law
    unused = how.plan is not None and by_threshold(how.plan)
    used = sorted({row.drawn_in for row in rows})
    return provenance.record(
        run.ready.device, model=how.checkpoint.provenance, process=process_to_json(run.process),
        plan=how.plan.to_json() if how.plan else None, grid=None if unused else how.grid.to_json(),
        steps=None if unused else how.grid.steps, step_law=step_law_to_json(how.step_law),
        nfe=float(nfe_n.double().mean()), forwards=forwards,  # of batches, over all processes
        remask=None if how.remask is None else vars(how.remask), temperature=law.temperature, top_p=law.top_p,
        top_k=law.top_k, draw=used[0] if len(used) == 1 else used, precision=run.ready.precision, seed=how.seed,
        n=len(rows),
    )  # fmt: skip
