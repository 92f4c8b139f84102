"""A teacher: a frozen copy of a model, which training the model itself does not move.

Refuses to know what its predictions are used for. Shapes: B sequences, L positions, M chosen positions, D features,
W columns of logits (the vocabulary and perhaps padding).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.checkpoint.io import Checkpoint, build
from unmask.core.errors import UserError
from unmask.models.denoiser import MASK_LOGIT, Denoiser
from unmask.models.dit.folded import FoldedDiT
from unmask.models.dit.network import DiT
from unmask.processes.schedule import LogLinear, Schedule


class Teacher:
    """The model of a checkpoint as it is now: its own copy, in eval mode, without gradients.

    Under autocast a DiT is folded for inference, in autocast's precision: the same function, faster. Without it the
    copy runs as it is, so that it agrees with its original to the last bit.
    """

    def __init__(self, source: Checkpoint | Denoiser) -> None:
        model = source.model if isinstance(source, Checkpoint) else source
        self.schedule: Schedule = source.schedule if isinstance(source, Checkpoint) else LogLinear()
        self.model = _frozen_copy(model)
        self.compiled = False
        self._ready: _Ready | None = None

    @classmethod
    def of(cls, source: Checkpoint | Denoiser | Teacher) -> Teacher:
        """A teacher stays itself; anything else is copied and frozen."""
        return source if isinstance(source, Teacher) else cls(source)

    def __str__(self) -> str:
        """What it is, by content: in a run's config this tells one teacher from another."""
        return self._name

    @cached_property
    def _name(self) -> str:
        kind = type(self.model).__name__
        if not isinstance(self.model, nn.Module):
            return kind
        digest = hashlib.sha256()  # not weights_hash: run folders hold this one, and go on only if it is the same
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
        return f"{kind} {digest.hexdigest()[:16]}"

    def compile(self) -> None:
        """Compile its body at the next call (worth it on a GPU)."""
        self.compiled, self._ready = True, None

    def rest(self) -> None:
        """Leave its device, until it is called again."""
        self._ready = None
        if isinstance(self.model, nn.Module):
            self.model.cpu()

    def check(self, student: Denoiser) -> None:
        """Whether a student can learn from it."""
        mine, theirs = (f"{model.vocab_size} states, mask {model.mask_id}" for model in (self.model, student))
        if mine != theirs:
            raise UserError(f"the teacher has {mine}, the student {theirs}: both need one tokenizer and one mask")

    @torch.no_grad()
    def features(self, z_BL: Tensor) -> Tensor:
        """The body."""
        ready = self._prepare(z_BL.device)
        with ready.precision():
            return ready.features(z_BL)

    @torch.no_grad()
    def logits(self, h_MD: Tensor, width: int | None = None) -> Tensor:
        """The head in `width` columns (default: the vocabulary), mask and padding ruled out; a fresh table."""
        width = width or self.model.vocab_size
        ready = self._prepare(h_MD.device)
        with ready.precision():
            logits_MW = ready.head(h_MD)[:, :width]
            if logits_MW.shape[1] < width:
                logits_MW = F.pad(logits_MW, (0, width - logits_MW.shape[1]))
            logits_MW[:, self.model.mask_id].fill_(MASK_LOGIT)
            logits_MW[:, self.model.vocab_size :].fill_(MASK_LOGIT)
        return logits_MW

    def _prepare(self, device: torch.device) -> _Ready:
        """The model as it runs on this device in this precision."""
        dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
        if self._ready is None or (self._ready.device, self._ready.dtype) != (device, dtype):
            self._ready = _ready(self.model, device, dtype, self.compiled)
        return self._ready


@dataclass(frozen=True)
class _Ready:
    """A model's two calls, for one device and one precision of autocast (None: off)."""

    device: torch.device
    dtype: torch.dtype | None
    features: Callable[[Tensor], Tensor]
    head: Callable[[Tensor], Tensor]  # may have columns beyond the vocabulary; its result may be written to
    precision: Callable[[], AbstractContextManager[object]]


def _ready(model: Denoiser, device: torch.device, dtype: torch.dtype | None, compile: bool) -> _Ready:
    def exact() -> AbstractContextManager[object]:  # a folded model has its own precision
        return torch.autocast(device.type, enabled=False)

    if isinstance(model, nn.Module):
        model.to(device)
    if isinstance(model, DiT) and dtype is not None:
        with exact():
            folded = FoldedDiT(model, dtype).to(device)
        model.cpu()  # only the folded one is needed here
        features = torch.compile(folded.features) if compile else folded.features
        return _Ready(device, dtype, features, folded.padded_logits, exact)
    features = torch.compile(model.features) if compile else model.features
    return _Ready(device, dtype, features, lambda h: model.logits(h).clone(), nullcontext)


def _frozen_copy(model: Denoiser) -> Denoiser:
    """A copy on the CPU, in eval mode, without gradients."""
    inner: Denoiser = getattr(model, "_orig_mod", model)  # out of torch.compile's wrapping
    if not isinstance(inner, DiT):
        copied = copy.deepcopy(inner)
        if isinstance(copied, nn.Module):
            copied.cpu().eval().requires_grad_(False)
        return copied
    if inner.config.causal:
        raise UserError(
            "a causal model has no mask state and cannot teach a masked one: give a model trained with --objective mdlm"
        )
    return build(inner.config, inner.state_dict(), "the teacher").eval().requires_grad_(False)
