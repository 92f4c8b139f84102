"""The family `chain`: a head that is trained, saved and loaded like a network, and works beside the model it names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from torch import nn

from unmask.models.chain.network import ChainConfig, ChainHead
from unmask.models.family import Family, register_family


@register_family
class ChainFamily(Family):
    """`ChainHead`."""

    name = "chain"
    network = ChainHead
    config = ChainConfig
    adapter: ClassVar[bool] = True

    def blocks(self, model: ChainHead) -> Iterable[nn.Module]:
        return model.blocks

    def compile(self, model: ChainHead) -> None:
        """Nothing: its shapes change from step to step, and it is small beside the body."""

    def flops(self, model: ChainHead, length: int) -> tuple[float, float]:
        """Of the head alone, at the positions that a step draws."""
        return 0.0, 2.0 * sum(value.numel() for value in model.parameters())
