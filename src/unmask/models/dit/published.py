"""Published DiTs: the names of MDLM's, SDTT's and Duo's tensors, what their metadata must say, what is refused by name.

Shapes are read off the tensors; the metadata is asked only for what they cannot tell (length, dropout, lost blocks).
Duo's tensors have MDLM's names and shapes, but its model is conditioned on time and has no mask: only metadata can tell
them apart, and what says both is refused.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unmask.core.errors import UserError
from unmask.models.dit.layers import inverse_frequencies
from unmask.models.dit.network import DiTConfig

GPT2_STATES = 50258  # GPT-2's 50257 tokens and the mask
LOADABLE = (
    "unmask reads its own format, MDLM, Duo (hub folder or Lightning file), SDTT, and the models in docs/models.md"
)

DUO = {"duo", "duo_base", "distillation"}  # the last is a Duo that was distilled by its own code (DCD)
KINDS = {
    **dict.fromkeys(DUO, "Duo (uniform-state diffusion)"),
    "bd3lm": "BD3-LM (block diffusion)",
    "sedd": "SEDD (score entropy)",
    "d3pm": "D3PM",
    "ar": "autoregressive",
}

# (where the metadata says it, the only values that mean masked diffusion in MDLM's sense, and those that mean Duo)
REQUIRED = (
    ("model_type", {"mdlm"}, DUO),
    ("algo.name", {"mdlm"}, DUO),
    ("diffusion", {"absorbing_state"}, {"uniform"}),
    ("parameterization", {"subs"}, {"mean"}),
)

# tokenizers that have a mask of their own, inside the vocabulary; ours is always the last state
OWN_MASK = ("bert", "text8")
BERT_STATES = 30522
INSIDE = "whose mask lies inside its vocabulary; unmask needs the mask as the last state"


def find(metadata: Any, path: str) -> Any:
    """The value whose path ends in `path` (dots between keys), the outermost first; None if there is none.

    A Hydra reference (`${algo.name}`) is no value: what it refers to lies elsewhere in the metadata.
    """
    keys = path.split(".")
    level = [metadata]
    while level:
        for node in level:
            value = node
            for key in keys:
                value = value.get(key) if isinstance(value, Mapping) else None
            if value is not None and not (isinstance(value, str) and value.startswith("${")):
                return value
        level = [child for node in level if isinstance(node, Mapping) for child in node.values()]
    return None


def is_duo(metadata: Any) -> bool:
    """Whether the metadata says that a model is Duo's."""
    return any(str(find(metadata, path)).lower() in DUO for path in ("model_type", "algo.name"))


def check_kind(metadata: Any, where: str) -> None:
    """Refuse, by name, whatever the metadata says is neither a masked diffusion model without time conditioning nor a
    Duo with it."""
    duo = is_duo(metadata)
    for path, masked, uniform in REQUIRED:
        value = find(metadata, path)
        if isinstance(value, str) and value.lower() not in (uniform if duo else masked):
            kind = KINDS.get(value.lower(), f"{path} = {value!r}")
            if duo:
                raise UserError(f"{where} contradicts itself: it says that it is Duo's, and {path} = {value!r}")
            raise UserError(f"{where} is a checkpoint of another kind: {kind}; {LOADABLE}")
    timed = find(metadata, "time_conditioning")
    if duo and timed is False:
        raise UserError(f"{where} contradicts itself: it says that it is Duo's, and time_conditioning = False")
    if not duo and timed is True:
        raise UserError(f"{where} is a time-conditioned model, but not Duo's; {LOADABLE}, without time conditioning")
    if True in (find(metadata, "causal"), find(metadata, "causal_attention")):
        raise UserError(f"{where} is an autoregressive (causal) model; {LOADABLE}")
    tokenizer = find(metadata, "tokenizer_name_or_path") or find(metadata, "tokenizer.name") or ""
    if not duo and isinstance(tokenizer, str) and any(name in tokenizer.lower() for name in OWN_MASK):
        raise UserError(f"{where} was trained with the tokenizer {tokenizer!r}, {INSIDE}")


