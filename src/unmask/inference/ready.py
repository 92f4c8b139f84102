"""A model made ready for sampling: on its device, in its precision, folded, compiled if asked, every forward counted.

Refuses to know plans and steps. Shapes: R rows, L positions, M positions drawn, D features, V states.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from unmask.core.errors import UserError
from unmask.models.denoiser import Denoiser
from unmask.models.dit.folded import FoldedDiT
from unmask.models.dit.network import DiT

Precision = Literal["auto", "bf16", "fp32"]
_FEATURES = 32 * 1024 * 768  # of a forward on a GPU: 32 rows of the 169M model, 512 of a pocket one
# eager takes 1.7 times as long (169M body, H200 prototype): below half of a batch, idle rows cost more than they save
_FEWER = 2


class _Program(NamedTuple):
    """What runs: a model in its precision on its device, and its two calls, compiled or not."""

    model: Denoiser
    features: Callable[[Tensor], Tensor]
    head: Callable[[Tensor], Tensor]
    compiled: bool


class Body:
    """The two calls of a Denoiser, as fast as the device allows.

    `forwards` counts calls of the body and `rows` the sequences that went through it: NFE is what was really run.
    """

    def __init__(self, program: _Program, device: torch.device) -> None:
        self.model, self._features, self._head, self.compiled = program
        self.device, self.draw_device = device, draw_device(device)
        self.forwards = self.rows = 0
        # bound the float64 table of a chunk: half a gigabyte on a GPU, 64 MB elsewhere
        budget = 2**29 if device.type == "cuda" else 2**26
        self.chunk = max(1, budget // (8 * self.model.vocab_size))

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

    def fused(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of tables of logits, compiled where the model is."""
        return _compiled_function(function) if self.compiled else function

    def logits(self, h_MD: Tensor) -> Tensor:
        """May be wider than the vocabulary; the columns beyond it are -inf."""
        return self._head(h_MD)


@lru_cache
def _compiled_function(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True)


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
        return Body(_program(model), torch.device("cpu"))
    half = is_half(precision, place)
    return Body(_compiled(model, place, half) if compile else _program(_ready(model, place, half)), place)


def _ready(model: Denoiser, place: torch.device, half: bool) -> Denoiser:
    """A copy of the model there; the caller's stays where it is, and in its mode."""
    assert isinstance(model, nn.Module)
    if isinstance(model, DiT):
        return FoldedDiT(model, torch.bfloat16 if half else next(model.parameters()).dtype).to(place)
    own = copy.deepcopy(model).to(place).eval()
    return own.to(torch.bfloat16) if half else own


def _program(model: Denoiser) -> _Program:
    return _Program(model, model.features, getattr(model, "padded_logits", model.logits), False)


# compiling takes longer than most draws: once for a model's weights, not once a call
_KEPT: WeakKeyDictionary[nn.Module, tuple[object, _Program]] = WeakKeyDictionary()


def _compiled(model: Denoiser, place: torch.device, half: bool) -> _Program:
    """Compiled for the model as it is now; kept as long as it lives, and made again once its weights have changed."""
    assert isinstance(model, nn.Module)
    weights = [*model.parameters(), *model.buffers()]
    tells = not any(w.is_inference() for w in weights)  # weights made in inference mode never say that they changed
    now = (place, half, [(w.data_ptr(), w._version) for w in weights]) if tells else None
    then, program = _KEPT.get(model, (None, None))
    if program is None or now is None or then != now:
        plain = _program(_ready(model, place, half))
        program = _Program(
            plain.model,
            _Compiled(plain.features),
            torch.compile(plain.head, dynamic=True),
            True,
        )
        _KEPT[model] = now, program
    return program
