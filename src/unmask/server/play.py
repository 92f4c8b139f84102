"""The verb `play`, in Python and on the command line: the server with the page in front of it."""

from __future__ import annotations

import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from unmask.core.errors import UserError
from unmask.core.verbs import verb
from unmask.server.limits import Limits
from unmask.server.verbs import make_engines, run_server

PAGE = Path(__file__).with_name("page")
BUNDLED = ("pocket", "pocket-mcd")


@verb
def play(
    models: Sequence[str | Path] = (),
    *,
    port: int = 8642,
    browser: bool = True,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    precision: Literal["auto", "bf16", "fp32"] = "auto",
) -> None:
    """Open a page on which models write, step by step, until Ctrl-C:

      unmask play
      unmask play run student

    MODELS are checkpoints to play with: folders, files, hub names. The bundled pocket and pocket-mcd are there anyway.
    Only this machine can reach the page, and the page asks nothing of any other.

    Args:
        models: what to play with beside the bundled models; the first of them is chosen when the page opens
        port: the port; 0 is any that is free
        browser: open the page
    Machine:
        device: where to run
        precision: of the network; auto is bf16 on CUDA, else fp32
    """
    engines = make_engines(_named([*models, *BUNDLED]), device=device, precision=precision)
    run_server(engines, Limits(), port=port, page=PAGE, started=_open if browser else None)


def _named(models: Sequence[str | Path]) -> dict[str, str | Path]:
    """Models by the name the page shows: the last part of a path or hub name."""
    named: dict[str, str | Path] = {}
    for model in models:
        name = Path(model).name or str(model)
        if name in BUNDLED and name in named:
            continue
        if name in named:
            raise UserError(f"two models are called {name!r}: rename one of {named[name]} and {model}")
        named[name] = model
    return named


def _open(address: str) -> None:
    """Open the page, in a thread: a browser of the terminal would keep the server waiting."""
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
