"""Any masked language model of transformers as a Denoiser: its body and its head as two calls.

Shapes: B sequences, L positions, D features, V states.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unmask.core.errors import UserError
from unmask.models.denoiser import Network

# of a config.json: what says nothing about what the network computes
LEFT_OUT = ("auto_map", "transformers_version", "_name_or_path", "torch_dtype", "dtype", "id2label", "label2id")


@dataclasses.dataclass(frozen=True)
class MaskedLMConfig:
    """The config of a model of transformers (`shape`, with its `model_type`), and what a Denoiser says of itself."""

    vocab_size: int
    length: int
    mask: int
    shape: Mapping[str, Any]

    def __post_init__(self) -> None:
        most = self.shape.get("max_position_embeddings", self.length)
        if not 1 <= self.length <= most:
            raise UserError(f"the model's length must be between 1 and its {most} positions, not {self.length}")
        if not 0 <= self.mask < self.vocab_size:
            raise UserError(f"the mask must be one of the {self.vocab_size} states, not {self.mask}")

    @property
    def hidden(self) -> int:
        return int(self.shape.get("hidden_size") or self.shape.get("dim") or 0)


class _Given(nn.Module):
    """Stands where the body was, and passes on what it is given."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        return BaseModelOutput(last_hidden_state=inputs_embeds)


class MaskedLM(Network):
    """A Denoiser made of a model of transformers: `inner` keeps its head, `body` is all before it."""

    def __init__(self, config: MaskedLMConfig, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        inner = make(config) if inner is None else inner
        prefix: str = inner.base_model_prefix  # type: ignore[assignment]
        self.body: Any = getattr(inner, prefix)
        setattr(inner, prefix, _Given())
        self.inner: Any = inner

    def embed(self, z: Tensor) -> Tensor:
        """Token ids z_BL, or laws over the states p_BLV, as vectors: (B, L, E)."""
        table = self.body.get_input_embeddings()
        embedded: Tensor = z @ table.weight if z.is_floating_point() else table(z)
        return embedded

    def features(self, z: Tensor, *, visible: Tensor | None = None) -> Tensor:
        """The body: token ids z_BL, or what `embed` made of them, -> h_BLD. `visible` (B, L): false where padded."""
        self.check_length(z.shape[1])
        given = {"inputs_embeds" if z.is_floating_point() else "input_ids": z}
        seen = None if visible is None else visible.long()
        h_BLD: Tensor = self.body(**given, attention_mask=seen).last_hidden_state
        return h_BLD.to(z.device)

    def logits(self, h: Tensor) -> Tensor:
        """The head, at any selection of positions: h_...D -> logits_...V."""
        logits_1NV: Tensor = self.inner(inputs_embeds=h.reshape(1, -1, h.shape[-1])).logits
        return logits_1NV.view(*h.shape[:-1], -1).to(h.device)

    def forward(self, z: Tensor) -> Tensor:
        """logits_BLV of z_BL."""
        return self.logits(self.features(z))


def transformers_config(shape: Mapping[str, Any], where: str) -> Any:
    """The config of transformers that a config.json tells; its own code is not asked."""
    from transformers import AutoConfig

    said = {name: value for name, value in shape.items() if name not in (*LEFT_OUT, "model_type")}
    try:
        return AutoConfig.for_model(str(shape.get("model_type")), **said)
    except (ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{where}: transformers makes no model of this config.json ({reason})") from error


def class_of(config: Any, where: str) -> Any:
    """The masked language model of transformers that has this config."""
    from transformers import MODEL_FOR_MASKED_LM_MAPPING

    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        raise UserError(f"{where}: transformers has no masked language model of the type {config.model_type!r}")
    return MODEL_FOR_MASKED_LM_MAPPING[type(config)]


def make(config: MaskedLMConfig) -> Any:
    """The model of transformers; on `meta` its weights only, since the values of its buffers are in no checkpoint."""
    shape = transformers_config({**config.shape, "vocab_size": config.vocab_size}, "this model")
    kind = class_of(shape, "this model")
    if torch.get_default_device().type != "meta":
        return kind(shape)
    from accelerate import init_empty_weights

    with torch.device("cpu"), init_empty_weights(include_buffers=False):
        model = kind(shape)
    model.tie_weights()  # what was tied was parted when it moved to `meta`
    return model
