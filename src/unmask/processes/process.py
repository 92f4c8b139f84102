"""A process: how text is corrupted and restored. Objectives, the sampler and the scores ask it; it asks nobody.

t = 0 is clean text, t = 1 the prior; always s < t. One uniform number u a position, drawn by a plan, is the noise of a
text; a process that needs more adds it in `noise`. The two views of `couple` share one noise.

Shapes: B sequences, L positions, M chosen positions, V states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from unmask.core.devices import to_device
from unmask.core.errors import UserError, named
from unmask.processes.schedule import Schedule, schedule_named


class States(NamedTuple):
    """What a position may hold: `size` states, one of which may be a mask."""

    size: int
    mask: int | None


TokenLoss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # (logits_CV, x0_C, z_C, t_C) -> loss_C, differentiable
# (logits_CW, x0_C, z_C, *numbers_C) -> loss_C and its slope by the logits; a plain function, so that it can be compiled
TokenScore = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class View:
    """One term of the ELBO: a corrupted text, the positions that carry loss, and what each text's loss counts."""

    z_BL: Tensor  # on the text's device
    scored_BL: Tensor  # bool, on the CPU: counting it need not wait for a device
    weight_B: Tensor  # on the CPU
    loss: TokenLoss | None = None  # of a scored position; None: -log p(x_0), the cross-entropy
    score: TokenScore | None = None  # in place of `loss`: quick, in little memory
    score_B: tuple[Tensor, ...] = ()  # what `score` is given of each text


@dataclass(frozen=True)
class Pair:
    """Two views of one text and one noise: the student's z_t, and the teacher's z_s, which is nearer to clean.

    Where `distil` is set the teacher's law is the student's target, where `reconstruct` is set the token itself is.
    """

    z_t: Tensor  # (B, L), on the text's device
    z_s: Tensor  # (B, L)
    distil: Tensor  # (B, L) bool, on the CPU
    reconstruct: Tensor  # (B, L) bool, on the CPU
    s: Tensor  # (B,)
    t: Tensor  # (B,)

    @property
    def scored(self) -> Tensor:
        return self.distil | self.reconstruct


class Process(Protocol):
    """`by_plan` says who may change in a sampling step: True, the positions that a plan names, each drawn once; False,
    every position that is not given, drawn from `posterior` at each step. Such a process may also have `marginal`,
    `prior_nats` and `mixture`, as Uniform has them: for Psi, for the N-step NELBO, for a quick draw.
    """

    name: ClassVar[str]
    by_plan: ClassVar[bool]

    @property
    def schedule(self) -> Schedule: ...

    def condition(self, t: Tensor) -> Tensor | None:
        """What a network is given beside the tokens at time t, one number a text; None: nothing."""

    def prior(self, length: int, states: States, generator: torch.Generator) -> Tensor:
        """z_1 of one text, (L,)."""

    def noise(self, u_BL: Tensor, states: States, generator: torch.Generator) -> Tensor:
        """All the noise of B texts from one uniform a position: (B, L), or (B, L, ...)."""

    def corrupt(self, x0_BL: Tensor, noise_BL: Tensor, t_B: Tensor, states: States) -> Tensor:
        """z_t ~ q(. | x_0), where x_0 is."""

    def couple(self, x0_BL: Tensor, noise_BL: Tensor, s_B: Tensor, t_B: Tensor, states: States) -> Pair:
        """z_s and z_t of one noise."""

    def view(self, x0_BL: Tensor, noise_BL: Tensor, t_B: Tensor, states: States) -> View:
        """A term of the ELBO at times t: its mean over t ~ U(0, 1] is the NELBO, in nats per text."""

    def posterior(self, log_p_MV: Tensor, z_M: Tensor, s: Tensor, t: Tensor, states: States) -> Tensor:
        """log q(z_s = v | z_t) where x_0 has the model's law p: (M, V), normalised."""


PROCESSES: dict[str, type[Any]] = {}


def register_process(kind: type[Any]) -> type[Any]:
    """Make a process known by its `name`. It is a frozen dataclass with a field `schedule`; usable as a decorator."""
    PROCESSES[kind.name] = kind
    return kind


def process_to_json(process: Process) -> dict[str, Any]:
    """A process as a checkpoint's config holds it."""
    fields = {key: value for key, value in vars(process).items() if key != "schedule"}
    return {"name": process.name, "schedule": {"name": process.schedule.name, **asdict(process.schedule)}, **fields}  # type: ignore[call-overload]


def process_named(name: str, schedule: Schedule | Mapping[str, Any] | None = None, **fields: Any) -> Process:
    """A process by its name, its schedule by name and settings."""
    kind = named("process", name, PROCESSES)
    if isinstance(schedule, Mapping):
        schedule = schedule_named(**schedule)
    given = fields if schedule is None else {"schedule": schedule, **fields}
    try:
        made: Process = kind(**given)
    except TypeError as error:
        raise UserError(f"the process {name} does not take these settings ({error})") from error
    return made


def condition_at(process: Process, t_B: Tensor, device: torch.device) -> Tensor | None:
    """What a network is given beside the tokens, on its device."""
    time_B = process.condition(t_B)
    return None if time_B is None else to_device(time_B, device)


def check_order(s_B: Tensor, t_B: Tensor) -> None:
    if bool((s_B > t_B).any()):
        raise UserError("a coupled pair needs s <= t in every sequence: the teacher sees no less than the student")


def per_sequence(value: Tensor | float, like_BL: Tensor) -> Tensor:
    """A scalar, one value a sequence (B,) or one a position (B, L), shaped to broadcast against (B, L)."""
    value = torch.as_tensor(value, device=like_BL.device)
    return value[:, None] if value.ndim == 1 else value
