"""Answers that end early: once a finished block holds a token that ends an answer, no later block is written.

What is left blank then becomes the end token, drawn by nobody. What stands before it is what would have stood there
anyway, since plans in blocks go from left to right.

Shapes: B texts, R rows, L positions, M positions to reveal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from unmask.plans.moves import Move, State


@dataclass
class Ending:
    """Which texts of a draft have ended."""

    state: State
    blank_BL: Tensor
    stop_ids: frozenset[int]
    eos_id: int
    mask_id: int
    ended: set[int] = field(default_factory=set)

    def cut(self, moves: Iterator[Move]) -> Iterator[Move]:
        """The moves without the texts that have ended."""
        begun: dict[int, int] = {}
        for move in moves:
            assert move.span_R3 is not None
            for row, start, _ in move.span_R3.tolist():
                if begun.get(row) != start:
                    begun[row] = start
                    self._look(row, start)
            yield self._without(move) if self.ended else move
        for row in self.ended:
            z_L = self.state.z_BL[row]
            z_L[z_L == self.mask_id] = self.eos_id

    def _look(self, row: int, start: int) -> None:
        """A new block begins there: whether those before it hold an end."""
        answer_K = self.state.z_BL[row, :start].cpu()[self.blank_BL[row, :start]]
        if bool(torch.isin(answer_K, torch.tensor(sorted(self.stop_ids))).any()):
            self.ended.add(row)

    def _without(self, move: Move) -> Move:
        assert move.span_R3 is not None
        ended = torch.tensor(sorted(self.ended))
        flat_M, device = move.reveal_M.cpu(), move.reveal_M.device
        keep_M = ~torch.isin(flat_M // self.blank_BL.shape[1], ended)
        reveal_BL = torch.zeros_like(self.blank_BL)
        reveal_BL.view(-1)[flat_M[keep_M]] = True
        tie_M, rank_M = (None if x is None else x[keep_M] for x in (move.tie_M, move.rank_M))  # they rise, as M does
        span_R3 = move.span_R3[~torch.isin(move.span_R3[:, 0], ended)]
        left = Move.at(move.step, move.steps, reveal_BL, device, span_R3=span_R3, tie_M=tie_M, rank_M=rank_M)
        return replace(left, quota_B=move.quota_B, argmax=move.argmax)
