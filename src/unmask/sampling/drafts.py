"""Drafts: texts under way, and the one step that takes any number of them a move further.

A step runs the body once for all drafts that it is given, of whatever length where the network can do that, then head
and draw once for all that draw alike. Noise is keyed by the seed and the number of a sample, so a text does not depend
on its company. `sample` steps one draft of a whole batch, the server many drafts of one text each.

Shapes: S rows of a table, B of them a draft's, R rows in a forward, L positions, M positions drawn, V states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from unmask.checkpoint.io import Checkpoint
from unmask.core.devices import to_device
from unmask.core.errors import UserError
from unmask.core.streams import stream, uniforms
from unmask.inference import categorical
from unmask.inference.cache import Caching, Memory
from unmask.inference.categorical import DTYPES, Draw, Law
from unmask.inference.chain import Chain
from unmask.inference.ready import Ready
from unmask.inference.step_law import Step, StepLaw
from unmask.models.denoiser import states_of
from unmask.plans.every import EveryPosition
from unmask.plans.grids import Grid
from unmask.plans.moves import (
    Move,
    State,
    adaptive_moves,
    join_moves,
    keep_most_confident,
    locked_moves,
    remasking_moves,
)  # fmt: skip
from unmask.plans.plan import Plan, by_threshold
from unmask.plans.remask import Remask
from unmask.processes.process import Process, condition_at
from unmask.sampling.ending import Ending
from unmask.sampling.samples import StepView

LEGACY = "legacy_fp32"
Callback = Callable[[StepView], None]


@dataclass(frozen=True)
class How:
    """Everything that is asked for."""

    checkpoint: Checkpoint
    plan: Plan
    grid: Grid
    law: Law = field(default_factory=Law)
    _: KW_ONLY
    seed: int = 0
    remask: Remask | None = None
    legacy: bool = False
    callback: Callback | None = None
    spell: Literal["all", "to_end", "answer"] = "all"  # the text as it stands, up to its end, or its answer alone
    cache: Caching | None = None
    guidance: float = 0.0

    @property
    def step_law(self) -> StepLaw:
        return self.checkpoint.step_law

    def warning(self) -> str | None:
        """What a user of a chain should know: a head knows the plans that it was trained on."""
        return self.step_law.warning(self.plan.name, self.grid.steps) if isinstance(self.step_law, Chain) else None

    def check(self) -> None:
        """Options that exclude one another."""
        name, law = self.plan.name, self.law
        other = self.remask or law.greedy or law.top_p < 1 or law.top_k or self.step_law.name != "factorised"
        if self.legacy and (name != "iid" or self.grid.name != "mdlm" or other):
            raise UserError(f"{LEGACY} is the published algorithm as it stands: take plan iid, grid mdlm, a "
                            "temperature above 0, and no remask, top_p, top_k or other step law")  # fmt: skip
        if self.cache is not None:
            self.cache.check(self.checkpoint.model)
            if self.remask is not None or self.legacy or isinstance(self.plan, EveryPosition):
                raise UserError("a cache goes with a plan, on which what was revealed stays: leave out the cache, or "
                                f"remask and {LEGACY}")  # fmt: skip
        if not 0 <= self.guidance < math.inf:
            raise UserError(f"guidance must be at least 0 and finite, not {self.guidance}")
        if self.guidance and (
            isinstance(self.plan, EveryPosition) or self.legacy or self.cache or self.step_law.name != "factorised"
        ):
            raise UserError("guidance is for models with a mask and tokens drawn one by one: take no cache, no "
                            f"{LEGACY}, and the step law factorised")  # fmt: skip
        if self.remask is not None and isinstance(self.plan, EveryPosition):
            raise UserError("remasking is for a masked process: for this one take the plan psi, which does the same")
        if self.remask is not None and (name != "iid" or self.grid.by != "time"):
            raise UserError("remasking goes position by position: take plan iid and the grid uniform, cosine or mdlm")


@dataclass(frozen=True)
class Draft:
    """Texts of one length that are written in one way: rows of a table that they may share with other drafts."""

    how: How
    indices: list[int]  # the numbers of the samples, which name their noise
    blank_BL: Tensor
    state: State  # its own rows of the table
    at: int = 0  # the first of them

    @property
    def length(self) -> int:
        return self.blank_BL.shape[1]

    def moves(self, device: torch.device) -> Iterator[Move]:
        """Its steps; positions and rows on `device`."""
        how, schedule, mask_id = self.how, self.how.checkpoint.process.schedule, self.how.checkpoint.model.mask_id
        generators = [stream(how.seed, "reveal", i) for i in self.indices]
        if isinstance(how.plan, EveryPosition):
            process, states = how.checkpoint.process, states_of(how.checkpoint.model)
            yield from how.plan.moves(process, how.grid, states, self.blank_BL, self.state, generators, device)
            return
        assert mask_id is not None
        if how.remask is not None:
            yield from remasking_moves(
                how.remask, how.grid, schedule, self.blank_BL, self.state, mask_id, generators, device
            )
            return
        assigned = how.plan.assign(self.blank_BL, how.grid, schedule, generators)
        if how.plan.rule:
            moves = adaptive_moves(assigned, self.state, mask_id, by_threshold(how.plan), device)
        else:
            moves = locked_moves(assigned, device)
        if how.spell != "all" and (codec := how.checkpoint.tokenizer) is not None:
            moves = Ending(self.state, self.blank_BL, codec.stop_ids, codec.eos_id, mask_id).cut(moves)
        yield from moves


def new_table(ready: Ready, rows: int, length: int, memory: Memory | None = None) -> State:
    """Rows for drafts of one length, which all go with the cache in `memory`, made for them, or with none."""
    shape, draw = (rows, length), ready.draw_device
    return State(
        z_BL=torch.zeros(shape, dtype=torch.int64, device=ready.device),
        log_q_BL=torch.zeros(shape, dtype=torch.float64, device=draw),
        uniform_BL=torch.zeros(shape, dtype=torch.float64, device=draw),
        nfe_B=torch.zeros(rows, dtype=torch.int64, device=ready.device),
        rounds_B=torch.zeros(rows, dtype=torch.int64, device=ready.device),
        memory=memory,
    )


def start_draft(how: How, ready: Ready, table: State, indices: list[int], given_BL: Tensor, at: int = 0) -> Draft:
    """Nothing drawn yet; the noise of every sample from its own stream.

    A draft of one text may be shorter than the rows of its table.
    """
    (B, L), seed, process = given_BL.shape, how.seed, how.checkpoint.process
    assert table.z_BL.shape[1] == L or (B == 1 and table.z_BL.shape[1] > L and table.memory is None)
    prior = [process.prior(L, ready.states, stream(seed, "prior", i)) for i in indices]
    z_BL, log_q_BL, uniform_BL = (part[at : at + B, :L] for part in (table.z_BL, table.log_q_BL, table.uniform_BL))
    state = State(z_BL, log_q_BL, uniform_BL, table.nfe_B[at : at + B], table.rounds_B[at : at + B])
    state.z_BL.copy_(torch.where(given_BL < 0, torch.stack(prior), given_BL))
    state.uniform_BL.copy_(uniforms((stream(seed, "draw", i) for i in indices), L))
    state.log_q_BL.zero_()
    state.nfe_B.zero_()
    state.rounds_B.zero_()
    if table.memory is not None:
        table.memory.reset_rows(range(at, at + B))
    if how.guidance:
        if table.given_BL is None:
            table.given_BL = torch.zeros_like(table.z_BL, dtype=torch.bool)
        table.given_BL[at : at + B, :L] = to_device(given_BL >= 0, ready.device)
    return Draft(how, indices, given_BL < 0, state, at)


Going = tuple[Draft, Move]  # a draft and its next move


@dataclass(frozen=True)
class Drawn:
    """What a step drew for drafts that draw alike; `step.flat_M` says where in the table."""

    step: Step
    draw: Draw
    going: list[Going]


@torch.inference_mode()
def take_step(ready: Ready, table: State, going: Sequence[Going]) -> list[Drawn]:
    """One forward of the rows that draw something, then head and draw for all drafts that draw alike.

    Use up the result before the next step: features of a compiled body are overwritten by it.
    """
    groups: dict[Any, list[Going]] = {}
    for draft, move in going:
        groups.setdefault(_kind(draft.how, move), []).append((draft, move))
    S, L = table.z_BL.shape
    parts_of = [[(move, draft.at, draft.length) for draft, move in alike] for alike in groups.values()]
    moves = [join_moves(parts, S, L, ready.device) for parts in parts_of]
    rows_R = torch.cat([move.rows_R for move in moves]) if len(moves) > 1 else moves[0].rows_R
    whole = len(going) == 1 and len(rows_R) == S
    process = going[0][0].how.checkpoint.process
    sizes = [[len(move.rows_R) * draft.length for draft, move in alike] for alike in groups.values()]
    lengths = [draft.length for alike in groups.values() for draft, move in alike for _ in range(len(move.rows_R))]
    if table.memory is not None:
        spans = [move.span_R3 for move in moves if move.span_R3 is not None]
        h_ND = table.memory.features(table.z_BL, torch.cat(spans)).flatten(0, 1)
    else:
        z_RL = table.z_BL if whole else table.z_BL[rows_R]
        if guidance := going[0][0].how.guidance:  # of all of them: only the server steps several, and it has none
            assert table.given_BL is not None
            assert ready.states.mask is not None
            z_RL = torch.cat([z_RL, z_RL.masked_fill(table.given_BL[rows_R], ready.states.mask)])
            lengths = lengths * 2
        h_ND = ready.packed(z_RL, lengths, _conditions(process, moves, ready.device))
        if guidance:
            h_ND = torch.cat(h_ND.chunk(2), dim=-1)
    table.nfe_B[rows_R] += 1 + bool(going[0][0].how.guidance)
    parts = h_ND.split([sum(each) for each in sizes])
    return [
        _draw(ready, table, process, alike, move, part)
        for alike, move, part in zip(groups.values(), moves, parts, strict=True)
    ]


def _kind(how: How, move: Move) -> Any:
    """Drafts draw alike if only their noise and their temperatures differ."""
    rule = how.plan if isinstance(how.plan, EveryPosition) else None if move.quota_B is None else how.plan.rule
    law = replace(how.law, temperature=float(how.law.temperature > 0))
    return law, id(how.step_law), rule, move.argmax, move.times, how.guidance


def _conditions(process: Process, moves: list[Move], device: torch.device) -> Tensor | None:
    """What the network is given beside the tokens, a number a row; None: nothing."""
    if any(move.times is None for move in moves):
        return None
    parts = [torch.full((len(move.rows_R),), move.times[0], dtype=torch.float64) for move in moves if move.times]
    return condition_at(process, torch.cat(parts), device)


def _draw(ready: Ready, table: State, process: Process, alike: list[Going], move: Move, h_ND: Tensor) -> Drawn:
    """Head and draw at the positions of a move, whose tokens then stand in the table."""
    how = alike[0][0].how
    law, heat_M = _temperatures(ready, alike)
    step = Step(ready, h_ND, move.local_M, move.reveal_M, table.z_BL.shape[1], law, heat_M=heat_M, rank_M=move.rank_M,
                guidance=how.guidance)  # fmt: skip
    if move.times is not None and not move.argmax:
        assert isinstance(how.plan, EveryPosition)
        z_M = table.z_BL.flatten()[move.reveal_M].to(ready.draw_device)
        step = _from_posterior(step, how.plan, process, z_M, move.times)
    if move.quota_B is not None:
        step = step.held()
        step = step.chosen(choose(how.plan.rule, step, move).to(move.reveal_M.device).nonzero()[:, 0])
    at_M = step.flat_M.to(table.uniform_BL.device)
    if move.argmax:
        drawn = categorical.join([categorical.argmax(step.logits(p), ready.states.mask, law) for p in step.parts()])
    else:
        drawn = how.step_law.draw(step, table.uniform_BL.view(-1)[at_M])
    table.z_BL.view(-1)[step.flat_M] = drawn.token_M.to(table.z_BL.device)
    table.log_q_BL.view(-1)[at_M] = drawn.log_q_M.to(at_M.device).double()  # no float64 on MPS
    if drawn.rounds_R is not None:
        table.rounds_B[step.row_M.unique_consecutive()] += drawn.rounds_R.to(table.rounds_B.device)
    return Drawn(step, drawn, alike)


def _temperatures(ready: Ready, alike: list[Going]) -> tuple[Law, Tensor | None]:
    """One law for all, and the temperature of each position where they differ; a compiled draw always takes these,
    since every number that it takes is compiled anew."""
    law, heats = alike[0][0].how.law, [draft.how.law.temperature for draft, _ in alike]
    if law.temperature == 0 or (len(set(heats)) == 1 and not ready.compiled):
        return law, None
    counts = torch.tensor([len(move.reveal_M) for _, move in alike])
    heat_M = torch.tensor(heats, dtype=torch.float64).repeat_interleave(counts)
    return replace(law, temperature=1.0), to_device(heat_M, ready.draw_device)


def _from_posterior(step: Step, plan: EveryPosition, process: Process, z_M: Tensor, times: tuple[float, float]) -> Step:
    """The step from t to s: its law of z_s, and the same as a mixture where the process has one."""
    states = step.ready.states
    t, s = (torch.tensor(time, dtype=torch.float64) for time in times)

    def law(log_p_CV: Tensor, part: Tensor) -> Tensor:
        return plan.law(process, log_p_CV, z_M[part].to(log_p_CV.device), s, t, states)

    mixture = plan.mixture(process, times[1], times[0], states)
    if mixture is None:
        return replace(step, posterior=law)
    numbers = to_device(torch.tensor(mixture, dtype=DTYPES[step.law.dtype]), z_M.device)
    return replace(step, posterior=law, mixture=(z_M, numbers))


def choose(rule: Any, step: Step, move: Move) -> Tensor:
    """Which candidates of a step an adaptive plan reveals: (M,) bool on the CPU."""
    assert move.quota_B is not None and move.tie_M is not None  # noqa: PT018
    if step.law.greedy:  # a point mass is sure of itself everywhere
        step = replace(step, law=Law(dtype=step.law.dtype))

    def law(part: Tensor) -> Tensor:
        return step.logits(part).float() if rule.whole_law else step.shaped(part)

    parts = [rule.confidence(law(part).log_softmax(-1)).cpu() for part in step.parts()]
    confidence_M, row_M = torch.cat(parts), step.row_M.cpu()
    if move.gumbel_M is not None:
        confidence_M = confidence_M.double() / rule.alg_temp + move.gumbel_M
    quota_B, passing_M = rule.limits(confidence_M, row_M, move.quota_B)
    return keep_most_confident(confidence_M, row_M, quota_B, move.tie_M, passing_M)


def check_law(log_q: Tensor, precision: str) -> None:
    """Refuse a law that is not finite."""
    if not bool(torch.isfinite(log_q).all()):
        raise UserError("the model gave a law that is not finite: its weights are damaged, or too large for "
                        f"{precision}; take another checkpoint, or precision fp32")  # fmt: skip
