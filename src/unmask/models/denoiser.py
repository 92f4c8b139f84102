"""What every sampler and loss may ask of a model, and the rule that turns its logits into a law over tokens.

An exact oracle that returns its posterior as features is a Denoiser too.

Shapes: B sequences, L positions, D features, V states.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from unmask.core.errors import UserError
from unmask.processes import States

MASK_LOGIT = -1e6  # stands for log 0; finite, so that differences and products with zero stay finite


@runtime_checkable
class Denoiser(Protocol):
    """Body and head are separate calls, so that the head runs on chosen positions only.

    A network that is conditioned on time takes `features(z, time=...)`, one number a text (Process.condition says
    which); one that takes soft inputs has `embed(z)`, of tokens or laws, and `embed(z, weights)`, of k weighted tokens
    a position; its `features` also takes what these return. One that says `in_blocks = True` takes `features(z,
    beside=x0)`: of each block, given the blocks of x0 before it.
    """

    @property
    def vocab_size(self) -> int:
        """V: all states, the mask included where there is one."""

    @property
    def mask_id(self) -> int | None:
        """The mask, which may be any state; None: there is none."""

    @property
    def length(self) -> int:
        """The longest sequence it takes."""

    def features(self, z: Tensor) -> Tensor:
        """h_BLD of corrupted tokens z_BL."""

    def logits(self, h: Tensor) -> Tensor:
        """logits_...V of features at any selection of positions h_...D."""


class Network(nn.Module):
    """A network whose config says what a Denoiser must say of itself."""

    config: Any  # with vocab_size, mask and length

    @property
    def vocab_size(self) -> int:
        states: int = self.config.vocab_size
        return states

    @property
    def mask_id(self) -> int | None:
        mask: int | None = self.config.mask
        return mask

    @property
    def length(self) -> int:
        longest: int = self.config.length
        return longest

    def check_length(self, tokens: int) -> None:
        if tokens > self.length:
            raise UserError(f"a sequence of {tokens} tokens is longer than the model's {self.length}: cut it")


def check_whole_numbers(config: object, *names: str) -> None:
    """Refuse settings in which one of these is not a whole number above 0."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"{name} must be a whole number above 0, not {value!r}")


def states_of(model: Denoiser) -> States:
    """The states that a model knows."""
    return States(model.vocab_size, model.mask_id)


def features_of(model: Any, z_BL: Tensor, x0_BL: Tensor | None, time_B: Tensor | None = None) -> Tensor:
    """The body in training, on a view z of the text x_0.

    A network that writes block after block is shown the text's earlier blocks as they are: it takes `beside`.
    """
    more = {} if time_B is None else {"time": time_B}
    if x0_BL is not None and getattr(model, "in_blocks", False):
        more["beside"] = x0_BL
    features: Tensor = model.features(z_BL, **more)
    return features


def without_mask(logits: Tensor, mask_id: int | None) -> Tensor:
    """Logits with the mask ruled out; at least float32 whatever they came in."""
    logits_V = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    if mask_id is not None:
        logits_V[..., mask_id] = MASK_LOGIT
    return logits_V


def log_probs(logits: Tensor, mask_id: int | None) -> Tensor:
    """log p(x_0 = v) over the last axis, the mask ruled out."""
    return without_mask(logits, mask_id).log_softmax(-1)


def is_causal(model: object) -> bool:
    """Whether a model reads from left to right only."""
    return bool(getattr(getattr(model, "config", None), "causal", False))


def check_denoiser(model: object) -> None:
    """Refuse what cannot fill in blanks: a causal model, or something that is no model."""
    if is_causal(model):
        raise UserError("this model is causal and has no mask state to fill: give a diffusion model")
    if not isinstance(model, Denoiser):
        needs = "features, logits, vocab_size, mask_id and length"
        raise UserError(f"a {type(model).__name__} is no model: give a Checkpoint, or a network with {needs}")
