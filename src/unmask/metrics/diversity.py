"""Diversity across samples and within them: what Gen PPL and entropy cannot see.

distinct-n, self-BLEU and coverage look at the whole pool, so that a parrot with sixteen passages fails them however
good each text is; repeated n-grams look within a text; mutual information by lag asks how far apart tokens still know
of each other, compared with real text. Pools of different sizes do not compare: give real text of the same size.

Resampling texts would count a text drawn twice as repetition, so intervals of pool statistics are bootstraps of each
text's influence on them (jackknife). Refuses to know judges and samplers. Shapes: T texts, G n-grams,
N tokens, M pairs of them, S symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.core import provenance
from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.metrics.ngrams import Rows
from unmask.metrics.score import Ratio, Score, difference
from unmask.metrics.texts import Texts

ORDERS = (1, 2, 3, 4)
LAGS = (1, 2, 4, 8, 16, 32, 64)
SYMBOLS = 128  # most frequent tokens of real text that mutual information tells apart; the others are one symbol
SMOOTHING = 0.1  # BLEU's stand-in for a count of 0


@dataclass(frozen=True, eq=False)
class Diversity:
    """Scores of a pool; dictionaries go by n, or by lag."""

    distinct: dict[int, Score]  # different n-grams of the pool / all of them
    self_bleu: Score  # mean BLEU-4 of a text against all others
    coverage: dict[int, Score]  # share of real text's n-grams that the pool has somewhere
    repeated: dict[int, Score]  # share of a text's n-grams that it has had before
    information: dict[int, Score]  # nats between tokens so far apart
    information_gap: dict[int, Score]  # less that of real text


def diversity(
    texts: Texts, real: Texts, *, orders: Sequence[int] = ORDERS, lags: Sequence[int] = LAGS, seed: int = 0
) -> Diversity:
    """All of it for one pool, against held-out real text in the same tokens."""
    if texts.tokenizer.hash != real.tokenizer.hash:
        raise UserError("samples and real text are in different tokens: read the real text with the samples' tokenizer")
    if len(texts) < 2:
        raise UserError("diversity is a matter of several texts: draw at least 2")
    record = provenance.record("cpu", texts=texts.record, real=real.record, seed=seed)

    def score(ratio: Ratio, unit: str, name: str, **facts: Any) -> Score:
        return Score.of(ratio.together(texts.cluster_T), unit, {**record, "score": name, **facts}, seed=seed)

    pool = Rows(texts.rows)
    longest = int(min(pool.length_T.max(), max(map(len, real.rows))))
    orders = [n for n in orders if n <= longest]
    lags = [lag for lag in lags if lag < longest]
    frequent = frequent_tokens(real)
    ours = {lag: information(pool, lag, frequent).together(texts.cluster_T) for lag in lags}
    theirs = _real_information(real, tuple(lags))
    both = Rows([*texts.rows, *real.rows])
    gap = {**record, "score": "information_gap"}
    return Diversity(
        distinct={n: score(distinct(pool, n), "share", "distinct", n=n) for n in orders},
        self_bleu=score(self_bleu(pool), "BLEU", "self_bleu"),
        coverage={n: score(_coverage(both, len(pool), n), "share", "coverage", n=n) for n in orders},
        repeated={n: score(repeated(pool, n), "share", "repeated", n=n) for n in orders},
        information={lag: score(ours[lag], "nats", "information", lag=lag) for lag in lags},
        information_gap={
            lag: difference(ours[lag], theirs[lag], "nats", {**gap, "lag": lag}, paired=False, seed=seed)
            for lag in lags
        },
    )


def distinct(rows: Sequence[Sequence[int]] | Rows, n: int) -> Ratio:
    """Different n-grams over all n-grams of the pool; without text i, its own ones are gone from both."""
    found = _rows(rows).ngrams(n)
    only_T = np.bincount(found.owner_G[found.owner_G >= 0], minlength=found.rows)
    return _leave_one_out(found.different, int(found.count_P.sum()), only_T, found.per_row())


def coverage(rows: Sequence[Sequence[int]], real: Sequence[Sequence[int]], n: int) -> Ratio:
    """Share of real text's n-grams (each as often as it occurs) that some text of the pool has."""
    return _coverage(Rows([*rows, *real]), len(rows), n)


def _coverage(both: Rows, T: int, n: int) -> Ratio:
    """The first T rows are the pool, the others real text."""
    found = both.ngrams(n)
    pool, real_G = found.among(0, T), found.among(T, len(both)).total()
    covered = int(real_G[pool.total() > 0].sum())
    alone_G = pool.owner_G >= 0
    alone_T = np.bincount(pool.owner_G[alone_G], weights=real_G[alone_G], minlength=T)
    return _leave_one_out(covered, int(real_G.sum()), alone_T, np.zeros(T))


def _leave_one_out(top: float, bottom: float, top_T: Any, bottom_T: Any) -> Ratio:
    """top / bottom with the influence of each text, which takes top_i and bottom_i with it."""
    value = top / bottom
    without_T = (top - top_T) / np.maximum(bottom - bottom_T, 1)
    return Ratio.around(value, (len(top_T) - 1) * (value - without_T))


def repeated(rows: Sequence[Sequence[int]] | Rows, n: int) -> Ratio:
    """Share of n-grams that occurred before in the same text."""
    found = _rows(rows).ngrams(n)
    return Ratio.of(found.per_row() - found.different_per_row(), found.per_row())


