"""Rounds of a chain in memory of their own, so that a GPU replays each as one CUDA graph.

A round of a few texts is some two hundred kernels of a few microseconds: launched one by one they take longer than they
run. So for every power of two of texts there is a `Round` that reads and writes fixed tensors. The host waits once a
round, for a number a text; texts that are done move out when half of them are.

Shapes: R texts, G of them (a power of two) under way, S slots, D features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unmask.core.devices import to_device
from unmask.inference import gumbel
from unmask.inference.categorical import DTYPES
from unmask.inference.chain_step import Slotted
from unmask.inference.ready import replayed

if TYPE_CHECKING:
    from unmask.inference.chain_draws import SlotValues

_SLOTS = 16  # slots are padded to a multiple of it: a grid of uneven steps then has few shapes


def fits(slotted: Slotted, texts: int) -> bool:
    """Whether so many texts go by graphs: one piece of logits, one temperature."""
    step = slotted.step
    size = _power(texts) * _padded(slotted.position_RS.shape[1])
    return step.ready.graphs and step.heat_M is None and size <= step.ready.chunk


def finish(slotted: Slotted, key_M: Tensor, found: SlotValues, going_G: Tensor) -> None:
    """Rounds until nothing changes in any of these texts."""
    count, going = slotted.slots.real_RS.sum(1).tolist(), going_G.tolist()
    key_RS = key_M.to(found.token_RS.device)[slotted.slots.which_RS]
    rounds = [0] * len(count)
    while going:
        one = _round(slotted, _power(len(going)))
        rows_G = to_device(torch.tensor(going + going[-1:] * (one.texts - len(going))), found.token_RS.device)
        one.load(slotted, key_RS, found, rows_G)
        left = list(range(len(going)))
        while left and _power(len(left)) == one.texts:
            one.run()
            first = one.first_G.tolist()
            for g in left:
                rounds[going[g]] += 1
            left = [g for g in left if first[g] < count[going[g]]]
        one.store(found, rows_G[: len(going)])
        going = [going[g] for g in left]
    found.rounds_R.add_(torch.tensor(rounds).to(found.rounds_R))


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _padded(slots: int) -> int:
    return -(-slots // _SLOTS) * _SLOTS


def _round(slotted: Slotted, texts: int) -> Round:
    """The round of this shape beside this model, made once."""
    kept = slotted.step.ready.beside
    key = (slotted.head, slotted.step.law, texts, _padded(slotted.position_RS.shape[1]))
    if key not in kept:
        kept[key] = Round(slotted, texts, key[-1])
    made: Round = kept[key]
    return made


class Round:
    """One round of the head for G texts of S slots."""

    def __init__(self, slotted: Slotted, texts: int, slots: int) -> None:
        step, h_RSD = slotted.step, slotted.h_RSD
        self.texts, self.head, self.table, self.ready, self.law = (
            texts,
            slotted.head,
            slotted.table,
            step.ready,
            step.law,
        )
        new: Callable[..., Tensor] = h_RSD.new_zeros
        self.h_GSD = new(texts, slots, h_RSD.shape[2])
        self.position_GS, self.key_GS, self.token_GS = (new(texts, slots, dtype=torch.int64) for _ in range(3))
        self.real_GS, self.first_G = new(texts, slots, dtype=torch.bool), new(texts, dtype=torch.int64)
        self.log_q_GS = new(texts, slots, dtype=DTYPES[step.law.dtype])
        kept = step.ready.beside
        pool = kept.setdefault("pool", torch.cuda.graph_pool_handle()) if h_RSD.is_cuda else None
        self.run = replayed(self._work, h_RSD.device, pool)

    def _work(self) -> None:
        """What `fixed_point` does in a round; a text in which nothing changed has no slot open any more."""
        G, S = self.token_GS.shape
        h_GSD = self.h_GSD + self.head(self.h_GSD, self.table(self.token_GS), self.position_GS)
        draw = self.ready.fused(gumbel.draw)
        logits_MV = self.ready.logits(h_GSD.flatten(0, 1))
        step_V = gumbel.offsets_of(logits_MV.shape[1], self.ready.draw_device)
        drawn = draw(logits_MV, self.key_GS.flatten(), step_V, self.ready.states.mask, self.law)
        slot_S = torch.arange(S, device=h_GSD.device)
        open_GS = self.real_GS & (slot_S >= self.first_G[:, None])
        changed_GS = open_GS & (drawn.token_M.view(G, S) != self.token_GS)
        first_G = torch.where(changed_GS.any(1), changed_GS.int().argmax(1) + 1, S)
        self.token_GS.copy_(torch.where(open_GS, drawn.token_M.view(G, S), self.token_GS))
        self.log_q_GS.copy_(torch.where(open_GS, drawn.log_q_M.view(G, S), self.log_q_GS))
        self.first_G.copy_(first_G)

    def load(self, slotted: Slotted, key_RS: Tensor, found: SlotValues, rows_G: Tensor) -> None:
        """These rows as they are."""
        pairs: list[tuple[Tensor, Any]] = [
            (self.h_GSD, slotted.h_RSD), (self.position_GS, slotted.position_RS), (self.key_GS, key_RS),
            (self.real_GS, slotted.slots.real_RS), (self.token_GS, found.token_RS), (self.log_q_GS, found.log_q_RS),
        ]  # fmt: skip
        S = slotted.position_RS.shape[1]
        self.real_GS.zero_()
        for mine, theirs in pairs:
            mine[:, :S] = theirs[rows_G]
        self.first_G.copy_(found.first_R[rows_G])

    def store(self, found: SlotValues, rows_G: Tensor) -> None:
        """What was found, where it belongs."""
        G, S = len(rows_G), found.token_RS.shape[1]
        found.token_RS[rows_G], found.log_q_RS[rows_G] = self.token_GS[:G, :S], self.log_q_GS[:G, :S].to(found.log_q_RS)
        found.first_R[rows_G] = self.first_G[:G]
