"""The vocabulary loss with little memory: the head, the loss and their derivatives, piece by piece.

A table of positions x vocabulary is what training runs out of memory for, and it is not needed: once a piece of it has
given its losses and its slope, the slope goes through the head's matrix at once, and the piece is let go. What
is kept are derivatives as small as the features and the matrix themselves. So nothing is computed twice in the
backward pass either: the head costs one product forward and two backward, as it does with the whole table.

The price: how much each position's loss will weigh has to be known beforehand, up to a common factor (`weight_N`).

Shapes: N chosen positions, C of them in a piece, D features, V states, W >= V columns (the rest is padding).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from unmask.models.denoiser import MASK_LOGIT, Denoiser, features_of
from unmask.models.family import family_of
from unmask.objectives.divergences import Scored

Score = Callable[[Tensor, slice], Scored]  # of a piece's logits_CW (the mask ruled out) and its place among the N

HEAD_MULTIPLE = 256  # columns on a GPU
TABLE_BYTES = {"cuda": 1 << 29, "cpu": 1 << 22}  # of one piece: large enough for fast products, small enough for caches


def piece_size(model: Denoiser, device: torch.device) -> int:
    """How many positions go through the head at once."""
    itemsize = torch.finfo(_product_dtype(device) or torch.float32).bits // 8
    return max(1, TABLE_BYTES.get(device.type, 1 << 26) // (itemsize * model.vocab_size))


def piece_sizes(model: Denoiser, device: torch.device, *counts: int) -> list[int]:
    """Sizes of the pieces of so many positions; no piece lies in two of the groups that are counted."""
    return [size for count in counts for size in even_sizes(count, piece_size(model, device))]


def even_sizes(count: int, size: int) -> list[int]:
    """`count` positions in pieces of at most `size`, as equal as can be: a small last piece would be slow."""
    pieces = -(-count // size)
    return [count // pieces + (i < count % pieces) for i in range(pieces)] if count else []


@lru_cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tables as fused kernels, for any number of rows: a table is read twice instead of ten times."""
    fused = torch.compile(function)

    def run(*args: Any) -> Any:
        for table in args:
            if isinstance(table, Tensor):
                torch._dynamo.maybe_mark_dynamic(table, 0)
        return fused(*args)

    return run


