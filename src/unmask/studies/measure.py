"""One cell measured: every registered metric of n texts, with or without a judge, beside real text if there is some."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from unmask.metrics import built_in  # noqa: F401 (registers the metrics of the package)
from unmask.metrics.cache import Store
from unmask.metrics.diversity import suspicions
from unmask.metrics.judges import Judge
from unmask.metrics.registry import METRICS, Metric
from unmask.metrics.score import Score, Unavailable
from unmask.metrics.texts import Texts
from unmask.studies.results import Json

HEADLINE_ONLY = ("mauve", "energy_distance", "gradient")  # a judge reads the texts once more for them
DIVERSITY = ("distinct", "coverage", "self_bleu", "repeated")  # what finds a parrot, or a text that repeats itself


@dataclass(frozen=True, eq=False)
class RealText:
    """Held-out text in two halves of one size: one plays a pool of samples, pools are compared with the other."""

    pool: Texts
    reference: Texts


@dataclass(frozen=True, eq=False)
class Measure:
    """How texts are scored in one evaluation: gives the fields of a Cell that are found by measuring."""

    judge: Judge | None
    protocol: str
    real: RealText | None
    store: Store | None
    seed: int
    check: Metric | None = None  # the user's own
    mauve: bool = False

    def __call__(self, texts: Texts, *, headline: bool = False) -> Json:
        """`headline`: also what takes a judge another reading, its features and gradients beside real text's."""
        left_out = {*(() if headline else HEADLINE_ONLY), *(() if self.mauve else ["mauve"])}
        names = [name for name in self._metrics if name not in left_out]
        scores, absent = self._scores(texts, names)
        looks = {} if self.real is None or "self_bleu" not in scores else suspicions(scores, self._real_scores)
        record = {"texts": texts.record, **(scores["gen_ppl"].record if "gen_ppl" in scores else {})}
        ratios = {name: one.ratio.rounded() for name, one in scores.items() if one.ratio}
        plain = {name: score.plain() for name, score in scores.items()}
        return {"scores": plain, "ratios": ratios, "suspicions": looks, "record": record, "absent": absent}

    def _scores(self, texts: Texts, names: list[str] | tuple[str, ...]) -> tuple[dict[str, Score], dict[str, str]]:
        """Scores, and why others cannot be had; those that need a judge or real text are absent without a word."""
        scores: dict[str, Score] = {}
        absent: dict[str, str] = {}
        context = {"judge": self.judge, "real": self.real and self.real.reference, "protocol": self.protocol}
        for name in names:
            try:
                scores |= self._metrics[name](texts, **context, store=self.store, seed=self.seed) or {}
            except Unavailable as error:
                absent[name] = str(error)
        return scores, absent

    @cached_property
    def _metrics(self) -> dict[str, Metric]:
        return METRICS if self.check is None else {**METRICS, self.check.name: self.check}

    @cached_property
    def _real_scores(self) -> dict[str, Score]:
        assert self.real is not None
        return self._scores(self.real.pool, DIVERSITY)[0]
