"""A model made ready to run: on its device, in its precision, folded, compiled if asked, every forward counted.

Shapes: R rows, L positions, M chosen positions, D features, V states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, TypeVar, get_args
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.core.errors import check_name
from unmask.models.denoiser import Denoiser, states_of
from unmask.models.family import family_of, plain

Precision = Literal["auto", "bf16", "fp32"]
T = TypeVar("T")
_FEATURES = 32 * 1024 * 768  # of a forward on a GPU: 32 rows of the 169M model, 512 of a pocket one
# eager takes 1.7 times as long (169M body, H200 prototype): below half of a batch, idle rows cost more than they save
_FEWER = 2
_ROWS = 8  # of the smallest product with the head, on a CPU


class Ready:
    """The two calls of a Denoiser, as fast as the device allows.

    `forwards` counts calls of the body and `rows` the sequences that went through it: NFE is what was really run.
    """

    def __init__(self, model: Denoiser, device: torch.device, compile: bool = False) -> None:
        self.model, self.device, self.compiled = model, device, compile
        self.states, self.draw_device = states_of(model), draw_device(device)
        self.forwards = self.rows = 0
        self.beside: dict[object, Any] = {}  # what others made ready beside it, such as the rounds of a chain
        # bound the float64 table of a chunk: half a gigabyte on a GPU, 64 MB elsewhere
        budget = 2**29 if device.type == "cuda" else 2**26
        self.chunk = max(1, budget // (8 * self.states.size))
        head = getattr(model, "padded_logits", model.logits)
        quick = family_of(model).quick(model, compile) if isinstance(plain(model), nn.Module) else None
        self.body: Any = quick or model
        self.graphs = compile  # whether a cache replays its steps, on a GPU
        self._body = _Compiled(self.body.features, quick is not None) if compile else None
        self._head = torch.compile(head, dynamic=True) if compile else head

    @property
    def precision(self) -> str:
        """What the matrices are really in."""
        if not isinstance(self.model, nn.Module):
            return "exact"
        head = getattr(self.model, "head", self.model)
        return str(next(iter(head.parameters()), torch.empty(0)).dtype).removeprefix("torch.")

    def expect(self, rows: int, length: int) -> None:
        """Batches of so many rows are coming: what is compiled is compiled for them, whatever a step touches first."""
        if self._body is not None:
            self._body.expect(rows, length)

    def features(self, z_RL: Tensor, time_R: Tensor | None = None) -> Tensor:
        """The body; `time_R` is for networks that are conditioned on time."""
        self.forwards += 1
        self.rows += z_RL.shape[0]
        time = {} if time_R is None else {"time": time_R}
        return self._body(z_RL, **time) if self._body is not None else self.body.features(z_RL, **time)

    def packed(self, z_RL: Tensor, lengths: Sequence[int], time_R: Tensor | None = None) -> Tensor:
        """The body for rows of which only the first so many positions are text: their features one after the other.

        A network with `packed_features` takes rows of different length in one forward, and computes for each what it
        would compute for it alone; any other takes those of equal length together. Only rows that are full go through
        what is compiled: every other length would be compiled anew.
        """
        if len(kinds := set(lengths)) == 1 and (lengths[0] == z_RL.shape[1] or self._body is None):
            return self.features(z_RL[:, : lengths[0]], time_R).flatten(0, 1)
        if time_R is None and (packed := getattr(self.model, "packed_features", None)) is not None:
            self.forwards += 1
            self.rows += len(lengths)
            return packed(torch.cat([z_L[:length] for z_L, length in zip(z_RL, lengths, strict=True)]), lengths)
        parts: dict[int, Tensor] = {}
        for length in sorted(kinds):
            here = [row for row, own in enumerate(lengths) if own == length]
            time = {} if time_R is None else {"time": time_R[here]}
            parts |= dict(zip(here, self.body.features(z_RL[here, :length], **time), strict=True))
            self.forwards += 1
            self.rows += len(here)
        return torch.cat([parts[row] for row in range(len(lengths))])

    def logits(self, h_MD: Tensor) -> Tensor:
        """May be wider than the vocabulary; the columns beyond it are -inf."""
        if self.device.type == "cpu" and len(h_MD) < _ROWS and h_MD.ndim == 2:
            # a CPU sums products of few rows in another order: a token's law must not depend on how many are drawn
            return self._head(F.pad(h_MD, (0, 0, 0, _ROWS - len(h_MD))))[: len(h_MD)]
        return self._head(h_MD)

    def fused(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of tables of logits, compiled where the model is."""
        return _compiled_function(function) if self.compiled else function


@lru_cache
def _compiled_function(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True)


def draw_device(device: torch.device) -> torch.device:
    """Where tokens are drawn: there is no float64 on MPS."""
    return torch.device("cpu") if device.type == "mps" else device


def is_half(precision: Precision, place: torch.device) -> bool:
    """Whether the matrices are in bf16 there."""
    check_name("precision", precision, get_args(Precision))
    return precision == "bf16" or (precision == "auto" and place.type == "cuda")


def usual_batch(model: Denoiser, device: torch.device) -> int:
    """Rows of a forward where nobody says: on a GPU the power of two nearest to a fixed number of features."""
    if device.type != "cuda":
        return 8
    hidden = getattr(getattr(model, "config", None), "hidden", 0)
    return min(1024, max(32, 2 ** round(math.log2(_FEATURES / (model.length * hidden))))) if hidden else 32


