"""Chain: a step law whose tokens depend on one another, by a small causal head over the positions of the step.

The body is not touched: the head adds to its features at every position, from the tokens drawn before it in the same
step. `log_prob` is one pass, since the tokens are known. `draw` is exact and parallel: with the noise of every position
and state fixed (Gumbel noise, computed anew from a key wherever it is needed), start from tokens drawn without the
head, apply the head to all of them at once, draw again with the same noise, and repeat until nothing changes. Slot i
then holds what a loop that draws slot after slot would have put there: by induction, slot i is right after i + 1 rounds
at the latest. What is known to be right is not computed again, and texts that are done leave.

Shapes: M positions drawn, R texts, S slots, C positions of a piece, D features, V states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from unmask.inference import categorical
from unmask.inference.categorical import Law
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
    """

    head: ChainHead
    facts: Mapping[str, Any] = field(default_factory=dict)
    name: ClassVar[str] = "chain"

    def to_json(self) -> dict[str, Any]:
        """What it is, for records."""
        return {"name": self.name, **vars(self.head.config)}

    def log_prob(self, step: Step, token_M: Tensor) -> Tensor:
        """By teacher forcing, in one pass of the head."""
        if not len(step.local_M):
            return torch.zeros(0, dtype=torch.float64)
        slots = self._slots(step)
        return Factorised().log_prob(self._given(step, slots, token_M.to(step.local_M.device)), token_M)

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

    def _given(self, step: Step, slots: Slots, token_M: Tensor) -> Step:
        """The step at the positions of these slots, its features corrected for the tokens before each."""
        head = ready_head(self.head, step.ready)
        vector_RSE = token_table(step.ready.model)(slots.spread(token_M))
        h_RSD = step.h_ND[slots.spread(step.local_M)]
        h_RSD = h_RSD + head(h_RSD, vector_RSE, slots.spread(step.flat_M % step.length))
        which_M = slots.collect(slots.which_RS)
        h_MD = slots.collect(h_RSD)
        return replace(step.chosen(which_M), h_ND=h_MD, local_M=torch.arange(len(h_MD), device=h_MD.device))


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
