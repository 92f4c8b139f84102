"""The network of the chain: from what a step has drawn so far to a correction of the features of the next position.

A slot is a position that the step draws. It is given the body's features there, the token and the features of the slot
before, and how far away that is; causal layers see all slots before. Rotary positions are those of the text. What comes
out is added to the body's features before the vocabulary head. It is zero at birth: then the law is the factorised one.

Shapes: R texts, S slots, M positions, D features of the body, E of its token table, H of the chain, V states,
A attention heads, F = H / A.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.core.errors import UserError, check_name
from unmask.models.denoiser import Network, check_whole_numbers
from unmask.models.dit.layers import LAYER_NORM_EPS, inverse_frequencies, rotated

ORDERS = ("left_to_right", "plan", "confidence")
NEAR = 8  # distances up to here are distinct, further ones by halves of an octave


@dataclass(frozen=True)
class ChainConfig:
    """The shape of a chain's head, and of the model that it belongs to.

    Args:
        vocab_size: states of the model, the mask included
        mask: its mask
        length: its longest text
        features: its features of a position
        table: features of a token in its table
        hidden: features of the chain
        blocks: its causal layers
        heads: attention heads
        order: in which the positions of a step are drawn: left_to_right, by the plan's u, or the surest first
        blind: the control: sees positions, and no token of its step
        places: whether it is told where in the text a slot stands, not only how far slots are apart
        base: the model, as it was named
        base_weights: sha256 of its weights
    """

    vocab_size: int
    mask: int
    length: int
    features: int
    table: int
    hidden: int = 224
    blocks: int = 3
    heads: int = 7
    order: str = "left_to_right"
    blind: bool = False
    places: bool = False
    base: str = ""
    base_weights: str | None = None

    def __post_init__(self) -> None:
        check_whole_numbers(self, "hidden", "blocks", "heads")
        if self.hidden % (2 * self.heads):
            raise UserError(f"hidden = {self.hidden} must be a multiple of 2 x heads = {2 * self.heads}")
        check_name("order", self.order, ORDERS)
        for name in ("blind", "places"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{name} is true or false, not {getattr(self, name)!r}")


def _norm(layer: nn.LayerNorm, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Normalised in at least float32, then in the precision of the matrices."""
    wide = torch.promote_types(dtype, torch.float32)
    weight, bias = layer.weight.to(wide), layer.bias.to(wide)
    return F.layer_norm(x.to(wide), layer.normalized_shape, weight, bias, LAYER_NORM_EPS).to(dtype)


def _attended(q_RASF: Tensor, k_RASF: Tensor, v_RASF: Tensor) -> Tensor:
    """Causal attention; in float32 on a CPU, where torch's derivative of it in bf16 takes two to four times as long."""
    if q_RASF.device.type != "cpu" or q_RASF.dtype != torch.bfloat16:
        # cuDNN would plan anew for every shape
        return F.scaled_dot_product_attention(q_RASF, k_RASF, v_RASF, is_causal=True)
    with torch.autocast("cpu", enabled=False):
        q, k, v = q_RASF.float(), k_RASF.float(), v_RASF.float()
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).bfloat16()


