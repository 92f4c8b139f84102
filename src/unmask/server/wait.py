"""From the engine's thread to a request: events of its texts one after the other, within its time, while it listens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.requests import Request

from unmask.core.errors import UserError
from unmask.server.engine import Engine, Event, Failed, Finished, Sink, Stepped, Task, Ticket


class TimedOut(Exception):
    """A text was not done in time."""


class Fault(Exception):
    """The server could not write a text."""


class Gone(Exception):
    """The client has closed its connection."""


class Texts:
    """The texts of one request. As a context: whoever leaves it, by an error or a disconnect too, frees their slots."""

    def __init__(self, engine: Engine, tasks: Sequence[Task], timeout: float) -> None:
        loop, self.timeout = asyncio.get_running_loop(), timeout
        self.deadline = time.monotonic() + timeout
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._open = set(range(len(tasks)))

        def sink(number: int) -> Sink:
            def put(event: Event) -> None:
                loop.call_soon_threadsafe(self._events.put_nowait, (number, event))

            return put

        self.tickets: list[Ticket] = engine.submit_all([(task, sink(i)) for i, task in enumerate(tasks)])

    def __enter__(self) -> Texts:
        return self

    def __exit__(self, *_: object) -> None:
        for ticket in self.tickets:
            ticket.cancel()

    def leave(self, number: int) -> None:
        """Nothing more of this text is wanted."""
        self.tickets[number].cancel()
        self._open.discard(number)

    async def events(self) -> AsyncIterator[tuple[int, Stepped | Finished]]:
        """(number of the text, event) until every text is done or was left; the first that fails is an error."""
        while self._open:
            try:
                async with asyncio.timeout(max(0.0, self.deadline - time.monotonic())):
                    number, event = await self._events.get()
            except TimeoutError:
                raise TimedOut(f"not done within {self.timeout:g} s: ask for less, or later") from None
            if number not in self._open:
                continue
            if isinstance(event, Failed):
                raise Fault(event.message) if event.fault else UserError(event.message)
            if isinstance(event, Finished):
                self._open.discard(number)
            yield number, event


@asynccontextmanager
async def while_listening(request: Request) -> AsyncIterator[None]:
    """Stop the block once the client has gone: a plain answer, unlike a stream, would not notice."""
    task = asyncio.current_task()
    assert task is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await request.receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if gone:
            task.uncancel()
            raise Gone("the client has gone") from None
        raise
    finally:
        watcher.cancel()
