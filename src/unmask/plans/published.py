"""The orders of the published samplers of LLaDA (`generate`) and Dream (`diffusion_generate`): quotas and confidence.

With temperature 0 they reveal what those reveal, token for token. What differs by design: a row's quota counts its own
blanks (Dream averages them over the batch); masks inside a prompt are blanks like all others; a step that reveals
nothing runs no network; and above temperature 0 positions are chosen before their tokens are drawn, so that log q
stays exact, where the published order looks at the drawn tokens.

Shapes: B sequences, L positions, M candidates, V states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from unmask.core.errors import UserError
from unmask.plans.grids import Grid
from unmask.plans.plan import Assignment, Blocks, Confidence, deal_steps, register_plan
from unmask.processes.schedule import Schedule

EPS = 1e-3  # where Dream's times end


@dataclass(frozen=True)
class PublishedConfidence(Confidence):
    """The confidence of the network's own law: no temperature, no cut, and the mask counted among the states."""

    margin: bool = False  # the likeliest token's lead over the second
    whole_law: ClassVar[bool] = True

    def confidence(self, log_p_MV: Tensor) -> Tensor:
        if self.margin:
            best_M2 = log_p_MV.topk(2, dim=-1).values.exp()
            return best_M2[:, 0] - best_M2[:, 1]
        return super().confidence(log_p_MV)


def _assigned(blank_BL: Tensor, quotas: Iterator[list[tuple[int, int]]], block_BL: Tensor) -> Assignment:
    """Of every row the (block, count) of each step, as counts on its blanks; ties go to the leftmost."""
    step_BL = torch.full(blank_BL.shape, -1)
    most = 0
    for row, quota in enumerate(quotas):
        place_M, done = blank_BL[row].nonzero()[:, 0], 0
        for step, (_, count) in enumerate(quota):
            step_BL[row, place_M[done : done + count]] = step
            done += count
        most = max(most, len(quota))
    tie_BL = torch.arange(blank_BL.shape[1], dtype=torch.float64).expand(blank_BL.shape)
    return Assignment(step_BL, block_BL, most, tie_BL=tie_BL)


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
    def rule(self) -> PublishedConfidence:
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

        return _assigned(blank_BL, quotas(), block_BL)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "size": self.size}


@dataclass(frozen=True)
class DreamOrder:
    """`diffusion_generate` of Dream: the whole answer at once; `score` is its `alg`."""

    score: Literal["maskgit_plus", "entropy", "topk_margin"] = "maskgit_plus"

    @property
    def name(self) -> str:
        return {"maskgit_plus": "dream", "entropy": "dream_entropy", "topk_margin": "dream_margin"}[self.score]

    @property
    def rule(self) -> PublishedConfidence:
        return PublishedConfidence(
            "entropy" if self.score == "entropy" else "probability", margin=self.score == "topk_margin"
        )

    def assign(self, blank_BL: Tensor, grid: Grid, schedule: Schedule, generators: list[torch.Generator]) -> Assignment:
        _own_counts(grid, self.name)
        quotas = ([(0, count) for count in dream_counts(int(row.sum()), grid.steps)] for row in blank_BL)
        return _assigned(blank_BL, quotas, torch.zeros(blank_BL.shape, dtype=torch.int64))

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "eps": EPS}


def dream_counts(blanks: int, steps: int) -> list[int]:
    """How many positions each step reveals: masks (1 - s / t), in float32 and cut to an integer; the last takes all."""
    times, left, counts = torch.linspace(1, EPS, steps + 1), blanks, []
    for step in range(steps):
        share = torch.tensor(float(left)) * (1 - times[step + 1] / times[step])
        counts.append(int(share) if step < steps - 1 else left)
        left -= counts[-1]
    return counts


register_plan("llada", LLaDAOrder())
for _score in ("maskgit_plus", "entropy", "topk_margin"):
    _order = DreamOrder(_score)
    register_plan(_order.name, _order)
register_plan("sdar", Blocks(4, PublishedConfidence()))  # the evaluation's: `top_k` 1 there is temperature 0 here