class ChainBlock(nn.Module):
    """A causal pre-norm transformer layer; sums are in at least float32, products in the matrices' precision."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(hidden, LAYER_NORM_EPS)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.attention_out = nn.Linear(hidden, hidden, bias=False)
        self.mlp_norm = nn.LayerNorm(hidden, LAYER_NORM_EPS)
        self.mlp_in = nn.Linear(hidden, 4 * hidden)
        self.mlp_out = nn.Linear(4 * hidden, hidden)

    def forward(self, x_RSH: Tensor, cos_R1SF: Tensor, sin_R1SF: Tensor) -> Tensor:
        dtype = self.qkv.weight.dtype
        qkv_RSH = self.qkv(_norm(self.attention_norm, x_RSH, dtype))
        q, k, v = qkv_RSH.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = rotated(q, cos_R1SF, sin_R1SF), rotated(k, cos_R1SF, sin_R1SF)
        mixed_RASF = _attended(q, k, v)
        x_RSH = x_RSH + self.attention_out(mixed_RASF.transpose(1, 2).flatten(2))
        return x_RSH + self.mlp_out(F.gelu(self.mlp_in(_norm(self.mlp_norm, x_RSH, dtype)), approximate="tanh"))


# kept on the device: a copy from the host would wait there for all that was queued before
@lru_cache
@torch.inference_mode(False)
def _edges(device: torch.device | None = None) -> Tensor:
    """Where a bucket of distances ends and the next begins: 1 .. NEAR, then two an octave, up to 2,048."""
    far = NEAR * 2 ** (torch.arange(1, 17, dtype=torch.float64) / 2)
    return torch.cat([torch.arange(1, NEAR + 1, dtype=torch.float64), far]).to(device)


@lru_cache
@torch.inference_mode(False)
def _frequencies(head_size: int, device: torch.device) -> Tensor:
    return inverse_frequencies(head_size).to(device)


class ChainHead(Network):
    """The correction of each slot's features, from the slots before it."""

    def __init__(self, config: ChainConfig) -> None:
        super().__init__()
        self.config = config
        D, E, H = config.features, config.table, config.hidden
        self.here_norm, self.token_norm = nn.LayerNorm(D), nn.LayerNorm(E)
        self.here = nn.Linear(D, H)
        self.before = nn.Linear(D, H, bias=False)
        self.token = nn.Linear(E, H, bias=False)
        self.distance = nn.Parameter(torch.zeros(2 * (len(_edges()) + 1), H))  # forwards, then backwards
        self.start = nn.Parameter(torch.zeros(H))  # in place of a slot before
        self.blocks = nn.ModuleList(ChainBlock(H, config.heads) for _ in range(config.blocks))
        self.out_norm = nn.LayerNorm(H)
        self.out = nn.Linear(H, D, bias=False)
        nn.init.zeros_(self.out.weight)
        self.place = nn.Linear(H // config.heads, H, bias=False) if config.places else None

    def forward(self, h_RSD: Tensor, vector_RSE: Tensor, position_RS: Tensor) -> Tensor:
        """What to add to the features of every slot, (R, S, D), from the vectors of the tokens in the slots before."""
        dtype = self.here.weight.dtype
        wide = torch.promote_types(dtype, torch.float32)
        here_RSD = _norm(self.here_norm, h_RSD, dtype)
        before_RSH = self.before(here_RSD[:, :-1]) + self._distance(position_RS).to(dtype)
        if not self.config.blind:
            before_RSH = before_RSH + self.token(_norm(self.token_norm, vector_RSE[:, :-1], dtype))
        start_R1H = self.start.to(before_RSH.dtype).expand(len(h_RSD), 1, -1)
        x_RSH = (self.here(here_RSD) + torch.cat([start_R1H, before_RSH], dim=1)).to(wide)
        frequency_F = _frequencies(self.config.hidden // self.config.heads, x_RSH.device)
        angle_R1SF = (position_RS[:, None, :, None].double() * frequency_F).repeat(1, 1, 1, 2)
        cos_R1SF, sin_R1SF = angle_R1SF.cos().to(wide), angle_R1SF.sin().to(wide)
        if self.place is not None:
            half = len(frequency_F)
            turn_RSF = torch.cat([cos_R1SF[..., :half], sin_R1SF[..., half:]], dim=-1)[:, 0]
            x_RSH = x_RSH + self.place(turn_RSF.to(dtype)).to(wide)
        for block in self.blocks:
            x_RSH = block(x_RSH, cos_R1SF, sin_R1SF)
        return self.out(_norm(self.out_norm, x_RSH, dtype)).to(h_RSD.dtype)

    def _distance(self, position_RS: Tensor) -> Tensor:
        """A vector for how far each slot but the first is from the slot before, and on which side."""
        gap = position_RS[:, 1:] - position_RS[:, :-1]
        edges = _edges(gap.device)
        bucket = torch.bucketize(gap.abs().double(), edges, right=True)
        which_RSK = F.one_hot(bucket + (gap < 0) * (len(edges) + 1), len(self.distance))
        return which_RSK.to(self.distance.dtype) @ self.distance  # its backward is a product; that of an index is slow


def token_table(model: Any) -> nn.Embedding:
    """The body's own table of tokens: its embedding with as many rows as it has states, or more."""
    found = [one for one in model.modules() if isinstance(one, nn.Embedding)] if isinstance(model, nn.Module) else []
    for table in found:
        if table.num_embeddings >= model.vocab_size:
            return table
    raise UserError(f"a chain needs the model's table of tokens, and a {type(model).__name__} has none (nn.Embedding)")
