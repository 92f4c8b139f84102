"""Chain: a step law whose tokens depend on one another, by a small causal head over the positions of the step.

The body is not touched: the head adds to its features at every position, from the tokens drawn before it in the same
step. `log_prob` is one pass, since the tokens are known. `draw` is exact and parallel: with the noise of every position
and state fixed (Gumbel noise, computed anew from a key wherever it is needed), start from tokens drawn without the
head, apply the head to all of them at once, draw again with the same noise, and repeat until nothing changes. Slot i
then holds what a loop that draws slot after slot would have put there: by induction, slot i is right after i + 1 rounds
at the latest. What is known to be right is not computed again, and texts that are done leave.

Shapes: M positions drawn, R texts, G of them under way, S slots, N slots of interest, D features, E of the token table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from unmask.inference import categorical, gumbel
from unmask.inference.categorical import Draw, Law
from unmask.inference.gumbel import keys_of
from unmask.inference.ready import Ready
from unmask.inference.step_law import Factorised, Step, register_step_law
from unmask.models.chain import ChainHead, Slots, in_slots, sureness, token_table


@register_step_law
@dataclass(frozen=True, eq=False)
class Chain:
    """A head beside a frozen model.

    Args:
        head: the network
        facts: what it was trained on, and what was measured
        noise: of the draw: gumbel, or one uniform a position, which is as exact and takes more rounds
    """

    head: ChainHead
    facts: Mapping[str, Any] = field(default_factory=dict)
    noise: Literal["gumbel", "uniform"] = "gumbel"
    name: ClassVar[str] = "chain"

    def to_json(self) -> dict[str, Any]:
        """What it is, for records."""
        return {"name": self.name, "noise": self.noise, **vars(self.head.config)}

    def doubt(self, plan: str, steps: int) -> str | None:
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
        slots = self._slots(step)
        which_N, given = self._given(step, slots, slots.real_RS, token_M.to(step.local_M.device))
        which_N = which_N.cpu()
        log_q_M[which_N] = Factorised().log_prob(given, token_M[which_N.to(token_M.device)])
        return log_q_M

    def draw(self, step: Step, uniform_M: Tensor) -> Draw:
        """All slots at once, again and again with the same noise, until nothing changes."""
        if not len(uniform_M):
            return Factorised().draw(step, uniform_M)
        key_M, slots = (keys_of(uniform_M) if self.noise == "gumbel" else uniform_M), self._slots(step)
        drawn = self._by_noise(step, key_M)
        token_M, log_q_M = drawn.token_M.to(step.local_M.device), drawn.log_q_M
        slot_S = torch.arange(slots.real_RS.shape[1], device=token_M.device)
        count_R = slots.real_RS.sum(1)
        first_R = torch.zeros_like(count_R)  # of each text the first slot that may still change
        rounds_R, going_G = torch.zeros_like(count_R), torch.arange(len(count_R), device=token_M.device)
        while len(going_G):
            part = slots.rows(going_G)
            open_GS = part.real_RS & (slot_S >= first_R[going_G, None])
            which_N, given = self._given(step, part, open_GS, token_M)
            drawn = self._by_noise(given, key_M[which_N.to(key_M.device)])
            fresh_N = drawn.token_M.to(token_M.device)
            changed_GS = torch.zeros_like(open_GS).masked_scatter(open_GS, fresh_N != token_M[which_N])
            token_M[which_N], log_q_M[which_N.to(log_q_M.device)] = fresh_N, drawn.log_q_M
            rounds_R[going_G] += 1
            # a slot that follows no change was drawn given what is final: so is the first that changed
            first_R[going_G] = first_G = changed_GS.int().argmax(1) + 1
            going_G = going_G[changed_GS.any(1) & (first_G < count_R[going_G])]
        return Draw(token_M, log_q_M, drawn.dtype, rounds_R)

    def _by_noise(self, step: Step, key_M: Tensor) -> Draw:
        """Every position by itself, by its own noise."""
        run = step.ready.fused(gumbel.draw if self.noise == "gumbel" else categorical.draw)
        mask = step.ready.states.mask
        drawn = [
            run(step.logits(part), key_M[part.to(key_M.device)], mask, step.law, step.heat(part))
            for part in step.parts()
        ]
        return categorical.join(drawn)

    def _slots(self, step: Step) -> Slots:
        """The positions in the order in which they are drawn."""
        order, rank_M = self.head.config.order, None
        if order == "confidence":
            mask, law = step.ready.states.mask, Law()
            parts = [sureness(categorical.shape_logits(step.logits(part), mask, law)) for part in step.parts()]
            rank_M = torch.cat(parts).neg()
        elif order == "plan":
            rank_M = step.rank_M
        return in_slots(step.row_M, rank_M)

    def _given(self, step: Step, slots: Slots, wanted_RS: Tensor, token_M: Tensor) -> tuple[Tensor, Step]:
        """Which of the M stand in the wanted slots, and the step there, corrected for the tokens before each."""
        head = ready_head(self.head, step.ready)
        vector_RSE = token_table(step.ready.model)(token_M[slots.which_RS])
        h_RSD = step.h_ND[step.local_M[slots.which_RS]]
        correction_RSD = head(h_RSD, vector_RSE, (step.flat_M % step.length)[slots.which_RS])
        which_N, h_ND = slots.which_RS[wanted_RS], h_RSD[wanted_RS] + correction_RSD[wanted_RS]
        local_N = torch.arange(len(h_ND), device=h_ND.device)
        return which_N, replace(step.chosen(which_N), h_ND=h_ND, local_M=local_N)


# a head made ready for a device and a precision is kept while the head lives
_KEPT: WeakKeyDictionary[ChainHead, dict[object, tuple[object, ChainHead]]] = WeakKeyDictionary()


@torch.no_grad()
def ready_head(head: ChainHead, beside: Ready) -> ChainHead:
    """The head where the body runs and in the precision of its matrices; the head itself if it is so already."""
    precision = beside.precision
    dtype = torch.float32 if precision == "exact" else getattr(torch, precision)
    place = next(beside.model.parameters()).device  # type: ignore[attr-defined]
    weights = list(head.parameters())
    if not head.training and all((w.device, w.dtype) == (place, dtype) for w in weights):
        return head
    now = [(w.data_ptr(), 0 if w.is_inference() else w._version) for w in weights]
    kept = _KEPT.setdefault(head, {})
    if (place, dtype) not in kept or kept[place, dtype][0] != now:
        made = ChainHead(head.config)
        made.load_state_dict(head.state_dict())
        kept[place, dtype] = now, made.to(place, dtype).eval().requires_grad_(False)
    return kept[place, dtype][1]
