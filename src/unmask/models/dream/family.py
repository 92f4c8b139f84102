"""The family `dream`: a Qwen2 in which every position sees every other, and the output at i - 1 predicts token i."""

from __future__ import annotations

from unmask.models.decoder import Decoder, DecoderConfig, DecoderFamily
from unmask.models.family import register_family

PRESETS = {
    "tiny": DecoderConfig(
        vocab_size=1025, length=128, hidden=64, blocks=3, heads=4, kv_heads=2, mlp=128, mask=1024, norm_eps=1e-6
    ),
    "7b": DecoderConfig(
        vocab_size=152064, length=131072, hidden=3584, blocks=28, heads=28, kv_heads=4, mlp=18944, mask=151666,
        rope_theta=1_000_000.0, norm_eps=1e-6,
    ),
}  # fmt: skip


class Dream(Decoder):
    """A Denoiser; `features` are moved right by one, so that the head predicts the token where they stand."""

    shifted = True
    library = "Qwen2"


@register_family
class DreamFamily(DecoderFamily):
    """Dream with its published config.json; its tensors have Qwen2's names, as ours do."""

    name = "dream"
    network = Dream
    presets = PRESETS
    model_types = ("dream",)
    required = {"hidden_act": "silu", "use_sliding_window": False, "rope_scaling": None}  # noqa: RUF012
