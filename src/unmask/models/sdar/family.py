"""The family `sdar`: a Qwen3 that is block-causal. A position sees its own block and all earlier ones, so what it says
of a finished block never changes, and keys and values can be kept exactly.

Shapes: B sequences, L positions, K positions that are seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.core.errors import UserError
from unmask.models.decoder import Decoder, DecoderConfig, DecoderFamily
from unmask.models.denoiser import check_whole_numbers
from unmask.models.family import register_family


@dataclasses.dataclass(frozen=True)
class SDARConfig(DecoderConfig):
    """`block` is the number of positions of a block; blocks count from the first position of a text."""

    block: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole_numbers(self, "block")


PRESETS = {
    "tiny": SDARConfig(
        vocab_size=1025, length=128, hidden=64, blocks=3, heads=4, kv_heads=2, mlp=128, mask=1024, norm_eps=1e-6
    ),
    "8b": SDARConfig(
        vocab_size=151936, length=32768, hidden=4096, blocks=36, heads=32, kv_heads=8, mlp=12288, mask=151669,
        rope_theta=1_000_000.0, norm_eps=1e-6, head_size=128,
    ),
}  # fmt: skip


class Norm(nn.Module):
    """RMSNorm in float32 throughout: times the weight, then one cast. transformers' Qwen3 casts first."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.variance_epsilon).to(x.dtype)


class SDAR(Decoder):
    """A Denoiser whose positions see no later block."""

    config: SDARConfig
    library = "Qwen3"
    in_blocks: ClassVar[bool] = True

    def body(self, config: DecoderConfig) -> nn.Module:
        body: Any = super().body(config)
        for layer in body.layers:
            attention, size = layer.self_attn, config.head_size or config.hidden // config.heads
            layer.input_layernorm, layer.post_attention_layernorm = (Norm(config.hidden, config.norm_eps) for _ in "12")
            attention.q_norm, attention.k_norm = (Norm(size, config.norm_eps) for _ in "12")
        body.norm = Norm(config.hidden, config.norm_eps)
        return body

    def sees(self, at: Tensor, length: int) -> Tensor:
        key_K = torch.arange(length, device=at.device) // self.config.block
        return ((at // self.config.block)[..., None] >= key_K).view(-1, 1, at.shape[-1], length)

    def features(
        self, z: Tensor, *, visible: Tensor | None = None, at: Tensor | None = None, cache: Any = None,
        beside: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """As a Decoder's; with `beside`, a text, each block of z is read after that text's blocks before it.

        So SDAR is trained, all blocks of a text at once: z and the text are one sequence of twice the length, in which
        z sees its own block and the text before it, and the text sees itself.
        """
        if beside is None:
            return super().features(z, visible=visible, at=at, cache=cache)
        L = z.shape[1]
        self.check_length(L)
        at = torch.arange(L, device=z.device)
        mine, other = (at // self.config.block)[:, None], at // self.config.block
        seen = torch.cat([torch.cat([mine == other, mine > other], 1),
                          torch.cat([torch.zeros_like(mine == other), mine >= other], 1)])  # fmt: skip
        both = torch.cat([z, beside], dim=1)
        return super().features(both, visible=seen[None, None], at=at.repeat(2))[:, :L]

    def layer_inputs(
        self, z: Tensor, visible: Tensor | None, at: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor | None]:
        """Without a word on who is seen, or with padding only: own block and earlier ones."""
        if visible is None or visible.ndim == 2:
            own = self.sees(torch.arange(z.shape[1], device=z.device) if at is None else at, z.shape[1])
            visible = own if visible is None else own & visible[:, None, None, :]
        return super().layer_inputs(z, visible, at)


@register_family
class SDARFamily(DecoderFamily):
    """SDAR with its published config.json; its tensors have Qwen3's names, as ours do."""

    name = "sdar"
    network = SDAR
    config = SDARConfig
    presets = PRESETS
    model_types = ("sdar",)
    required = {  # noqa: RUF012
        "hidden_act": "silu", "use_sliding_window": False, "rope_scaling": None, "attention_bias": False,
    }  # fmt: skip

    def read(
        self, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str
    ) -> tuple[SDARConfig, dict[str, Tensor]]:
        shape, weights = super().read(config, tensors, where)
        if config.get("block_size") is None:
            raise UserError(f"{where} does not say how long a block is: config.json lacks 'block_size'")
        return SDARConfig(**vars(shape), block=config["block_size"]), weights
