"""Models of the transformers library, from the hub or a folder. No code that comes with a model is run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from unmask.core.errors import UserError
from unmask.core.files import read_json

_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "*.safetensors"]
_PATIENCE = 5.0  # seconds for the hub to answer at all


class NoModel(UserError):
    """A model that cannot be had; who asked for it says what else there is."""


def need_transformers(name: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise UserError(
            f"{name!r} needs transformers: pip install 'unmask[eval]'; a causal model trained with `unmask train` "
            "judges without it"
        ) from error
    return transformers


def from_hub(repo: str) -> Path:
    """A snapshot of a repository of the hub: the one on this machine, else downloaded."""
    from huggingface_hub import snapshot_download

    def snapshot(*more: str, **how: Any) -> Path:
        patterns = {"allow_patterns": [*_FILES, *more], "ignore_patterns": ["*/*"]}
        return Path(snapshot_download(repo, etag_timeout=_PATIENCE, **patterns, **how))

    try:
        folder = snapshot(local_files_only=True)
        if _is_whole(folder):
            return folder
    except (OSError, ValueError):  # not here, or no name of the hub: the next call says which
        pass
    try:
        folder = snapshot()
        return folder if _is_whole(folder) else snapshot("*.bin")  # an older model without safetensors
    except Exception as error:  # a foreign library may raise anything; the user gets one line
        raise NoModel(f"no {repo!r} on this machine, and the hub does not give it ({_reason(error)})") from error


def _is_whole(folder: Path) -> bool:
    """Whether all weights are there: a download may have been cut off."""
    for index in folder.glob("*.index.json"):
        files = set(read_json(index, "index").get("weight_map", {}).values())
        return all((folder / file).is_file() for file in files)
    return (folder / "config.json").is_file() and any(
        path.suffix in (".safetensors", ".bin") for path in folder.iterdir()
    )


def pretrained(folder: Path, name: str, **how: Any) -> tuple[Any, Any]:
    """A causal model and its tokenizer, in float32 on the CPU; `name` is what the user calls it."""
    transformers = need_transformers(name)
    _refuse_code(folder, name, transformers)
    # without the second, `auto_map` in a folder makes the library ask on stdin, and "y" runs the folder's code
    how |= {"local_files_only": True, "trust_remote_code": False}
    try:
        with _quiet(transformers):
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **how)
            # by the name that versions before 4.56 know too
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32, **how)
            return model, tokenizer
    except Exception as error:  # a foreign library may raise anything; the user gets one line
        raise NoModel(f"{name!r} cannot be loaded ({_reason(error)})") from error


def _refuse_code(folder: Path, name: str, transformers: Any) -> None:
    """Refuse a folder that needs code of its own; the library might take another tokenizer for it, and say nothing."""
    for file, key in (("config.json", "model_type"), ("tokenizer_config.json", "tokenizer_class")):
        settings = read_json(folder / file, "the settings") if (folder / file).is_file() else {}
        known = transformers.CONFIG_MAPPING if key == "model_type" else dir(transformers)
        if settings.get("auto_map") and settings.get(key) not in known:
            raise NoModel(f"{name!r} brings code of its own (auto_map in {file}), which is never run")


def _reason(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first[:200] or 'no reason given'}"


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No advice and no bars while a model loads."""
    log, hub = transformers.utils.logging, logging.getLogger("huggingface_hub")
    verbosity, bars, level = log.get_verbosity(), log.is_progress_bar_enabled(), hub.level
    log.set_verbosity_error()
    log.disable_progress_bar()
    hub.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        hub.setLevel(level)
        if bars:
            log.enable_progress_bar()
