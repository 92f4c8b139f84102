"""Models of the transformers library: from a folder, from what was downloaded before, or from the hub.

A name is looked up on this machine first, so that a second run needs no network; then the hub is tried, but only if it
can be reached at all: the library itself would try for a minute. No code that comes with a model is run.

Refuses to know what a model is for.
"""

from __future__ import annotations

import logging
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from unmask.core.errors import UserError

_PATIENCE = 5.0  # seconds for the hub to answer at all


def need_transformers(name: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise UserError(
            f"{name!r} needs transformers: pip install 'unmask[eval]'; a causal model trained with `unmask train` "
            "judges without it"
        ) from error
    return transformers


@contextmanager
def _quiet(transformers: Any, bars: bool) -> Iterator[None]:
    """No advice while a model loads; bars only where something is downloaded."""
    log, hub = transformers.utils.logging, logging.getLogger("huggingface_hub")
    before = log.get_verbosity(), log.is_progress_bar_enabled(), hub.level
    log.set_verbosity_error()
    hub.setLevel(logging.ERROR)
    if not bars:
        log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(before[0])
        hub.setLevel(before[2])
        if before[1]:
            log.enable_progress_bar()


def pretrained(source: str, name: str, what: str, choices: str, **how: Any) -> tuple[Any, Any]:
    """A model and its tokenizer, in float32 on the CPU.

    Args:
        source: a folder or a hub name
        name: what the user calls it
        what: the class that loads it (AutoModelForCausalLM, AutoModel)
        choices: what else the user may take, for the error
        how: options of the library
    """
    transformers = need_transformers(name)

    def load(**more: Any) -> tuple[Any, Any]:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **how, **more)
        # by the name that versions before 4.56 know too
        return getattr(transformers, what).from_pretrained(source, torch_dtype=torch.float32, **how, **more), tokenizer

    try:
        with _quiet(transformers, bars=False):
            return load(local_files_only=True)
    except Exception as error:  # a foreign library may raise anything; the user gets one line
        if Path(source).is_dir():
            raise _nothing(name, error, choices) from error
    if not _reachable():
        raise UserError(f"no {name!r} on this machine, and the hub cannot be reached: {choices}")
    try:
        with _quiet(transformers, bars=True):
            return load()
    except Exception as error:
        raise _nothing(name, error, choices) from error


def _nothing(name: str, error: Exception, choices: str) -> UserError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
    return UserError(f"{name!r} cannot be loaded ({type(error).__name__}: {reason[:200]}): {choices}")


def _reachable() -> bool:
    """Whether the hub answers; behind a proxy only the library itself can tell."""
    from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE

    if HF_HUB_OFFLINE:
        return False
    if urllib.request.getproxies():
        return True
    place = urlsplit(ENDPOINT)
    try:
        socket.create_connection((place.hostname, place.port or 443), timeout=_PATIENCE).close()
    except OSError:
        return False
    return True
