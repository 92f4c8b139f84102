"""The sampler: draw u first, turn it into a plan, and at each step run the body once, and the head and the
categorical draw only on the positions that step reveals. The only sampling loop of the house.

Pictures, streams and progress come in through a callback. Sample number i draws the same noise from the same seed
whatever the batch size or the number of processes. Refuses to know training and judges.

Shapes: B sequences of a batch, R of them in a forward, L positions, M positions drawn, D features.
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
from unmask.inference.ready import Body, Precision, prepare, usual_batch
from unmask.models.denoiser import Denoiser, check_masked
from unmask.plans.grids import Grid
from unmask.plans.moves import Move, State, adaptive_moves, keep_surest, locked_moves, remasking_moves
from unmask.plans.plan import Blocks, Confidence, Plan, by_threshold, choose_grid, make_plan
from unmask.plans.remask import Remask
from unmask.processes.schedule import Schedule
from unmask.sampling import categorical
from unmask.sampling.ancestral import ancestral, masked_shares
from unmask.sampling.categorical import Law
from unmask.sampling.infill import Template, templates
from unmask.sampling.samples import Samples, StepView

LEGACY = "legacy_fp32"
DRAWS = (*categorical.DTYPES, LEGACY)
Callback = Callable[[StepView], None]
Finished = Callable[[Samples, list[int]], None]  # a batch of this process that is done, and the numbers of its samples


def sample(
    checkpoint: Checkpoint | str | Path,
    n: int = 1,
    steps: int | None = None,
    *,
    length: int | Sequence[int] | None = None,
    plan: str | Plan = "golden",
    grid: str | Path | Sequence[float] | Grid | None = None,
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
    """Write n texts in `steps` steps (default: 32, or the grid's own) on a grid (default: `rank`).

    The default, `golden` on the grid `rank`, spreads the positions of a step evenly; `iid` on the grid `mdlm` is the
    published sampler's law. Under torchrun every process writes its share of the n, and all of them return the whole.
    `callback` sees every step, `finished` every batch of this process that is done.
    """
    checkpoint = load(checkpoint) if isinstance(checkpoint, (str, Path)) else checkpoint
    model = checkpoint.model
    check_masked(model)
    if draw not in DRAWS:
        raise unknown("draw", draw, DRAWS)
    if batch is not None and batch < 1:
        raise UserError(f"batch must be at least 1, not {batch}")
    law = Law(temperature, top_p, top_k, "fp32" if draw == LEGACY else draw)
    plan = make_plan(plan)
    grid = choose_grid(plan, grid, steps)
    remask = Remask(remask) if isinstance(remask, str) else remask  # type: ignore[arg-type]
    _check_together(plan, grid, remask, law, draw)
    wanted = templates(
        n, longest=model.length, states=model.vocab_size, mask_id=model.mask_id, tokenizer=checkpoint.tokenizer,
        length=length, prompt=prompt, suffix=suffix, infill=infill,
    )  # fmt: skip
    with joined(device) as ranks:
        body = prepare(model, ranks.device, precision, compile)
        run = _Run(model, checkpoint.schedule, body, plan, grid, remask, law, draw == LEGACY, seed, callback)

        def tell(rows: list[_Row]) -> None:
            if finished is not None:
                indices = [row.index for row in rows]
                finished(_collect(rows, [wanted[i] for i in indices], body.forwards, run, checkpoint), indices)

        rows = run.all(wanted, batch, ranks, tell)
        forwards = sum(ranks.gather(body.forwards))
    return _collect(rows, wanted, forwards, run, checkpoint)


def start_run(checkpoint: Checkpoint, body: Body, *, plan: str | Plan, grid: Grid, law: Law | None = None) -> _Run:
    """The loop by itself on a body made ready before, for measurements."""
    plan = make_plan(plan)
    return _Run(checkpoint.model, checkpoint.schedule, body, plan, grid, None, law or Law(), False, 0, None)


def _check_together(plan: Plan, grid: Grid, remask: Remask | None, law: Law, draw: str) -> None:
    """Options that exclude one another."""
    if draw == LEGACY and (plan.name != "iid" or grid.name != "mdlm" or remask or law.top_p < 1 or law.top_k):
        raise UserError(f"{LEGACY} is the published algorithm as it stands: take plan iid, grid mdlm, and no remask, "
                        "top_p or top_k")  # fmt: skip
    if remask is not None and (plan.name != "iid" or grid.by != "time"):
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
    dtype: str

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "tokens_L": self.tokens_L.tolist(), "log_q_L": self.log_q_L.tolist()}

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> _Row:
        log_q_L = torch.tensor(said["log_q_L"], dtype=torch.float64)
        return cls(**{**said, "tokens_L": torch.tensor(said["tokens_L"]), "log_q_L": log_q_L})


@dataclass(frozen=True)
class _Run:
    """Everything that stays the same from batch to batch."""

    model: Denoiser
    schedule: Schedule
    body: Body
    plan: Plan
    grid: Grid
    remask: Remask | None
    law: Law
    legacy: bool
    seed: int
    callback: Callback | None

    def all(
        self, wanted: list[Template], batch: int | None, ranks: Ranks, tell: Callable[[list[_Row]], None]
    ) -> list[_Row]:
        """This process's share, batches of equal length together; then everybody's, in order."""
        size = batch or usual_batch(self.model, self.body.device)
        by_length: dict[int, list[int]] = {}
        for index in range(ranks.rank, len(wanted), ranks.world):
            by_length.setdefault(wanted[index].length, []).append(index)
        rows: list[_Row] = []
        for indices in by_length.values():
            for start in range(0, len(indices), size):
                part = indices[start : start + size]
                rows += self.batch(part, torch.stack([wanted[index].tokens_L for index in part]))
                tell(rows[-len(part) :])
        if ranks.world > 1:
            shares = ranks.gather([row.to_json() for row in rows])
            rows = [_Row.from_json(row) for share in shares for row in share]
        return sorted(rows, key=lambda row: row.index)

    @torch.inference_mode()
    def batch(self, indices: list[int], z_BL: Tensor) -> list[_Row]:
        """The loop: for every step a move, one forward of the rows it touches, head and draw where it reveals."""
        blank_BL = z_BL == self.model.mask_id
        self.body.expect(*z_BL.shape)  # a step may touch fewer rows
        state = self._start(indices, z_BL)
        drawn_in = LEGACY if self.legacy else ""
        for move in self._moves(indices, blank_BL, state):
            if move.reveal_M.numel():
                drawn_in = self._reveal(state, move)
            if move.remask_M is not None:
                state.z_BL.view(-1)[move.remask_M.to(state.z_BL.device)] = self.model.mask_id
                state.log_q_BL.view(-1)[move.remask_M.to(state.log_q_BL.device)] = 0
            if self.callback:
                now_BL = state.z_BL.to("cpu", copy=True)
                self.callback(
                    StepView(move.step + 1, move.steps, now_BL, ~blank_BL, tuple(indices), self.model.mask_id)
                )
        z_BL, log_q_BL, nfe = state.z_BL.cpu(), state.log_q_BL.cpu(), state.nfe_B.tolist()
        assert not bool((z_BL == self.model.mask_id).any()), "a position was never revealed"
        return [_Row(i, z_BL[b], log_q_BL[b], nfe[b], drawn_in) for b, i in enumerate(indices)]

    def _start(self, indices: list[int], z_BL: Tensor) -> State:
        """Nothing drawn yet; the noise of every sample from its own stream."""
        B, L = z_BL.shape
        noise = [torch.rand(L, generator=stream(self.seed, "draw", i), dtype=torch.float64) for i in indices]
        return State(
            z_BL=z_BL.to(self.body.device, copy=True),
            log_q_BL=torch.zeros(B, L, dtype=torch.float64, device=self.body.draw_device),
            uniform_BL=torch.stack(noise).to(self.body.draw_device),
            nfe_B=torch.zeros(B, dtype=torch.int64, device=self.body.device),
        )

    def _moves(self, indices: list[int], blank_BL: Tensor, state: State) -> Iterator[Move]:
        """The steps of this batch."""
        if self.legacy:
            yield from self._legacy_moves(indices, state)
            return
        generators = [stream(self.seed, "reveal", i) for i in indices]
        mask_id = self.model.mask_id
        if self.remask is not None:
            yield from remasking_moves(
                self.remask, self.grid, self.schedule, blank_BL, state, mask_id, generators
            )  # fmt: skip
            return
        assigned = self.plan.assign(blank_BL, self.grid, self.schedule, generators)
        if self.plan.adaptive:
            yield from adaptive_moves(assigned, state, mask_id, by_threshold(self.plan))
        else:
            yield from locked_moves(assigned, self.body.device)

    @property
    def _chooser(self) -> Confidence:
        plan = self.plan.inner if isinstance(self.plan, Blocks) else self.plan
        assert isinstance(plan, Confidence)
        return plan

    def _reveal(self, state: State, move: Move) -> str:
        """One forward of the rows that reveal something, then the draw; returns the dtype it was really done in."""
        B, L = state.z_BL.shape
        every = len(move.rows_R) == B
        h_RLD = self.body.features(state.z_BL if every else state.z_BL[move.rows_R])
        state.nfe_B[move.rows_R] += 1
        flat_M, local_M, h_ND = move.reveal_M, move.local_M, h_RLD.flatten(0, 1)
        if move.quota_B is not None:
            keep_M = self._keep(h_ND, move, flat_M.cpu() // L).to(flat_M.device)
            flat_M, local_M = flat_M[keep_M], local_M[keep_M]
        uniform_N, dtype = state.uniform_BL.view(-1), torch.float64
        for part_M, local_part_M in zip(flat_M.split(self.body.chunk), local_M.split(self.body.chunk), strict=True):
            logits_MV = self.body.logits(h_ND[local_part_M])
            at_M = part_M.to(uniform_N.device)
            if move.argmax:
                drawn = categorical.argmax(logits_MV, self.model.mask_id, self.law)
            else:
                drawn = self.body.fused(categorical.draw)(logits_MV, uniform_N[at_M], self.model.mask_id, self.law)
            state.z_BL.view(-1)[part_M] = drawn.token_M.to(state.z_BL.device)
            state.log_q_BL.view(-1)[at_M] = drawn.log_q_M.to(at_M.device).double()  # no float64 on MPS
            dtype = drawn.dtype
        return str(dtype).removeprefix("torch.")

    def _keep(self, h_ND: Tensor, move: Move, row_M: Tensor) -> Tensor:
        """Which candidates an adaptive plan reveals: its law at all of them, in chunks."""
        assert move.quota_B is not None
        assert move.tie_M is not None
        chooser = self._chooser
        parts = []
        for part_M in move.local_M.split(self.body.chunk):
            logits_MV = self.body.logits(h_ND[part_M])
            log_p_MV = categorical.shape_logits(logits_MV, self.model.mask_id, self.law).log_softmax(-1)
            parts.append(chooser.surety(log_p_MV).cpu())
        surety_M = torch.cat(parts)
        passing_M = None if chooser.threshold is None else chooser.passes(surety_M)
        return keep_surest(surety_M, row_M, move.quota_B, move.tie_M, passing_M)

    def _legacy_moves(self, indices: list[int], state: State) -> Iterator[Move]:
        """The published algorithm does its own drawing: the moves only say that a step has passed."""
        device = self.body.device
        generators = [torch.Generator(device).manual_seed(seed_of(self.seed, "legacy", i)) for i in indices]

        def noise(shape: torch.Size, dtype: torch.dtype) -> Tensor:
            return torch.stack([torch.rand(shape[1:], generator=g, dtype=dtype, device=device) for g in generators])

        nothing_BL = torch.zeros(state.nfe_B.shape[0], 1, dtype=torch.bool)
        walk = ancestral(
            self.body, state.z_BL, masked_shares(self.grid.times, self.schedule), states=self.model.vocab_size,
            mask_id=self.model.mask_id, temperature=self.law.temperature, dtype=torch.float32, noise=noise,
        )  # fmt: skip
        for step, z_BL in enumerate(walk):
            state.z_BL, state.nfe_B = z_BL, state.nfe_B + 1
            yield Move.at(step, self.grid.steps + 1, nothing_BL, device)
        state.log_q_BL.fill_(torch.nan)  # a race in which the mask takes part has no law of its own to record


def _collect(rows: list[_Row], wanted: list[Template], forwards: int, run: _Run, checkpoint: Checkpoint) -> Samples:
    """The samples and their record."""
    n, longest = len(rows), max(template.length for template in wanted)
    tokens_nL = torch.full((n, longest), -1)
    log_q_nL = torch.zeros(n, longest, dtype=torch.float64)
    given_nL = torch.ones(n, longest, dtype=torch.bool)
    for i, (row, template) in enumerate(zip(rows, wanted, strict=True)):
        blank_L = template.tokens_L == run.model.mask_id
        tokens_nL[i, : template.length] = row.tokens_L
        given_nL[i, : template.length] = ~blank_L
        log_q_nL[i, : template.length] = torch.where(blank_L, row.log_q_L, 0)
    nfe_n = torch.tensor([row.nfe for row in rows])
    codec = checkpoint.tokenizer
    text = [codec.decode(row.tokens_L.tolist()) for row in rows] if codec else []
    return Samples(tokens_nL, given_nL, log_q_nL, nfe_n, text, _record(rows, nfe_n, forwards, run, checkpoint))


def _record(rows: list[_Row], nfe_n: Tensor, forwards: int, run: _Run, checkpoint: Checkpoint) -> dict[str, Any]:
    """What was really run: the dtype of the draw and the forwards are observed, not repeated from the options."""
    law, remask, unused = run.law, run.remask, by_threshold(run.plan)
    used = sorted({row.dtype for row in rows})
    return provenance.record(
        run.body.device,
        model=checkpoint.provenance,
        plan=run.plan.to_json(),
        grid=None if unused else run.grid.to_json(),
        steps=None if unused else run.grid.steps,
        nfe=float(nfe_n.double().mean()),
        forwards=forwards,  # of batches, over all processes
        remask=None if remask is None else vars(remask),
        temperature=law.temperature,
        top_p=law.top_p,
        top_k=law.top_k,
        draw=used[0] if len(used) == 1 else used,
        precision=run.body.precision,
        seed=run.seed,
        n=len(rows),
    )
