"""The family `llada`: a Llama in which every position sees every other, and the names of its published tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from unmask.models.decoder import Decoder, DecoderConfig, DecoderFamily, naming_missing_keys
from unmask.models.family import register_family

PRESETS = {
    "tiny": DecoderConfig(vocab_size=1025, length=128, hidden=64, blocks=3, heads=4, kv_heads=4, mlp=144, mask=1024),
    "pocket": DecoderConfig(
        vocab_size=8193, length=256, hidden=192, blocks=8, heads=6, kv_heads=6, mlp=512, mask=8192
    ),
    "8b": DecoderConfig(
        vocab_size=126464, length=4096, hidden=4096, blocks=32, heads=32, kv_heads=32, mlp=12288, mask=126336,
        rope_theta=500_000.0,
    ),
}  # fmt: skip

# theirs, after `model.transformer.` -> transformers' Llama; `ff_out` names a product of every block, and the head
OUTER = {"wte": "model.embed_tokens", "ln_f": "model.norm", "ff_out": "lm_head"}
INNER = {
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
}
PREFIX = "model.transformer."


class LLaDA(Decoder):
    """A Denoiser."""

    library = "Llama"


@register_family
class LLaDAFamily(DecoderFamily):
    """LLaDA with its published config.json and tensor names."""

    name = "llada"
    network = LLaDA
    presets = PRESETS
    model_types = ("llada",)
    required = {  # noqa: RUF012
        "block_type": "llama", "layer_norm_type": "rms", "activation_type": "silu", "rope": True, "alibi": False,
        "rope_full_precision": True, "include_bias": False, "include_qkv_bias": False, "bias_for_layer_norm": False,
        "attention_layer_norm": False, "scale_logits": False, "input_emb_norm": False, "block_group_size": 1,
        "layer_norm_with_affine": True, "multi_query_attention": False,
    }  # fmt: skip

    def read(
        self, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str
    ) -> tuple[DecoderConfig, dict[str, Tensor]]:
        self.check(config, where)
        with naming_missing_keys(where, self.name):
            shape = DecoderConfig(
                vocab_size=config.get("embedding_size") or config["vocab_size"],
                length=config["max_sequence_length"],
                hidden=config["d_model"],
                blocks=config["n_layers"],
                heads=config["n_heads"],
                kv_heads=config.get("n_kv_heads") or config["n_heads"],
                mlp=config.get("mlp_hidden_size") or config["mlp_ratio"] * config["d_model"],
                mask=config["mask_token_id"],
                rope_theta=float(config.get("rope_theta", 10_000.0)),
                norm_eps=float(config.get("rms_norm_eps", 1e-5)),
                tied=bool(config.get("weight_tying", False)),
            )
        return shape, {ours(name): tensor for name, tensor in tensors.items()}


def ours(name: str) -> str:
    """Our name of a published tensor; one that nobody knows stays as it is, and is then refused by name."""
    parts = name.removeprefix(PREFIX).split(".")
    if parts[0] == "blocks" and len(parts) > 3 and parts[2] in INNER:
        return ".".join(["model.layers", parts[1], INNER[parts[2]], *parts[3:]])
    return ".".join([OUTER.get(parts[0], parts[0]), *parts[1:]])
