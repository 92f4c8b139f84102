"""A decoder's forward pass for inference, in half as many kernels as transformers' layers take.

A norm is one kernel, the residual is added by the product before it, and where `fused` the rotation and the gate are
one kernel each. Where `packed`, as on a GPU, the weights of queries, keys and values lie in one matrix, and those of
gate and up in another: one product each. The network's own weights become views of these, so there is no second copy.
Norms multiply by their weight before the cast down.

Shapes: R rows, Q positions that are computed, H heads, E features of a head, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.models.decoder import Decoder, attend


def quick(model: Decoder, fused: bool = False) -> Quick | None:
    """The quick pass of a network; None where its layers are no longer plain: adapted, or spread over devices."""
    products = [module for layer in model.model.layers for module in layer.modules() if _is_product(module)]
    plain = all(type(module) is nn.Linear and not hasattr(module, "_hf_hook") for module in products)
    if not plain or len(products) != 7 * model.config.blocks:
        return None
    return Quick(model, fused, packed=all(module.weight.is_cuda for module in products))


def _is_product(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or hasattr(module, "base_layer")


class Quick:
    """`features`, `outputs` and `shift` of a Decoder, with the same arguments."""

    def __init__(self, model: Decoder, fused: bool, packed: bool = False) -> None:
        self.model = model
        self.shift = model.shift
        together = one_product if packed else beside
        self._qkv = [together(_named(layer.self_attn, "qkv")) for layer in model.model.layers]
        self._gate_up = [together([layer.mlp.gate_proj, layer.mlp.up_proj]) for layer in model.model.layers]
        if packed:
            torch.cuda.empty_cache()  # of the pieces; does nothing where no GPU was used
        self._turn = _fused(turned) if fused else turned
        self._gate = _fused(gated) if fused else gated

    def features(
        self, z: Tensor, *, visible: Tensor | None = None, at: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        return self.shift(self.outputs(z, visible=visible, at=at, cache=cache))

    def outputs(
        self, z: Tensor, *, visible: Tensor | None = None, at: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        model = self.model
        x_RQD, turn, seen = model.opened(z.clone() if z.is_floating_point() else z, visible, at)
        cos, sin = (part.unsqueeze(-2) for part in turn)
        for index in range(len(model.model.layers)):
            x_RQD = self._layer(index, x_RQD, cos, sin, seen, cache)
        return _norm(model.model.norm, x_RQD)

    def _layer(self, index: int, x_RQD: Tensor, cos: Tensor, sin: Tensor, seen: Tensor | None, cache: Any) -> Tensor:
        layer = self.model.model.layers[index]
        attention, mlp = layer.self_attn, layer.mlp
        n_RQD = _norm(layer.input_layernorm, x_RQD)
        q, k, v = (each.unflatten(-1, (-1, attention.head_dim)) for each in self._qkv[index](n_RQD))
        if hasattr(attention, "q_norm"):
            q, k = _norm(attention.q_norm, q), _norm(attention.k_norm, k)
        q, k = self._turn(q, k, cos, sin)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        if cache is not None:
            k, v = cache.update(k, v, attention.layer_idx)
        mixed_RQHE, _ = attend(attention, q, k, v, seen)
        x_RQD = _add(x_RQD, mixed_RQHE.flatten(2), attention.o_proj)
        n_RQD = _norm(layer.post_attention_layernorm, x_RQD)
        return _add(x_RQD, self._gate(*self._gate_up[index](n_RQD)), mlp.down_proj)


Products = Callable[[Tensor], Sequence[Tensor]]  # the results of several products with one input


def _named(attention: Any, letters: str) -> list[nn.Linear]:
    return [getattr(attention, f"{letter}_proj") for letter in letters]


def beside(products: list[nn.Linear]) -> Products:
    """Each by itself, its weights where they lie."""
    return lambda x: [product(x) for product in products]


@torch.inference_mode(False)
@torch.no_grad()
def one_product(products: list[nn.Linear]) -> Products:
    """All as one product: their weights are moved into one matrix, and are views of it from then on."""
    weights = [product.weight for product in products]
    rows = [len(weight) for weight in weights]
    if _in_one_matrix(weights):  # moved before
        whole = weights[0].as_strided((sum(rows), weights[0].shape[1]), (weights[0].shape[1], 1))
    else:
        whole = torch.cat([weight.detach() for weight in weights])
        for weight, part in zip(weights, whole.split(rows), strict=True):
            weight.data = part
    biases: list[Tensor] = [product.bias for product in products if product.bias is not None]
    bias = torch.cat(biases) if biases else None
    return lambda x: F.linear(x, whole, bias).split(rows, dim=-1)


def _in_one_matrix(weights: Sequence[Tensor]) -> bool:
    """Whether they lie one below the other in the same piece of memory."""
    ends = [weight.data_ptr() + weight.nbytes for weight in weights]
    follow = all(end == after.data_ptr() for end, after in zip(ends, weights[1:], strict=False))
    return follow and len({weight.untyped_storage().data_ptr() for weight in weights}) == 1


def _norm(norm: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _add(x_RQD: Tensor, y_RQF: Tensor, product: nn.Linear) -> Tensor:
    """x + y W', one kernel; in place, which spares a copy, where nobody wants gradients."""
    into = None if torch.is_grad_enabled() else x_RQD.flatten(0, 1)
    return torch.addmm(x_RQD.flatten(0, 1), y_RQF.flatten(0, 1), product.weight.T, out=into).view_as(x_RQD)


def turned(q_RQHE: Tensor, k_RQHE: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys turned to their positions, in the precision of cos and sin."""
    return _turned(q_RQHE, cos, sin), _turned(k_RQHE, cos, sin)


def _turned(x_RQHE: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x_RQHE.chunk(2, dim=-1)
    return (x_RQHE * cos + torch.cat([-second, first], dim=-1) * sin).to(x_RQHE.dtype)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU."""
    return F.silu(gate) * up


@lru_cache
def _fused(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True)