class _Compiled:
    """A function of ids, and of the rows' times where they have one, compiled for as many rows as a batch has; on CUDA
    replayed as a graph.

    Fewer rows ride along, the others being computed for nothing; far fewer go through `plain`. So a plan in which some
    rows rest does not compile once for every R, of which the compiler takes eight and then silently compiles no more.
    The result may be overwritten by the next call: use it up first.
    """

    def __init__(self, plain: Callable[..., Tensor], already: bool = False) -> None:
        self.plain, self.function = plain, plain if already else torch.compile(plain, dynamic=False)
        self.rows: dict[int, int] = {}  # of a batch, by length
        self.pool: Any = None  # of memory, which the graphs of all lengths share
        # by length: where the ids go, where the times go, what reads them there
        self.ready: dict[int, tuple[Tensor, dict[str, Tensor], Callable[[], Tensor]]] = {}

    def expect(self, rows: int, length: int) -> None:
        self.rows[length] = max(rows, self.rows.get(length, 0))

    def __call__(self, z_RL: Tensor, **time_R: Tensor) -> Tensor:
        R, L = z_RL.shape
        self.expect(R, L)
        if self.rows[L] > R * _FEWER:
            return self.plain(z_RL, **time_R)
        if L not in self.ready or len(self.ready[L][0]) < self.rows[L]:
            source = z_RL.new_zeros(self.rows[L], L)
            times = {name: value.new_zeros(self.rows[L]) for name, value in time_R.items()}
            if z_RL.is_cuda and self.pool is None:
                self.pool = torch.cuda.graph_pool_handle()
            self.ready[L] = source, times, replayed(partial(self.function, source, **times), z_RL.device, self.pool)
        source, times, run = self.ready[L]
        source[:R].copy_(z_RL)
        for name, value in time_R.items():
            times[name][:R].copy_(value)
        return run()[:R]


def replayed(work: Callable[[], T], device: torch.device, pool: Any = None) -> Callable[[], T]:
    """Work on fixed tensors as a CUDA graph: its result is written to the same place at every call. Elsewhere as it is.

    It runs a few times before it is captured, so what it works on is to be filled in afterwards. Works whose results
    are nobody's may share a pool of memory.
    """
    if device.type != "cuda":
        return work
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):  # compile and settle every kernel before the capture
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = work()

    def replay() -> T:
        graph.replay()
        return result

    return replay


# what is ready for a model's weights is kept while the model lives: copying costs memory, compiling takes minutes
_KEPT: WeakKeyDictionary[nn.Module, tuple[object, Ready]] = WeakKeyDictionary()


def make_ready(model: Denoiser, place: torch.device, precision: Precision = "auto", compile: bool = False) -> Ready:
    """A model ready to run; the caller's stays where it is, and in its mode.

    Models that are not networks (oracles) are used as they are, on the CPU. The copy of a network is kept for the next
    call, and made again once the weights have changed.
    """
    if not isinstance(plain(model), nn.Module):
        return Ready(model, torch.device("cpu"))
    half = is_half(precision, place)
    weights = [*model.parameters(), *model.buffers()]  # type: ignore[attr-defined]
    tells = not any(w.is_inference() for w in weights)  # weights made in inference mode never say that they changed
    now = (place, half, compile, [(w.data_ptr(), w._version) for w in weights]) if tells else None
    then, ready = _KEPT.get(plain(model), (None, None))
    if ready is None or now is None or then != now:
        network = plain(model)
        stored = next((value.dtype for value in network.parameters()), torch.float32)
        dtype = torch.bfloat16 if half else torch.promote_types(stored, torch.float32)  # float64 stays float64
        made = family_of(network).inference(network, dtype, place)
        ready = Ready(made, place, compile)  # type: ignore[arg-type]
        if made is not network:  # it would keep itself alive
            _KEPT[network] = now, ready
    ready.forwards = ready.rows = 0
    return ready


@dataclass(frozen=True)
class InAutocast:
    """A model's two calls beside a training under autocast: for one device and one precision of it (None: off)."""

    device: torch.device
    dtype: torch.dtype | None
    features: Callable[..., Tensor]
    head: Callable[[Tensor], Tensor]  # may have columns beyond the vocabulary; its result may be written to
    precision: Callable[[], AbstractContextManager[object]]
    model: Denoiser  # what these are calls of

    @property
    def in_blocks(self) -> bool:
        """Whether the body takes `beside` (models/denoiser.py)."""
        return getattr(self.model, "in_blocks", False)


def in_autocast(model: Denoiser, device: torch.device, dtype: torch.dtype | None, compile: bool) -> InAutocast:
    """Without autocast the model as it is, moved there; with it, made ready in autocast's precision."""

    def exact() -> AbstractContextManager[object]:  # what is made ready has its own precision
        return torch.autocast(device.type, enabled=False)

    if isinstance(model, nn.Module):
        model.to(device)
    run: Denoiser = model
    if isinstance(model, nn.Module) and dtype is not None:
        with exact():
            run = family_of(model).inference(model, dtype, device)  # type: ignore[assignment]
        if run is not model and not getattr(model, "_shares", False):
            model.cpu()  # only the other one is needed here
    features = torch.compile(run.features) if compile else run.features
    head = getattr(run, "padded_logits", None) or (lambda h: run.logits(h).clone())
    return InAutocast(device, dtype, features, head, nullcontext if run is model else exact, run)
