"""A teacher: a frozen copy of a model, which training the model itself does not move.

Shapes: B sequences, L positions, M chosen positions, D features, W columns of logits (the vocabulary and perhaps
padding).
"""

from __future__ import annotations

import copy
import hashlib
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError
from unmask.inference.categorical import Law
from unmask.inference.ready import InAutocast, Ready, in_autocast
from unmask.inference.step_law import Factorised, Step, StepLaw
from unmask.models.denoiser import MASK_LOGIT, Denoiser, features_of, is_causal, states_of
from unmask.models.family import family_of, plain
from unmask.models.lora import base_of, does_nothing, without_adapter
from unmask.processes import Masked, Process


class Teacher:
    """The model of a checkpoint as it is now: its own copy, in eval mode, without gradients.

    Weights that the student does not train are shared with it, not copied. Under autocast the copy is made ready for
    inference (a DiT is folded) in autocast's precision: the same function, faster. Without it the copy runs as it is,
    so that it agrees with its original to the last bit.
    """

    def __init__(self, source: Checkpoint | Denoiser) -> None:
        model = source.model if isinstance(source, Checkpoint) else source
        self.process: Process = source.process if isinstance(source, Checkpoint) else Masked()
        self.step_law: StepLaw = source.step_law if isinstance(source, Checkpoint) else Factorised()
        self.model = _frozen_copy(model)
        self.compiled = False
        self._ready: InAutocast | None = None

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
        if not self.compiled:
            self.compiled, self._ready = True, None

    def rest(self) -> None:
        """Leave its device, until it is called again; weights that it shares with a student stay."""
        self._ready = None
        if isinstance(self.model, nn.Module) and not getattr(self.model, "_shares", False):
            self.model.cpu()

    def check(self, student: Denoiser) -> None:
        """Whether a student can learn from it."""
        mine, theirs = (f"{model.vocab_size} states, mask {model.mask_id}" for model in (self.model, student))
        if mine != theirs:
            raise UserError(f"the teacher has {mine}, the student {theirs}: both need one tokenizer and one mask")

    @torch.no_grad()
    def features(self, z_BL: Tensor, time_B: Tensor | None = None, x0_BL: Tensor | None = None) -> Tensor:
        """The body, on a view z of x_0."""
        ready = self.prepared(z_BL.device)
        with ready.precision():
            return features_of(ready, z_BL, x0_BL, time_B)

    @torch.no_grad()
    def logits(self, h_MD: Tensor, width: int | None = None) -> Tensor:
        """The head in `width` columns (default: the vocabulary), mask and padding ruled out; a fresh table."""
        width = width or self.model.vocab_size
        ready = self.prepared(h_MD.device)
        with ready.precision():
            logits_MW = ready.head(h_MD)[:, :width]
            if logits_MW.shape[1] < width:
                logits_MW = F.pad(logits_MW, (0, width - logits_MW.shape[1]))
            if self.model.mask_id is not None:
                logits_MW[:, self.model.mask_id].fill_(MASK_LOGIT)
            logits_MW[:, self.model.vocab_size :].fill_(MASK_LOGIT)
        return logits_MW

    @torch.no_grad()
    def draw(self, h_ND: Tensor, flat_M: Tensor, length: int, uniform_M: Tensor) -> Tensor:
        """Tokens at positions of the rows h_ND, from the teacher's own step law."""
        ready = _Drawing(self, h_ND.device)
        return self.step_law.draw(Step(ready, h_ND, flat_M, flat_M, length, Law()), uniform_M).token_M

    def prepared(self, device: torch.device) -> InAutocast:
        """The model as it runs on this device in this precision."""
        dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
        if self._ready is None or (self._ready.device, self._ready.dtype) != (device, dtype):
            self._ready = in_autocast(self.model, device, dtype, self.compiled)
        return self._ready


class _Drawing(Ready):
    """A teacher seen as what a step law draws from."""

    def __init__(self, teacher: Teacher, device: torch.device) -> None:
        super().__init__(teacher.model, device)
        self._head = teacher.logits


def _frozen_copy(model: Denoiser) -> Denoiser:
    """A copy in eval mode, without gradients; parameters that are not trained are the model's own."""
    inner = plain(model)
    if is_causal(inner):
        raise UserError("a causal model has no mask state to teach: give a model trained with --objective mdlm")
    states_of(inner)
    if not isinstance(inner, nn.Module):
        return copy.deepcopy(inner)
    trained = {id(value) for value in family_of(inner).trainable(inner).values()}
    shared = {id(value): value for value in inner.parameters() if id(value) not in trained}
    if len(shared) == len(list(inner.parameters())):
        shared = {}  # frozen as a whole: nobody trains it
    copied = copy.deepcopy(inner, dict(shared)).eval().requires_grad_(False)
    if base_of(copied) and does_nothing(copied):
        copied = without_adapter(copied)  # the student's own weights, with the adapter off
    if shared:
        copied._shares = True  # type: ignore[assignment]
    else:
        copied.cpu()
    return copied  # type: ignore[return-value]