def self_bleu(rows: Sequence[Sequence[int]] | Rows, n: int = 4) -> Ratio:
    """BLEU-n of each text with all the others as references, averaged. A precision of 0 counts as 0.1 matches."""
    rows = _rows(rows)
    log_precision_T = np.zeros(len(rows))
    for order in range(1, n + 1):
        found = rows.ngrams(order)
        matched_P = np.minimum(found.count_P, found.most_elsewhere())
        matched_T = np.bincount(found.row_P, weights=matched_P, minlength=len(rows))
        log_precision_T += np.log(np.where(matched_T > 0, matched_T, SMOOTHING) / np.maximum(found.per_row(), 1)) / n
    brevity_T = np.minimum(0, 1 - _closest_length(rows.length_T) / rows.length_T)
    return Ratio.mean(np.exp(log_precision_T + brevity_T))


def _closest_length(length_T: Any) -> Any:
    """The length of the other text that comes closest; of two, the shorter: a neighbour in order of length."""
    order = np.argsort(length_T, kind="stable")
    rising = length_T[order].astype(float)
    shorter, longer = np.append(-np.inf, rising[:-1]), np.append(rising[1:], np.inf)
    found = np.empty(len(rising))
    found[order] = np.where(rising - shorter <= longer - rising, shorter, longer)
    return found


def _rows(rows: Sequence[Sequence[int]] | Rows) -> Rows:
    return rows if isinstance(rows, Rows) else Rows(rows)


# --- mutual information -----------------------------------------------------------------------------------------------


def frequent_tokens(real: Texts, symbols: int = SYMBOLS) -> Tensor:
    """The symbol of every token: the most frequent ones of real text have their own, all others share the last."""
    seen_V = torch.bincount(real.tokens_TL[real.tokens_TL >= 0], minlength=real.tokenizer.size)
    symbol_V = torch.full_like(seen_V, symbols)
    best = seen_V.argsort(descending=True, stable=True)[:symbols]
    symbol_V[best] = torch.arange(len(best))
    return symbol_V


def information(rows: Sequence[Sequence[int]] | Rows, lag: int, symbol_V: Tensor, *, seed: int = 0) -> Ratio:
    """I(x_i; x_{i+lag}) over all positions i, in nats.

    Counting finite pairs shows information where there is none, so what the same pairs show when they are shuffled is
    taken off. The estimate is the mean over pairs of log p(a, b) / p(a) p(b), and that logarithm less its mean is also
    each pair's influence on it: so a bootstrap over texts needs no recounting.
    """
    rows = _rows(rows)
    symbol_N, start_M = symbol_V[torch.from_numpy(rows.flat_N)], torch.from_numpy(rows.starts(lag + 1))
    text_M, first_M, second_M = torch.from_numpy(rows.row_N)[start_M], symbol_N[start_M], symbol_N[start_M + lag]
    shuffled_M = second_M[torch.randperm(len(second_M), generator=stream(seed, "shuffled pairs"))]
    value_M = _pointwise(first_M, second_M) - _pointwise(first_M, shuffled_M).mean()
    sum_T = torch.bincount(text_M, weights=value_M, minlength=len(rows))
    return Ratio.of(sum_T, torch.bincount(text_M, minlength=len(rows)))


@lru_cache(maxsize=1)  # one real text serves all the cells of an evaluation
def _real_information(real: Texts, lags: tuple[int, ...]) -> dict[int, Ratio]:
    rows, frequent = Rows(real.rows), frequent_tokens(real)
    return {lag: information(rows, lag, frequent).together(real.cluster_T) for lag in lags}


def _pointwise(first_M: Tensor, second_M: Tensor) -> Tensor:
    """log p(a, b) / p(a) p(b) of each pair, as counted in all of them."""
    S = int(torch.maximum(first_M.max(), second_M.max())) + 1
    joint_SS = torch.bincount(first_M * S + second_M, minlength=S * S).double().view(S, S)
    independent_SS = joint_SS.sum(1)[:, None] * joint_SS.sum(0) / len(first_M)
    return (joint_SS / independent_SS).log()[first_M, second_M]


# --- the verdict ------------------------------------------------------------------------------------------------------


def suspicions(pool: Diversity, real: Diversity) -> list[str]:
    """In what a pool is far less diverse than real text of the same size, in words; empty for an honest one.

    Far: less than half of real text's distinct 4-grams or of its coverage, or a self-BLEU more than half of the way
    from real text's to 1. `real` is the same measurement with other real text as the pool.
    """
    found = []
    for n in sorted(set(pool.distinct) & set(real.distinct) & {4}):
        if pool.distinct[n].high < 0.5 * real.distinct[n].value:
            found.append(f"only {pool.distinct[n].value:.1%} of its {n}-grams are distinct, real text's "
                         f"{real.distinct[n].value:.1%}: texts repeat each other")  # fmt: skip
        if pool.coverage[n].high < 0.5 * real.coverage[n].value:
            found.append(f"it has {pool.coverage[n].value:.1%} of held-out text's {n}-grams, other real text "
                         f"{real.coverage[n].value:.1%}: it knows little of the language")  # fmt: skip
    if pool.self_bleu.low > 0.5 * (1 + real.self_bleu.value):
        found.append(f"self-BLEU is {pool.self_bleu.value:.3f}, real text's {real.self_bleu.value:.3f}: "
                     "texts are copies of each other")  # fmt: skip
    return found
