"""Diversity across samples and within them: what Gen PPL and entropy cannot see.

distinct-n, self-BLEU and coverage look at the whole pool, so that a parrot with sixteen passages fails them however
good each text is; repeated n-grams look within a text; mutual information by lag asks how far apart tokens still know
of each other, compared with real text. Pools of different sizes do not compare: give real text of the same size.

Resampling texts would count a text drawn twice as repetition, so intervals of pool statistics are bootstraps of each
text's influence on them (jackknife). Shapes: T texts, G n-grams, N tokens, M pairs of them, S symbols.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.core.streams import stream
from unmask.metrics.ngrams import Rows
from unmask.metrics.score import Ratio, Score
from unmask.metrics.texts import Texts

SYMBOLS = 128  # most frequent tokens of real text that mutual information tells apart; the others are one symbol
SMOOTHING = 0.1  # BLEU's stand-in for a count of 0
Tokens = Sequence[Sequence[int]] | Rows


def distinct(rows: Tokens, n: int) -> Ratio:
    """Different n-grams over all n-grams of the pool; without text i, its own ones are gone from both."""
    ngrams = _rows(rows).ngrams(n)
    only_T = np.bincount(ngrams.owner_G[ngrams.owner_G >= 0], minlength=ngrams.rows)
    return _leave_one_out(ngrams.different, int(ngrams.count_P.sum()), only_T, ngrams.per_row())


def coverage(rows: Sequence[Sequence[int]], real: Sequence[Sequence[int]], orders: Sequence[int]) -> dict[int, Ratio]:
    """Share of real text's n-grams (each as often as it occurs) that some text of the pool has, for each n."""
    both, T = Rows([*rows, *real]), len(rows)
    ratios = {}
    for n in orders:
        ngrams = both.ngrams(n)
        pool, real_G = ngrams.among(0, T), ngrams.among(T, len(both)).total()
        covered = int(real_G[pool.total() > 0].sum())
        alone_G = pool.owner_G >= 0
        alone_T = np.bincount(pool.owner_G[alone_G], weights=real_G[alone_G], minlength=T)
        ratios[n] = _leave_one_out(covered, int(real_G.sum()), alone_T, np.zeros(T))
    return ratios


def _leave_one_out(top: float, bottom: float, top_T: Any, bottom_T: Any) -> Ratio:
    """top / bottom with the influence of each text, which takes top_i and bottom_i with it."""
    value = top / bottom
    without_T = (top - top_T) / np.maximum(bottom - bottom_T, 1)
    return Ratio.around(value, (len(top_T) - 1) * (value - without_T))


def repeated(rows: Tokens, n: int) -> Ratio:
    """Share of n-grams that occurred before in the same text."""
    ngrams = _rows(rows).ngrams(n)
    return Ratio.of(ngrams.per_row() - ngrams.different_per_row(), ngrams.per_row())


def self_bleu(rows: Tokens, n: int = 4) -> Ratio:
    """BLEU-n of each text with all the others as references, averaged. A precision of 0 counts as 0.1 matches."""
    rows = _rows(rows)
    log_precision_T = np.zeros(len(rows))
    for order in range(1, n + 1):
        ngrams = rows.ngrams(order)
        matched_P = np.minimum(ngrams.count_P, ngrams.most_elsewhere())
        matched_T = np.bincount(ngrams.row_P, weights=matched_P, minlength=len(rows))
        log_precision_T += np.log(np.where(matched_T > 0, matched_T, SMOOTHING) / np.maximum(ngrams.per_row(), 1)) / n
    brevity_T = np.minimum(0, 1 - _closest_length(rows.length_T) / rows.length_T)
    return Ratio.mean(np.exp(log_precision_T + brevity_T))


def _closest_length(length_T: Any) -> Any:
    """The length of the other text that comes closest; of two, the shorter: a neighbour in order of length."""
    order = np.argsort(length_T, kind="stable")
    rising = length_T[order].astype(float)
    shorter, longer = np.append(-np.inf, rising[:-1]), np.append(rising[1:], np.inf)
    closest_T = np.empty(len(rising))
    closest_T[order] = np.where(rising - shorter <= longer - rising, shorter, longer)
    return closest_T


def _rows(rows: Tokens) -> Rows:
    return rows if isinstance(rows, Rows) else Rows(rows)


def frequent_tokens(real: Texts, symbols: int = SYMBOLS) -> Tensor:
    """The symbol of every token: the most frequent ones of real text have their own, all others share the last."""
    seen_V = torch.bincount(real.tokens_TL[real.tokens_TL >= 0], minlength=real.tokenizer.size)
    symbol_V = torch.full_like(seen_V, symbols)
    best = seen_V.argsort(descending=True, stable=True)[:symbols]
    symbol_V[best] = torch.arange(len(best))
    return symbol_V


def information(rows: Tokens, lag: int, symbol_V: Tensor, *, seed: int = 0) -> Ratio:
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


def _pointwise(first_M: Tensor, second_M: Tensor) -> Tensor:
    """log p(a, b) / p(a) p(b) of each pair, as counted in all of them."""
    S = int(torch.maximum(first_M.max(), second_M.max())) + 1
    joint_SS = torch.bincount(first_M * S + second_M, minlength=S * S).double().view(S, S)
    independent_SS = joint_SS.sum(1)[:, None] * joint_SS.sum(0) / len(first_M)
    return (joint_SS / independent_SS).log()[first_M, second_M]


def suspicions(pool: Mapping[str, Score], real: Mapping[str, Score]) -> dict[str, str]:
    """In what a pool is far less diverse than real text of the same size, in words by score; empty for an honest one.

    Far: less than half of real text's distinct 4-grams or of its coverage, a self-BLEU more than half of the way from
    real text's to 1, or repeated 4-grams a quarter of that way. Scores by name, those of `real` with other real text
    as the pool.
    """
    reasons = {
        "distinct_4": "of its 4-grams are distinct, real text's {}: texts repeat each other",
        "coverage_4": "of held-out text's 4-grams are in it, in other real text {}: it knows little of the language",
    }
    words_by_score = {}
    for name, words in reasons.items():
        if name in pool and name in real and pool[name].high < 0.5 * real[name].value:
            words_by_score[name] = f"only {pool[name].value:.1%} {words.format(f'{real[name].value:.1%}')}"
    mine, theirs = pool["self_bleu"], real["self_bleu"]
    if mine.low > 0.5 * (1 + theirs.value):
        values = f"self-BLEU is {mine.value:.3f}, real text's {theirs.value:.3f}"
        words_by_score["self_bleu"] = f"{values}: texts are copies of each other"
    if "repeated_4" in pool and "repeated_4" in real:
        mine, theirs = pool["repeated_4"], real["repeated_4"]
        if mine.low > theirs.value + 0.25 * (1 - theirs.value):
            rest = f"of its 4-grams occurred before in the same text, in real text {theirs.value:.1%}"
            words_by_score["repeated_4"] = f"{mine.value:.1%} {rest}: texts repeat themselves"
    return words_by_score
