"""A cache of keys and values for writing in blocks: a step computes only the places that changed, or that it needs.

`exact` is for block-causal networks, in which a finished block never changes again: same law, less work. `prefix` and
`dual` are for networks in which every position sees every other (the idea is Fast-dLLM's): a full forward where a block
begins, and from then on only the block and what follows (prefix) or the block alone (dual) is computed anew; what the
rest would have said of the new tokens is missed until the next full forward, so the law is approximate. Each row keeps
its own time, and never depends on its company.

Shapes: S rows of a table, R of them in a forward, L places, Q of them computed, H heads, E features of a head, D
features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from unmask.core.devices import to_device
from unmask.core.errors import UserError, check_name
from unmask.inference.ready import Ready, replayed

Kind = Literal["exact", "prefix", "dual"]
KINDS = ("exact", "prefix", "dual")


@dataclass(frozen=True)
class Caching:
    """Which cache; `refresh`: after how many steps within a block everything is computed anew (None: never)."""

    kind: Kind
    refresh: int | None = None

    def __post_init__(self) -> None:
        check_name("cache", self.kind, KINDS)
        if self.refresh is not None and self.kind == "exact":
            raise UserError("an exact cache needs no refresh: leave it out")
        if self.refresh is not None and self.refresh < 1:
            raise UserError(f"refresh must be at least 1 step, not {self.refresh}")

    @property
    def approximate(self) -> bool:
        """Whether the law differs from that without a cache."""
        return self.kind != "exact" and self.refresh != 1

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "refresh": self.refresh, "approximate": self.approximate}

    def check(self, model: object) -> None:
        """Refuse a network that has no such cache."""
        if not hasattr(model, "outputs"):
            raise UserError("this network has no cache: leave it out, or take a model of the family llada, dream or "
                            "sdar")  # fmt: skip
        exact = block_of(model) is not None
        if exact != (self.kind == "exact"):
            takes = (
                "is block-causal: its cache is exact" if exact else "sees all positions: its caches are prefix, dual"
            )
            raise UserError(f"the cache {self.kind!r} is not for this network, which {takes}")


def block_of(model: object) -> int | None:
    """The positions of a block of a block-causal network; None: every position sees every other."""
    block: int | None = getattr(getattr(model, "config", None), "block", None)
    return block


class Memory:
    """Keys, values and outputs of a table of texts, by place.

    Each row works on one span of blanks, [start, end). What stands before it is final, because plans in
    blocks go from left to right. `computed` counts places that went through the body, `whole` those of full forwards.
    """

    def __init__(self, ready: Ready, caching: Caching, rows: int, length: int) -> None:
        model: Any = ready.model
        shape, like = model.config, model.model.embed_tokens.weight
        size = shape.head_size or shape.hidden // shape.heads
        self.ready, self.caching, self.model, self.length = ready, caching, model, length
        self.block, self.reach = block_of(model) or 1, int(model.shifted)
        made = {"dtype": like.dtype, "device": ready.device}
        self.kept = torch.zeros(shape.blocks, rows, length, 2, shape.kv_heads, size, **made)
        self.out_SLD = torch.zeros(rows, length, shape.hidden, **made)
        self.graphs: dict[int, tuple[Tensor, Callable[[], Tensor]]] = {}
        self.pool: Any = None  # of memory that the graphs share: what they return lies in out_SLD too
        self.stored = dict.fromkeys(range(rows), 0)  # exact: places before are final and stored
        self.since: dict[int, tuple[int, int]] = {}  # else: the span's start, and steps since all was computed
        self.computed = self.whole = 0

    def reset_rows(self, rows: range) -> None:
        """Other texts stand in these rows from now on."""
        for row in rows:
            self.stored[row] = 0
            self.since.pop(row, None)

    def features(self, z_SL: Tensor, span_R3: Tensor) -> Tensor:
        """h_RLD of the rows in `span_R3` (row, start, end); outside what was computed it is of an earlier step."""
        groups: dict[int, list[tuple[int, int, int]]] = {}
        for row, start, end in span_R3.tolist():
            first, last = self._window(row, start, end)
            groups.setdefault((last - first - 1).bit_length(), []).append((row, first, last))
        for group in groups.values():
            self._compute(z_SL, torch.tensor(group))
        row_R = span_R3[:, 0]
        out_RLD = self.out_SLD if self._all(row_R) else self.out_SLD[row_R.to(self.out_SLD.device)]
        features: Tensor = self.model.shift(out_RLD)
        return features

    def _window(self, row: int, start: int, end: int) -> tuple[int, int]:
        """The places that a step of a row computes."""
        if self.caching.kind == "exact":
            first, self.stored[row] = self.stored[row], start // self.block * self.block
            return first, min(self.length, -(-end // self.block) * self.block)
        begun, steps = self.since.get(row, (-1, 0))
        if begun != start or steps == self.caching.refresh:
            self.since[row] = (start, 1)
            return 0, self.length
        self.since[row] = (start, steps + 1)
        return max(0, start - self.reach), self.length if self.caching.kind == "prefix" else end

    def _compute(self, z_SL: Tensor, window_R3: Tensor) -> None:
        """One forward of windows of about one length; shorter ones repeat their last place, which changes nothing."""
        row_R, first_R, last_R = window_R3.T
        Q = int((last_R - first_R).max())
        at_RQ = torch.minimum(first_R[:, None] + torch.arange(Q), last_R[:, None] - 1)
        self.ready.forwards += 1
        self.ready.rows += len(row_R)
        self.computed += int((last_R - first_R).sum())
        self.whole += len(row_R) * self.length
        at_RQ = to_device(at_RQ, z_SL.device)
        if self._all(row_R):
            self._run_table(z_SL.gather(1, at_RQ), at_RQ)
        else:
            row_R = to_device(row_R, z_SL.device)
            self._run(z_SL[row_R].gather(1, at_RQ), at_RQ, row_R)

    def _all(self, row_R: Tensor) -> bool:
        return torch.equal(row_R, torch.arange(len(self.out_SLD)))

    def _run_table(self, z_SQ: Tensor, at_SQ: Tensor) -> None:
        """A forward of the whole table; where the network is compiled for a GPU, replayed as a CUDA graph."""
        if not self.ready.graphs:
            self._run(z_SQ, at_SQ, None)
            return
        now_2SQ, Q = torch.stack([z_SQ, at_SQ]), z_SQ.shape[1]
        if Q not in self.graphs:
            source_2SQ = now_2SQ.clone()
            run = partial(self._run, source_2SQ[0], source_2SQ[1], None)
            self.pool = self.pool or (torch.cuda.graph_pool_handle() if source_2SQ.is_cuda else None)
            self.graphs[Q] = source_2SQ, replayed(run, source_2SQ.device, self.pool)
        source_2SQ, replay = self.graphs[Q]
        source_2SQ.copy_(now_2SQ)
        replay()

    def _run(self, z_RQ: Tensor, at_RQ: Tensor, row_R: Tensor | None) -> Tensor:
        """The body at some places; keys, values and outputs are kept."""
        here_R1 = (torch.arange(len(z_RQ), device=z_RQ.device) if row_R is None else row_R)[:, None]
        flat_N = (here_R1 * self.length + at_RQ).flatten()
        visible = self.model.sees(at_RQ, self.length)
        slot = _Slot(self.kept, flat_N, row_R)
        out_RQD: Tensor = self.ready.body.outputs(z_RQ, visible=visible, at=at_RQ, cache=slot)
        self.out_SLD.view(-1, self.out_SLD.shape[-1]).index_copy_(0, flat_N, out_RQD.flatten(0, 1))
        return out_RQD


@dataclass(frozen=True)
class _Slot:
    """What the layers of one forward take for a cache: new keys and values go in, those of all places come out."""

    kept: Tensor  # (layers, S, L, 2, H, E)
    flat_N: Tensor
    row_R: Tensor | None

    def update(self, key_RHQE: Tensor, value_RHQE: Tensor, layer: int, *_: Any) -> tuple[Tensor, Tensor]:
        return self.keep(torch.stack([key_RHQE, value_RHQE], dim=2).permute(0, 3, 2, 1, 4), layer)

    def keep(self, new_RQ2HE: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """New keys and values go in beside one another; those of all places come out, (R, H, L, E)."""
        kept_SL2HE = self.kept[layer]
        kept_SL2HE.flatten(0, 1).index_copy_(0, self.flat_N, new_RQ2HE.flatten(0, 1).to(kept_SL2HE.dtype))
        key_RLHE, value_RLHE = (kept_SL2HE if self.row_R is None else kept_SL2HE[self.row_R]).unbind(2)
        return key_RLHE.transpose(1, 2), value_RLHE.transpose(1, 2)
