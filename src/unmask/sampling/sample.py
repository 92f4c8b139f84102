"""The sampler: at each step run the body once, and the head and the draw only on the positions that the step draws.

Where the process goes by a plan, u is drawn first and says when every position is revealed; other processes draw all
blank positions at every step. Pictures, streams and progress come in through a callback. Sample number i draws the same
noise from the same seed whatever the batch size or the number of processes.

Shapes: B sequences of a batch, R of them in a forward, L positions, M positions drawn, D features, V states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from unmask.checkpoint.io import Checkpoint, load
from unmask.core import provenance
from unmask.core.errors import UserError, unknown
from unmask.core.ranks import Ranks, joined
from unmask.core.streams import seed_of, stream
from unmask.inference import categorical
from unmask.inference.categorical import Law
from unmask.inference.ready import Precision, Ready, make_ready, usual_batch
from unmask.inference.step_law import Step, StepLaw, make_step_law, step_law_to_json
from unmask.models.denoiser import check_denoiser
from unmask.plans.grids import Grid, make_grid
from unmask.plans.moves import (
    Move,
    State,
    adaptive_moves,
    every_move,
    keep_most_confident,
    locked_moves,
    remasking_moves,
)
from unmask.plans.plan import Plan, by_threshold, choose_grid, make_plan
from unmask.plans.remask import Remask
from unmask.processes import Process
from unmask.processes.process import process_to_json
from unmask.sampling.ancestral import ancestral, masked_shares
from unmask.sampling.infill import Template, templates
from unmask.sampling.samples import Samples, StepView

LEGACY = "legacy_fp32"
DRAWS = (*categorical.DTYPES, LEGACY)
PLAN = "golden"  # where nobody says
Callback = Callable[[StepView], None]
Finished = Callable[[Samples, list[int]], None]  # a batch of this process that is done, and the numbers of its samples


def sample(
    checkpoint: Checkpoint | str | Path,
    n: int = 1,
    steps: int | None = None,
    *,
    length: int | Sequence[int] | None = None,
    plan: str | Plan | None = None,
    grid: str | Path | Sequence[float] | Grid | None = None,
    step_law: str | StepLaw | None = None,
    remask: str | Remask | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int | None = None,
    draw: Literal["float64", "fp32", "legacy_fp32"] = "float64",
    prompt: str | Sequence[str] | None = None,
    suffix: str | Sequence[str] | None = None,
    infill: str | Sequence[str] | Tensor | None = None,
    seed: int = 0,
    batch: int | None = None,
    device: str = "auto",
    precision: Precision = "auto",
    compile: bool = False,
    callback: Callback | None = None,
    finished: Finished | None = None,
) -> Samples:
    """Write n texts in a number of steps; sampling/verbs.py says what each option means.

    Under torchrun every process writes its share of the n, and all of them return the whole.
    """
    checkpoint = load(checkpoint) if isinstance(checkpoint, (str, Path)) else checkpoint
    if not isinstance(checkpoint, Checkpoint):
        raise UserError(f"sample takes a Checkpoint or the name of one, not a {type(checkpoint).__name__}")
    check_denoiser(checkpoint.model)
    if draw not in DRAWS:
        raise unknown("draw", draw, DRAWS)
    if batch is not None and batch < 1:
        raise UserError(f"batch must be at least 1, not {batch}")
    law = Law(temperature, top_p, top_k, "fp32" if draw == LEGACY else draw)
    remask = Remask(remask) if isinstance(remask, str) else remask  # type: ignore[arg-type]
    how = _How(checkpoint, *_plan_and_grid(checkpoint.process, plan, grid, steps), remask, law, draw == LEGACY, seed,
               make_step_law(step_law or checkpoint.step_law), callback)  # fmt: skip
    how.check()
    with joined(device) as ranks:
        run = Run(how, make_ready(checkpoint.model, ranks.device, precision, compile))
        wanted = templates(
            n, longest=checkpoint.model.length, states=run.ready.states, tokenizer=checkpoint.tokenizer, length=length,
            prompt=prompt, suffix=suffix, infill=infill,
        )  # fmt: skip

        def report(rows: list[_Row]) -> None:
            if finished is not None:
                indices = [row.index for row in rows]
                finished(_collect(rows, [wanted[i] for i in indices], run.ready.forwards, run), indices)

        rows = run.all(wanted, batch, ranks, report)
        forwards = sum(ranks.gather(run.ready.forwards))
    return _collect(rows, wanted, forwards, run)


def _plan_and_grid(
    process: Process, plan: str | Plan | None, grid: str | Path | Sequence[float] | Grid | None, steps: int | None
) -> tuple[Plan | None, Grid]:
    """A plan and its grid; for a process that goes by no plan, a grid of times."""
    if process.by_plan:
        chosen = make_plan(plan or PLAN)
        return chosen, choose_grid(chosen, grid, steps)
    if plan is not None:
        raise UserError(f"the process {process.name} draws every position at every step: leave out the plan")
    made = make_grid(grid or "uniform", steps)
    if made.by != "time" or made.argmax_tail:
        raise UserError(f"the process {process.name} goes on a grid of times: take uniform or cosine, not {made.name}")
    return None, made


def start_run(
    checkpoint: Checkpoint, ready: Ready, *, plan: str | Plan | None, grid: Grid, law: Law | None = None
) -> Run:
    """The loop by itself on a model made ready before, for measurements."""
    made = None if plan is None else make_plan(plan)
    return Run(_How(checkpoint, made, grid, None, law or Law(), False, 0, checkpoint.step_law, None), ready)


@dataclass(frozen=True)
class _How:
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
        if self.legacy and (name != "iid" or self.grid.name != "mdlm" or self.remask or law.top_p < 1 or law.top_k):
            raise UserError(f"{LEGACY} is the published algorithm as it stands: take plan iid, grid mdlm, and no "
                            "remask, top_p or top_k")  # fmt: skip
        if self.remask is not None and (name != "iid" or self.grid.by != "time"):
            raise UserError(
                "remasking tosses for each position by itself: take plan iid and the grid uniform, cosine or mdlm"
            )


@dataclass(frozen=True)
class _Row:
    """One finished sample."""

    index: int
    tokens_L: Tensor
    log_q_L: Tensor
    nfe: int
    drawn_in: str

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "tokens_L": self.tokens_L.tolist(), "log_q_L": self.log_q_L.tolist()}

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> _Row:
        log_q_L = torch.tensor(said["log_q_L"], dtype=torch.float64)
        return cls(**{**said, "tokens_L": torch.tensor(said["tokens_L"]), "log_q_L": log_q_L})


class Run:
    """The loop, on a model that is ready."""

    def __init__(self, how: _How, ready: Ready) -> None:
        self.how, self.ready = how, ready
        self.process, self.mask_id = how.checkpoint.process, ready.states.mask

    def all(
        self, wanted: list[Template], batch: int | None, ranks: Ranks, report: Callable[[list[_Row]], None]
    ) -> list[_Row]:
        """This process's share, batches of equal length together; then everybody's, in order."""
        size = batch or usual_batch(self.ready.model, self.ready.device)
        by_length: dict[int, list[int]] = {}
        for index in range(ranks.rank, len(wanted), ranks.world):
            by_length.setdefault(wanted[index].length, []).append(index)
        rows: list[_Row] = []
        for indices in by_length.values():
            for start in range(0, len(indices), size):
                part = indices[start : start + size]
                rows += self.batch(part, torch.stack([wanted[index].tokens_L for index in part]))
                report(rows[-len(part) :])
        if ranks.world > 1:
            shares = ranks.gather([row.to_json() for row in rows])
            rows = [_Row.from_json(row) for share in shares for row in share]
        return sorted(rows, key=lambda row: row.index)

    @torch.inference_mode()
    def batch(self, indices: list[int], given_BL: Tensor) -> list[_Row]:
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
        return [_Row(i, z_BL[b], log_q_BL[b], nfe[b], drawn_in) for b, i in enumerate(indices)]

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
            time_R = self.process.condition(t)
            time_R = None if time_R is None else time_R.to(state.z_BL.device)
            posterior = self._posterior(state.z_BL.flatten()[move.reveal_M], move.times)
        h_ND = self.ready.features(z_RL, time_R).flatten(0, 1)
        state.nfe_B[move.rows_R] += 1
        step = Step(self.ready, h_ND, move.local_M, move.reveal_M, L, self.how.law, posterior)
        if move.quota_B is not None:
            step = step.chosen(self._keep(step, move).to(move.reveal_M.device).nonzero()[:, 0])
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

    def _keep(self, step: Step, move: Move) -> Tensor:
        """Which candidates an adaptive plan reveals: its law at all of them, in chunks."""
        assert self.how.plan is not None
        assert self.how.plan.rule is not None
        return choose(self.how.plan.rule, step, move)

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
    assert move.quota_B is not None
    assert move.tie_M is not None
    parts = [rule.confidence(step.shaped(part).log_softmax(-1)).cpu() for part in step.parts()]
    confidence_M = torch.cat(parts)
    passing_M = None if rule.threshold is None else rule.passes(confidence_M)
    return keep_most_confident(confidence_M, step.row_M.cpu(), move.quota_B, move.tie_M, passing_M)


def _collect(rows: list[_Row], wanted: list[Template], forwards: int, run: Run) -> Samples:
    """The samples and their record."""
    n, longest = len(rows), max(template.length for template in wanted)
    tokens_nL = torch.full((n, longest), -1)
    log_q_nL = torch.zeros(n, longest, dtype=torch.float64)
    given_nL = torch.ones(n, longest, dtype=torch.bool)
    for i, (row, template) in enumerate(zip(rows, wanted, strict=True)):
        tokens_nL[i, : template.length] = row.tokens_L
        given_nL[i, : template.length] = ~template.blank_L
        log_q_nL[i, : template.length] = torch.where(template.blank_L, row.log_q_L, 0)
    nfe_n = torch.tensor([row.nfe for row in rows])
    codec = run.how.checkpoint.tokenizer
    text = codec.decode_batch([row.tokens_L.tolist() for row in rows]) if codec else []
    return Samples(tokens_nL, given_nL, log_q_nL, nfe_n, text, _record(rows, nfe_n, forwards, run))


def _record(rows: list[_Row], nfe_n: Tensor, forwards: int, run: Run) -> dict[str, Any]:
    """What was really run: the dtype of the draw and the forwards are observed, not repeated from the options."""
    how, law = run.how, run.how.law
    unused = how.plan is not None and by_threshold(how.plan)
    used = sorted({row.drawn_in for row in rows})
    return provenance.record(
        run.ready.device,
        model=how.checkpoint.provenance,
        process=process_to_json(run.process),
        plan=how.plan.to_json() if how.plan else None,
        grid=None if unused else how.grid.to_json(),
        steps=None if unused else how.grid.steps,
        step_law=step_law_to_json(how.step_law),
        nfe=float(nfe_n.double().mean()),
        forwards=forwards,  # of batches, over all processes
        remask=None if how.remask is None else vars(how.remask),
        temperature=law.temperature,
        top_p=law.top_p,
        top_k=law.top_k,
        draw=used[0] if len(used) == 1 else used,
        precision=run.ready.precision,
        seed=how.seed,
        n=len(rows),
    )
