"""`unmask bench serve`: requests a second of clients that ask at once, against calls of `sample` one at a time.

The engine is driven in this process, or over HTTP on the loopback, by so many clients, each of which asks again as soon
as it has its answer. Every text is then compared with the one that the same request gives alone.
"""

from __future__ import annotations

import gc
import json as json_
import math
import os
import queue
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unmask.bench.timing import Columns, Preset, Row, chosen_model, report
from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError
from unmask.core.ranks import pick_device
from unmask.sampling.drafts import How
from unmask.sampling.verbs import plan_and_grid, sample
from unmask.server.engine import Engine, Finished, Task
from unmask.server.limits import Limits


@dataclass(frozen=True)
class Load:
    """What is asked for: request i is one text with seed i."""

    checkpoint: Checkpoint
    length: int
    steps: int
    requests: int
    clients: int

    def alone(self, seed: int, **how: Any) -> list[int]:
        written = sample(self.checkpoint, 1, self.steps, length=self.length, seed=seed, **how)
        return written.tokens[0].tolist()


@dataclass(frozen=True)
class Measured:
    """Seconds in all and of each request, tokens by request, errors, growth of memory in MiB after the first half."""

    seconds: float
    each: list[float]
    tokens: dict[int, list[int]]
    errors: int
    growth: float


def serve(
    *,
    preset: Preset | None = None,
    model: str | None = None,
    clients: int = 32,
    requests: int = 256,
    length: int | None = None,
    steps: int = 8,
    alone: int = 32,
    http: bool = False,
    device: str = "auto",
    compile: bool | None = None,
    alone_compile: bool = False,
    json: bool = False,
) -> dict[str, Any]:
    """Ask an engine by many clients at once, and `sample` one at a time, for the same texts.

    Args:
        preset: the model's shape, with random weights: speed does not depend on what it learnt (default: pocket)
        model: a checkpoint instead
        clients: how many ask at once
        requests: how many texts in all
        length: tokens of a text (default: the model's, at most 1024)
        steps: steps of a text
        alone: how many of them are asked of `sample`, one at a time, and compared
        http: ask over HTTP on the loopback instead of within the process; needs FastAPI and uvicorn
        device: where to run: auto, cpu, cuda or mps
        compile: compile the engine's body, by default on a GPU only
        alone_compile: compile it for the calls of `sample` too, which by default it is not
        json: print JSON instead of a table
    """
    place = pick_device(device)
    if min(clients, requests, steps, alone) < 1:
        raise UserError("clients, requests, steps and alone must be at least 1")
    checkpoint = chosen_model(model, preset)
    longest = min(checkpoint.model.length, 1024)
    if length is not None and not 1 <= length <= longest:
        raise UserError(f"length must be between 1 and {longest}, not {length}")
    load = Load(checkpoint, length or longest, steps, requests, clients)
    compiled = place.type == "cuda" if compile is None else compile
    engine = Engine(
        checkpoint, "model", place, compile=compiled, batch=min(clients, 32), limits=Limits(max_queue=10**6)
    )
    together = _over_http(engine, load) if http else _in_process(engine, load)
    lines, equal = _lines(load, together, alone, place, alone_compile)
    facts: Row = {
        "faster": lines[0]["per_second"] / lines[1]["per_second"], "equal": equal, "errors": together.errors,
        "growth_mib": together.growth, "rows_a_forward": engine.counts.rows / max(1, engine.counts.forwards),
        "http": http, "clients": clients,
    }  # fmt: skip
    columns: Columns = {
        "": lambda row: row["name"],
        "requests/s": lambda row: f"{row['per_second']:.1f}",
        "tokens/s": lambda row: f"{row['per_second'] * load.length:,.0f}",
        "p50 s": lambda row: f"{row['p50']:.3f}",
        "p99 s": lambda row: f"{row['p99']:.3f}",
    }
    return report(
        lines, checkpoint.model, place, f"{clients} clients on {{device}}, {load.length} tokens, {steps} steps",
        columns, _words(facts, alone, requests), as_json=json, facts=facts,
        steps=steps, length=load.length, requests=requests,
    )  # fmt: skip


