"""Hub names (`owner/name`) to a local snapshot folder: configs, safetensors, tokenizers; never a pickle, never code."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from unmask.core.errors import UserError

WANTED = [
    "config.json", "generation_config.json", "provenance.json", "tokenizer.json", "tokenizer_config.json",
    "vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json",
    "chat_template.jinja", "model.safetensors", "model.safetensors.index.json", "model-*.safetensors",
    "raw.safetensors", "adapter_config.json", "adapter_model.safetensors",
]  # fmt: skip


def is_hub_name(name: str) -> bool:
    return re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name) is not None


def snapshot(name: str, revision: str | None) -> Path:
    """The folder of a hub repository at a revision: from the cache if it is there, else downloaded."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError as error:
        raise UserError(f"there is no folder {name!r}; to take it as a hub name: pip install 'unmask[hub]'") from error
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=WANTED))
    except (HfHubHTTPError, OSError, ValueError) as error:
        with suppress(OSError, ValueError):  # without a network, what was downloaded before still serves
            return Path(snapshot_download(name, revision=revision, local_files_only=True))
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        at = f" at revision {revision!r}" if revision else ""
        raise UserError(
            f"there is no folder {name!r}, and the hub did not give {name!r}{at} "
            f"({type(error).__name__}: {reason}): check the name, the revision and the network"
        ) from error
