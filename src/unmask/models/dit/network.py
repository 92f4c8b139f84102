"""MDLM's DiT, so that published weights load: tokens (some masked) to logits over all states.

Time conditioning is off: sigma is always 0 and only masked tokens say how noisy the input is. adaLN still applies,
with a conditioning vector that is the same for every sample.

`time=True` is Duo's: conditioned on sigma, one number a text, and without a mask, since its texts do not show how noisy
they are. `causal=True` is the autoregressive baseline.

Shapes: B sequences, L positions, D features, C conditioning features, V = K states, the mask included; "1C" is one
vector for all positions, of the whole batch (1C = C) or of each text (B, 1, C).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.core.errors import UserError
from unmask.models.denoiser import Network, check_whole_numbers
from unmask.models.dit.layers import Block, Head, Product, Rotary, linear_in
from unmask.models.family import changed_preset

SIGMA_FEATURES = 256  # the sinusoid of sigma: this many features, cosines first, then sines


@dataclasses.dataclass(frozen=True)
class DiTConfig:
    """The shape of a DiT. `vocab_size` is K: the tokens and the mask, the last state (with `time`: no mask)."""

    vocab_size: int
    length: int
    hidden: int
    cond: int
    blocks: int
    heads: int
    dropout: float = 0.1
    causal: bool = False
    time: bool = False

    def __post_init__(self) -> None:
        check_whole_numbers(self, "vocab_size", "length", "hidden", "cond", "blocks", "heads")
        if self.hidden % (2 * self.heads):
            raise UserError(f"hidden = {self.hidden} must be a multiple of 2 x heads = {2 * self.heads}")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout must be at least 0 and below 1, not {self.dropout!r}")
        if self.causal and self.time:
            raise UserError("a causal model reads no noise to be told the time of: leave out time, or causal")

    @property
    def mask(self) -> int | None:
        return None if self.time else self.vocab_size - 1


PRESETS = {
    "small": DiTConfig(vocab_size=50258, length=1024, hidden=768, cond=128, blocks=12, heads=12),
    "medium": DiTConfig(vocab_size=50258, length=1024, hidden=1024, cond=128, blocks=24, heads=16),
    "large": DiTConfig(vocab_size=50258, length=1024, hidden=1536, cond=128, blocks=24, heads=16),
    "pocket": DiTConfig(vocab_size=8193, length=256, hidden=192, cond=64, blocks=7, heads=6),
    "study": DiTConfig(vocab_size=8193, length=256, hidden=448, cond=64, blocks=8, heads=7),
    "mini": DiTConfig(vocab_size=8193, length=256, hidden=128, cond=64, blocks=6, heads=4),
    "tiny": DiTConfig(vocab_size=1025, length=128, hidden=64, cond=32, blocks=4, heads=2),
}


def sinusoid(sigma_B: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, 1, 256): cosines, then sines, of sigma at frequencies from 1 down to 1/10000; the angles at least float32."""
    half, wide = SIGMA_FEATURES // 2, torch.promote_types(dtype, torch.float32)
    frequencies = torch.exp(-math.log(1e4) / half * torch.arange(half, dtype=wide, device=sigma_B.device))
    angle_B1S = sigma_B[:, None, None].to(wide) * frequencies
    return torch.cat([angle_B1S.cos(), angle_B1S.sin()], dim=-1).to(dtype)


class DiT(Network):
    """A diffusion transformer; a Denoiser."""

    def __init__(
        self, vocab_size: int, length: int, hidden: int, cond: int, blocks: int, heads: int, dropout: float = 0.1,
        causal: bool = False, time: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.config = DiTConfig(vocab_size, length, hidden, cond, blocks, heads, dropout, causal, time)
        # Embedding's own normal_ would be thrown away, and on the meta device it imports all of torch._dynamo: 1.5 s
        self.embedding = nn.Embedding.from_pretrained(torch.empty(vocab_size, hidden), freeze=False)
        nn.init.kaiming_uniform_(self.embedding.weight, a=math.sqrt(5))
        self.sigma_in = nn.Linear(SIGMA_FEATURES, cond)
        self.sigma_out = nn.Linear(cond, cond)
        self.rotary = Rotary(length, hidden // heads)
        self.blocks = nn.ModuleList(Block(hidden, cond, heads, dropout, causal) for _ in range(blocks))
        self.head = Head(hidden, cond, vocab_size)

    @classmethod
    def from_config(cls, config: DiTConfig) -> DiT:
        return cls(**dataclasses.asdict(config))

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> DiT:
        """A named shape, some of it changed: `DiT.preset("tiny", vocab_size=301, length=64)`."""
        return cls.from_config(changed_preset(PRESETS, name, **overrides))

    def _condition(self, dtype: torch.dtype | None = None) -> Tensor:
        """c_C = SiLU(MLP(sinusoid(sigma))) at sigma = 0, where cosines are 1 and sines 0; in `dtype` if given."""
        half = self.sigma_in.weight.new_ones(SIGMA_FEATURES // 2, dtype=dtype)
        sinusoid = torch.cat([half, torch.zeros_like(half)])
        return F.silu(linear_in(self.sigma_out, F.silu(linear_in(self.sigma_in, sinusoid, dtype)), dtype))

    def _condition_on(self, time_B: Tensor | None) -> Tensor:
        """c_1C: of the model, or of each text's sigma."""
        if not self.config.time:
            if time_B is not None:
                raise UserError("this DiT takes no time, and the process gives one: train a model of that process anew")
            return self._condition()
        if time_B is None:
            raise UserError("this DiT is conditioned on time: give features(z, time=sigma), one number a text")
        return F.silu(self.sigma_out(F.silu(self.sigma_in(sinusoid(time_B, self.sigma_in.weight.dtype)))))

    def embed(self, z: Tensor, weights: Tensor | None = None) -> Tensor:
        """Token ids z_BL, laws over the states p_BLV, or k ids a position z_BLk with weights, as vectors: (B, L, D)."""
        if weights is not None:  # no table of B x L x k x D
            flat = F.embedding_bag(
                z.flatten(0, 1),
                self.embedding.weight,
                per_sample_weights=weights.flatten(0, 1).to(self.embedding.weight),
                mode="sum",
            )
            return flat.unflatten(0, z.shape[:2]).clone()  # FSDP wants no view
        weight = self.embedding.weight  # under autocast too the stream of features begins in its type
        return (z.to(weight.dtype) @ weight).to(weight.dtype) if z.is_floating_point() else self.embedding(z)

    def features(self, z: Tensor, time: Tensor | None = None) -> Tensor:
        """The body: token ids z_BL, or what `embed` made of them, -> h_BLD. With `time` the head's norm, which hangs on
        sigma too, is part of it."""
        self.check_length(z.shape[1])
        c_1C = self._condition_on(time)
        h_BLD = z if z.is_floating_point() else self.embed(z)
        for block in self.blocks:
            h_BLD = block(h_BLD, c_1C, self.rotary)
        return self.head.normed(h_BLD, c_1C) if self.config.time else h_BLD

    def logits(self, h: Tensor, product: Product = F.linear) -> Tensor:
        """The head, at any selection of positions: h_...D -> logits_...V (in autocast's dtype, if it is on).

        `product` takes the place of the last matrix product (objectives/head_loss.py).
        """
        if self.config.time:
            return product(h, self.head.linear.weight, self.head.linear.bias)
        return self.head(h, self._condition(), product)

    def forward(self, z: Tensor, time: Tensor | None = None) -> Tensor:
        """logits_BLV of z_BL."""
        return self.logits(self.features(z) if time is None else self.features(z, time))
