"""How far drawn texts are from real ones by what a judge computes of them: energy distance and gradient moments.

Both compare two laws of vectors by means over pairs, each unbiased: a text is never paired with itself. So both are 0
in the mean where the laws are equal, and single values may fall below 0. Intervals bootstrap the influence of each text
on both sides, real text by whole documents. They say how sure the value is where the laws differ; where they hardly do,
look at what other real text has.

Shapes: N drawn texts, M real ones, D features, V states, T tokens of a text.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from unmask.metrics.judges import Judge
from unmask.metrics.reading import retokenised
from unmask.metrics.score import Ratio, Score, Unavailable, difference
from unmask.metrics.texts import Texts
from unmask.objectives.divergences import at_least_float32

CUT = 1024  # tokens of a text that are read
Kernel = Callable[[Tensor, Tensor], Tensor]  # rows of two matrices -> the kernel of each pair


def energy_distance(drawn_ND: Tensor, real_MD: Tensor, cluster_M: Tensor | None = None, *, seed: int = 0) -> Score:
    """2 E|X - Y| - E|X - X'| - E|Y - Y'|: 0 where the two laws are one, above 0 otherwise."""
    return _discrepancy(lambda a, b: -torch.cdist(a, b), drawn_ND, real_MD, cluster_M, seed=seed)


def mean_distance(drawn_NV: Tensor, real_MV: Tensor, cluster_M: Tensor | None = None, *, seed: int = 0) -> Score:
    """|E X - E Y|^2 of two laws."""
    return _discrepancy(lambda a, b: a @ b.T, drawn_NV, real_MV, cluster_M, seed=seed)


def _discrepancy(kernel: Kernel, x_ND: Tensor, y_MD: Tensor, cluster_M: Tensor | None, *, seed: int) -> Score:
    """E k(X, X') + E k(Y, Y') - 2 E k(X, Y), without bias, with the interval of both sides."""
    if min(len(x_ND), len(y_MD)) < 2:
        raise Unavailable("a distance between two laws needs at least 2 texts of each")
    within_N, within_M = _others(kernel(x_ND, x_ND)), _others(kernel(y_MD, y_MD))
    across_NM = kernel(x_ND, y_MD).double()
    value = float(within_N.mean() + within_M.mean() - 2 * across_NM.mean())
    ours = Ratio.around(value, 2 * (within_N - across_NM.mean(1)))
    theirs = Ratio.around(0.0, -2 * (within_M - across_NM.mean(0))).together(cluster_M)
    return difference(ours, theirs, "", {}, paired=False, seed=seed)


def _others(k_NN: Tensor) -> Tensor:
    """The mean of each row over all others."""
    k_NN = k_NN.double()
    return (k_NN.sum(1) - k_NN.diagonal()) / (len(k_NN) - 1)


@torch.inference_mode()
def gradients(judge: Judge, texts: Texts) -> tuple[Tensor, Tensor]:
    """Two moments of a judge's gradient at each text, (first_NV, second_N).

    Give the judge's output layer a bias b: the gradient of a token's loss with respect to it is g_i = p_i -
    onehot(x_i), what the judge expected less what it got. The first moment is the mean of g_i over the text's tokens,
    the second that of |g_i|^2 = 1 - 2 p_i(x_i) + sum_v p_i(v)^2. Words that are used too often move the first; text
    that is easier to foresee than real text lowers the second, word salad raises it.
    """
    assert judge.start_id is not None, "check_judge has refused a judge without one"
    first, second = [], []
    rows = [torch.tensor([judge.start_id, *row[: min(CUT, judge.context - 1)]]) for row in retokenised(texts, judge)]
    batch = max(1, (2**29 if judge.device.type == "cuda" else 2**24) // (judge.states * max(map(len, rows))))
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        logits_BTV = judge.logits(pad_sequence(part, batch_first=True)[:, :-1])
        for logits_TV, row in zip(logits_BTV, part, strict=True):
            first_V, second_1 = moments(logits_TV[: len(row) - 1], row[1:].to(logits_TV.device))
            first.append(first_V.cpu())
            second.append(float(second_1))
    return torch.stack(first), torch.tensor(second, dtype=torch.float64)


def moments(logits_TV: Tensor, next_T: Tensor) -> tuple[Tensor, Tensor]:
    """Both moments of one text."""
    p_TV = at_least_float32(logits_TV).softmax(-1)
    right_T = p_TV.gather(-1, next_T[:, None])[:, 0]
    seen_V = torch.zeros_like(p_TV[0]).index_add_(0, next_T, torch.ones_like(right_T))
    first_V = (p_TV.sum(0) - seen_V) / len(next_T)
    return first_V, (1 - 2 * right_T + p_TV.square().sum(-1)).mean()
