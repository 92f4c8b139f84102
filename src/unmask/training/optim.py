"""AdamW over the trained parameters, the learning rate at a step, and one pass that normalises and clips gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from unmask.models.family import trainable

Decay = Literal["constant", "cosine", "linear"]


def learning_rate(step: int, *, peak: float, warmup: int, decay: Decay, steps: int) -> float:
    """The rate of optimiser step `step` (0 is the first): linear warm-up, then constant, or down to 0 at `steps`."""
    if step < warmup:
        return peak * (step + 1) / warmup
    if decay == "constant":
        return peak
    past = (step - warmup) / max(1, steps - warmup)
    return peak * (0.5 * (1 + math.cos(math.pi * past)) if decay == "cosine" else 1 - past)


def adamw(model: nn.Module, *, betas: tuple[float, float], weight_decay: float) -> torch.optim.AdamW:
    """AdamW with one kernel for all trained parameters. Weight decay shrinks matrices only, not gains and biases."""
    parameters = list(trainable(model).values())
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters)
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, fused=fused, foreach=None if fused else True)


def clipped_scale(norm: Tensor, scale: Tensor, clip: float) -> Tensor:
    """What to multiply gradients by that are `norm` long after `scale`: less than it if that is longer than `clip`."""
    return torch.where(norm > clip, scale * clip / norm, scale) if clip > 0 else scale


def step_with(
    optimiser: torch.optim.Optimizer, gradients: Sequence[Tensor], *, scale: Tensor, lr: float, sound: Tensor
) -> None:
    """One optimiser step on gradients times `scale`; the gradients are let go. Nothing here waits for the device.

    Where `sound` is false a fused optimiser leaves weights and moments as they are (another one may spoil them).
    """
    torch._foreach_mul_(list(gradients), scale.to(gradients[0].dtype))
    if optimiser.param_groups[0]["fused"]:
        optimiser.found_inf = (~sound).float()  # type: ignore[attr-defined]
    for group in optimiser.param_groups:
        group["lr"] = lr
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


def moments(model: nn.Module, optimiser: torch.optim.AdamW) -> dict[str, Tensor]:
    """The optimiser's tensors by parameter name: m (first moment), v (second moment), n (steps taken).

    A fresh optimiser is given zeros, which is how AdamW starts, so that a saved state has a place to go.
    """
    found: dict[str, Tensor] = {}
    for name, parameter in trainable(model).items():
        state = optimiser.state[parameter]
        if not state:
            on_device = optimiser.param_groups[0]["fused"]
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device if on_device else "cpu")
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        found |= {f"n.{name}": state["step"], f"m.{name}": state["exp_avg"], f"v.{name}": state["exp_avg_sq"]}
    return found
