"""The metrics by name, open to plug-ins: `register_metric` adds one, and every evaluation computes it for every cell.

A metric is a function of `texts` (metrics/texts.Texts: tokens, strings, bytes). Its further parameters are filled in by
name: `judge` (a causal judge), `real` (held-out texts), `protocol`, `store` (what judges said before), `seed`. Where
there is no judge or no held-out text, a metric that asks for it is left out, unless its parameter has a default. It
returns a number for each text, whose mean is the score; or a Ratio or a Score; or a dict of these, several scores by
name. It raises `Unavailable` where these texts cannot have it.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from unmask.core.errors import UserError
from unmask.core.hashing import key_of
from unmask.core.plugins import load_file, load_plugins
from unmask.metrics.score import Ratio, Score
from unmask.metrics.texts import Texts

CONTEXT = ("judge", "real", "protocol", "store", "seed")  # what a metric may ask for beside the texts
Function = Callable[..., Any]


@dataclass(frozen=True)
class Metric:
    """A function of texts with a name; `unit` is that of the numbers it returns."""

    name: str
    function: Function
    unit: str = ""
    home: Path | None = None  # the file it is in, where its function does not say

    @cached_property
    def parameters(self) -> dict[str, bool]:
        """What it asks for beside the texts, and whether it cannot do without."""
        _, *others = inspect.signature(self.function).parameters.values()
        return {one.name: one.default is one.empty for one in others}

    @cached_property
    def source(self) -> str:
        """A hash of the code it is in: scores that older code gave are not kept."""
        path = self.home or inspect.getsourcefile(self.function)
        if path is None or not Path(path).is_file():
            return self.name
        home = Path(__file__).parent
        files = sorted(home.glob("*.py")) if Path(path).parent == home else [Path(path)]
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()

    def __call__(self, texts: Texts, **context: Any) -> dict[str, Score] | None:
        """Its scores by name; None where the context lacks what it needs."""
        if any(needed and context.get(name) is None for name, needed in self.parameters.items()):
            return None
        result = self.function(texts, **{name: context.get(name) for name in self.parameters})
        named = result if isinstance(result, Mapping) else {self.name: result}
        return {str(name): self._score(one, texts, context.get("seed") or 0) for name, one in named.items()}

    def _score(self, result: Any, texts: Texts, seed: int) -> Score:
        if isinstance(result, Score):
            return result
        if isinstance(result, Ratio):
            ratio = result
        else:
            value_T = torch.as_tensor(result, dtype=torch.float64)
            if value_T.shape != (len(texts),):
                wanted = f"a number for each of the {len(texts)} texts, a Ratio or a Score"
                raise UserError(f"the metric {self.name!r} must return {wanted}, not shape {tuple(value_T.shape)}")
            ratio = Ratio.mean(value_T)
        if ratio.cluster_n is None and texts.cluster_T is not None:
            ratio = ratio.together(texts.cluster_T[: len(ratio)])
        return Score.of(ratio, self.unit, {}, seed=seed)


METRICS: dict[str, Metric] = {}


def register_metric(name: str, function: Function | None = None, *, unit: str = "") -> Function:
    """Add a metric, a function of texts as this module has it, to every evaluation; without a function, a decorator."""
    if function is None:
        return lambda function: register_metric(name, function, unit=unit)
    metric = Metric(name, function, unit)
    if strange := [parameter for parameter in metric.parameters if parameter not in CONTEXT]:
        raise UserError(f"the metric {name!r} asks for {strange[0]!r}: beside texts there are {', '.join(CONTEXT)}")
    other = METRICS.get(name)
    if other is not None and (other.source, other.unit) != (metric.source, unit):
        raise UserError(f"there is a metric {name!r} already: give this one another name")
    METRICS[name] = metric
    return function


def fingerprint() -> str:
    """Of all metrics and their code."""
    return key_of([(metric.name, metric.unit, metric.source) for metric in METRICS.values()])


NAME = "check"


def load_check(spec: str) -> Metric:
    """The metric of `file.py:function`; the function is `check` where none is named."""
    path, _, name = spec.rpartition(":") if not spec.endswith(".py") else (spec, "", NAME)
    if not path.endswith(".py"):
        raise UserError(f"check takes file.py:function, not {spec!r}")
    load_plugins([path])
    function = getattr(load_file(path), name, None)
    if not callable(function):
        raise UserError(f"{path} has no function {name!r}: name one that takes a text")

    def scores(texts: Texts) -> dict[str, Ratio]:
        results = [_checked(function, text, spec) for text in texts.strings]
        if any(one.keys() != results[0].keys() for one in results):
            raise UserError(f"{spec} gives other scores for one text than for another: give all of them every time")
        return {name: _share([one[name] for one in results]) for name in results[0]}

    return Metric(NAME, scores, "share", Path(path))


def _checked(function: Callable[[str], Any], text: str, spec: str) -> dict[str, float | str]:
    try:
        result = function(text)
        several = isinstance(result, Mapping)
        named = {f"{NAME}_{name}": one for name, one in result.items()} if several else {NAME: result}
        return {name: one if isinstance(one, str) else float(one) for name, one in named.items()}
    except Exception as error:
        raise UserError(f"{spec} failed on a text ({type(error).__name__}: {error}): {text[:60]!r}") from error


def _share(values: list[float | str]) -> Ratio:
    """The mean; of strings, how many are new."""
    first = {value: i for i, value in reversed(list(enumerate(values)))}
    numbers = [float(first[one] == i) if isinstance(one, str) else one for i, one in enumerate(values)]
    return Ratio.mean(torch.tensor(numbers, dtype=torch.float64))
