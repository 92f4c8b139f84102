"""A model made ready for sampling: on its device, in its precision, folded, compiled if asked, every forward counted.

Refuses to know plans and steps. Shapes: R rows, L positions, M positions drawn, D features, V states.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from unmask.base.errors import UserError
from unmask.models.denoiser import Denoiser
from unmask.models.dit import DiT
from unmask.models.folded import FoldedDiT
from unmask.sampling import categorical

Precision = Literal["auto", "bf16", "fp32"]
_FEATURES = 32 * 1024 * 768  # of a forward on a GPU: 32 rows of the 169M model, 512 of a pocket one
# eager takes 1.7 times as long (169M body, H200 prototype): below half of a batch, idle rows cost more than they save
_FEWER = 2


class Body:
    """The two calls of a Denoiser, and the draw, as fast as the device allows.

    `forwards` counts calls of the body and `rows` the sequences that went through it: NFE is what was really run.
    """

    def __init__(self, model: Denoiser, device: torch.device, compile: bool) -> None:
        self.model, self.device = model, device
        self.draw_device = draw_device(device)
        self.forwards = self.rows = 0
        # bound the float64 table of a chunk: half a gigabyte on a GPU, 64 MB elsewhere
        budget = 2**29 if device.type == "cuda" else 2**26
        self.chunk = max(1, budget // (8 * model.vocab_size))
        self._features: Callable[[Tensor], Tensor] = model.features
        self._head: Callable[[Tensor], Tensor] = getattr(model, "padded_logits", model.logits)
        self.draw: Callable[..., categorical.Draw] = categorical.draw
        if compile:
            self._features = _Compiled(model.features)
            self._head = torch.compile(self._head, dynamic=True)
            self.draw = torch.compile(categorical.draw, dynamic=True)

    @property
    def precision(self) -> str:
        """What the matrices are really in."""
        if not isinstance(self.model, nn.Module):
            return "exact"
        head = self.model.head if isinstance(self.model, FoldedDiT) else self.model
        return str(next(head.parameters()).dtype).removeprefix("torch.")

    def expect(self, rows: int, length: int) -> None:
        """Batches of so many rows are coming: what is compiled is compiled for them, whatever a step touches first."""
        if isinstance(self._features, _Compiled):
            self._features.expect(rows, length)

    def features(self, z_RL: Tensor) -> Tensor:
        self.forwards += 1
        self.rows += z_RL.shape[0]
        return self._features(z_RL)

    def logits(self, h_MD: Tensor) -> Tensor:
        """May be wider than the vocabulary; the columns beyond it are -inf."""
        return self._head(h_MD)


def draw_device(device: torch.device) -> torch.device:
    """Where tokens are drawn: there is no float64 on MPS."""
    return torch.device("cpu") if device.type == "mps" else device


def is_half(precision: Precision, place: torch.device) -> bool:
    """Whether the matrices are in bf16 there, where they may be."""
    if precision not in ("auto", "bf16", "fp32"):
        raise UserError(f"precision is auto, bf16 or fp32, not {precision!r}")
    if precision == "bf16" and place.type == "cpu":
        raise UserError("bf16 is for GPUs: on the CPU take precision fp32")
    return precision == "bf16" or (precision == "auto" and place.type == "cuda")


def usual_batch(model: Denoiser, device: torch.device) -> int:
    """Rows of a forward where nobody says: on a GPU the power of two nearest to a fixed number of features."""
    if device.type != "cuda":
        return 8
    hidden = getattr(getattr(model, "config", None), "hidden", 0)
    if not hidden:
        return 32
    return min(1024, max(32, 2 ** round(math.log2(_FEATURES / (model.length * hidden)))))


class _Compiled:
    """A function of ids, compiled for as many rows as a batch has; on CUDA replayed as a graph.

    Fewer rows ride along, the others being computed for nothing; far fewer go through `plain`. So a plan in which some
    rows rest does not compile once for every R, of which the compiler takes eight and then silently compiles no more.
    The result may be overwritten by the next call: use it up first.
    """

    def __init__(self, plain: Callable[[Tensor], Tensor]) -> None:
        self.plain, self.function = plain, torch.compile(plain, dynamic=False)
        self.rows: dict[int, int] = {}  # of a batch, by length
        self.ready: dict[int, tuple[Tensor, Callable[[], Tensor]]] = {}  # where the ids go, and what reads them there

    def expect(self, rows: int, length: int) -> None:
        self.rows[length] = max(rows, self.rows.get(length, 0))

    def __call__(self, z_RL: Tensor) -> Tensor:
        R, L = z_RL.shape
        self.expect(R, L)
        if self.rows[L] > R * _FEWER:
            return self.plain(z_RL)
        if L not in self.ready or len(self.ready[L][0]) < self.rows[L]:
            source = z_RL.new_zeros(self.rows[L], L)
            self.ready[L] = source, _graph(self.function, source) if source.is_cuda else partial(self.function, source)
        source, run = self.ready[L]
        source[:R].copy_(z_RL)
        return run()[:R]


def _graph(function: Callable[[Tensor], Tensor], source: Tensor) -> Callable[[], Tensor]:
    """`function(source)` as a CUDA graph, of whatever lies in `source` when it is called."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # compile and settle every kernel before the capture
        for _ in range(3):
            function(source)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function(source)

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


def prepare(model: Denoiser, place: torch.device, precision: Precision = "auto", compile: bool = False) -> Body:
    """A model ready to sample. Models that are not networks (oracles) are used as they are, on the CPU."""
    if not isinstance(model, nn.Module):
        return Body(model, torch.device("cpu"), False)
    half = is_half(precision, place)
    if isinstance(model, DiT):
        weights = next(model.parameters())
        dtype = torch.bfloat16 if half else weights.dtype
        folded = FoldedDiT(model, dtype)
        return Body(folded.to(place), place, compile)
    own = copy.deepcopy(model).to(place).eval()  # the caller's model stays where it is, and in its mode
    return Body(own.to(torch.bfloat16) if half else own, place, compile)
