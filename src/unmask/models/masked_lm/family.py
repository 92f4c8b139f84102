"""The family `masked_lm`: any masked language model of transformers, with its published files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unmask.core.errors import UserError
from unmask.models.decoder import check_mask_id
from unmask.models.family import Family, register_family
from unmask.models.masked_lm.network import LEFT_OUT, MaskedLM, MaskedLMConfig, class_of, transformers_config
from unmask.models.parameters import tensors_of

TINY = {
    "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256,
    "max_position_embeddings": 512,
}  # fmt: skip


@register_family
class MaskedLMFamily(Family):
    """What transformers loads with AutoModelForMaskedLM: BERT, RoBERTa, ModernBERT, DistilBERT and others."""

    name = "masked_lm"
    network = MaskedLM
    config = MaskedLMConfig
    spreads = True
    presets = {"tiny": MaskedLMConfig(vocab_size=1025, length=128, mask=1024, shape=TINY)}  # noqa: RUF012
    model_types = ("bert", "roberta", "modernbert")

    def reads(self, config: Mapping[str, Any]) -> bool:
        """Many a type of transformers has a masked language model; the file says whether it is one."""
        return any(str(one).endswith(("ForMaskedLM", "ForPreTraining")) for one in config.get("architectures") or ())

    def read(
        self, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str
    ) -> tuple[MaskedLMConfig, dict[str, Tensor]]:
        mask = check_mask_id(config, where)
        shape = transformers_config({**config, "mask_token_id": None}, where)
        inner = _loaded(class_of(shape, where), shape, tensors, where)
        said = {k: v for k, v in json.loads(shape.to_json_string(use_diff=False)).items() if k not in LEFT_OUT}
        body = getattr(inner, inner.base_model_prefix)
        found = MaskedLMConfig(shape.vocab_size, _longest(body, shape), mask, said)
        return found, dict(tensors_of(MaskedLM(found, inner)))

    def blocks(self, model: MaskedLM) -> Iterable[nn.Module]:
        """The longest list of modules in the body."""
        lists = (module for module in model.body.modules() if isinstance(module, nn.ModuleList))
        return max(lists, key=len, default=())

    def library_name(self, model: MaskedLM) -> tuple[str, str]:
        return "body.", f"{model.inner.base_model_prefix}."

    def inference(self, model: MaskedLM, dtype: torch.dtype, device: torch.device) -> nn.Module:
        """As usual; tables of positions stay as exact as they are."""
        made = super().inference(model, dtype, device)
        if made is not model:
            exact = dict(model.named_buffers())
            for path, module in made.named_modules():
                for name in module._buffers:
                    module._buffers[name] = exact[f"{path}.{name}" if path else name].to(device)
        return made


def _longest(body: nn.Module, shape: Any) -> int:
    """How many positions it has; RoBERTa's count from the padding's id on."""
    table = getattr(getattr(body, "embeddings", None), "position_embeddings", None)
    before = 0 if table is None or table.padding_idx is None else table.padding_idx + 1
    return int(getattr(shape, "max_position_embeddings", 512)) - before


def _loaded(kind: Any, shape: Any, tensors: Mapping[str, Tensor], where: str) -> Any:
    """transformers puts the tensors into its model: it knows the names that older files have."""
    from transformers.utils import logging

    dtype = next((value.dtype for value in tensors.values() if value.is_floating_point()), torch.float32)
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        inner, said = kind.from_pretrained(
            None, config=shape, state_dict=dict(tensors), dtype=dtype, output_loading_info=True
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(f"{where} does not fit its config: {str(error).splitlines()[0]}") from error
    finally:
        logging.set_verbosity(before[0])
        if before[1]:
            logging.enable_progress_bar()
    if missing := sorted(said["missing_keys"]):
        raise UserError(f"{where} is incomplete: the tensor {missing[0]!r} is missing")
    return inner
