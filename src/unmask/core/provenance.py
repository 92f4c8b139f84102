"""Where a result came from: the versions, the machine and the moment, as a plain dict that JSON can hold.

Callers add what was computed.
"""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from unmask.version import __version__


@lru_cache(maxsize=1)
def _source_revision() -> str | None:
    """The git commit of a source checkout, marked if it has local changes; None for an installed package."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        return commit + ("+local changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def device_name(device: torch.device | str) -> str:
    """The machine's name as a person would say it."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return f"{platform.machine()} MPS"
    threads = torch.get_num_threads()
    return f"{platform.machine()} CPU, {threads} thread{'s' * (threads > 1)}"


def record(device: torch.device | str = "cpu", **facts: Any) -> dict[str, Any]:
    """A provenance record: what ran it, where and when, plus the caller's facts."""
    return {
        "unmask": __version__,
        "revision": _source_revision(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": device_name(device),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        **facts,
    }
