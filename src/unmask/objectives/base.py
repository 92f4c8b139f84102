"""What an objective is, and what it gives: a loss, a weight and a region for every token.

The objective sets the weights; the engine divides by their sum over all ranks and accumulation steps.

Shapes: B sequences of this micro-batch, L positions.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from unmask.core.errors import UserError
from unmask.models.denoiser import Denoiser
from unmask.processes import Process

REGIONS = ("identity", "distil", "reconstruct")  # visible; filled by a teacher's law; filled by the token itself
IDENTITY, DISTIL, RECONSTRUCT = range(3)


class Batch(Protocol):
    """Rows start .. start+B of a global batch of `total` rows (data.loader has one)."""

    @property
    def tokens_BL(self) -> Tensor: ...
    @property
    def start(self) -> int: ...
    @property
    def total(self) -> int: ...


def given_in(batch: Batch) -> Tensor | None:
    """Which tokens of the whole global batch are given, (T, L) on the CPU: the prompts. None: no token is."""
    prompts_T = getattr(batch, "prompts_T", None)
    return None if prompts_T is None else torch.arange(batch.tokens_BL.shape[1]) < prompts_T[:, None]


def check_given(batch: Batch, process: Process) -> None:
    """Refuse prompts where a process would not keep them."""
    if given_in(batch) is not None and not process.by_plan:
        raise UserError(f"prompts are given to a masked process only, and this one is {process.name}: train it on text "
                        "that `unmask prepare` made")  # fmt: skip


def keep_given(noise_TL: Tensor, batch: Batch, process: Process) -> Tensor:
    """The noise of the global batch, with which no time masks what is given."""
    check_given(batch, process)
    given_TL = given_in(batch)
    if given_TL is None:
        return noise_TL
    return noise_TL.masked_fill(given_TL, -1.0)  # masked at t iff u >= gamma_t, which is never below 0


def rows_of(batch: Batch) -> slice:
    """This micro-batch's place in the global batch."""
    return slice(batch.start, batch.start + len(batch.tokens_BL))


def positions_where(chosen_BL: Tensor) -> Tensor:
    """Flat positions, through (B, L). Ask on the CPU: on a GPU the count would have to be waited for."""
    return chosen_BL.flatten().nonzero()[:, 0]


@dataclass(frozen=True)
class LossOutput:
    """What one micro-batch costs, token by token; the total is sum(loss · weight) / sum(weight)."""

    loss_BL: Tensor
    weight_BL: Tensor
    region_BL: Tensor  # int8, an index into REGIONS


class Objective(Protocol):
    """A loss. `generator` is the same for every micro-batch and rank of one optimiser step: an objective draws its
    noise for all `batch.total` rows and takes its own, so that many processes equal one.
    """

    @property
    def forwards(self) -> float:
        """What a step costs, in forward passes of the student: 3 is a forward and a backward pass."""

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions that carry loss."""

    def __call__(self, student: Denoiser, batch: Batch, *, step: int, generator: torch.Generator) -> LossOutput: ...


def describe(objective: Objective) -> dict[str, Any]:
    """An objective's name and settings as JSON can hold them."""
    return {"name": type(objective).__name__.lower(), **_settings(objective)}


def _settings(value: Any) -> dict[str, Any]:
    """The fields of a dataclass; a nested one becomes its name and fields, anything else that JSON lacks its text."""
    if not dataclasses.is_dataclass(value):
        return {}
    found: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if dataclasses.is_dataclass(item):
            found[field.name] = {"name": getattr(item, "name", type(item).__name__.lower()), **_settings(item)}
        else:
            found[field.name] = item if isinstance(item, (str, int, float, bool, type(None))) else str(item)
    return found
