"""A verb checks its types in Python as the command line does, and takes the fields of its dataclasses as keywords."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pytest
import torch

from unmask.core.errors import UserError
from unmask.core.verbs import documented, verb


class Shape(Protocol):
    def area(self) -> float: ...


@dataclass
class Engine:
    """How it runs.

    Machine:
        power: in horses,
            or mules
    """

    power: int = 3


@verb
def act(
    steps: int | Sequence[int], /, *, rate: float = 1.0, kind: Literal["slow", "fast"] = "slow",
    out: Path | None = None, names: Mapping[str, str] | None = None, shape: str | Shape = "round",
    done: Callable[[], None] | None = None, engine: Engine,
) -> Any:  # fmt: skip
    """Do it.

    Args:
        steps: how many: or which
        rate: how fast
    """
    return steps, rate, kind, engine.power


def test_the_fields_of_a_dataclass_are_keywords_with_their_own_help() -> None:
    assert act(3, power=7, rate=2) == (3, 2, "slow", 7)
    assert act([np.int64(3)]) == ([3], 1.0, "slow", 3)
    assert [*inspect.signature(act).parameters][-1] == "power"
    head, helps = documented(act.__doc__)
    assert head == "Do it."
    assert helps == {
        "steps": ("Args", "how many: or which"), "rate": ("Args", "how fast"),
        "power": ("Machine", "in horses, or mules"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"steps": "8"}, "steps takes a whole number or several whole numbers, not '8'"),
        ({"steps": True}, "not True"),
        ({"steps": [1, 2.5]}, r"not \[1, 2.5\]"),
        ({"rate": torch.Generator()}, r"rate takes a number, not a torch._C.Generator|torch.Generator"),
        ({"kind": "fst"}, "unknown kind 'fst': did you mean 'fast'"),
        ({"kind": 3}, "kind takes one of slow, fast, not 3"),
        ({"out": 3}, "out takes a path, not 3"),
        ({"names": {"a": 1}}, "names takes a mapping of names, not"),
        ({"shape": 3}, "shape takes a text or a Shape, not 3"),
        ({"done": "x"}, "done takes a function, not 'x'"),
        ({"power": None}, "power takes a whole number, not None"),
    ],
)
def test_a_wrong_type_is_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        act(given.pop("steps", 1), **given)