def _lines(load: Load, together: Measured, alone: int, place: torch.device, compile: bool) -> tuple[list[Row], float]:
    """The rows of the table, and the share of texts that are those alone."""
    count = min(alone, load.requests)
    rows = [_row(f"{load.clients} clients", together.each, together.seconds)]
    how: dict[str, Any] = {"device": place.type, "compile": compile, "batch": 1}
    load.alone(0, **how)  # made ready
    each, equal = [], 0
    for seed in range(count):
        began = time.perf_counter()
        found = load.alone(seed, **how)
        each.append(time.perf_counter() - began)
        equal += together.tokens.get(seed) == found
    rows.append(_row(f"sample, one at a time{', compiled' if compile else ''}", each, sum(each)))
    return rows, equal / count


def _row(name: str, each: list[float], seconds: float) -> Row:
    cuts = statistics.quantiles(each, n=100, method="inclusive") if len(each) > 1 else each * 99
    return {"name": name, "per_second": len(each) / seconds, "p50": cuts[49], "p99": cuts[98], "requests": len(each)}


def _words(facts: Row, alone: int, requests: int) -> list[str]:
    grown = facts["growth_mib"]
    growth = "" if math.isnan(grown) else f"; memory {grown:+.1f} MiB over the second half"
    return [
        f"{facts['faster']:.2f}x the requests of one at a time; {facts['rows_a_forward']:.1f} texts a forward",
        f"{facts['equal']:.1%} of {min(alone, requests)} texts are equal to the same request alone",
        f"{facts['errors']} errors in {requests} requests{growth}",
    ]


def _in_process(engine: Engine, load: Load) -> Measured:
    """Every client submits a task and waits for its end."""
    checkpoint = load.checkpoint
    plan, grid = plan_and_grid(checkpoint.process, None, None, load.steps)
    blank_L = torch.full((load.length,), -1)

    def ask(seed: int) -> list[int] | None:
        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        engine.submit(Task(How(checkpoint, plan, grid, seed=seed), 0, blank_L), inbox.put)
        event = inbox.get()
        return event.tokens if isinstance(event, Finished) else None

    engine.start()
    try:
        return _measure(ask, load)
    finally:
        engine.stop()


def _over_http(engine: Engine, load: Load) -> Measured:
    """Every client keeps a connection, over which it posts a request after the other."""
    import http.client

    here = threading.local()
    with _listening(engine) as (host, port), ExitStack() as opened:

        def ask(seed: int) -> list[int] | None:
            if not hasattr(here, "connection"):
                here.connection = http.client.HTTPConnection(host, port, timeout=120)
                opened.callback(here.connection.close)
            tokens = [None] * load.length
            body = json_.dumps({"model": "model", "tokens": tokens, "steps": load.steps, "seed": seed})
            try:
                here.connection.request("POST", "/v1/infill", body, {"Content-Type": "application/json"})
                answer = here.connection.getresponse()
                content = json_.loads(answer.read())
            except (OSError, http.client.HTTPException, ValueError):
                here.connection.close()  # opened again by the next request
                return None
            return content["choices"][0]["tokens"] if answer.status == 200 else None

        return _measure(ask, load)


@contextmanager
def _listening(engine: Engine) -> Iterator[tuple[str, int]]:
    from unmask.server.app import create_app
    from unmask.server.listen import make_server, open_socket

    limits = Limits(max_queue=10**6)
    server = make_server(create_app({"model": engine}, limits=limits), limits)
    with open_socket("127.0.0.1", 0) as bound:
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            yield bound.getsockname()[:2]
        finally:
            server.should_exit = True
            thread.join()


def _measure(ask: Callable[[int], list[int] | None], load: Load) -> Measured:
    """Warm up with two rounds of all clients, then two halves, after each of which memory is looked at."""
    each: list[float] = [0.0] * load.requests
    tokens: dict[int, list[int]] = {}

    def timed(seed: int) -> None:
        began = time.perf_counter()
        found = ask(seed)
        each[seed] = time.perf_counter() - began
        if found is not None:
            tokens[seed] = found

    seconds, held = 0.0, []
    with ThreadPoolExecutor(load.clients) as pool:
        list(pool.map(ask, range(-2 * load.clients, 0)))
        half = load.requests // 2
        for part in (range(half), range(half, load.requests)):
            began = time.perf_counter()
            list(pool.map(timed, part))
            seconds += time.perf_counter() - began
            held.append(_memory())
    kept = (load.requests - half) * load.length * 8 / 2**20  # by this bench itself, in the second half
    return Measured(seconds, each, tokens, load.requests - len(tokens), held[1] - held[0] - kept)


def _memory() -> float:
    """MiB that this process holds; not a number where the system does not say."""
    gc.collect()
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return float("nan")
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
