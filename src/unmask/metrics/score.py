"""A score: a value with its count, its 95% interval, its unit and where it came from.

Every statistic here is a ratio of sums over samples (a token mean over samples of different lengths is one, a plain
mean another), or the exponential of one. So a bootstrap is a matrix product: resampling n samples with replacement
weighs each by how often it was drawn. Statistics that share their samples share the weights: differences are paired.
Samples that belong together, such as blocks of one book, are drawn together.

Shapes: n samples, D bootstrap draws, R statistics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from unmask.core.errors import UserError
from unmask.core.streams import stream

DRAWS = 2000
LEVEL = 0.95
_Z = 1.959964  # the normal law's quantile at that level
_ENTRIES = 1 << 22  # of a weight matrix at once: 32 MiB of float64
_REMEMBERED = 1 << 24  # entries of resamples that are kept for the next statistic: 128 MiB


class Unavailable(UserError):
    """A score that these texts cannot have, and why: an evaluation leaves it out and says so."""


@dataclass(frozen=True, eq=False)
class Ratio:
    """sum(top) / sum(bottom) over samples, or its exponential (a perplexity). What bootstraps and differences take."""

    top_n: Tensor  # float64
    bottom_n: Tensor  # float64
    exponential: bool = False
    cluster_n: Tensor | None = None  # which samples belong together, numbered from 0; None: each stands alone

    def __post_init__(self) -> None:
        assert self.top_n.shape == self.bottom_n.shape
        assert self.cluster_n is None or self.cluster_n.shape == self.top_n.shape
        assert self.top_n.dtype == self.bottom_n.dtype == torch.float64

    @classmethod
    def of(cls, top_n: Any, bottom_n: Any, exponential: bool = False) -> Ratio:
        """From sequences or tensors of any numbers."""
        return cls(_double(top_n), _double(bottom_n), exponential)

    @classmethod
    def mean(cls, value_n: Any, exponential: bool = False) -> Ratio:
        value_n = _double(value_n)
        return cls(value_n, torch.ones_like(value_n), exponential)

    @classmethod
    def around(cls, value: float, influence_n: Any) -> Ratio:
        """A statistic of the whole pool, linear in each sample's influence: a text drawn twice would look repeated."""
        influence_n = _double(influence_n)
        return cls.mean(value + influence_n - influence_n.mean())

    def __len__(self) -> int:
        return len(self.top_n)

    @property
    def value(self) -> float:
        return float(self.under(torch.ones(1, len(self), dtype=torch.float64))[0])

    def part(self, which: slice) -> Ratio:
        """The same statistic of some of the samples."""
        cluster_n = None if self.cluster_n is None else self.cluster_n[which].unique(return_inverse=True)[1]
        return Ratio(self.top_n[which], self.bottom_n[which], self.exponential, cluster_n)

    def rounded(self) -> Ratio:
        """To eight digits, as files keep it: what is read back is what was there."""
        top_n, bottom_n = (_double([float(f"{x:.8g}") for x in of_n.tolist()]) for of_n in (self.top_n, self.bottom_n))
        return replace(self, top_n=top_n, bottom_n=bottom_n)

    def together(self, cluster_n: Tensor | None) -> Ratio:
        """The same statistic of samples that belong together as these numbers say."""
        return replace(self, cluster_n=cluster_n)

    @property
    def clusters(self) -> int | None:
        """How many there are; None: each sample stands alone."""
        return None if self.cluster_n is None else int(self.cluster_n.max()) + 1

    def by_cluster(self) -> Ratio:
        """The same statistic with the samples that belong together summed."""
        if self.cluster_n is None or self.clusters is None:
            return self
        zero_c = torch.zeros(self.clusters, dtype=torch.float64)
        top_c, bottom_c = (zero_c.index_add(0, self.cluster_n, x_n) for x_n in (self.top_n, self.bottom_n))
        return Ratio(top_c, bottom_c, self.exponential)

    def under(self, weight_Dn: Tensor) -> Tensor:
        """The statistic with sample i counted weight[d, i] times, for each d."""
        value_D = torch.div(*(weight_Dn @ torch.stack([self.top_n, self.bottom_n], dim=1)).unbind(1))
        return value_D.exp() if self.exponential else value_D


