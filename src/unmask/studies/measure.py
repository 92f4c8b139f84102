"""One cell measured: every score of n texts, with and without a judge, against real text where there is some.

Refuses to know which model wrote the texts, what is kept on disk, and other cells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from unmask.metrics.cache import Store
from unmask.metrics.diversity import Diversity, distinct, diversity, repeated, self_bleu, suspicions
from unmask.metrics.gen_ppl import gen_ppl, unigram_entropy
from unmask.metrics.judges import Judge
from unmask.metrics.mauve import Array, judge_features, mauve
from unmask.metrics.path_gap import path_gap
from unmask.metrics.score import Ratio, Score
from unmask.metrics.texts import Texts
from unmask.studies.results import Json

Progress = Callable[[int, int], None]
ORDER = 4  # of the n-grams that are quoted


@dataclass(frozen=True, eq=False)
class RealText:
    """Held-out text in two halves of one size: one plays a pool of samples, the other is what pools are held to."""

    pool: Texts
    reference: Texts
    diversity: Diversity  # of the pool: what real text of that size scores


@dataclass(frozen=True, eq=False)
class Measured:
    """Scores by name without their records, the statistics of each text, what looks wrong, and one record for all."""

    scores: dict[str, Json]
    ratios: dict[str, Ratio]
    suspicions: tuple[str, ...]
    record: Json


@dataclass(frozen=True, eq=False)
class Measure:
    """How texts are scored in one evaluation."""

    judge: Judge | None
    protocol: str
    real: RealText | None
    store: Store | None
    seed: int

    def __call__(self, texts: Texts, *, with_mauve: bool = False, progress: Progress | None = None) -> Measured:
        scores: dict[str, Score] = {}
        ratios: dict[str, Ratio] = {"entropy": Ratio.mean(unigram_entropy(texts.rows)).together(texts.cluster_T)}
        record: Json = {"texts": texts.record}
        scores["entropy"] = Score.of(ratios["entropy"], "nats", {}, seed=self.seed)
        if self.judge is not None:
            found = gen_ppl(
                texts, self.judge, protocol=self.protocol, store=self.store, seed=self.seed, progress=progress
            )
            scores |= {"gen_ppl": found.ppl, "judge_entropy": found.judge_entropy}
            ratios["ppl"], record = found.ppl_ratio, found.ppl.record
            if texts.log_q_T is not None:
                gap = path_gap(texts, self.judge, store=self.store, seed=self.seed, progress=progress)
                scores |= {"path_gap": gap.gap, "judge_nll": gap.judge_nll, "sampler_entropy": gap.sampler_entropy}
                ratios["gap"] = gap.ratio
        across, looks = self._across(texts)
        if with_mauve and self.judge is not None and self.real is not None:
            scores["mauve"] = mauve(judge_features(self.judge, texts), self._reference_features, seed=self.seed)
        return Measured({name: _plain(score) for name, score in (scores | across).items()}, ratios, looks, record)

    def _across(self, texts: Texts) -> tuple[dict[str, Score], tuple[str, ...]]:
        """Diversity over the pool, and what is suspicious about it beside real text of the same size."""
        if self.real is None:
            rows, n = texts.rows, min(ORDER, min(map(len, texts.rows)))
            shares = {f"distinct_{n}": distinct(rows, n), f"repeated_{n}": repeated(rows, n)}
            found = {name: Score.of(ratio, "share", {}, seed=self.seed) for name, ratio in shares.items()}
            return {**found, "self_bleu": Score.of(self_bleu(rows), "BLEU", {}, seed=self.seed)}, ()
        pool = diversity(texts.take(len(self.real.pool)), self.real.reference, seed=self.seed)
        named = {
            f"{kind}_{n}": score
            for kind in ("distinct", "coverage", "repeated", "information", "information_gap")
            for n, score in getattr(pool, kind).items()
        }
        return {**named, "self_bleu": pool.self_bleu}, tuple(suspicions(pool, self.real.diversity))

    @cached_property
    def _reference_features(self) -> Array:
        """Of real text: one serves all the cells of an evaluation."""
        assert self.judge is not None
        assert self.real is not None
        return judge_features(self.judge, self.real.reference)


def halves(pool: Texts, reference: Texts, seed: int) -> RealText:
    """Real text ready to be compared with."""
    return RealText(pool, reference, diversity(pool, reference, seed=seed))


def _plain(score: Score) -> dict[str, Any]:
    said = score.to_json()
    del said["record"]
    return said
