"""Duo's training: the NELBO of the uniform process, in its first steps with softer inputs (its curriculum).

In the curriculum the network reads softmax(w / tau) E in place of the token argmax w, w = alpha~ x_0 + sigma~ eps the
Gaussian latent and E its table of tokens: where two coordinates of w are near each other it sees both. The loss is that
of the argmax, at the uniform process's time that keeps as many tokens. Towards tau = 0 it becomes the NELBO on a window
of times: the noise log(sigma~^2 / alpha~^2) rises evenly from one end of it to the other.

Shapes: B sequences, L positions, T = batch.total rows of the global batch, k largest coordinates, K states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from unmask.core.devices import to_device
from unmask.core.errors import UserError
from unmask.inference.ready import draw_device
from unmask.models.denoiser import Denoiser, states_of
from unmask.objectives.base import RECONSTRUCT, Batch, LossOutput, check_given, rows_of
from unmask.objectives.elbo import MDLM
from unmask.objectives.head_loss import Fusible
from unmask.processes import Process, Uniform, View
from unmask.processes.gaussian import GaussianDuality, UniformCalibration
from unmask.processes.schedule import stratified
from unmask.processes.soft import largest, law_of_all, uniforms_for
from unmask.processes.uniform import kept, rate_of_nelbo


def check_window(name: str, window: Sequence[float]) -> None:
    if len(window) != 2 or not 1 > window[0] > window[1] > 0:
        raise UserError(f"{name} is two shares, falling, between 1 and 0: not {window}")


@dataclass(frozen=True)
class SoftStart:
    """Duo's curriculum.

    Curriculum of duo:
        soft_steps: first steps, in which the network reads a softmax of the Gaussian latent in place of its argmax
            (default: half of the steps)
        soft_window: the share of tokens that have not been drawn anew, at the first and the last of its times
        soft_tau: temperature of the softmax
        soft_top: how many of the latent's largest coordinates are in it, drawn by themselves; 0 draws all. At
            soft_tau 0.001 a billionth of the weight lies beyond 6
    """

    soft_steps: int | None = None
    soft_window: Sequence[float] = (0.9455, 0.0493)  # noise -3.55 and -1.85 at GPT-2's 50,258 states, as published
    soft_tau: float = 1e-3
    soft_top: int = 6

    def __post_init__(self) -> None:
        if self.soft_steps is not None and self.soft_steps < 0:
            raise UserError(f"soft_steps is a number of steps: at least 0, not {self.soft_steps}")
        check_window("soft_window", self.soft_window)
        if not self.soft_tau > 0:
            raise UserError(f"soft_tau is the temperature of the latent's softmax: above 0, not {self.soft_tau}")
        if self.soft_top < 0 or self.soft_top == 1:
            raise UserError("soft_top is how many coordinates are in the softmax: 2 or more, or 0 for all, not "
                            f"{self.soft_top}")  # fmt: skip


@dataclass(frozen=True)
class Duo(Fusible):
    """The NELBO of the uniform process, on soft inputs for `soft.soft_steps` steps.

    Args:
        process: the uniform process
        soft: the curriculum; its steps are to be a number here
    """

    process: Process = field(default_factory=Uniform)
    soft: SoftStart = field(default_factory=lambda: SoftStart(soft_steps=0))

    forwards: ClassVar[float] = 3
    regions: ClassVar[tuple[str, ...]] = ("reconstruct",)

    def __post_init__(self) -> None:
        if not isinstance(self.process, Uniform):
            raise UserError(f"duo is for the uniform process, not for {self.process.name}: take the objective mdlm")
        if self.soft.soft_steps is None:
            raise UserError("say how many steps the curriculum lasts: SoftStart(soft_steps=...)")

    def __call__(self, student: Denoiser, batch: Batch, *, step: int, generator: torch.Generator) -> LossOutput:
        assert self.soft.soft_steps is not None
        bound = MDLM(self.process)
        if self._is_compiled:
            bound.compile()
        if step >= self.soft.soft_steps:
            return bound(student, batch, step=step, generator=generator)
        check_given(batch, self.process)
        if not hasattr(student, "embed"):
            raise UserError(
                f"a {type(student).__name__} has no `embed`, so it takes no soft inputs: give --soft_steps 0"
            )
        x0_BL, K = batch.tokens_BL, states_of(student).size
        noise_B, at, span = latent_at(stratified(batch.total, generator)[rows_of(batch)], self.soft.soft_window, K)
        read_BLD, z_BL = self._read(student, batch, noise_B, generator)
        view = _view(z_BL, at, span, K)
        t_B = self.process.schedule.inverse(at.alpha).clamp(0, 1)
        loss_BL = bound.nats_of(student, x0_BL, view, t_B, read_BLD=read_BLD)
        region_BL = torch.full_like(x0_BL, RECONSTRUCT, dtype=torch.int8)
        return LossOutput(loss_BL, torch.ones_like(loss_BL), region_BL)

    def _read(self, student: Any, batch: Batch, noise_B: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """What the network reads, (B, L, D), and z = argmax w. All noise is drawn for the whole global batch."""
        x0_BL, K, soft = batch.tokens_BL, student.vocab_size, self.soft
        if not soft.soft_top:
            seed_T = torch.randint(2**62, (batch.total,), generator=generator)
            return _of_all(student, x0_BL, noise_B, seed_T[rows_of(batch)].tolist(), soft.soft_tau)
        shape = batch.total, x0_BL.shape[1], uniforms_for(soft.soft_top, K)
        uniform_BLn = torch.rand(shape, generator=generator, dtype=torch.float64)[rows_of(batch)]
        place = draw_device(x0_BL.device)
        noise_B, uniform_BLn = to_device(noise_B, place), to_device(uniform_BLn, place)
        w_BLk, ids_BLk = largest(x0_BL.to(place), noise_B, uniform_BLn, soft.soft_top, K)
        weights_BLk = (w_BLk / soft.soft_tau).softmax(-1).float()
        ids_BLk, weights_BLk = ids_BLk.to(x0_BL.device), weights_BLk.to(x0_BL.device)
        return student.embed(ids_BLk, weights_BLk), ids_BLk[..., 0]


def latent_at(t_B: Tensor, window: Sequence[float], K: int) -> tuple[Tensor, UniformCalibration, float]:
    """The latent's noise at times t, what its argmax is there, and how far noise goes from time 0, where as many tokens
    are kept as the window begins with, to time 1."""
    duality, first, last = _ends(tuple(window), K)
    noise_B = first + (last - first) * t_B
    return noise_B, duality.uniform(noise_B), last - first


@lru_cache
def _ends(window: tuple[float, ...], K: int) -> tuple[GaussianDuality, float, float]:
    """The duality, and its noise at the window's ends: the same at every step."""
    duality = GaussianDuality(K)
    first, last = (-2 * duality.inverse(kept(torch.tensor(window, dtype=torch.float64), K)).log()).tolist()
    return duality, first, last