def _double(numbers: Any) -> Tensor:
    return torch.as_tensor(numbers, dtype=torch.float64, device="cpu")  # a list alone would become float32 on the way


@dataclass(frozen=True)
class Score:
    """A number a person may quote. low and high bound 95% of the bootstrap, `stderr` is its standard error.

    `ratio` is the statistic behind it, one entry a text, for a joint bootstrap with others.
    """

    value: float
    count: int  # samples, or texts
    low: float
    high: float
    stderr: float
    unit: str
    record: dict[str, Any] = field(default_factory=dict)
    ratio: Ratio | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, ratio: Ratio, unit: str, record: dict[str, Any], *, seed: int = 0, draws: int = DRAWS) -> Score:
        """A statistic with its bootstrap interval."""
        value_D = bootstrap([ratio], seed=seed, draws=draws)[:, 0]
        score = cls.drawn(ratio.value, value_D, len(ratio), unit, record, clusters=ratio.clusters)
        return replace(score, ratio=ratio)

    @classmethod
    def drawn(
        cls, value: float, value_D: Tensor, count: int, unit: str, record: dict[str, Any], clusters: int | None = None
    ) -> Score:
        """A value whose bootstrap draws are at hand. A single sample, or cluster, says nothing of its own spread."""
        if not math.isfinite(value):
            raise Unavailable(f"a score came out as {value} {unit}: it has no samples to stand on, or an infinite one")
        if min(count, clusters or count) < 2:
            return cls(value, count, math.nan, math.nan, math.nan, unit, record)
        tail = (1 - LEVEL) / 2
        low, high = value_D.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
        return cls(value, count, low, high, _stderr(value_D, clusters), unit, record)

    def to_json(self) -> dict[str, Any]:
        """All but the single texts; NaN, which JSON does not have, is null."""
        names = ("value", "count", "low", "high", "stderr", "unit", "record")
        found = {name: getattr(self, name) for name in names}
        return {name: None if isinstance(x, float) and math.isnan(x) else x for name, x in found.items()}

    def plain(self) -> dict[str, Any]:
        """The same without the record, where one record serves many scores."""
        return {name: item for name, item in self.to_json().items() if name != "record"}

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}] {self.unit} (n={self.count})"


def resamples(n: int, *, seed: int, draws: int = DRAWS) -> Iterable[Tensor]:
    """Bootstrap weights in chunks of draws: weight[d, i] is how often sample i was drawn, each row sums to n."""
    return _remembered(n, seed, draws) if draws * n <= _REMEMBERED else _resamples(n, seed, draws)


@lru_cache(maxsize=2)  # the many statistics of a cell share their resamples; those of an unpaired difference are two
def _remembered(n: int, seed: int, draws: int) -> tuple[Tensor, ...]:
    return tuple(_resamples(n, seed, draws))


