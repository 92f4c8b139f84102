"""MDLM's DiT, so that published weights load: tokens (some masked) to logits over all states.

Time conditioning is off: sigma is always 0 and only masked tokens say how noisy the input is. adaLN still applies,
with a conditioning vector that is the same for every sample.

Refuses to know schedules, losses, files and processes. `causal=True` is the autoregressive baseline.

Shapes: B sequences, L positions, D features, C conditioning features, V = K states, the mask included.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.core.errors import UserError, unknown
from unmask.models.dit.layers import Block, Head, Product, Rotary

SIGMA_FEATURES = 256  # the sinusoid of sigma: this many features, cosines first, then sines


@dataclasses.dataclass(frozen=True)
class DiTConfig:
    """The shape of a DiT. `vocab_size` is K: the tokens and the mask, which is the last state."""

    vocab_size: int
    length: int
    hidden: int
    cond: int
    blocks: int
    heads: int
    dropout: float = 0.1
    causal: bool = False

    def __post_init__(self) -> None:
        for name in ("vocab_size", "length", "hidden", "cond", "blocks", "heads"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"the model's {name} must be a whole number above 0, not {value!r}")
        if self.hidden % (2 * self.heads):
            raise UserError(
                f"hidden = {self.hidden} must be a multiple of 2 x heads = {2 * self.heads}: "
                "rotary positions turn a head's features in pairs"
            )
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout must be at least 0 and below 1, not {self.dropout!r}")


PRESETS = {
    "small": DiTConfig(vocab_size=50258, length=1024, hidden=768, cond=128, blocks=12, heads=12),
    "medium": DiTConfig(vocab_size=50258, length=1024, hidden=1024, cond=128, blocks=24, heads=16),
    "large": DiTConfig(vocab_size=50258, length=1024, hidden=1536, cond=128, blocks=24, heads=16),
    "pocket": DiTConfig(vocab_size=8193, length=256, hidden=192, cond=64, blocks=7, heads=6),
    "study": DiTConfig(vocab_size=8193, length=256, hidden=448, cond=64, blocks=8, heads=7),
    "mini": DiTConfig(vocab_size=8193, length=256, hidden=128, cond=64, blocks=6, heads=4),
    "tiny": DiTConfig(vocab_size=1025, length=128, hidden=64, cond=32, blocks=4, heads=2),
}


def _sound_options() -> dict[str, Any] | None:
    """What the compiler must not do. Since torch 2.10 it sums a norm's gradients over rows and columns in one kernel
    (mix-order reduction) and, where they are slices of one vector as our shifts and scales are, leaves whatever was in
    memory in their place (pytorch issue 193061): a causal pocket model on an H200 blew up in 247 to 858 steps.
    """
    from torch._inductor import config

    return {"triton.mix_order_reduction": False} if hasattr(config.triton, "mix_order_reduction") else None


class Configured(nn.Module):
    """A network that says what a Denoiser must say of itself."""

    config: DiTConfig

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def mask_id(self) -> int:
        return self.config.vocab_size - 1

    @property
    def length(self) -> int:
        return self.config.length


class DiT(Configured):
    """A diffusion transformer; a Denoiser."""

    def __init__(
        self,
        vocab_size: int,
        length: int,
        hidden: int,
        cond: int,
        blocks: int,
        heads: int,
        dropout: float = 0.1,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.config = DiTConfig(vocab_size, length, hidden, cond, blocks, heads, dropout, causal)
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
        if name not in PRESETS:
            raise unknown("model preset", name, PRESETS)
        fields = [field.name for field in dataclasses.fields(DiTConfig)]
        for key in overrides:
            if key not in fields:
                raise unknown("model option", key, fields)
        return cls.from_config(dataclasses.replace(PRESETS[name], **overrides))

    def compile_blocks(self) -> None:
        """Compile every block for training, where it is next called."""
        for block in self.blocks:
            block.compile(options=_sound_options())

    def _condition(self) -> Tensor:
        """c_C = SiLU(MLP(sinusoid(sigma))) at sigma = 0, where every cosine is 1 and every sine 0."""
        half = self.sigma_in.weight.new_ones(SIGMA_FEATURES // 2)
        sinusoid = torch.cat([half, torch.zeros_like(half)])
        return F.silu(self.sigma_out(F.silu(self.sigma_in(sinusoid))))

    def features(self, z: Tensor) -> Tensor:
        """The body: z_BL -> h_BLD."""
        if z.shape[-1] > self.config.length:
            raise UserError(
                f"a sequence of {z.shape[-1]} tokens is longer than the model's {self.config.length}: "
                "cut it, or train a model with a larger length"
            )
        c_C = self._condition()
        h_BLD = self.embedding(z)
        for block in self.blocks:
            h_BLD = block(h_BLD, c_C, self.rotary)
        return h_BLD

    def logits(self, h: Tensor, product: Product = F.linear) -> Tensor:
        """The head, at any selection of positions: h_...D -> logits_...V (in autocast's dtype, if it is on).

        `product` takes the place of the last matrix product (objectives/head_loss.py).
        """
        return self.head(h, self._condition(), product)

    def forward(self, z: Tensor) -> Tensor:
        """logits_BLV of z_BL."""
        return self.logits(self.features(z))
