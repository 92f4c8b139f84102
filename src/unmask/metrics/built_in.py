"""The metrics that come with the package, registered by name.

Diversity is that of as many texts as there are real ones, where there are any: pools of different sizes do not compare.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch

from unmask.metrics import diversity
from unmask.metrics.cache import Store
from unmask.metrics.gen_ppl import gen_ppl, unigram_entropy
from unmask.metrics.judges import Judge
from unmask.metrics.mauve import judge_features, mauve
from unmask.metrics.path_gap import has_log_q, judge_nll, own_entropy, path_gap
from unmask.metrics.registry import register_metric
from unmask.metrics.score import Ratio, Score, Unavailable, difference
from unmask.metrics.texts import Texts
from unmask.metrics.two_samples import energy_distance, gradients, mean_distance

SCORES = (  # what they give, but for the order or the lag at the end of a name
    "entropy", "gen_ppl", "judge_entropy", "path_gap", "judge_nll", "sampler_entropy", "distinct", "coverage",
    "repeated", "self_bleu", "information", "information_gap", "mauve", "energy_distance", "gradient",
)  # fmt: skip
ORDERS = (1, 2, 3, 4)  # of n-grams
LAGS = (1, 2, 4, 8, 16, 32, 64)  # of mutual information
# what several metrics ask of the same texts, kept as long as those live (a judge goes by its name: its weights are not)
_FOUND: WeakKeyDictionary[Texts, dict[Any, Any]] = WeakKeyDictionary()


def of_plug_ins(scores: Iterable[str]) -> list[str]:
    """Of scores by name, those that no metric here gives."""
    return sorted(name for name in scores if re.sub(r"_\d+$", "", name) not in SCORES)


def _once(texts: Texts, key: Any, work: Callable[[], Any]) -> Any:
    kept = _FOUND.setdefault(texts, {})
    if key not in kept:
        kept[key] = work()
    return kept[key]


@register_metric("entropy", unit="nats")
def _entropy(texts: Texts) -> Ratio:
    return Ratio.mean(unigram_entropy(texts.rows))


@register_metric("gen_ppl")
def _gen_ppl(texts: Texts, judge: Judge, protocol: str, seed: int, store: Store | None = None) -> dict[str, Score]:
    scores = gen_ppl(texts, judge, protocol=protocol, store=store, seed=seed)
    return {"gen_ppl": scores.ppl, "judge_entropy": scores.judge_entropy}


@register_metric("path_gap")
def _path_gap(texts: Texts, seed: int, judge: Judge | None = None, store: Store | None = None) -> dict[str, Score]:
    """As much of it as can be had: without a judge the own entropy; of text that nobody drew nothing."""
    if judge is None:
        return {"sampler_entropy": own_entropy(texts, seed=seed)}
    if texts.log_q_T is None:
        return {}
    scores = path_gap(texts, judge, store=store, seed=seed)
    return {"path_gap": scores.gap, "judge_nll": scores.judge_nll, "sampler_entropy": scores.sampler_entropy}


@register_metric("judge_nll")
def _judge_nll(texts: Texts, judge: Judge, seed: int, store: Store | None = None) -> dict[str, Score]:
    """Of text that has no path gap: else it comes with that."""
    return {} if has_log_q(texts) else {"judge_nll": judge_nll(texts, judge, store=store, seed=seed)}


@register_metric("distinct", unit="share")
def _distinct(texts: Texts, real: Texts | None = None) -> dict[str, Ratio]:
    pool = _pool(texts, real)
    return _named("distinct", _orders(pool), lambda n: diversity.distinct(pool.ngrams, n))


@register_metric("coverage", unit="share")
def _coverage(texts: Texts, real: Texts) -> dict[str, Ratio]:
    pool = _pool(texts, real)
    return _named("coverage", orders := _orders(pool, real), diversity.coverage(pool.rows, real.rows, orders).get)


@register_metric("repeated", unit="share")
def _repeated(texts: Texts, real: Texts | None = None) -> dict[str, Ratio]:
    pool = _pool(texts, real)
    return _named("repeated", _orders(pool), lambda n: diversity.repeated(pool.ngrams, n))


@register_metric("self_bleu", unit="BLEU")
def _self_bleu(texts: Texts, real: Texts | None = None) -> Ratio:
    return diversity.self_bleu(_pool(texts, real).ngrams)


@register_metric("information", unit="nats")
def _information(texts: Texts, real: Texts) -> dict[str, Ratio]:
    return _named("information", _lags(texts, real), lambda lag: _at_lag(_pool(texts, real), real, lag))


@register_metric("information_gap", unit="nats")
def _information_gap(texts: Texts, real: Texts, seed: int) -> dict[str, Score]:
    def gap(lag: int) -> Score:
        ours, theirs = (_at_lag(one, real, lag) for one in (_pool(texts, real), real))
        return difference(ours, theirs, "nats", {}, paired=False, seed=seed)

    return _named("information_gap", _lags(texts, real), gap)


@register_metric("mauve")
def _mauve(texts: Texts, judge: Judge, real: Texts, seed: int) -> Score:
    return mauve(_features(texts, judge), _features(real, judge), seed=seed)


@register_metric("energy_distance")
def _energy_distance(texts: Texts, judge: Judge, real: Texts, seed: int) -> Score:
    ours, theirs = (torch.from_numpy(_features(one, judge)) for one in (texts, real))
    return energy_distance(ours, theirs, real.cluster_T, seed=seed)


@register_metric("gradient")
def _gradient(texts: Texts, judge: Judge, real: Texts, seed: int) -> dict[str, Score]:
    """The first moment as a squared distance, the second less real text's: both 0 where the laws are equal."""
    ours, theirs = (_once(one, ("gradients", judge.id), partial(gradients, judge, one)) for one in (texts, real))
    square, of_real = Ratio.mean(ours[1]).together(texts.cluster_T), Ratio.mean(theirs[1]).together(real.cluster_T)
    return {
        "gradient_1": mean_distance(ours[0], theirs[0], real.cluster_T, seed=seed),
        "gradient_2": difference(square, of_real, "", {}, paired=False, seed=seed),
    }


def _features(texts: Texts, judge: Judge) -> Any:
    return _once(texts, ("features", judge.id), lambda: judge_features(judge, texts))


def _named(name: str, numbers: Iterable[int], score: Callable[[int], Any]) -> dict[str, Any]:
    return {f"{name}_{number}": score(number) for number in numbers}


def _pool(texts: Texts, real: Texts | None) -> Texts:
    """As many texts as there are real ones."""
    if len(texts) < 2:
        raise Unavailable("diversity is a matter of several texts: give at least 2")
    if real is None or len(texts) <= len(real):
        return texts
    return _once(texts, len(real), lambda: texts.take(len(real)))


def _longest(*several: Texts) -> int:
    return min(max(map(len, texts.rows)) for texts in several)


def _orders(*several: Texts) -> list[int]:
    return [n for n in ORDERS if n <= _longest(*several)]


def _lags(*several: Texts) -> list[int]:
    return [lag for lag in LAGS if lag < _longest(*several)]


def _at_lag(texts: Texts, real: Texts, lag: int) -> Ratio:
    """Mutual information of texts at a lag, in the symbols of real text."""

    def work() -> Ratio:
        symbol_V = _once(real, "symbols", lambda: diversity.frequent_tokens(real))
        return diversity.information(texts.ngrams, lag, symbol_V).together(texts.cluster_T)

    return _once(texts, ("information", ref(real), lag), work)