class Fusible:
    """An objective whose loss of a piece of logits can be compiled."""

    _is_compiled = False

    def compile(self) -> None:
        """Compile it at the next call (worth it on a GPU)."""
        object.__setattr__(self, "_is_compiled", True)  # no setting, so no field

    def fused(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return compiled(function) if self._is_compiled else function


def head_loss(
    student: Denoiser, h_ND: Tensor, sizes: Sequence[int], score: Score, weight_N: Tensor | None = None
) -> Tensor:
    """The loss at N positions from their features, differentiable by features and head.

    A model whose head ends in a matrix product (its family says so) never holds more than a piece of its logits; of any
    other Denoiser the logits of the N positions are asked for at once.

    `sizes` of the pieces sum to N. `weight_N`: what each loss will be multiplied by on its way into the total, up to a
    common factor; None: the same.
    """
    assert sum(sizes) == len(h_ND)
    pieces = _Pieces(sizes, score, student.mask_id, torch.is_grad_enabled())
    weight_N = torch.ones(len(h_ND), dtype=torch.float32, device=h_ND.device) if weight_N is None else weight_N
    if isinstance(student, nn.Module) and (head := family_of(student).head(student)):
        return head(h_ND, lambda x, weight, bias: _HeadLoss.apply(x, weight, bias, weight_N, pieces))
    loss_N: Tensor = _HeadLoss.apply(student.logits(h_ND), None, None, weight_N, pieces)
    return loss_N


def loss_at(
    student: Denoiser, seen: Tensor, chosen_N: Tensor, score: Score, *, counts: Sequence[int] | None = None,
    weight_N: Tensor | None = None, time_B: Tensor | None = None, x0_BL: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The student's loss at chosen positions of a view, spread back over it: (B, L), 0 elsewhere. See head_loss.

    `seen`: the view's tokens z_BL, or what the student's `embed` gives in their place, (B, L, D). `counts`: of the
    groups of positions, where no piece may lie in two. `x0_BL`: the text, for a network that goes in blocks.
    """
    h_ND = features_of(student, seen, x0_BL, time_B).flatten(0, 1).index_select(0, chosen_N)
    sizes = piece_sizes(student, h_ND.device, *(counts or [len(chosen_N)]))
    loss_N = head_loss(student, h_ND, sizes, score, weight_N)
    B, L = seen.shape[:2]
    return loss_N.new_zeros(B * L).index_put((chosen_N,), loss_N).view(B, L)


@dataclass(frozen=True)
class _Pieces:
    sizes: Sequence[int]
    score: Score
    mask_id: int | None
    with_slopes: bool

    def __iter__(self) -> Iterator[slice]:
        start = 0
        for size in self.sizes:
            yield slice(start, start + size)
            start += size


class _HeadLoss(torch.autograd.Function):
    """Losses of x W' + b, or of x itself where there is no matrix. Derivatives are taken on the way forward."""

    @staticmethod
    def forward(
        ctx: Any, x_ND: Tensor, weight_VD: Tensor | None, bias_V: Tensor | None, weight_N: Tensor, pieces: _Pieces
    ) -> Tensor:
        matrix = None if weight_VD is None or bias_V is None else (weight_VD, bias_V)
        head = _Linear(x_ND, *matrix, pieces, any(ctx.needs_input_grad[1:3])) if matrix else _Identity(x_ND, pieces)
        loss_N = x_ND.new_empty(len(x_ND), dtype=torch.promote_types(x_ND.dtype, torch.float32))
        for part in pieces:
            scored = pieces.score(head.logits(part), part)
            loss_N[part] = scored.loss_C
            if pieces.with_slopes:
                head.add_gradient(part, scored.slope_CV, weight_N[part])
        if pieces.with_slopes:
            ctx.save_for_backward(weight_N, head.grad_x, head.grad_weight, head.grad_bias)
            ctx.dtype = x_ND.dtype
        return loss_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None, None]:
        weight_N, grad_x, grad_weight, grad_bias = ctx.saved_tensors
        grad_x = (grad_x * grads[0][:, None]).to(ctx.dtype)
        if grad_weight is None:  # no matrix, or a frozen one
            return grad_x, None, None, None, None
        factor = _common_factor(grads[0], weight_N)
        return grad_x, grad_weight * factor, grad_bias * factor, None, None


def _common_factor(grad_N: Tensor, weight_N: Tensor) -> Tensor:
    """The c in grad = c · weight. There must be one: the head's derivatives were summed with these weights."""
    if not len(weight_N):
        return grad_N.new_zeros(())
    weight_N = weight_N.to(grad_N.dtype)
    factor = grad_N.sum() / weight_N.sum()
    if grad_N.device.type == "mps":  # which has no such assertion before torch 2.13
        return factor
    is_other = (grad_N - factor * weight_N).abs().amax() > 1e-4 * (factor * weight_N).abs().amax()
    # not a number is not another weight: it goes on into the gradient, where training stops for it in words
    torch._assert_async(~is_other, "losses must enter the total with the weights that head_loss was given")
    return factor


class _Identity:
    """Logits that are there already."""

    grad_weight = grad_bias = None

    def __init__(self, logits_NV: Tensor, pieces: _Pieces) -> None:
        self.logits_NV, self.mask_id = logits_NV, pieces.mask_id
        self.grad_x = torch.empty_like(logits_NV) if pieces.with_slopes else None

    def logits(self, part: slice) -> Tensor:
        logits_CV = self.logits_NV[part].clone()
        if self.mask_id is not None:
            logits_CV[:, self.mask_id].fill_(MASK_LOGIT)
        return logits_CV

    def add_gradient(self, part: slice, slope_CV: Tensor, weight_C: Tensor) -> None:
        assert self.grad_x is not None
        self.grad_x[part] = slope_CV


class _Linear:
    """The last product of a head, in the precision autocast asks for, and its derivatives so far.

    The mask is ruled out by its bias. On a GPU the columns are padded to a multiple of 256: tensor cores want aligned
    rows, and 50258 columns make a product three times slower than 50432.
    """

    grad_x: Tensor | None = None
    grad_weight: Tensor | None = None
    grad_bias: Tensor | None = None

    def __init__(self, x_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, pieces: _Pieces, trained: bool) -> None:
        dtype = _product_dtype(x_ND.device) or x_ND.dtype
        self.x_ND, self.V = x_ND.to(dtype), len(bias_V)
        extra = -self.V % HEAD_MULTIPLE if x_ND.is_cuda else 0
        self.weight_WD = F.pad(weight_VD.to(dtype), (0, 0, 0, extra)) if extra else weight_VD.to(dtype)
        self.bias_W = F.pad(bias_V.to(dtype, copy=True), (0, extra), value=MASK_LOGIT)
        if pieces.mask_id is not None:
            self.bias_W[pieces.mask_id].fill_(MASK_LOGIT)  # "= MASK_LOGIT" is a copy from the host, which waits
        if pieces.with_slopes:
            self.grad_x = torch.empty_like(self.x_ND)
        if pieces.with_slopes and trained:
            self.sum_WD = torch.zeros_like(self.weight_WD, dtype=weight_VD.dtype)
            self.sum_W = torch.zeros_like(self.bias_W, dtype=bias_V.dtype)
            self.grad_weight, self.grad_bias = self.sum_WD[: self.V], self.sum_W[: self.V]

    def logits(self, part: slice) -> Tensor:
        return F.linear(self.x_ND[part], self.weight_WD, self.bias_W)

    def add_gradient(self, part: slice, slope_CW: Tensor, weight_C: Tensor) -> None:
        assert self.grad_x is not None
        torch.mm(slope_CW, self.weight_WD, out=self.grad_x[part])
        if self.grad_weight is None:
            return
        weighted_CD = (self.x_ND[part] * weight_C[:, None]).to(slope_CW.dtype)
        if self.sum_WD.dtype == slope_CW.dtype:
            self.sum_WD.addmm_(slope_CW.t(), weighted_CD)
        else:  # bf16 products, float32 sums
            self.sum_WD.add_(slope_CW.t() @ weighted_CD)
        self.sum_W.add_(slope_CW.t() @ weight_C.to(slope_CW.dtype))


def _product_dtype(device: torch.device) -> torch.dtype | None:
    """What autocast does matrix products in, if it is on."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
