"""A tiny model with an engine, and a live server on the loopback."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest
import torch

from unmask.checkpoint.io import Checkpoint
from unmask.data.tokenizer import Tokenizer
from unmask.models.dit.network import DiT
from unmask.server.app import create_app
from unmask.server.engine import Engine
from unmask.server.limits import Limits
from unmask.server.listen import address_of, make_server, open_socket

LENGTH = 48


def tiny(length: int = LENGTH, seed: int = 0) -> Checkpoint:
    """A DiT with random weights over bytes: every text can be spelled, and laws are far from even."""
    tokenizer = Tokenizer.train(["a"], 257)
    torch.manual_seed(seed)
    model = DiT(tokenizer.size + 1, length, hidden=32, cond=8, blocks=2, heads=2, dropout=0.0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if not bool(parameter.any()):
                parameter.normal_(std=0.4)
    return Checkpoint(model, tokenizer=tokenizer)


@pytest.fixture(scope="session")
def checkpoint() -> Checkpoint:
    return tiny()


@pytest.fixture
def engine(checkpoint: Checkpoint) -> Iterator[Engine]:
    made = Engine(checkpoint, "tiny", torch.device("cpu"))
    made.start()
    yield made
    made.stop(0)


@contextmanager
def listening(checkpoint: Checkpoint, limits: Limits | None = None, **how: Any) -> Iterator[str]:
    """A live server on the loopback; gives its address. When it ends, nothing may be left of what ran."""
    limits = limits or Limits(patience=5, timeout=30, grace=5)
    models, batch = {"tiny": checkpoint, **how.pop("others", {})}, how.pop("batch", None)
    place = torch.device("cpu")
    engines = {name: Engine(one, name, place, batch=batch, limits=limits) for name, one in models.items()}
    server = make_server(create_app(engines, limits=limits, **how), limits)
    with open_socket("127.0.0.1", 0) as bound:
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        address = address_of(bound)
        for _ in range(200):
            with suppress(httpx.HTTPError):
                httpx.get(f"{address}/health")
                break
            time.sleep(0.02)
        try:
            yield address
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()
            assert not engines["tiny"].live


@pytest.fixture(scope="module")
def address(checkpoint: Checkpoint) -> Iterator[str]:
    with listening(checkpoint) as found:
        yield found


def numbers(address: str, **headers: str) -> dict[str, float]:
    """The metrics, by their whole name."""
    lines = httpx.get(f"{address}/metrics", headers=headers).text.splitlines()
    return {name: float(value) for name, value in (one.rsplit(" ", 1) for one in lines if not one.startswith("#"))}
