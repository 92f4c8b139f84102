"""AdamW and Muon over the trained parameters, the rate at a step, and one pass that normalises and clips gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unmask.core.errors import UserError
from unmask.models.family import family_of, trainable

Decay = Literal["constant", "cosine", "linear"]
Kind = Literal["adamw", "muon"]


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
    return torch.optim.AdamW(**_groups(list(trainable(model).values()), weight_decay), lr=0.0, betas=betas)


def _groups(parameters: list[nn.Parameter], weight_decay: float) -> dict[str, Any]:
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters)
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return {"params": [g for g in groups if g["params"]], "fused": fused, "foreach": None if fused else True}


class Muon(torch.optim.AdamW):
    """Muon for the matrices that the family names, AdamW for all else.

    M <- 0.95 M + 0.05 G; W <- (1 - lr · weight_decay) W - ratio · lr · sqrt(max(1, rows / columns)) · orthogonal(0.05 G
    + 0.95 M). torch's own Muon (since 2.9) takes a fused qkv for one matrix; here q, k and v are one each.

    Args:
        ratio: Muon's rate over AdamW's
    """

    def __init__(self, model: nn.Module, *, ratio: float, betas: tuple[float, float], weight_decay: float) -> None:
        trained = trainable(model)
        named = {name: count for name, count in family_of(model).matrices(model).items() if name in trained}
        if not named:
            raise UserError(f"the family {family_of(model).name} names no matrices for muon: take optimiser adamw")
        rest = [parameter for name, parameter in trained.items() if name not in named]
        super().__init__(**_groups(rest, weight_decay), lr=0.0, betas=betas)
        self.ratio, self.shrink, self.found_inf = ratio, weight_decay, None
        self.by_shape: dict[tuple[int, int], list[nn.Parameter]] = {}
        for name, count in named.items():
            rows, columns = trained[name].shape
            self.by_shape.setdefault((rows // count, columns), []).append(trained[name])
        self.taken = {parameter for group in self.by_shape.values() for parameter in group}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step()
        lr = self.param_groups[0]["lr"]
        for (rows, columns), parameters in self.by_shape.items():
            moving = [parameter for parameter in parameters if parameter.grad is not None]
            if not moving:
                continue
            gradient = torch.cat([p.grad.view(-1, rows, columns) for p in moving if p.grad is not None])
            before = torch.cat([self.momentum(p).view(-1, rows, columns) for p in moving])
            momentum = before.lerp(gradient, 0.05)
            update = orthogonal(gradient.lerp(momentum, 0.95)) * (self.ratio * math.sqrt(max(1, rows / columns)))
            weight = torch.cat([p.view(-1, rows, columns) for p in moving])
            moved = weight - lr * (self.shrink * weight + update)
            if self.found_inf is not None:  # a step that is not sound changes nothing
                sound = self.found_inf == 0
                momentum, moved = momentum.where(sound, before), moved.where(sound, weight)
            counts = [p.shape[0] // rows for p in moving]
            torch._foreach_copy_([self.momentum(p).view(-1, rows, columns) for p in moving], momentum.split(counts))
            torch._foreach_copy_([p.view(-1, rows, columns) for p in moving], moved.split(counts))

    def momentum(self, parameter: nn.Parameter) -> Tensor:
        """M of one parameter; zeros at first."""
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
        return state["exp_avg"]


def orthogonal(matrices_NAB: Tensor) -> Tensor:
    """Nearly U V' of each matrix U S V': five steps of Newton and Schulz (singular values end within 0.7 and 1.2)."""
    x = matrices_NAB.bfloat16() if matrices_NAB.is_cuda else matrices_NAB
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if tall else x).to(matrices_NAB.dtype)


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
    """The optimiser's tensors by parameter name: m (first moment), v (second moment), n (steps taken); Muon's m only.

    A fresh optimiser is given zeros, which is how AdamW starts, so that a saved state has a place to go.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in trainable(model).items():
        if isinstance(optimiser, Muon) and parameter in optimiser.taken:
            tensors[f"m.{name}"] = optimiser.momentum(parameter)
            continue
        state = optimiser.state[parameter]
        if not state:
            on_device = optimiser.param_groups[0]["fused"]
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device if on_device else "cpu")
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        tensors |= {f"n.{name}": state["step"], f"m.{name}": state["exp_avg"], f"v.{name}": state["exp_avg_sq"]}
    return tensors
