"""From what the user typed to a file or folder on this machine: a path, a run's folder, a bundled name, a hub name."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from unmask.checkpoint.hub import is_hub_name, snapshot
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
