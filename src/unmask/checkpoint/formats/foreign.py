"""What every foreign layout is turned into, and the kinds that are refused by name.

Duo's tensors have the same names and shapes as MDLM's, so only metadata can tell them apart: whatever a config says
about the algorithm is checked here before any weight is used.

Refuses to know names of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from unmask.core.errors import UserError
from unmask.models.dit.network import DiTConfig

GPT2_STATES = 50258  # GPT-2's 50257 tokens and the mask
LOADABLE = "unmask reads its own format, MDLM (hub folder or Lightning file) and SDTT"

KINDS = {
    "duo": "Duo (uniform-state diffusion: time-conditioned and without a mask state)",
    "duo_base": "Duo (uniform-state diffusion: time-conditioned and without a mask state)",
    "distillation": "Duo (distilled: time-conditioned and without a mask state)",
    "llada": "LLaDA",
    "dream": "Dream",
    "bd3lm": "BD3-LM (block diffusion)",
    "sedd": "SEDD (score entropy)",
    "d3pm": "D3PM",
    "ar": "autoregressive",
}

# (where the metadata says it, the only values that mean masked diffusion in MDLM's sense)
REQUIRED = (
    ("model_type", {"mdlm"}),
    ("algo.name", {"mdlm"}),
    ("diffusion", {"absorbing_state"}),
    ("parameterization", {"subs"}),
)

# tokenizers that have a mask of their own, inside the vocabulary; ours is always the last state
OWN_MASK = ("bert", "text8")
BERT_STATES = 30522


@dataclass(frozen=True)
class Foreign:
    """A foreign checkpoint in our terms: weights under our names, the shape, and what it said about itself."""

    config: DiTConfig
    weights: dict[str, Tensor]
    format: str
    metadata: Mapping[str, Any]


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


def check_kind(metadata: Any, where: str) -> None:
    """Refuse, by name, whatever the metadata says is not a masked diffusion model without time conditioning."""
    for path, allowed in REQUIRED:
        value = find(metadata, path)
        if isinstance(value, str) and value.lower() not in allowed:
            kind = KINDS.get(value.lower(), f"{path} = {value!r}")
            raise UserError(f"{where} is a checkpoint of another kind: {kind}; {LOADABLE}")
    if find(metadata, "time_conditioning") is True:
        raise UserError(f"{where} is a time-conditioned model (as Duo's are); {LOADABLE}, without time conditioning")
    if True in (find(metadata, "causal"), find(metadata, "causal_attention")):
        raise UserError(f"{where} is an autoregressive (causal) model; {LOADABLE}")
    tokenizer = find(metadata, "tokenizer_name_or_path") or find(metadata, "tokenizer.name") or ""
    if isinstance(tokenizer, str) and any(name in tokenizer.lower() for name in OWN_MASK):
        raise UserError(
            f"{where} was trained with the tokenizer {tokenizer!r}, whose mask lies inside its vocabulary; "
            "unmask needs the mask as the last state"
        )


def check_states(states: int, where: str) -> None:
    if states == BERT_STATES:
        raise UserError(
            f"{where} has {states} states, BERT's vocabulary, whose mask lies inside it; "
            "unmask needs the mask as the last state"
        )
    if states == GPT2_STATES - 1:
        raise UserError(
            f"{where} has {states} states, GPT-2's tokens without a mask: it is no masked diffusion model "
            f"(Duo and autoregressive models look so); {LOADABLE}"
        )
