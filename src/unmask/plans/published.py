"""The orders of the published samplers of LLaDA (`generate`) and Dream (`diffusion_generate`): quotas and confidence.

With temperature 0 they reveal what those reveal, token for token. What differs by design: a row's quota counts its own
blanks (Dream averages them over the batch); masks inside a prompt are blanks like all others; a step that reveals
nothing runs no network; and above temperature 0 positions are chosen before their tokens are drawn, so that log q
stays exact, where the published order looks at the drawn tokens.

Shapes: B sequences, L positions, M candidates, V states.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from unmask.core.errors import UserError
from unmask.plans.assignment import Assignment
from unmask.plans.blocks import Blocks, deal_steps
from unmask.plans.confidence import Confidence
from unmask.plans.grids import Grid
from unmask.plans.laws import parse_settings
from unmask.plans.plan import register_plan
from unmask.processes.schedule import Schedule

EPS = 1e-3  # where Dream's times end


@dataclass(frozen=True)
class PublishedConfidence(Confidence):
    """The confidence of the network's own law: no temperature, no cut, and the mask counted among the states."""

    margin: bool = False  # the likeliest token's lead over the second
    alg_temp: float = 0.0  # above 0 positions are drawn without replacement, from softmax(confidence / alg_temp)
    whole_law: ClassVar[bool] = True

    def confidence(self, log_p_MV: Tensor) -> Tensor:
        if self.margin:
            best_M2 = log_p_MV.topk(2, dim=-1).values.exp()
            return best_M2[:, 0] - best_M2[:, 1]
        return super().confidence(log_p_MV)


def _assigned(
    blank_BL: Tensor, quotas: Iterator[list[tuple[int, int]]], block_BL: Tensor,
    shuffle: Sequence[torch.Generator] = (), noise: Sequence[torch.Generator] = (),
) -> Assignment:  # fmt: skip
    """Of every row the (block, count) of each step, as counts on its blanks; ties go to the leftmost.

    With `shuffle` the places are dealt out in a random order within each block, and that is the plan.
    """
    step_BL = torch.full(blank_BL.shape, -1)
    most = 0
    for row, quota in enumerate(quotas):
        place_M, done = blank_BL[row].nonzero()[:, 0], 0
        if shuffle:
            place_M = place_M[torch.randperm(len(place_M), generator=shuffle[row])]
            place_M = place_M[block_BL[row, place_M].argsort(stable=True)]
        for step, (_, count) in enumerate(quota):
            step_BL[row, place_M[done : done + count]] = step
            done += count
        most = max(most, len(quota))
    tie_BL = None if shuffle else torch.arange(blank_BL.shape[1], dtype=torch.float64).expand(blank_BL.shape)
    return Assignment(step_BL, block_BL, most, tie_BL=tie_BL, noise=noise)


def _own_counts(grid: Grid, name: str) -> None:
    if grid.name != "rank":
        raise UserError(f"the plan {name} has its own counts for each step: leave out the grid {grid.name}")


@dataclass(frozen=True)
class LLaDAOrder:
    """`generate` of LLaDA with remasking low_confidence: blocks of the answer from left to right, the steps dealt out
    among them, in each step the most confident positions of the block; the remainder goes to a block's first steps."""

    size: int = 32
    name: ClassVar[str] = "llada"

    @property
    def rule(self) -> PublishedConfidence | None:
        return PublishedConfidence()

    def assign(self, blank_BL: Tensor, grid: Grid, schedule: Schedule, generators: list[torch.Generator]) -> Assignment:
        _own_counts(grid, self.name)
        first_B1 = blank_BL.int().argmax(1, keepdim=True)  # an answer's blocks begin where it begins
        block_BL = ((torch.arange(blank_BL.shape[1]) - first_B1) // self.size).clamp(min=0)

        def quotas() -> Iterator[list[tuple[int, int]]]:
            for row, block_L in enumerate(block_BL):
                blanks = torch.bincount(block_L[blank_BL[row]]).tolist()
                shares = deal_steps(blanks, grid.steps)
                yield [
                    (block, count // share + (step < count % share))
                    for block, (count, share) in enumerate(zip(blanks, shares, strict=True))
                    for step in range(share)
                ]

        return _assigned(blank_BL, quotas(), block_BL, shuffle=() if self.rule else generators)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "size": self.size}


@dataclass(frozen=True)
class LLaDARandom(LLaDAOrder):
    """`generate` of LLaDA with remasking random: the same counts, the positions of a block in random order."""

    name: ClassVar[str] = "llada_random"
    rule: ClassVar[None] = None  # known before the first step


@dataclass(frozen=True)
class DreamOrder:
    """`diffusion_generate` of Dream: the whole answer at once; `score` is its `alg`, and `alg_temp` its setting."""

    score: Literal["maskgit_plus", "entropy", "topk_margin"] = "maskgit_plus"
    alg_temp: float = 0.0

    def __post_init__(self) -> None:
        if not (isinstance(self.alg_temp, (int, float)) and 0 <= self.alg_temp < math.inf):
            raise UserError(f"alg_temp must be 0 (the most confident positions) or above (drawn), not {self.alg_temp}")

    def with_settings(self, text: str) -> DreamOrder:
        """The same order with its setting changed."""
        return replace(self, **parse_settings(text, ["alg_temp"]))

    @property
    def name(self) -> str:
        own = {"maskgit_plus": "dream", "entropy": "dream_entropy", "topk_margin": "dream_margin"}[self.score]
        return f"{own}:alg_temp={self.alg_temp:g}" if self.alg_temp else own

    @property
    def rule(self) -> PublishedConfidence:
        score: Literal["entropy", "probability"] = "entropy" if self.score == "entropy" else "probability"
        return PublishedConfidence(score, margin=self.score == "topk_margin", alg_temp=float(self.alg_temp))

    def assign(self, blank_BL: Tensor, grid: Grid, schedule: Schedule, generators: list[torch.Generator]) -> Assignment:
        _own_counts(grid, self.name)
        quotas = ([(0, count) for count in dream_counts(int(row.sum()), grid.steps)] for row in blank_BL)
        noise = generators if self.alg_temp else ()
        return _assigned(blank_BL, quotas, torch.zeros(blank_BL.shape, dtype=torch.int64), noise=noise)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "eps": EPS, "alg_temp": self.alg_temp}


def dream_counts(blanks: int, steps: int) -> list[int]:
    """How many positions each step reveals: masks (1 - s / t), in float32 and cut to an integer; the last takes all."""
    times, left, counts = torch.linspace(1, EPS, steps + 1), blanks, []
    for step in range(steps):
        share = torch.tensor(float(left)) * (1 - times[step + 1] / times[step])
        counts.append(int(share) if step < steps - 1 else left)
        left -= counts[-1]
    return counts


register_plan("llada", LLaDAOrder())
register_plan("llada_random", LLaDARandom())
for _score in ("maskgit_plus", "entropy", "topk_margin"):
    _order = DreamOrder(_score)
    register_plan(_order.name, _order)
register_plan("sdar", Blocks(4, PublishedConfidence()))  # the evaluation's: `top_k` 1 there is temperature 0 here
