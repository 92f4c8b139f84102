"""The verbs `serve` and `play`, in Python and on the command line."""

from __future__ import annotations

import ipaddress
import os
import sys
import threading
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from unmask.checkpoint.io import Checkpoint, load
from unmask.core.errors import UserError, reading
from unmask.core.ranks import pick_device
from unmask.core.verbs import verb
from unmask.inference.ready import Precision
from unmask.models.denoiser import check_denoiser
from unmask.server.engine import Engine
from unmask.server.limits import LOCAL, Limits

KEY = "UNMASK_API_KEY"


@verb
def serve(
    model: Mapping[str, Checkpoint | str | Path] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    key_file: Path | None = None,
    batch: int | None = None,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    precision: Literal["auto", "bf16", "fp32"] = "auto",
    compile: bool = False,
    limits: Limits,
) -> None:
    """Put models behind an address, until Ctrl-C; what runs then is finished:

      unmask serve --model pocket=pocket mine=run

    OpenAI's clients can use it, and it streams drafts. Requests share forwards; a text is what `unmask sample` writes
    with the same seed, whatever else is asked for.

    Args:
        model: the models, each with the name that requests call it by (default: pocket=pocket)
    Network:
        host: the address to listen on; another than 127.0.0.1 can be reached from other machines
        port: the port; 0 is any that is free
        hosts: further names under which it is asked, as in http://NAME; * is any
        origins: pages of other servers that may use it, as https://NAME; * is any
        key_file: a file with a key that requests must bring (or the environment variable UNMASK_API_KEY)
    Machine:
        batch: texts of full length in a forward (default: 8 on a CPU, on a GPU what fills it)
        device: where to run
        precision: of the network; auto is bf16 on CUDA, else fp32
        compile: compile the network: texts of full length gain, on a GPU
    """
    engines = make_engines(
        model or {"pocket": "pocket"}, batch=batch, device=device, precision=precision, compile=compile,
        limits=limits,
    )  # fmt: skip
    run_server(engines, limits, host=host, port=port, hosts=hosts, origins=origins, key=read_key(key_file))


def make_engines(
    models: Mapping[str, Checkpoint | str | Path], *, batch: int | None = None, device: str = "auto",
    precision: Precision = "auto", compile: bool = False, limits: Limits | None = None,
) -> dict[str, Engine]:  # fmt: skip
    place, engines = pick_device(device), {}
    if batch is not None and batch < 1:
        raise UserError(f"batch must be at least 1, not {batch}")
    for name, source in models.items():
        checkpoint = source if isinstance(source, Checkpoint) else load(source)
        check_denoiser(checkpoint.model)
        engines[name] = Engine(
            checkpoint, name, place, precision=precision, compile=compile, batch=batch, limits=limits
        )  # fmt: skip
    return engines


def run_server(
    engines: Mapping[str, Engine], limits: Limits, *, host: str = "127.0.0.1", port: int = 8000,
    hosts: Sequence[str] = (), origins: Sequence[str] = (), key: str | None = None, page: Path | None = None,
    started: Callable[[str], None] | None = None,
) -> None:  # fmt: skip
    """Serve these engines, and a folder of pages at /, until a signal. `started` is called with the address."""
    try:
        from unmask.server.app import create_app
        from unmask.server.listen import address_of, open_socket, run
    except ImportError as error:
        raise UserError(f"the server needs FastAPI and uvicorn ({error}): pip install 'unmask[serve]'") from error
    names = host_names(host, hosts)
    app = create_app(engines, limits=limits, hosts=names, origins=origins, key=key, page=page)
    with open_socket(host, port) as listening:
        address = address_of(listening)
        if not _is_local(host) and key is None:
            print(f"unmask: whoever reaches {address} may use it: set {KEY} to ask for a key", file=sys.stderr)
        print(f"serving {', '.join(engines)} at {address} (Ctrl-C ends it)", flush=True)
        if started is not None:
            started(address)
        run(app, listening, limits)


def host_names(host: str, further: Sequence[str]) -> list[str]:
    """The names under which the server answers, lower case, without ports."""
    if not further and host in ("0.0.0.0", "::", ""):
        raise UserError(f"{host} is every address of this machine: say with --hosts by which names it is asked (or *)")
    return [*LOCAL, *(name.strip("[]").lower() for name in (host, *further))]


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_key(file: Path | None) -> str | None:
    """The API key, of a file or the environment: what stands in a command line, everybody on the machine can read."""
    if file is None:
        return os.environ.get(KEY) or None
    with reading(file, "the API key", "put the key in its first line"):
        key = file.read_text("utf-8").strip()
        if not key or len(key.split()) != 1:
            raise ValueError("one word was expected")
    return key


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
