"""The listening half: a socket, uvicorn on it, and an end in which what runs is finished."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from unmask.core.errors import UserError
from unmask.server.limits import Limits

BACKLOG = 2048


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 is any that is free."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot listen on {host}, port {port} ({reason}): give another --port or --host") from error


def address_of(listening: socket.socket) -> str:
    """What to type into a browser."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: FastAPI, limits: Limits) -> uvicorn.Server:
    config = uvicorn.Config(
        app, http=_patient(limits.patience), ws="none", lifespan="on", log_level="warning", access_log=False,
        timeout_graceful_shutdown=int(limits.grace) + 1, backlog=BACKLOG, server_header=False,
    )  # fmt: skip
    return uvicorn.Server(config)


def run(app: FastAPI, listening: socket.socket, limits: Limits) -> None:
    """Serve until SIGINT or SIGTERM, then finish what runs; a second signal ends at once."""
    _allow_many_files()
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again once all is finished
        make_server(app, limits).run(sockets=[listening])


def _patient(patience: float) -> type[Any]:
    """HTTP/1.1 that closes a connection whose request does not begin in time: nobody may hold many open for nothing."""

    class Patient(H11Protocol):
        timer: Any = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.watch_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.watch_head()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self.stop_watching()

        def watch_head(self) -> None:
            if self.conn.their_state is not h11.IDLE:
                self.stop_watching()
            elif self.timer is None:
                self.timer = self.loop.call_later(patience, self.transport.close)

        def stop_watching(self) -> None:
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

    return Patient


def _allow_many_files() -> None:
    """A connection is an open file; many systems allow 1024 unless asked."""
    try:
        import resource
    except ImportError:  # not Unix
        return
    with contextlib.suppress(ValueError, OSError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
