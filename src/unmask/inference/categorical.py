"""The exact categorical draw: one uniform a position, by inverse CDF, in float64.

Gumbel noise needs V uniforms a position, and in fp32 its tail is cut (the smallest -log u is 6e-8), which acts like a
lower temperature. Here the weights exp(logit - max) are summed in float64 and one uniform picks the token, in two
levels (a run of states, then the state), so that no cumulative table of V entries is ever scanned.

Shapes: M positions, V states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.core.errors import UserError, check_name

DTYPES = {"float64": torch.float64, "fp32": torch.float32}
_RUN = 256  # states in a run; V = 50258 gives 197 runs


@dataclass(frozen=True)
class Law:
    """How logits become the law a token is drawn from."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    dtype: str = "float64"

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise UserError(f"temperature must be at least 0 and finite, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k must be at least 1, not {self.top_k}")
        check_name("dtype", self.dtype, DTYPES)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken: temperature 0, whose law is a point mass."""
        return self.temperature == 0 or self.top_k == 1


@dataclass(frozen=True)
class Draw:
    """Tokens and the log-probability of each under the law it was drawn from; `dtype` is the one really used."""

    token_M: Tensor
    log_q_M: Tensor
    dtype: torch.dtype
    rounds_R: Tensor | None = None  # of a law that draws in rounds: how many each text took part in, texts in order


def shape_logits(logits_MV: Tensor, mask_id: int | None, law: Law, heat_M: Tensor | None = None) -> Tensor:
    """Logits of the law, in its dtype: the mask ruled out, divided by the temperature, cut beyond top-k and top-p.

    `heat_M` is a temperature for each position, instead of the law's.
    """
    dtype = DTYPES[law.dtype]
    if logits_MV.device.type == "mps" and dtype == torch.float64:
        logits_MV = logits_MV.cpu()  # no float64 there
    shaped_MV = logits_MV.to(dtype, copy=True)
    if mask_id is not None:
        shaped_MV[:, mask_id] = -torch.inf
    if heat_M is not None:
        shaped_MV = shaped_MV / heat_M.to(shaped_MV.device, dtype)[:, None]
    elif law.temperature not in (0, 1):
        shaped_MV = shaped_MV / law.temperature
    top_k = 1 if law.greedy else law.top_k
    if top_k is not None and top_k < shaped_MV.shape[-1]:
        kept_MK = shaped_MV.topk(top_k).indices  # exactly k survive, also among ties
        survives_MV = torch.zeros_like(shaped_MV, dtype=torch.bool).scatter_(-1, kept_MK, True)
        shaped_MV = shaped_MV.masked_fill(~survives_MV, -torch.inf)
    if law.top_p < 1:
        shaped_MV = _nucleus(shaped_MV, law.top_p)
    return shaped_MV


def _nucleus(logits_MV: Tensor, top_p: float) -> Tensor:
    """The fewest likeliest states whose probability reaches top_p; the likeliest always stays."""
    sorted_MV, order_MV = logits_MV.sort(-1, descending=True)
    p_MV = sorted_MV.softmax(-1)
    before_MV = p_MV.cumsum(-1) - p_MV  # mass of the states ahead
    beyond_MV = before_MV >= top_p
    beyond_MV[:, 0] = False
    return logits_MV.masked_fill(torch.zeros_like(beyond_MV).scatter_(-1, order_MV, beyond_MV), -torch.inf)


def draw(logits_MV: Tensor, uniform_M: Tensor, mask_id: int | None, law: Law, heat_M: Tensor | None = None) -> Draw:
    """One token a position from the law that logits are shaped into."""
    return pick(shape_logits(logits_MV, mask_id, law, heat_M), uniform_M)


def pick(shaped_MV: Tensor, uniform_M: Tensor) -> Draw:
    """One state a position, of log-weights: where the cumulative weight first exceeds uniform * total."""
    weight_MRW, edge_MR = _runs(shaped_MV)
    total_M = edge_MR[:, -1]
    state_M, weight_M = _at(weight_MRW, edge_MR, uniform_M.to(total_M.device, total_M.dtype) * total_M)
    return Draw(state_M, weight_M.log() - total_M.log(), weight_MRW.dtype)


def _runs(shaped_MV: Tensor) -> tuple[Tensor, Tensor]:
    """Weights in runs of states, (M, R, W), and the cumulative weight at the end of each run, (M, R)."""
    weight_MV = (shaped_MV - shaped_MV.amax(-1, keepdim=True)).exp()
    weight_MRW = F.pad(weight_MV, (0, -weight_MV.shape[-1] % _RUN)).unflatten(-1, (-1, _RUN))
    return weight_MRW, weight_MRW.sum(-1).cumsum(-1)


def _at(weight_MRW: Tensor, edge_MR: Tensor, target_M: Tensor) -> tuple[Tensor, Tensor]:
    """The state whose cumulative weight first exceeds a target, and its weight."""
    run_M = _first_above(edge_MR, target_M)
    weight_MW = weight_MRW.gather(1, run_M[:, None, None].expand(-1, 1, _RUN))[:, 0]
    before_M = F.pad(edge_MR, (1, 0)).gather(1, run_M[:, None])[:, 0]
    state_M = _first_above(before_M[:, None] + weight_MW.cumsum(-1), target_M)
    # the runs' sums and the sum within a run may round apart: never past the last state that has weight
    state_M = state_M.minimum(_RUN - 1 - (weight_MW > 0).flip(-1).int().argmax(-1))
    return run_M * _RUN + state_M, weight_MW.gather(-1, state_M[:, None])[:, 0]


def draw_mixture(
    logits_MV: Tensor, uniform_M: Tensor, z_M: Tensor, numbers_6: Tensor, mask_id: int | None, law: Law,
    heat_M: Tensor | None = None,
) -> Draw:  # fmt: skip
    """One state a position of a Mixture (processes/mixture.py), x_0 from the law that logits are shaped into.

    One uniform number decides for a part, and what is left of it for a state of that part.
    """
    weight_MRW, edge_MR = _runs(shape_logits(logits_MV, mask_id, law, heat_M))
    K, fresh, token, uniform, own, least = numbers_6.to(edge_MR)
    z_M, u_M, total_M = z_M.to(edge_MR.device), uniform_M.to(edge_MR), edge_MR[:, -1]

    def p(state_M: Tensor) -> Tensor:
        return weight_MRW.flatten(1).gather(1, state_M[:, None])[:, 0] / total_M

    def even(share_M: Tensor) -> Tensor:
        return (share_M * K).clamp(min=0).minimum(K - 1).nan_to_num().long()

    T_M = own * p(z_M) + least
    y_M = (u_M - fresh) * T_M
    drawn_M, _ = _at(weight_MRW, edge_MR, (y_M / token).clamp(0, 1) * total_M)
    state_M = torch.where(y_M < token + uniform, even((y_M - token) / uniform), z_M)
    state_M = torch.where(y_M < token, drawn_M, state_M)
    state_M = torch.where(u_M < fresh, even(u_M / fresh), state_M)
    stays_M = torch.where(state_M == z_M, 1 - fresh - (token + uniform) / T_M, 0.0)
    q_M = fresh / K + (token * p(state_M) + uniform / K) / T_M + stays_M
    return Draw(state_M, q_M.log(), edge_MR.dtype)


def _first_above(edge_MN: Tensor, target_M: Tensor) -> Tensor:
    """The first index whose (rising) edge exceeds the target; it has weight, since the edge before does not exceed it.

    Rounding may put the target on the total itself: then the index where the total was reached.
    """
    return (edge_MN <= target_M[:, None]).sum(-1).minimum((edge_MN < edge_MN[:, -1:]).sum(-1))


def argmax(logits_MV: Tensor, mask_id: int | None, law: Law) -> Draw:
    """The likeliest token: MDLM's noise removal. Its law is a point mass, so log q is 0."""
    shaped_MV = shape_logits(logits_MV, mask_id, law)
    token_M = shaped_MV.argmax(-1)
    return Draw(token_M, torch.zeros_like(token_M, dtype=shaped_MV.dtype), shaped_MV.dtype)


def join(draws: list[Draw]) -> Draw:
    """Draws of several pieces as one."""
    return Draw(torch.cat([one.token_M for one in draws]), torch.cat([one.log_q_M for one in draws]), draws[0].dtype)


def log_prob(shaped_MV: Tensor, token_M: Tensor) -> Tensor:
    """The log-probability of tokens under log-weights: (M,) float64, on the CPU (there is no float64 on MPS)."""
    at_M = token_M.to(shaped_MV.device)
    return (shaped_MV.gather(1, at_M[:, None])[:, 0] - shaped_MV.logsumexp(1)).cpu().double()
