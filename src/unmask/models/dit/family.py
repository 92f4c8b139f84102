"""The family `dit`: MDLM's DiT and Duo's, their published files, their twins for inference, what training asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from unmask.core.errors import UserError
from unmask.models.dit import published
from unmask.models.dit.attention import attention_stats
from unmask.models.dit.cached import Cached, narrowed
from unmask.models.dit.folded import FoldedDiT, fold
from unmask.models.dit.layers import Rotary
from unmask.models.dit.network import PRESETS, DiT, DiTConfig
from unmask.models.dit.onnx import body_and_head
from unmask.models.dit.timed import TimedDiT
from unmask.models.family import Family, Graph, Reader, register_family
from unmask.models.lora import base_of, merged
from unmask.processes import Masked, Process, Uniform


@register_family
class DiTFamily(Family):
    """`DiT` with MDLM's, SDTT's, Duo's and our own tensor names."""

    name = "dit"
    network = DiT
    config = DiTConfig
    presets = PRESETS

    def build(self, config: DiTConfig) -> DiT:
        return DiT.from_config(config)

    def for_tokens(self, config: DiTConfig, tokens: int) -> DiTConfig:
        return replace(config, vocab_size=tokens if config.time else tokens + 1)

    def for_process(self, config: DiTConfig, process: Process) -> DiTConfig:
        return config if process.by_plan else replace(config, time=True)

    def process(self, config: DiTConfig) -> Process:
        return Uniform() if config.time else Masked()

    def settle(self, model: DiT) -> None:
        """The table of rotary positions is in no checkpoint."""
        weight = model.embedding.weight
        model.rotary = Rotary(model.config.length, model.config.hidden // model.config.heads)
        model.rotary.to(device=weight.device, dtype=torch.promote_types(weight.dtype, torch.float32))

    def reads(self, config: Mapping[str, Any]) -> bool:
        return published.is_ours(config)

    def read(
        self, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str
    ) -> tuple[DiTConfig, dict[str, Tensor]]:
        return published.to_ours(tensors, config, where)

    def publish(self, model: DiT, dtype: torch.dtype | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return published.to_published(model.config, model.state_dict(), dtype)

    def smaller(self, model: DiT) -> DiT:
        if model.config.time:
            raise UserError("a model that is conditioned on time cannot be folded: leave out --fold")
        return fold(model)

    def lora_targets(self, model: DiT) -> Iterable[str]:
        """All of the blocks but the modulation, which is off."""
        return [name for name in super().lora_targets(model) if "modulation" not in name]

    def blocks(self, model: DiT) -> Iterable[nn.Module]:
        return model.blocks

    def matrices(self, model: DiT) -> dict[str, int]:
        """All of the blocks but the modulation, which starts at zero; q, k and v are three."""
        found = (name for name in super().matrices(model) if "modulation" not in name)
        return {name: 3 if ".qkv." in name else 1 for name in found}

    def compile(self, model: DiT) -> None:
        for block in self.blocks(model):
            block.compile(options=_sound_options())

    def head(self, model: DiT) -> Callable[[Tensor, Callable[[Tensor, Tensor, Tensor], Tensor]], Tensor]:
        return model.logits

    def flops(self, model: DiT, length: int) -> tuple[float, float]:
        """12 D² weights a block, attention over all positions (causal: half); D V weights of the head."""
        shape = model.config
        attention = 2 * length * shape.hidden * (0.5 if shape.causal else 1.0)
        return 2.0 * shape.blocks * (12 * shape.hidden**2 + attention), 2.0 * shape.hidden * shape.vocab_size

    def attention(self, model: DiT, z_BL: Tensor) -> list[tuple[float, float]]:
        time_B = torch.zeros(len(z_BL), device=z_BL.device) if model.config.time else None  # of text that is clean
        return list(attention_stats(model, z_BL, time_B))

    def inference(self, model: DiT, dtype: torch.dtype, device: torch.device) -> nn.Module:
        model = merged(model) if base_of(model) else model  # folding looks at the weights themselves
        if model.config.causal:
            return super().inference(model, dtype, device)
        return (TimedDiT if model.config.time else FoldedDiT)(model, dtype).to(device)

    def onnx(self, model: DiT) -> tuple[nn.Module, nn.Module]:
        if model.config.time:
            raise UserError(
                "a model that is conditioned on time cannot be exported to ONNX: the page knows masked models"
            )
        return body_and_head(model)

    def causal_copy(self, model: DiT, dtype: torch.dtype, device: torch.device) -> nn.Module:
        return narrowed(model, dtype, device)

    def reader(self, model: DiT, rows: int, graph: Graph | None = None) -> Reader:
        return Cached(model, rows, graph)


def _sound_options() -> dict[str, Any] | None:
    """What the compiler must not do. Since torch 2.10 it sums a norm's gradients over rows and columns in one kernel
    (mix-order reduction) and, where they are slices of one vector as our shifts and scales are, leaves whatever was in
    memory in their place (pytorch issue 193061): a causal pocket model on an H200 blew up in 247 to 858 steps.
    """
    from torch._inductor import config

    return {"triton.mix_order_reduction": False} if hasattr(config.triton, "mix_order_reduction") else None
