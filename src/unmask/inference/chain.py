"""Chain: a step law whose tokens depend on one another, by a small causal head over the positions of the step.

The body is not touched: the head adds to its features at every position, from the tokens drawn before it in the same
step. `log_prob` is one pass, since the tokens are known. `draw` is exact and parallel (chain_draws.py).

Shapes: M positions drawn, R texts, S slots, N slots of interest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from unmask.inference.categorical import Draw
from unmask.inference.chain_draws import Noise, by_acceptance, fixed_point
from unmask.inference.chain_step import Slotted
from unmask.inference.step_law import Factorised, Step, register_step_law
from unmask.models.chain import ChainHead


@register_step_law
@dataclass(frozen=True, eq=False)
class Chain:
    """A head beside a frozen model.

    Args:
        head: the network
        facts: what it was trained on, and what was measured
        noise: how chance enters a draw: gumbel; one uniform a position, in more rounds; or acceptance of what the
            model alone would draw. All three are draws from the same law
        named: where the head lies, of a model that only names it in its config
    """

    head: ChainHead
    facts: Mapping[str, Any] = field(default_factory=dict)
    noise: Noise = "gumbel"
    named: str | None = None
    name: ClassVar[str] = "chain"

    def to_json(self) -> dict[str, Any]:
        """What it is, for records."""
        return {"name": self.name, "noise": self.noise, **vars(self.head.config)}

    def warning(self, plan: str, steps: int) -> str | None:
        """What a user should know before taking a plan that the head was not trained on."""
        trained = self.facts.get("plans", [plan])
        if plan in trained:
            return None
        measured = self.facts.get("measured", {}).get(plan, {})
        N = min(measured, key=lambda N: abs(int(N) - steps), default=None)
        worth = "what it is worth there was not measured" if N is None else (
            f"in {N} steps it has {measured[N][0]:.3f} nats a token, the model alone {measured[N][1]:.3f}"
        )  # fmt: skip
        return f"the head was not trained on the plan {plan}, but on {', '.join(trained)}: {worth}"

    def log_prob(self, step: Step, token_M: Tensor) -> Tensor:
        """By teacher forcing, in one pass of the head."""
        log_q_M = torch.zeros(len(token_M), dtype=torch.float64)
        if not len(token_M):
            return log_q_M
        slotted = self.beside(step)
        token_RS = token_M.to(step.local_M.device)[slotted.slots.which_RS]
        _, which_N, given = slotted.given(slotted.slots.real_RS, token_RS)
        log_q_M[which_N.cpu()] = Factorised().log_prob(given, token_M[which_N.to(token_M.device)])
        return log_q_M

    def draw(self, step: Step, uniform_M: Tensor) -> Draw:
        """All slots at once, again and again, until they are what a loop over the slots would have drawn."""
        if not len(uniform_M):
            return Factorised().draw(step, uniform_M)
        draw = by_acceptance if self.noise == "acceptance" else fixed_point
        return draw(self.beside(step), uniform_M, self.noise)

    def beside(self, step: Step) -> Slotted:
        """A step in slots, with the head ready."""
        return Slotted.of(step, self.head)
