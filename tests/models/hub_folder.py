"""A small LLaDA as the hub has it: random weights in shards, a tokenizer, a chat template, code that must not run."""

import json
from pathlib import Path

import tokenizers
import torch
from safetensors.torch import save_file

from unmask.data.tokenizer import Tokenizer
from unmask.models.decoder import DecoderConfig
from unmask.models.llada import LLaDA
from unmask.models.llada.family import INNER, OUTER, PREFIX
from unmask.models.parameters import tensors_of

TEMPLATE = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim "
    "+ '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)  # in the manner of LLaDA-8B-Instruct's, which opens an answer even after one
SPECIAL = ("<|startoftext|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|mdm_mask|>")
STATES = 320  # of which some are padding


def theirs(name):
    """The published name of a tensor of ours."""
    outer, inner = ({ours: their for their, ours in names.items()} for names in (OUTER, INNER))
    head, _, end = name.rpartition(".")
    if head in outer:
        return f"{PREFIX}{outer[head]}.{end}"
    block, part = head.removeprefix("model.layers.").split(".", 1)
    return f"{PREFIX}blocks.{block}.{inner[part]}.{end}"


def write_folder(folder: Path, *, shards: int = 3, chat: bool = True, seed: int = 0, length: int = 96) -> LLaDA:
    """Write one, and give the network that it holds."""
    folder.mkdir(parents=True, exist_ok=True)
    inner = tokenizers.Tokenizer.from_str(Tokenizer.train(["Once upon a time there was a small model."], 280).to_json())
    inner.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    inner.save(str(folder / "tokenizer.json"))
    tokens = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    said = {**tokens, "tokenizer_class": "PreTrainedTokenizerFast", **({"chat_template": TEMPLATE} if chat else {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    mask = inner.token_to_id("<|mdm_mask|>")
    config = {
        "model_type": "llada", "auto_map": {"AutoModel": "modeling_llada.LLaDAModelLM"}, "d_model": 32, "n_heads": 2,
        "n_kv_heads": None, "n_layers": 2, "mlp_hidden_size": 64, "vocab_size": STATES, "embedding_size": STATES,
        "max_sequence_length": length, "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "weight_tying": False,
        "mask_token_id": mask, "block_type": "llama",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_llada.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    torch.manual_seed(seed)
    model = LLaDA(DecoderConfig(STATES, length, 32, 2, 2, 2, 64, mask, 500000.0)).eval()
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn_like(value) * (0.3 if value.ndim > 1 else 0.1) + (value.ndim == 1))
    named = {theirs(name): value.detach().contiguous() for name, value in tensors_of(model).items()}
    names = sorted(named)
    if shards == 1:
        save_file(named, folder / "model.safetensors")
        return model
    where = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(names)}
    for file in set(where.values()):
        save_file({name: named[name] for name in names if where[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return model