def _view(z_BL: Tensor, at: UniformCalibration, span: float, K: int) -> View:
    """The NELBO's term at the latent's times: the window is passed in one unit of time."""
    beta_B = at.beta
    numbers = at.alpha, beta_B, K * at.alpha / beta_B, -span * at.slope
    everywhere = torch.ones(z_BL.shape, dtype=torch.bool)
    return View(z_BL, everywhere, torch.ones_like(beta_B), score=rate_of_nelbo, score_B=numbers)


def _of_all(student: Any, x0_BL: Tensor, noise_B: Tensor, seeds: Sequence[int], tau: float) -> tuple[Tensor, Tensor]:
    """softmax(w / tau) E over all states, a text at a time: each has its own seed, so that its table of L x K can be
    let go and drawn again in the backward pass."""

    def one(x0_L: Tensor, noise: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        own = torch.Generator(x0_L.device).manual_seed(seed)
        eps_LK = torch.randn(len(x0_L), student.vocab_size, generator=own, device=x0_L.device)
        law_LK, z_L = law_of_all(x0_L, noise, eps_LK, tau)
        return student.embed(law_LK[None])[0], z_L

    noises = to_device(noise_B.float(), x0_BL.device)
    rows = [
        checkpoint(one, x0_L, noise, seed, use_reentrant=False, preserve_rng_state=False)
        for x0_L, noise, seed in zip(x0_BL, noises, seeds, strict=True)
    ]
    read, z = zip(*rows, strict=True)
    return torch.stack(read), torch.stack(z)
