"""A step seen by a chain: its positions in slots, the body's features there, and the head that is ready to run.

Shapes: M positions drawn, R texts, G of them, S slots, N slots of interest, D features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from unmask.inference import categorical
from unmask.inference.categorical import Law
from unmask.inference.ready import Ready
from unmask.inference.step_law import Step
from unmask.models.chain import ChainHead, Slots, certainty, in_slots, token_table


@dataclass(frozen=True, eq=False)
class Slotted:
    """The positions of a step in the order in which they are drawn, and what a head is given there."""

    step: Step
    head: ChainHead
    table: nn.Embedding
    slots: Slots
    h_RSD: Tensor
    position_RS: Tensor

    @classmethod
    def of(cls, step: Step, head: ChainHead) -> Slotted:
        """A step beside a head, which is made ready where the body runs."""
        slots = in_slots(step.row_M, _rank(step, head.config.order))
        place_RS = (step.flat_M % step.length)[slots.which_RS]
        ready, table = ready_head(head, step.ready), token_table(step.ready.model)
        return cls(step, ready, table, slots, step.h_ND[step.local_M[slots.which_RS]], place_RS)

    def corrected(self, token_GS: Tensor, rows_G: Tensor | None = None) -> Tensor:
        """Features of every slot given the tokens in the slots before it, (G, S, D)."""
        h_GSD, position_GS = (x if rows_G is None else x[rows_G] for x in (self.h_RSD, self.position_RS))
        return h_GSD + self.head(h_GSD, self.table(token_GS), position_GS)

    def given(self, wanted_GS: Tensor, token_GS: Tensor, rows_G: Tensor | None = None) -> tuple[Tensor, Tensor, Step]:
        """Where the wanted slots stand in (G, S), flat; which of the M they are; and the step there, corrected."""
        at_N = wanted_GS.flatten().nonzero()[:, 0]  # the only time that the host waits
        h_ND = self.corrected(token_GS, rows_G).flatten(0, 1)[at_N]
        which_GS = self.slots.which_RS if rows_G is None else self.slots.which_RS[rows_G]
        which_N, local_N = which_GS.flatten()[at_N], torch.arange(len(h_ND), device=h_ND.device)
        return at_N, which_N, replace(self.step.chosen(which_N), h_ND=h_ND, local_M=local_N)

    def in_order(self, value_RS: Tensor) -> Tensor:
        """What slots hold, as the M positions came."""
        real_RS = self.slots.real_RS
        value_M = value_RS.new_empty(len(self.step.local_M))
        value_M[self.slots.which_RS[real_RS]] = value_RS[real_RS]
        return value_M


def _rank(step: Step, order: str) -> Tensor | None:
    """What the order of the slots goes by; None: left to right."""
    if order == "confidence":
        mask, law = step.ready.states.mask, Law()
        parts = [certainty(categorical.shape_logits(step.logits(part), mask, law)) for part in step.parts()]
        return torch.cat(parts).neg()
    return step.rank_M if order == "plan" else None


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
