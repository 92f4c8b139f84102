"""The sampler: at each step run the body once, and the head and the draw only on the positions that the step draws.

Where the process goes by a plan, u is drawn first and says when every position is revealed; other processes draw all
blank positions at every step. Pictures, streams and progress come in through a callback. Sample number i draws the same
noise from the same seed whatever the batch size or the number of processes.

Shapes: B sequences of a batch, R of them in a forward, L positions, M positions drawn, D features, V states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unmask.checkpoint.io import Checkpoint
from unmask.core import provenance
from unmask.core.ranks import Ranks
from unmask.core.streams import seed_of
from unmask.inference.cache import Memory
from unmask.inference.categorical import Law
from unmask.inference.ready import Ready, usual_batch
from unmask.inference.step_law import step_law_to_json
from unmask.plans.every import any_plan, plan_of
from unmask.plans.grids import Grid
from unmask.plans.moves import Move, State
from unmask.plans.plan import USUAL, Plan, by_threshold
from unmask.processes.process import process_to_json
from unmask.sampling.ancestral import ancestral, masked_shares
from unmask.sampling.drafts import LEGACY, How, check_law, new_table, start_draft, take_step
from unmask.sampling.infill import answer_of
from unmask.sampling.samples import Samples, StepView

Finished = Callable[[Samples, list[int]], None]  # a batch of this process that is done, and the numbers of its samples


def start_run(
    checkpoint: Checkpoint, ready: Ready, *, plan: str | Plan | None, grid: Grid, law: Law | None = None
) -> Run:
    """The loop by itself on a model made ready before, for measurements."""
    made = None if plan is None else any_plan(plan)
    chosen = plan_of(checkpoint.process, made, USUAL)
    return Run(How(checkpoint, chosen, grid, law=law or Law()), ready)


@dataclass(frozen=True)
class Row:
    """One finished sample."""

    index: int
    tokens_L: Tensor
    log_q_L: Tensor
    nfe: int
    drawn_in: str
    rounds: int | None = None  # of a step law that draws in rounds

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
        self.memory: Memory | None = None

    def all(
        self, wanted: list[Tensor], batch: int | None, ranks: Ranks, report: Callable[[list[Row]], None],
        numbers: Sequence[int] | None = None,
    ) -> list[Row]:  # fmt: skip
        """This process's share, batches of equal length together; then everybody's, in order. `numbers` name the
        noise of each; default: its place."""
        size = batch or usual_batch(self.ready.model, self.ready.device)
        by_length: dict[int, list[int]] = {}
        for index in range(ranks.rank, len(wanted), ranks.world):
            by_length.setdefault(len(wanted[index]), []).append(index)
        rows: list[Row] = []
        for indices in by_length.values():
            for start in range(0, len(indices), size):
                part = indices[start : start + size]
                named = part if numbers is None else [numbers[index] for index in part]
                made = self.batch(named, torch.stack([wanted[index] for index in part]))
                rows += [replace(row, index=index) for row, index in zip(made, part, strict=True)]
                report(rows[-len(part) :])
        if ranks.world > 1:
            shares = ranks.gather([row.to_json() for row in rows])
            rows = [Row.from_json(row) for share in shares for row in share]
        return sorted(rows, key=lambda row: row.index)

    @torch.inference_mode()
    def batch(self, indices: list[int], given_BL: Tensor) -> list[Row]:
        """The loop: for every step a move, one forward of the rows it touches, head and draw where it draws."""
        rows, length = given_BL.shape
        self.ready.expect(rows * (1 + bool(self.how.guidance)), length)  # a step may touch fewer rows
        state = new_table(self.ready, rows, length, self._memory(rows, length))
        draft = start_draft(self.how, self.ready, state, indices, given_BL)
        drawn_in, in_rounds = LEGACY if self.how.legacy else "", False
        moves = self._legacy_moves(indices, state) if self.how.legacy else draft.moves(self.ready.device)
        for move in moves:
            if move.reveal_M.numel():
                (drawn,) = take_step(self.ready, state, [(draft, move)])
                drawn_in = str(drawn.draw.dtype).removeprefix("torch.")
                in_rounds |= drawn.draw.rounds_R is not None
            if move.remask_M is not None:
                assert self.mask_id is not None
                state.z_BL.view(-1)[move.remask_M.to(state.z_BL.device)] = self.mask_id
                state.log_q_BL.view(-1)[move.remask_M.to(state.log_q_BL.device)] = 0
            if self.how.callback:
                now_BL, given = state.z_BL.to("cpu", copy=True), ~draft.blank_BL
                self.how.callback(StepView(move.step + 1, move.steps, now_BL, given, tuple(indices), self.mask_id))
        z_BL, log_q_BL, nfe = state.z_BL.cpu(), state.log_q_BL.cpu(), state.nfe_B.tolist()
        assert self.mask_id is None or not bool(z_BL.eq(self.mask_id).any()), "a position was never revealed"
        if not self.how.legacy:
            check_law(log_q_BL, self.ready.precision)
        if not self.process.by_plan:
            log_q_BL.fill_(torch.nan)  # what was drawn is a path; the law of the text alone is not known
        rounds = state.rounds_B.tolist() if in_rounds else [None] * len(indices)
        return [Row(i, z_BL[b], log_q_BL[b], nfe[b], drawn_in, rounds[b]) for b, i in enumerate(indices)]

    def _memory(self, rows: int, length: int) -> Memory | None:
        """The cache for a batch: that of the batch before, with its CUDA graphs, where it has the same shape."""
        if self.how.cache is None:
            return None
        if self.memory is None or self.memory.out_SLD.shape[:2] != (rows, length):
            self.memory = Memory(self.ready, self.how.cache, rows, length)
        return self.memory

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
    nfe_n, rounds = torch.tensor([row.nfe for row in rows]), [row.rounds for row in rows if row.rounds is not None]
    rounds_n = torch.tensor(rounds) if len(rounds) == n else None
    record = _record(rows, nfe_n, rounds_n, forwards, run)
    return Samples(tokens_nL, given_nL, log_q_nL, nfe_n, _texts(rows, wanted, run.how), record, rounds_n)


def _texts(rows: list[Row], wanted: list[Tensor], how: How) -> list[str]:
    """What the samples spell; an answer ends where the model ended it."""
    codec = how.checkpoint.tokenizer
    if codec is None:
        return []
    if how.spell == "all":
        return codec.decode_batch([row.tokens_L.tolist() for row in rows])
    both, alone = zip(rows, wanted, strict=True), how.spell == "answer"
    return codec.decode_batch([answer_of(row.tokens_L, given, codec.stop_ids, alone=alone) for row, given in both])


def _record(rows: list[Row], nfe_n: Tensor, rounds_n: Tensor | None, forwards: int, run: Run) -> dict[str, Any]:
    """What was really run: the dtype of the draw and the forwards are observed, not repeated from the options."""
    how, law = run.how, run.how.law
    unused = by_threshold(how.plan)
    rounds = None if rounds_n is None else {"mean": float(rounds_n.double().mean()), "most": int(rounds_n.max())}
    used = sorted({row.drawn_in for row in rows})
    return provenance.record(
        run.ready.device, model=how.checkpoint.provenance, process=process_to_json(run.process),
        plan=how.plan.to_json(), grid=None if unused else how.grid.to_json(),
        steps=None if unused else how.grid.steps, step_law=step_law_to_json(how.step_law),
        nfe=float(nfe_n.double().mean()), forwards=forwards,  # of batches, over all processes
        rounds=rounds,  # of the step law's head, a text
        remask=None if how.remask is None else vars(how.remask), temperature=law.temperature, top_p=law.top_p,
        top_k=law.top_k, guidance=how.guidance, cache=None if how.cache is None else how.cache.to_json(),
        draw=used[0] if len(used) == 1 else used, precision=run.ready.precision, seed=how.seed,
        n=len(rows),
    )  # fmt: skip
