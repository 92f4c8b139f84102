"""A decoder's forward pass for inference, in half as many kernels as transformers' layers take.

A norm is one kernel, and the residual is added by the product before it. Where `fused`, the rotation, the gate, and a
residual with the norm behind it are one compiled kernel each. Where `packed`, as on a GPU, the weights of queries, keys
and values lie in one matrix, and those of gate and up in another: one product each. The network's own weights become
views of these, so there is no second copy. Norms multiply by their weight before the cast down.

Shapes: R rows, Q positions that are computed, H heads, E features of a head, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.models.decoder import Decoder, attend
from unmask.models.dit.layers import rotated

Products = Callable[[Tensor], Sequence[Tensor]]  # the results of several products with one input


def quick(model: Decoder, fused: bool = False) -> Quick | None:
    """The quick pass of a network; None where its layers are no longer plain: adapted, or spread over devices."""
    modules = [module for layer in model.model.layers for module in layer.modules()]
    products = [module for module in modules if isinstance(module, nn.Linear) or hasattr(module, "base_layer")]
    plain = all(type(module) is nn.Linear and not hasattr(module, "_hf_hook") for module in products)
    if not plain or len(products) != 7 * model.config.blocks:
        return None
    return Quick(model, fused, packed=all(module.weight.is_cuda for module in products))


class Quick:
    """`features`, `outputs` and `shift` of a Decoder, with the same arguments."""

    def __init__(self, model: Decoder, fused: bool, packed: bool = False) -> None:
        self.model, self.fused, self.packed = model, fused, packed
        self.shift = model.shift
        compiled: Callable[[Callable[..., Any]], Callable[..., Any]] = _fused if fused else lambda function: function
        self._turn, self._turn_all, self._gate = compiled(turned), compiled(turned_together), compiled(gated)
        self._zero = model.model.layers[0].mlp.down_proj.weight.detach().new_zeros(model.config.hidden)

    @cached_property
    def _products(self) -> list[tuple[Products, Products]]:
        """Of each layer: queries, keys and values; gate and up. Made when first called: not all who ask for a body
        call it."""
        together = one_product if self.packed else beside
        made = []
        for layer in self.model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            inside = [attention.q_proj, attention.k_proj, attention.v_proj]
            made.append((together(inside), together([mlp.gate_proj, mlp.up_proj])))
        if self.packed:
            torch.cuda.empty_cache()  # of the pieces; does nothing where no GPU was used
        return made

    def features(
        self, z: Tensor, *, visible: Tensor | None = None, at: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        return self.shift(self.outputs(z, visible=visible, at=at, cache=cache))

    def outputs(
        self, z: Tensor, *, visible: Tensor | None = None, at: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        model = self.model
        x_RQD, turn, seen = model.layer_inputs(z.clone() if z.is_floating_point() else z, visible, at)
        cos, sin = (part.unsqueeze(-2) for part in turn)
        layers = model.model.layers
        n_RQD = _norm(layers[0].input_layernorm, x_RQD)
        for index, layer in enumerate(layers):
            after = layers[index + 1].input_layernorm if index + 1 < len(layers) else model.model.norm
            mixed_RQF = self._mixed(index, n_RQD, cos, sin, seen, cache)
            x_RQD, n_RQD = self._added(x_RQD, mixed_RQF, layer.self_attn.o_proj, layer.post_attention_layernorm)
            gated_RQF = self._gate(*self._products[index][1](n_RQD))
            x_RQD, n_RQD = self._added(x_RQD, gated_RQF, layer.mlp.down_proj, after)
        return n_RQD

    def _mixed(self, index: int, n_RQD: Tensor, cos: Tensor, sin: Tensor, seen: Tensor | None, cache: Any) -> Tensor:
        """What the attention of a layer gives, before its last product."""
        attention = self.model.model.layers[index].self_attn
        q, k, v = (each.unflatten(-1, (-1, attention.head_dim)) for each in self._products[index][0](n_RQD))
        if hasattr(attention, "q_norm"):
            q, k = _norm(attention.q_norm, q), _norm(attention.k_norm, k)
        if cache is not None and self.fused:
            q, kv_RQ2HE = self._turn_all(q, k, v, cos, sin)
            k, v = cache.keep(kv_RQ2HE, attention.layer_idx)
        else:
            q, k = self._turn(q, k, cos, sin)
            k, v = k.transpose(1, 2), v.transpose(1, 2)
            if cache is not None:
                k, v = cache.update(k, v, attention.layer_idx)
        return attend(attention, q.transpose(1, 2), k, v, seen)[0].flatten(2)

    def _added(self, x_RQD: Tensor, y_RQF: Tensor, product: nn.Linear, norm: Any) -> tuple[Tensor, Tensor]:
        """x + y W', and its norm."""
        if not self.fused:
            x_RQD = _add(x_RQD, y_RQF, product)
            return x_RQD, _norm(norm, x_RQD)
        # a bias, even of zeros, has torch ask cublasLt, whose products of few rows are faster: 27 for 32 microseconds
        y_RQD = F.linear(y_RQF, product.weight, self._zero)
        both: tuple[Tensor, Tensor] = _fused_added(norm.variance_epsilon)(x_RQD, y_RQD, norm.weight)
        return both


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
    return rotated(q_RQHE, cos, sin), rotated(k_RQHE, cos, sin)


def turned_together(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Turned queries; turned keys and values beside one another, (R, Q, 2, H, E)."""
    q, k = turned(q, k, cos, sin)
    return q, torch.stack([k, v], dim=2)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU."""
    return F.silu(gate) * up


@lru_cache
def _fused_added(eps: float) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """x + y and its RMSNorm, in one kernel."""

    def added(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        x = x + y
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.to(wide.dtype)
        return x, normed.to(x.dtype)

    return _fused(added)


@lru_cache
def _fused(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True)
