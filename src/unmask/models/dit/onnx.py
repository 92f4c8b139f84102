"""A DiT as two modules that torch can write for onnxruntime.

Time conditioning is off, so every modulation is a constant of the model. Unlike in the folded DiT the constants stay
beside the matrices, which are therefore stored as they are in the checkpoint: a runtime multiplies them in.

Shapes: R rows, L positions, M chosen positions, D features, V states.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from unmask.models.dit.network import DiT


class _Constant(nn.Module):
    """What a modulation gives, whatever it is given."""

    value: Tensor

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value)

    def forward(self, c_C: Tensor) -> Tensor:
        return self.value


class Body(nn.Module):
    """Token ids (R, L) -> features (R, L, D)."""

    def __init__(self, model: DiT) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model.features(tokens)


class Head(nn.Module):
    """Features (M, D) -> logits (M, V)."""

    def __init__(self, model: DiT) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: Tensor) -> Tensor:
        return self.model.logits(features)


@torch.no_grad()
def body_and_head(model: DiT) -> tuple[Body, Head]:
    """Of a copy in float32."""
    model = copy.deepcopy(model).to("cpu", torch.float32).eval()
    c_C = model._condition()
    for parent in [model.head, *model.blocks]:
        assert isinstance(parent.modulation, nn.Linear)
        parent.modulation = _Constant(parent.modulation(c_C))
    return Body(model).eval(), Head(model).eval()
