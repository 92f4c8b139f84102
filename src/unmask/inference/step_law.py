"""The step law: the joint law of the tokens that one step draws. Sampler, NELBO and distillation ask only this.

`Factorised` draws every position by itself, as all published samplers do. A law that is not factorised looks at the
other positions of its row as well; whatever it does, `log_prob` is the exact log-probability of what `draw` drew.

Shapes: N positions of all rows in a forward, M of them drawn, D features, V states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from unmask.core.errors import UserError, named
from unmask.inference import categorical
from unmask.inference.categorical import Draw, Law
from unmask.inference.ready import Ready


@dataclass(frozen=True)
class Step:
    """The positions that one step draws, and the model's own law at each of them."""

    ready: Ready
    h_ND: Tensor  # features of every position of the rows in the forward
    local_M: Tensor  # where each drawn position stands in h_ND
    flat_M: Tensor  # where it stands in the table (texts, L); positions rise within a text
    length: int  # L
    law: Law
    posterior: Callable[[Tensor, Tensor], Tensor] | None = None  # (log p_CV, which of the M_C) -> log q(z_s); None: p
    heat_M: Tensor | None = None  # the temperature of each position, beside the law's 1; None: the law's own
    rank_M: Tensor | None = None  # the plan's u of each position; None: the plan has none
    guidance: float = 0.0  # above 0, h_ND holds features that know the prompt, then those that do not, side by side
    mixture: tuple[Tensor, Tensor] | None = None  # what stands there and the numbers of a Mixture: the posterior again
    table_MV: Tensor | None = None  # the logits of all of them, where they are held

    @property
    def row_M(self) -> Tensor:
        """The text of each position."""
        return self.flat_M // self.length

    def chosen(self, which: Tensor) -> Step:
        """Only some of the positions."""
        assert self.posterior is None, "all positions of such a step are drawn"
        own = (self.heat_M, self.rank_M, self.table_MV)
        heat_M, rank_M, table_MV = (None if x is None else x[which.to(x.device)] for x in own)
        return replace(
            self, local_M=self.local_M[which], flat_M=self.flat_M[which], heat_M=heat_M, rank_M=rank_M,
            table_MV=table_MV,
        )  # fmt: skip

    def held(self) -> Step:
        """The same with its logits held, where they are one piece: for whoever looks at them twice."""
        parts = list(self.parts())
        return replace(self, table_MV=self.logits(parts[0])) if len(parts) == 1 else self

    def parts(self) -> Iterator[Tensor]:
        """Indices of the M, in pieces whose table of logits fits into memory."""
        yield from torch.arange(len(self.local_M), device=self.local_M.device).split(self.ready.chunk)

    def logits(self, part: Tensor) -> Tensor:
        """The head at some of the positions."""
        if self.table_MV is not None:
            return self.table_MV[part]
        h_CD = self.h_ND[self.local_M[part]]
        if not self.guidance:
            return self.ready.logits(h_CD)
        known_CV, unknown_CV = (self.ready.logits(h)[:, : self.ready.states.size] for h in h_CD.chunk(2, -1))
        return guided(known_CV, unknown_CV, self.guidance)

    def heat(self, part: Tensor) -> Tensor | None:
        """Temperatures of some of the positions, where each has its own."""
        return None if self.heat_M is None else self.heat_M[part.to(self.heat_M.device)]

    def shaped(self, part: Tensor) -> Tensor:
        """Log-weights of the law at some positions, in the precision of the draw: (C, V), not normalised."""
        shaped_CV = self.own(part)
        if self.posterior is None:
            return shaped_CV
        return self.posterior(shaped_CV.log_softmax(-1)[:, : self.ready.states.size], part)

    def own(self, part: Tensor) -> Tensor:
        """The same of the model's law of x_0."""
        return categorical.shape_logits(self.logits(part), self.ready.states.mask, self.law, self.heat(part))


def guided(known: Tensor, unknown: Tensor, w: float) -> Tensor:
    """Logits of the guided law, as LLaDA's `cfg_scale` has it: unknown + (w + 1) (known - unknown)."""
    known, unknown = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (known, unknown))
    return unknown + (w + 1) * (known - unknown)


class StepLaw(Protocol):
    """`uniform_M` is one uniform a position: the same noise gives the same tokens, whatever else is in the batch."""

    name: ClassVar[str]

    def draw(self, step: Step, uniform_M: Tensor) -> Draw:
        """Tokens at all positions of the step, and the log-probability of each given those drawn before it."""

    def log_prob(self, step: Step, token_M: Tensor) -> Tensor:
        """What `draw` would have said for these tokens: (M,) float64; the sum over a text's positions is its log q."""


@dataclass(frozen=True)
class Factorised:
    """Each position by itself, by the exact categorical draw."""

    name: ClassVar[str] = "factorised"

    def draw(self, step: Step, uniform_M: Tensor) -> Draw:
        drawn, states = [], step.ready.states
        for part in step.parts():
            noise = uniform_M[part.to(uniform_M.device)]
            if step.mixture is not None:
                z_M, numbers = step.mixture
                run, z_C = step.ready.fused(categorical.draw_mixture), z_M[part.to(z_M.device)]
                drawn.append(run(step.logits(part), noise, z_C, numbers, states.mask, step.law, step.heat(part)))
            elif step.posterior is None:
                run = step.ready.fused(categorical.draw)
                drawn.append(run(step.logits(part), noise, states.mask, step.law, step.heat(part)))
            else:
                drawn.append(categorical.pick(step.shaped(part), noise))
        return categorical.join(drawn)

    def log_prob(self, step: Step, token_M: Tensor) -> Tensor:
        parts = [categorical.log_prob(step.shaped(part), token_M[part.to(token_M.device)]) for part in step.parts()]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


STEP_LAWS: dict[str, type[Any]] = {"factorised": Factorised}


def register_step_law(kind: type[Any]) -> type[Any]:
    """Make a step law known by its `name`; a dataclass whose fields JSON can hold. Usable as a decorator."""
    STEP_LAWS[kind.name] = kind
    return kind


def step_law_to_json(law: StepLaw) -> dict[str, Any]:
    """What it is, for records; a law with weights says it itself."""
    own = getattr(law, "to_json", None)
    return {"name": law.name, **vars(law)} if own is None else dict(own())


def make_step_law(law: str | StepLaw, **settings: Any) -> StepLaw:
    """A step law from its name and settings, or itself."""
    if not isinstance(law, str):
        return law
    kind = named("step law", law, STEP_LAWS)
    try:
        made: StepLaw = kind(**settings)
    except TypeError as error:
        raise UserError(f"the step law {law} does not take these settings ({error})") from error
    return made
