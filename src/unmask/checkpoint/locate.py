"""From what the user typed to a file or folder on this machine: a path, a run's folder, a bundled name, a hub name."""

from __future__ import annotations

import re
from contextlib import suppress
from importlib import resources
from pathlib import Path

from unmask.core.errors import UserError, suggestion


def bundled() -> dict[str, Path]:
    """The models that come with the package, by name."""
    assets = Path(str(resources.files("unmask"))) / "assets"
    return {config.parent.name: config.parent for config in sorted(assets.glob("*/config.json"))}


def locate(source: str | Path, revision: str | None = None) -> Path:
    """The file or folder to read. An existing path wins over a bundled name, a bundled name over the hub."""
    name, path = str(source), Path(source)
    if path.exists():
        if revision is not None:
            raise UserError(f"revision={revision!r} belongs to a hub name, and {name!r} is a path: leave it out")
        inside = path / "checkpoint"  # of a run's folder
        return inside if path.is_dir() and not (path / "config.json").exists() and inside.is_dir() else path
    if revision is None and name in bundled():
        return bundled()[name]
    is_local = revision is None and path.parent != Path(".") and path.parent.is_dir()
    if isinstance(source, str) and is_hub_name(name) and not is_local:
        return snapshot(name, revision)
    names = sorted(bundled())
    raise UserError(
        f"no checkpoint {name!r}: {suggestion(name, names)}give a folder, a Lightning .ckpt file, a hub name "
        f"(owner/name) or a bundled name ({', '.join(names) or 'none is bundled'})"
    )


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
