"""What a step from any level to any other costs, and the shortest path from the first level to the last (fit_plan.py).

Shapes: T texts, L positions, M levels, R views in a forward; costs run from level a < M (A) to level b <= M (B).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from unmask.inference.categorical import Law
from unmask.inference.ready import Ready
from unmask.inference.step_law import Factorised, StepLaw
from unmask.plans.grids import Grid
from unmask.processes.masked import mask_of
from unmask.sampling.teacher_forcing import Advance, score_features


@dataclass(frozen=True)
class Edges:
    """A grid as the levels its steps end at, 0 = e_0 < e_1 < ... < e_N = M, and its cost."""

    edges: tuple[int, ...]
    cost: float

    def grid(self) -> Grid:
        return Grid("fitted", tuple(1 - edge / self.edges[-1] for edge in self.edges), by="rank")


@torch.inference_mode()
def step_costs(
    body: Ready, x_TL: Tensor, level_TL: Tensor, levels: int, step_law: StepLaw, u_TL: Tensor, *, rows: int = 8,
    advance: Advance | None = None,
) -> Tensor:  # fmt: skip
    """nll[a, b]: the sum over texts of -log q of the tokens of levels a .. b-1 in one step; 0 for b <= a. Where tokens
    of a step are independent, one pass of the vocabulary head serves all b of an a."""
    nll_AB, alone = torch.zeros(levels, levels + 1, dtype=torch.float64), isinstance(step_law, Factorised)
    for view_R in torch.arange(len(x_TL) * levels).split(rows):
        text_R, a_R = view_R // levels, view_R % levels
        x_RL, level_RL, hidden_RL = x_TL[text_R], level_TL[text_R], level_TL[text_R] >= a_R[:, None]
        z_RL = torch.where(hidden_RL, mask_of(body.states), x_RL)
        h_ND = body.features(z_RL.to(body.device)).flatten(0, 1)
        for b in [levels] if alone else range(1, levels + 1):
            scored_RL = hidden_RL & (level_RL < b)
            if not bool(scored_RL.any()):
                continue
            nll_RL = -score_features(body, h_ND, x_RL, scored_RL, Law(), step_law, u_RL=u_TL[text_R])
            if alone:
                nll_RM = torch.zeros(len(view_R), levels, dtype=torch.float64).scatter_add_(1, level_RL, nll_RL)
                nll_AB.index_add_(0, a_R, F.pad(nll_RM.cumsum(1), (1, 0)))
            else:
                nll_AB.index_put_((a_R, torch.tensor(b)), nll_RL.sum(1), accumulate=True)
        if advance:
            advance(len(view_R))
    return nll_AB


def forward_only(nll_AB: Tensor) -> Tensor:
    """The same, infinite for b <= a, since a step goes forward."""
    return nll_AB.masked_fill(torch.ones_like(nll_AB, dtype=torch.bool).tril(), torch.inf)


def shortest_paths(cost_AB: Tensor, steps: int) -> list[Edges]:
    """The cheapest path with n edges, n = 1 .. steps: best_n(b) = min over a of best_{n-1}(a) + cost(a, b)."""
    best_B, parents, paths = cost_AB[0], [], []
    for n in range(1, steps + 1):
        if n > 1:
            best_B, parent_B = (best_B[:-1, None] + cost_AB).min(0)
            parents.append(parent_B.tolist())
        edges = [cost_AB.shape[0]]
        for parent in reversed(parents):
            edges.append(parent[edges[-1]])
        paths.append(Edges((0, *reversed(edges)), float(best_B[-1])))
    return paths
