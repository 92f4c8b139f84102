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

    def matrices(self, model: ChainHead) -> dict[str, int]:
        """All but the table of distances; q, k and v are three."""
        found = (name for name, value in model.named_parameters() if value.ndim == 2 and name != "distance")
        return {name: 3 if ".qkv." in name else 1 for name in found}

    def compile(self, model: ChainHead) -> None:
        """Nothing: its shapes change from step to step, and it is small beside the body."""

    def flops(self, model: ChainHead, length: int) -> tuple[float, float]:
        """Of the head alone, at the positions that a step draws."""
        return 0.0, 2.0 * sum(value.numel() for value in model.parameters())