def check_states(states: int, where: str) -> None:
    if states == BERT_STATES:
        raise UserError(f"{where} has {states} states, BERT's vocabulary, {INSIDE}")
    if states == GPT2_STATES - 1:
        raise UserError(f"{where} has {states} states, GPT-2's tokens without a mask, as Duo has, and does not say "
                        f"that it is one; {LOADABLE}")  # fmt: skip


# theirs -> ours, in the order of their parameters() (the order of the EMA's list); {i} is the number of the block
KEYS = {
    "vocab_embed.embedding": "embedding.weight",
    "sigma_map.mlp.0.weight": "sigma_in.weight",
    "sigma_map.mlp.0.bias": "sigma_in.bias",
    "sigma_map.mlp.2.weight": "sigma_out.weight",
    "sigma_map.mlp.2.bias": "sigma_out.bias",
    "blocks.{i}.norm1.weight": "blocks.{i}.attention_norm.weight",
    "blocks.{i}.attn_qkv.weight": "blocks.{i}.qkv.weight",
    "blocks.{i}.attn_out.weight": "blocks.{i}.attention_out.weight",
    "blocks.{i}.norm2.weight": "blocks.{i}.mlp_norm.weight",
    "blocks.{i}.mlp.0.weight": "blocks.{i}.mlp_in.weight",
    "blocks.{i}.mlp.0.bias": "blocks.{i}.mlp_in.bias",
    "blocks.{i}.mlp.2.weight": "blocks.{i}.mlp_out.weight",
    "blocks.{i}.mlp.2.bias": "blocks.{i}.mlp_out.bias",
    "blocks.{i}.adaLN_modulation.weight": "blocks.{i}.modulation.weight",
    "blocks.{i}.adaLN_modulation.bias": "blocks.{i}.modulation.bias",
    "output_layer.norm_final.weight": "head.norm.weight",
    "output_layer.linear.weight": "head.linear.weight",
    "output_layer.linear.bias": "head.linear.bias",
    "output_layer.adaLN_modulation.weight": "head.modulation.weight",
    "output_layer.adaLN_modulation.bias": "head.modulation.bias",
}
ROTARY = "rotary_emb.inv_freq"  # a buffer of theirs, a formula of ours
PREFIX = "backbone."
DEFAULT_LENGTH = 1024

# their config.json -> DiTConfig
CONFIG = {
    "vocab_size": "vocab_size",
    "model_length": "length",
    "hidden_dim": "hidden",
    "cond_dim": "cond",
    "n_blocks": "blocks",
    "n_heads": "heads",
    "dropout": "dropout",
}


def key_map(blocks: int) -> dict[str, str]:
    """theirs -> ours for a model of so many blocks, in their order."""
    keys = list(KEYS.items())
    first = next(n for n, (theirs, _) in enumerate(keys) if "{i}" in theirs)
    last = max(n for n, (theirs, _) in enumerate(keys) if "{i}" in theirs)
    block = keys[first : last + 1]
    repeated = [(theirs.format(i=i), ours.format(i=i)) for i in range(blocks) for theirs, ours in block]
    return dict(keys[:first] + repeated + keys[last + 1 :])


