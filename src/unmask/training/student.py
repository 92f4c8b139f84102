"""A network in training: on its device, spread over the processes, with its optimiser and the average of its weights.

Only the parameters that are trained have an optimiser's state, an average and a place in a saved state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from unmask.core.ranks import Ranks
from unmask.models.ema import EMA
from unmask.models.family import family_of, trainable
from unmask.models.parameters import emptied, filled
from unmask.training.distributed import is_sharded, total_norm, whole, wrap
from unmask.training.optim import Muon, adamw, clipped_scale, moments, step_with

if TYPE_CHECKING:
    from unmask.training.trainer import Trainer

Weights = Literal["raw", "ema"]


class Student:
    """The model, and all that changes with it."""

    def __init__(self, model: Any, trainer: Trainer, ranks: Ranks) -> None:
        trained = trainable(model)
        model.requires_grad_(False)
        for value in trained.values():
            value.data = value.data.to(torch.promote_types(value.dtype, torch.float32))  # bf16 would lose small steps
            value.requires_grad_(True)
        self.model, self.ranks, self.clip = model.to(ranks.device).train(), ranks, trainer.clip
        self._empty = emptied(model)
        if trainer.recompute:
            family_of(model).recompute(model)
        if trainer.compile:
            family_of(model).compile(model)
        self.wrapped = wrap(model, ranks, trainer.parallel, family_of(model).blocks(model))
        betas, decay = (trainer.beta1, trainer.beta2), trainer.weight_decay
        self.optimiser = adamw(model, betas=betas, weight_decay=decay)
        if trainer.optimiser == "muon":
            self.optimiser = Muon(model, ratio=trainer.muon_lr / trainer.lr, betas=betas, weight_decay=decay)
        self.ema = EMA(model, trainer.ema)

    def update(self, step: int, sums: Tensor, lr: float) -> Tensor:
        """Turn summed gradients into optimiser step `step`, all of it on the device; `sums` begins with the sums of
        loss · weight and weight over all processes. Returns mean loss and gradient norm.
        """
        gradients = [parameter.grad for parameter in trainable(self.model).values() if parameter.grad is not None]
        # processes average their gradients, so their sum is `world` times as much
        world = self.ranks.world
        scale = (world / sums[1]).masked_fill(sums[1] == 0, 0.0)
        loss, norm = sums[0] * scale / world, total_norm(gradients) * scale
        scale = clipped_scale(norm, scale, self.clip)
        step_with(self.optimiser, gradients, scale=scale, lr=lr, sound=(loss + norm).isfinite())
        self.ema.update(self.model, step + 1)
        return torch.stack([loss, norm])

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of a training state by name; restoring fills them in place."""
        weights = {f"weight.{name}": parameter.data for name, parameter in trainable(self.model).items()}
        average = {f"ema.{name}": tensor for name, tensor in self.ema.shadow.items()}
        adam = {f"adam.{name}": tensor for name, tensor in moments(self.model, self.optimiser).items()}
        return weights | average | adam

    def trained(self, kind: Weights) -> dict[str, Tensor]:
        """The trained parameters, raw or averaged. All processes call this together."""
        tensors: dict[str, Tensor] = self.ema.shadow if kind == "ema" else dict(trainable(self.model))
        return {name: _gathered(tensor) for name, tensor in tensors.items()}

    def built(self, kind: Weights) -> Any:
        """The model by itself, in eval mode, with the run's own tensors: use or copy it before the next step."""
        return self.holding(self.trained(kind))

    def holding(self, trained: Mapping[str, Tensor]) -> Any:
        """The same with these trained parameters; all others are the run's own."""
        own = trainable(self.model)
        weights = {name: _gathered(value) for name, value in self.model.named_parameters() if name not in own}
        weights |= {name: trained[name].to(value.dtype) for name, value in own.items()}
        place = "cpu" if any(map(is_sharded, own.values())) else self.ranks.device
        return filled(self._empty, weights).to(place).eval()

    @contextmanager
    def averaged(self) -> Iterator[Any]:
        """The model with its averaged weights and in eval mode, for the length of a block."""
        raw = {name: parameter.detach().clone() for name, parameter in trainable(self.model).items()}
        self.ema.copy_to(self.model)
        self.model.eval()
        try:
            yield self.model
        finally:
            self.wrapped.reshard()
            with torch.no_grad():
                for name, parameter in trainable(self.model).items():
                    parameter.copy_(raw[name])
            self.model.train()


def _gathered(tensor: Tensor) -> Tensor:
    """A tensor as it is, or put together on the CPU where it is sharded."""
    return whole(tensor.detach()).cpu() if is_sharded(tensor) else tensor.detach()
