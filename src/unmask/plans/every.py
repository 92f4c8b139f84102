"""Plans of a process that goes by none: every position that is not given, at every step.

ancestral     the posterior q(z_s | z_t), x_0 by the model's law
greedy_tail   the same, then one forward more that takes the likeliest token of x_0 everywhere
psi           c q(z_s | z_t) + (1 - c) [gamma_s q(z_0 | z_t) + (1 - gamma_s) prior]: a share of the positions is noise
              again, so that early mistakes can be mended, and all marginals stay what they were

Shapes: B sequences, L positions, M chosen positions, V states.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from unmask.core.devices import to_device
from unmask.core.errors import UserError
from unmask.core.streams import uniforms
from unmask.plans.assignment import Plan
from unmask.plans.grids import Grid
from unmask.plans.laws import parse_settings
from unmask.plans.moves import Move, State
from unmask.plans.plan import make_plan
from unmask.plans.remask import USUAL_ETA
from unmask.processes.mixture import Mixture
from unmask.processes.process import Process, States


@dataclass(frozen=True)
class EveryPosition:
    """Every position at every step.

    Args:
        kind: what users call it
        share: of the positions, the share that a step turns into noise again (the sigma of ReMDM, at most 1 - gamma_s)
        greedy: end with a forward that takes the likeliest token everywhere
    """

    kind: str
    share: float = 0.0
    greedy: bool = False
    rule: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not (isinstance(self.share, (int, float)) and 0 <= self.share <= 1):
            raise UserError(f"share is the share of positions that a step turns into noise again: between 0 and 1, not "
                            f"{self.share}")  # fmt: skip
        if not isinstance(self.greedy, bool):
            raise UserError(f"greedy is true or false, not {self.greedy}")

    @property
    def name(self) -> str:
        said = [f"share={self.share:g}"] if self.share != PLANS_OF_EVERY[self.kind].share else []
        said += ["greedy=" + json.dumps(self.greedy)] if self.greedy != PLANS_OF_EVERY[self.kind].greedy else []
        return f"{self.kind}:{','.join(said)}" if said else self.kind

    def law(self, process: Process, log_p_MV: Tensor, z_M: Tensor, s: Tensor, t: Tensor, states: States) -> Tensor:
        """log of the probability of each z_s, where x_0 has the law p: (M, V), normalised. Times are one or (M,)."""
        law_MV = process.posterior(log_p_MV, z_M, s, t, states)
        if not self.share:
            return law_MV
        kept = self.kept(process.schedule.gamma(s)).to(law_MV).expand(len(z_M))[:, None]
        clean_MV = process.posterior(log_p_MV, z_M, torch.zeros_like(t), t, states)
        again_MV = _marginal(process, clean_MV, s, states)
        return torch.logaddexp(kept.log() + law_MV, (1 - kept).log() + again_MV)

    def kept(self, gamma_s: Tensor) -> Tensor:
        """c = 1 - sigma / (1 - gamma_s), sigma the share, but never more than is noise at s."""
        noise = 1 - gamma_s
        return torch.where(noise > 0, 1 - noise.clamp(max=self.share) / noise.clamp(min=1e-300), 1.0)

    def mixture(self, process: Process, s: float, t: float, states: States) -> Mixture | None:
        """The same law as a mixture, where the process has one."""
        made = getattr(process, "mixture", None)
        kept = float(self.kept(process.schedule.gamma(torch.tensor(s, dtype=torch.float64))))
        return None if made is None else made(s, t, states, kept)

    def times(self, grid: Grid) -> tuple[float, ...]:
        """The grid's times; the published grid ends above 0, and one forward more takes away the noise that is left."""
        return (*grid.times, 0.0) if grid.argmax_tail and not self.greedy else grid.times

    def moves(
        self, process: Process, grid: Grid, states: States, blank_BL: Tensor, state: State,
        generators: list[torch.Generator], device: torch.device,
    ) -> Iterator[Move]:  # fmt: skip
        """Fresh noise for every blank at each step, and the positions that may change under it."""
        times = self.times(grid)
        steps = len(times) - 1 + self.greedy
        for step, (t, s) in enumerate(pairwise(times)):
            u_BL = uniforms(generators, blank_BL.shape[1])
            state.uniform_BL.copy_(to_device(u_BL, state.uniform_BL.device))
            mixture = self.mixture(process, s, t, states)
            now_BL = blank_BL if mixture is None else blank_BL & mixture.may_change(u_BL)
            yield Move.at(step, steps, now_BL, device, times=(t, s))
        if self.greedy:
            yield Move.at(steps - 1, steps, blank_BL, device, argmax=True, times=(times[-1], times[-1]))

    def assign(self, *_: Any) -> NoReturn:
        raise UserError(f"the plan {self.name} is for a process that draws every position at every step, as uniform "
                        "does: a masked one reveals each once, on a plan such as comb")  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "share": self.share, "greedy": self.greedy}


def _marginal(process: Process, log_p_MV: Tensor, s: Tensor, states: States) -> Tensor:
    made = getattr(process, "marginal", None)
    if made is None:
        raise UserError(f"psi is not for the process {process.name}, which has no law of its marginals: take ancestral")
    return made(log_p_MV, s, states)


PLANS_OF_EVERY: dict[str, EveryPosition] = {}
ANCESTRAL = "ancestral"  # where nobody says
for _plan in (("ancestral", 0.0, False), ("greedy_tail", 0.0, True), ("psi", USUAL_ETA["cap"], False)):
    PLANS_OF_EVERY[_plan[0]] = EveryPosition(*_plan)


def any_plan(plan: str | Plan) -> Plan:
    """A plan of any process from its name, or itself; settings may follow the name, as in psi:share=0.1,greedy=true."""
    kind, _, settings = plan.partition(":") if isinstance(plan, str) else ("", "", "")
    if kind not in PLANS_OF_EVERY:
        return make_plan(plan)
    if settings and kind != "psi":
        raise UserError(f"the plan {kind} has no settings: leave out :{settings}, or take psi")
    return replace(PLANS_OF_EVERY[kind], **parse_settings(settings, ["share", "greedy"]) if settings else {})


def plan_of(process: Process, plan: Plan | None, usual: str) -> Plan:
    """The plan that was chosen, if it is one of this process; else the usual one."""
    if plan is None:
        return make_plan(usual) if process.by_plan else PLANS_OF_EVERY[ANCESTRAL]
    if process.by_plan == isinstance(plan, EveryPosition):
        takes = "reveals each position once" if process.by_plan else "draws every position at every step"
        names = f"{usual} or another plan of reveals" if process.by_plan else ", ".join(PLANS_OF_EVERY)
        raise UserError(f"the process {process.name} {takes}, which the plan {plan.name} does not: take {names}")
    return plan


def check_times(plan: Plan, grid: Grid) -> Grid:
    """The grid, if it is one of times."""
    if grid.by != "time":
        raise UserError(f"the plan {plan.name} goes on a grid of times: take uniform, cosine or mdlm, not {grid.name}")
    return grid
