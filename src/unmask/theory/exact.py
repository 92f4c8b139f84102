"""The law of the samples, computed instead of sampled.

On short lines (every masked view fits in a table) Q(x) of any plan, grid and number of steps is exact, so the
sampler's own error KL(p || Q) is a number without noise. On long lines the error given the plan, E_u KL(p || q_u), is
estimated from teacher forcing on x ~ p, with its standard error; it bounds KL(p || Q) from above.

Nothing here uses `sample`: the chi-square tests compare the two. A set of positions is an int, bit i for i.

Shapes: L positions, V tokens; a table over the visible set A has V entries along the axes in A and 1 elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Protocol

import torch
from torch import Tensor

from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.inference.categorical import Law, shape_logits
from unmask.models.denoiser import Denoiser, states_of
from unmask.plans.assignment import Assignment
from unmask.plans.confidence import TIE
from unmask.plans.grids import Grid
from unmask.plans.plan import USUAL, Blocks, Confidence, EntropyBounded, Plan, choose_grid, make_plan
from unmask.processes.masked import mask_of
from unmask.processes.schedule import LogLinear, Schedule
from unmask.sampling.teacher_forcing import Forced
from unmask.theory.plan_laws import Chain, State, bits, chain_of, members

MOST_VIEWS = 1 << 20
_ROWS = 4096  # masked views a forward takes at once


class Views:
    """What a denoiser answers at every masked view of a line: p_A(x_i = v) for every visible set A and its tokens."""

    def __init__(self, denoiser: Denoiser, length: int, law: Law | None = None) -> None:
        K = denoiser.vocab_size
        if K**length > MOST_VIEWS:
            raise UserError(f"{K - 1} tokens at {length} positions have {K**length} masked views, too many to list")
        assert denoiser.mask_id == K - 1, "the mask is the last state"
        self.length, self.tokens = length, K - 1
        z_ZL = torch.cartesian_prod(*[torch.arange(K)] * length).view(-1, length)
        shaped = []
        with torch.inference_mode():
            for part in z_ZL.split(_ROWS):
                logits_NV = denoiser.logits(denoiser.features(part)).flatten(0, 1)
                shaped.append(shape_logits(logits_NV, K - 1, law or Law()).double().softmax(-1)[:, :-1])
        self._p = torch.cat(shaped).view(*[K] * length, length, K - 1)
        self.step = lru_cache(maxsize=None)(self._step)

    def at(self, visible: int) -> Tensor:
        """The law at every position, for all tokens of the visible ones: axes (..., L, V)."""
        V = self.tokens
        return self._p[tuple(slice(V) if visible >> i & 1 else slice(V, V + 1) for i in range(self.length))]

    def _step(self, before: int, after: int, argmax: bool = False) -> Tensor:
        """q(x_B | x_A) = prod over B of p_A(x_i), B the newly revealed: a table over `after`."""
        q = torch.ones([1] * self.length, dtype=torch.float64)
        for i in members(after & ~before):
            p_i = self.at(before)[..., i, :]
            if argmax:
                p_i = torch.nn.functional.one_hot(p_i.argmax(-1), self.tokens).double()
            q = q * p_i.transpose(i, -1).squeeze(-1)  # axis i was of size 1: it was masked
        return q


@dataclass(frozen=True)
class SampleLaw:
    """Q(x) as a table of shape (V,) * L, and the expected number of forwards a line takes."""

    q: Tensor
    nfe: float

    def kl(self, p: Tensor) -> float:
        """KL(p || Q) in nats."""
        return kl(p, self.q)


def kl(p: Tensor, q: Tensor) -> float:
    return float((torch.special.xlogy(p, p) - torch.special.xlogy(p, q)).sum())


def sample_law(
    denoiser: Denoiser | Views, steps: int | None = None, *, length: int | None = None, plan: str | Plan = USUAL,
    grid: str | Sequence[float] | Grid | None = None, law: Law | None = None, given_L: Tensor | None = None,
    schedule: Schedule | None = None,
) -> SampleLaw:  # fmt: skip
    """The law of `sample` with the same settings, exactly.

    `given_L` is a line with the mask where blank (default: all blank). Pass `Views` instead of a denoiser to ask for
    many laws of one model; then the views hold `law`.
    """
    if not isinstance(denoiser, Views):
        denoiser = Views(denoiser, length or denoiser.length, law)
    views, plan = denoiser, make_plan(plan)
    grid = choose_grid(plan, grid, steps)
    if given_L is None:
        given_L = torch.full((views.length,), views.tokens)
    if getattr(plan.rule, "alg_temp", 0):
        raise UserError(f"the exact law of {plan.name}, which draws its positions, is not known here")
    if plan.rule:
        return _adaptive(views, plan, grid, given_L, schedule or LogLinear())
    blank_L = given_L == views.tokens
    return _locked(views, chain_of(plan, blank_L, grid, schedule or LogLinear()), given_L)


def _given(views: Views, given_L: Tensor) -> Tensor:
    """A point mass on the given tokens, as a table over their positions."""
    table = torch.ones([1] * views.length, dtype=torch.float64)
    for i, token in enumerate(given_L.tolist()):
        if token != views.tokens:
            axis = [1] * views.length
            axis[i] = views.tokens
            table = table * (torch.arange(views.tokens) == token).double().view(axis)
    return table


def _locked(views: Views, chain: Chain, given_L: Tensor) -> SampleLaw:
    """Q = sum over the plan's states, step by step: Q_{A'} += P(A -> A') Q_A q(x_B | x_A)."""
    given = bits(given_L != views.tokens)
    start = _given(views, given_L)
    law = {state: probability * start for state, probability in chain.start.items()}
    for k, kernel in enumerate(chain.steps):
        following: dict[State, Tensor] = {}
        for state, table in law.items():
            for target, probability in kernel[state].items():
                step = views.step(state[1] | given, target[1] | given, k == chain.argmax_step)
                if target in following:
                    following[target].addcmul_(table, step, value=probability)
                else:
                    following[target] = probability * table * step
        law = following
    return SampleLaw(sum(law.values(), torch.zeros(())), chain.nfe)


# --- plans that look at the model -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Chooser:
    """The rule of an adaptive plan for one line shape: given what is visible, which positions the next step reveals."""

    rule: Confidence
    assigned: Assignment

    @classmethod
    def of(cls, plan: Plan, grid: Grid, blank_L: Tensor, schedule: Schedule) -> _Chooser:
        rule = plan.inner if isinstance(plan, Blocks) else plan
        assert isinstance(rule, Confidence)
        return cls(rule, plan.assign(blank_L[None], grid, schedule, [stream(0, "unused")]))

    def __call__(self, k: int, masked_NL: Tensor, log_p_NLV: Tensor) -> _Choice:
        """Step k of N lines at once."""
        step_L, block_L = self.assigned.step_BL[0], self.assigned.block_BL[0]
        confidence_NL = self.rule.confidence(log_p_NLV).double()
        if self.rule.threshold is None:
            quota = int((step_L == k).sum())
            block = block_L[step_L == k].amin() if quota else -1
            confidence_NL = confidence_NL.masked_fill(~masked_NL | (block_L != block), -torch.inf)
            return _most_confident(confidence_NL, quota)
        block_N1 = block_L.where(masked_NL, self.assigned.steps).amin(1, keepdim=True)
        open_NL = masked_NL & (block_L == block_N1)
        confidence_NL = confidence_NL.masked_fill(~open_NL, -torch.inf)
        if isinstance(self.rule, EntropyBounded):
            return _most_confident(confidence_NL, self._within_bound(-confidence_NL))
        passing_NL = open_NL & self.rule.passes(confidence_NL)
        best = _most_confident(confidence_NL, 1)
        tied_NL = best.tied_NL & ~passing_NL.any(1, keepdim=True)
        return _Choice(best.sure_NL | passing_NL, tied_NL, best.quota_N)

    def _within_bound(self, entropy_NL: Tensor) -> Tensor:
        """Of each line the size of the largest set whose sum less its largest keeps to the bound: the k lowest."""
        rising_NL, quota_N = entropy_NL.sort(dim=1).values, torch.ones(len(entropy_NL), dtype=torch.int64)
        for k in range(2, entropy_NL.shape[1] + 1):
            lowest_NK = rising_NL[:, :k]
            fits_N = lowest_NK.isfinite().all(1) & (lowest_NK.sum(1) - lowest_NK.amax(1) <= (self.rule.threshold or 0))
            quota_N = quota_N.where(~fits_N, k)
        return quota_N


@dataclass(frozen=True)
class _Choice:
    """Of N lines the positions that are surely revealed, (N, L), and those that tie: of these as many, by chance, as
    its quota still wants."""

    sure_NL: Tensor
    tied_NL: Tensor
    quota_N: Tensor

    def patterns(self) -> Iterator[tuple[Tensor, int, float]]:
        """(lines that may have it, the positions revealed as a set, its probability in them)."""
        kinds_NK = torch.cat([self.sure_NL.long(), self.tied_NL.long(), self.quota_N[:, None]], dim=1)
        for kind_K in kinds_NK.unique(dim=0):
            sure_L, tied_L = kind_K[:-1].chunk(2)
            ties = tied_L.nonzero()[:, 0].tolist()
            sets = list(combinations(ties, int(kind_K[-1]) - int(sure_L.sum()) if ties else 0))
            lines_N = (kinds_NK == kind_K).all(1)
            for chosen in sets:
                yield lines_N, bits(sure_L) | sum(1 << i for i in chosen), 1 / len(sets)


def _most_confident(confidence_NL: Tensor, quota: int | Tensor) -> _Choice:
    """`quota` positions of every line, or of each line its own number of them."""
    quota_N = torch.as_tensor(quota).expand(len(confidence_NL))
    falling_NL = confidence_NL.sort(dim=1, descending=True).values
    least_N1 = falling_NL.gather(1, (quota_N - 1).clamp(min=0)[:, None])
    some_N1 = quota_N[:, None] > 0
    tied_NL = ((confidence_NL - least_N1).abs() < TIE) & some_N1
    return _Choice((confidence_NL > least_N1) & ~tied_NL & some_N1, tied_NL, quota_N)


def _adaptive(views: Views, plan: Plan, grid: Grid, given_L: Tensor, schedule: Schedule) -> SampleLaw:
    """Recursion over every masked view: its tokens decide what is revealed next."""
    L, every = views.length, (1 << views.length) - 1
    choose = _Chooser.of(plan, grid, given_L == views.tokens, schedule)
    law, nfe = {bits(given_L != views.tokens): _given(views, given_L)}, 0.0
    for k in range(choose.assigned.steps):
        following: dict[int, Tensor] = defaultdict(lambda: torch.zeros((), dtype=torch.float64))
        for visible, table in law.items():
            if visible == every:
                following[visible] = following[visible] + table
                continue
            masked_L = torch.tensor([not visible >> i & 1 for i in range(L)])
            choice = choose(k, masked_L.expand(table.numel(), L), views.at(visible).flatten(0, L - 1).log())
            for lines_N, new, probability in choice.patterns():
                share = probability * table * lines_N.view(table.shape)
                nfe += float(share.sum()) * bool(new)
                following[visible | new] = following[visible | new] + share * views.step(visible, visible | new)
        law = following
    assert set(law) == {every}
    return SampleLaw(law[every], nfe)


# --- the error given the plan -----------------------------------------------------------------------------------------


class Source(Denoiser, Protocol):
    """An oracle: a denoiser that also knows the probability of what is visible in a masked view."""

    def log_prob(self, z_BL: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Estimate:
    """E_u KL(p || q_u) in nats a line."""

    kl: float
    standard_error: float
    nfe: float


_TAME = 1.0  # nats: above this spread of log r, the mean of r hangs on lines too rare to be seen


@torch.inference_mode()
def estimate_kl(source: Source, x_BL: Tensor, forced: Forced) -> Estimate:
    """The error given the plan, from whole lines x ~ p under teacher forcing: for long lines.

    KL = E sum_k -log r_k, where r_k = q(x_B | x_A) / p(x_B | x_A) of step k. Since E[r_k | x_A] = 1, a multiple of
    r_k - 1 may be added; where r_k is near 1 it takes away most of the noise. The order of an adaptive plan that meets
    no tie is a function of the tokens, so for it this is KL(p || Q).
    """
    gap_B = torch.zeros(len(x_BL), dtype=torch.float64)
    seen_B = torch.zeros(len(x_BL), dtype=torch.float64)  # log p(x_A)
    for k in range(int(forced.step_TL.max()) + 1):
        rows_R = (forced.step_TL == k).any(1).nonzero()[:, 0]
        if not len(rows_R):
            continue
        step_RL = forced.step_TL[rows_R]
        view_RL = torch.where(step_RL <= k, x_BL[rows_R], mask_of(states_of(source)))
        log_p_R = source.log_prob(view_RL) - seen_B[rows_R]
        log_r_R = torch.where(step_RL == k, forced.log_q_TL[rows_R], 0.0).sum(1) - log_p_R
        gap_B[rows_R] += _controlled(-log_r_R, log_r_R.expm1())
        seen_B[rows_R] += log_p_R
    return Estimate(float(gap_B.mean()), float(gap_B.std()) / len(x_BL) ** 0.5, float(forced.nfe_T.double().mean()))


def _controlled(value_R: Tensor, control_R: Tensor) -> Tensor:
    """Values plus a share, between 0 and 1, of a control of mean zero: the share that leaves the least variance."""
    if float(value_R.std(correction=0)) > _TAME:
        return value_R
    centred_R = control_R - control_R.mean()
    share = -(value_R * centred_R).mean() / centred_R.square().mean().clamp(min=1e-30)
    return value_R + share.clamp(0, 1) * control_R
