"""A checker of the user's own as a metric: a function of one text that returns true or false, a number, or several of
these by name. A string is what texts should differ in: its score is the share of texts that are the first with
theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from unmask.core.errors import UserError
from unmask.core.plugins import load_file, load_plugins
from unmask.metrics.registry import Metric
from unmask.metrics.score import Ratio
from unmask.metrics.texts import Texts

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