def strip(names: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Their names without the wrappers' prefixes; what lies outside the network is left out."""
    bare = {name.replace("_orig_mod.", ""): value for name, value in names.items()}
    for prefix in (PREFIX + PREFIX, PREFIX, ""):
        inner = {name.removeprefix(prefix): value for name, value in bare.items() if name.startswith(prefix)}
        if "vocab_embed.embedding" in inner:
            return inner
    raise UserError(f"{where} holds no network that we know (no tensor is called vocab_embed.embedding); {LOADABLE}")


def to_ours(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, Any], where: str
) -> tuple[DiTConfig, dict[str, Tensor]]:
    """The shape that their tensors imply, and the weights under our names."""
    check_kind(metadata, where)
    tensors = strip(tensors, where)
    found = 1 + max((int(m[1]) for name in tensors if (m := re.match(r"blocks\.(\d+)\.", name))), default=-1)
    blocks = _number(metadata, ("n_blocks",)) or found  # a file that lost its last blocks would else look whole
    if blocks > len(tensors):
        raise UserError(f"{where} contradicts itself: n_blocks = {blocks}, and there are {len(tensors)} tensors in all")
    names = key_map(blocks)
    missing, extra = names.keys() - tensors.keys(), tensors.keys() - names.keys() - {ROTARY}
    if missing or extra:
        what = f"lacks {sorted(missing)[0]!r}" if missing else f"has an unknown tensor {sorted(extra)[0]!r}"
        counts = f"{len(missing)} tensors missing, {len(extra)} unknown"
        raise UserError(f"{where} is no whole {'Duo' if is_duo(metadata) else 'MDLM'} checkpoint: it {what} ({counts})")
    states, hidden = tensors["vocab_embed.embedding"].shape
    if not is_duo(metadata):
        check_states(states, where)
    config = DiTConfig(
        vocab_size=states,
        hidden=hidden,
        blocks=blocks,
        cond=tensors["sigma_map.mlp.0.bias"].shape[0],
        heads=_heads(hidden, tensors.get(ROTARY), metadata, where),
        length=_number(metadata, ("model_length", "model.length", "length")) or DEFAULT_LENGTH,
        dropout=_dropout(metadata),
        time=is_duo(metadata),
    )
    return config, {ours: tensors[theirs] for theirs, ours in names.items()}


def _number(metadata: Mapping[str, Any], paths: tuple[str, ...]) -> int | None:
    """The first whole number the metadata gives under one of the names (a hydra reference is text: no number)."""
    values = (find(metadata, path) for path in paths)
    return next((value for value in values if type(value) is int and value > 0), None)


def _dropout(metadata: Mapping[str, Any]) -> float:
    value = find(metadata, "model.dropout")
    value = find(metadata, "dropout") if value is None else value
    return float(value) if isinstance(value, (int, float)) else 0.1


def _heads(hidden: int, inv_freq: Tensor | None, metadata: Mapping[str, Any], where: str) -> int:
    """From the rotary buffer, whose length is half a head's size; else from the config."""
    stated = _number(metadata, ("n_heads",))
    if inv_freq is None:
        if stated is None:
            raise UserError(f"{where} does not tell its number of heads: neither {ROTARY} nor n_heads is there")
        return stated
    head_size = 2 * inv_freq.numel()
    if not torch.allclose(inv_freq.double(), inverse_frequencies(head_size), rtol=1e-2):
        raise UserError(f"{where} has rotary frequencies other than base 10000; unmask knows no such model")
    if hidden % head_size or (stated is not None and stated * head_size != hidden):
        found = f"hidden {hidden}, n_heads {stated}, head size {head_size} from {ROTARY}"
        raise UserError(f"{where} contradicts itself: {found}")
    return hidden // head_size


def is_ours(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is MDLM's, Duo's, or SDTT's Hydra config; a kind that is known and not read is an error."""
    check_kind(config, "this checkpoint")
    return (
        isinstance(config.get("model_type"), str)  # null says neither MDLM nor Duo
        or is_duo(config)
        or any(find(config, key) is not None for key in ("parameterization", "hidden_size"))
    )


def to_published(
    config: DiTConfig, weights: Mapping[str, Tensor], dtype: torch.dtype | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(config.json, tensors) of a hub folder as MDLM's own code reads it, or Duo's."""
    if config.causal:
        raise UserError("MDLM's layout has no causal models: keep this one in our own format")
    fields = dataclasses.asdict(config)
    named = {PREFIX + name: weights[ours].to(dtype) for name, ours in key_map(config.blocks).items()}
    # float32: their code multiplies it by the position, so that bf16 turns the last of 1024 by up to 0.45 radians
    named[PREFIX + ROTARY] = inverse_frequencies(config.hidden // config.heads).float()
    theirs = {name: fields[ours] for name, ours in CONFIG.items()}
    said = {"model_type": "duo", "causal": False, "var_min": True} if config.time else {"model_type": "mdlm"}
    return said | theirs | ({} if config.time else {"time_conditioning": False}), named