def _resamples(n: int, seed: int, draws: int) -> Iterator[Tensor]:
    generator = stream(seed, "bootstrap", n)
    size = max(1, _ENTRIES // n)
    for start in range(0, draws, size):
        D = min(size, draws - start)
        cell = torch.randint(n, (D, n), generator=generator) + n * torch.arange(D)[:, None]
        yield torch.bincount(cell.flatten(), minlength=D * n).view(D, n).double()


def bootstrap(ratios: Sequence[Ratio], *, seed: int = 0, draws: int = DRAWS) -> Tensor:
    """Several statistics of the same samples under the same resamples: (D, R).

    Samples that belong together are drawn together: taken one by one, blocks of a few books would make an interval of
    half the width it should have. Few clusters understate the spread, which is widened as Student's t is wider.
    """
    first = ratios[0].cluster_n
    assert len({len(ratio) for ratio in ratios}) == 1, "statistics are bootstrapped together over the same samples only"
    assert all(_same(ratio.cluster_n, first) for ratio in ratios), "and over the same clusters"
    drawn = [ratio.by_cluster() for ratio in ratios]
    count = len(drawn[0])
    weights = resamples(count, seed=seed, draws=draws)
    found_DR = torch.cat([torch.stack([ratio.under(weight_Dn) for ratio in drawn], dim=1) for weight_Dn in weights])
    if first is None or count < 2:
        return found_DR
    value_R = torch.tensor([ratio.value for ratio in ratios], dtype=torch.float64)
    widening = _student(count) / _Z * math.sqrt(count / (count - 1))  # the variance over n - 1
    return value_R + widening * (found_DR - value_R)


def _same(a_n: Tensor | None, b_n: Tensor | None) -> bool:
    return a_n is b_n or (a_n is not None and b_n is not None and torch.equal(a_n, b_n))


def _stderr(value_D: Tensor, clusters: int | None) -> float:
    """Of bootstrap draws: what Student's law widened is in the interval, not in the error."""
    return float(value_D.std()) / (_student(clusters) / _Z if clusters else 1.0)


def _student(count: int) -> float:
    """Student's 97.5% quantile for the mean of so few, by Cornish and Fisher."""
    z, freedom = _Z, count - 1
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def independent(ratios: Sequence[Ratio], name: str, *, seed: int = 0, draws: int = DRAWS) -> Tensor:
    """The same for one of many groups of samples, each of which takes the resamples in an order of its own: (D, R)."""
    order_D = torch.randperm(draws, generator=stream(seed, "order of draws", name))
    return bootstrap(ratios, seed=seed, draws=draws)[order_D]


def choose_least(ratios: Sequence[Ratio]) -> tuple[int, Ratio]:
    """Which of several is least, and the samples that are left to score it.

    The least of several noisy values is too small, and the luck that had it chosen is in its samples. So every other
    sample only chooses, and the rest only score. What is alone is not chosen, and keeps all its samples.
    """
    if len(ratios) == 1:
        return 0, ratios[0]
    value_R = [ratio.part(slice(1, None, 2)).value for ratio in ratios]
    value_R = [math.inf if math.isnan(value) else value for value in value_R]  # nothing to be chosen by
    best = value_R.index(min(value_R))
    return best, ratios[best].part(slice(0, None, 2))


def paired_draws(a: Ratio, b: Ratio, *, seed: int = 0, draws: int = DRAWS) -> Tensor:
    """Draws of a - b where sample i of both is one text, and so belongs where a says."""
    value_DR = bootstrap([a, b.together(a.cluster_n)], seed=seed, draws=draws)
    return value_DR[:, 0] - value_DR[:, 1]


def difference(
    a: Ratio, b: Ratio, unit: str, record: dict[str, Any], *, paired: bool = True, seed: int = 0, draws: int = DRAWS
) -> Score:
    """a - b. Paired: sample i of both is one text, so most of the noise cancels; else each side is resampled alone."""
    if paired and len(a) != len(b):
        raise UserError(f"a paired difference needs the same texts on both sides, not {len(a)} and {len(b)}")
    count, facts = min(len(a), len(b)), {**record, "paired": paired}
    if paired:
        value_D = paired_draws(a, b, seed=seed, draws=draws)
        return Score.drawn(a.value - b.value, value_D, count, unit, facts, clusters=a.clusters)
    a_D, b_D = (bootstrap([one], seed=seed + i, draws=draws)[:, 0] for i, one in enumerate((a, b)))
    few = min([ratio.clusters for ratio in (a, b) if ratio.clusters], default=None)
    score = Score.drawn(a.value - b.value, a_D - b_D, count, unit, facts, clusters=few)
    if math.isnan(score.stderr):
        return score
    return replace(score, stderr=math.hypot(_stderr(a_D, a.clusters), _stderr(b_D, b.clusters)))
