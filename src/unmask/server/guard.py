"""What stands before every request: who may ask, how much, and how slowly.

A page of somebody else's must not use a server on this machine: its Host must be one of ours, which DNS cannot change
(a name that is made to point to 127.0.0.1 keeps its own), and its Origin, where a browser says one, the server's own.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from unmask.server.limits import LOCAL, Limits
from unmask.server.metrics import Requests

CLIENT_GONE = 499  # nobody reads it; it stands in the metrics
CLOSED = ("/v1/", "/metrics")  # what needs the key; the page does not


class Denied(Exception):
    """A request that is not let through."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    def response(self) -> JSONResponse:
        # after 408 and 413 what is left of the body is not read
        closing = {"connection": "close"} if self.status in (408, 413) else {}
        asking = {"www-authenticate": "Bearer"} if self.status == 401 else {}
        return JSONResponse(error_body(str(self), self.status), self.status, {**closing, **asking})


@dataclass(frozen=True)
class Guard:
    """An ASGI app in front of another."""

    app: ASGIApp
    limits: Limits
    requests: Requests
    hosts: Sequence[str] = LOCAL  # * is any
    origins: Sequence[str] = ()  # beside the server's own, such as https://example.org; * is any
    key: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":  # there are no websockets here
            return None
        began, status = time.perf_counter(), 0

        async def counted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await self._send(send, message)

        self.requests.running += 1
        try:
            headers = Headers(scope=scope)
            self._check(headers, scope["path"])
            body = await self._body(headers, receive)
            await self.app(scope, _with_body(body, receive), counted)
        except Denied as denied:
            await denied.response()(scope, receive, counted)
        except ConnectionError:
            status = CLIENT_GONE
        finally:
            self.requests.running -= 1
            self.requests.done(scope["path"], status or 500, time.perf_counter() - began)

    def _check(self, headers: Headers, path: str) -> None:
        host = _name("//" + headers.get("host", ""))
        if "*" not in self.hosts and host not in self.hosts:
            raise Denied(421, f"this server does not answer for the host {host!r}")
        origin = headers.get("origin")
        own = origin is not None and urlsplit(origin).netloc == headers.get("host")
        if origin is not None and not own and origin not in self.origins and "*" not in self.origins:
            raise Denied(403, f"pages of {origin!r} may not use this server")
        if self.key is not None and path.startswith(CLOSED):
            kind, _, given = headers.get("authorization", "").partition(" ")
            right = hmac.compare_digest(given.encode("latin-1"), self.key.encode("utf-8"))
            if kind.lower() != "bearer" or not right:
                raise Denied(401, "give the API key: Authorization: Bearer KEY")

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """The whole body, if it is small enough and comes in time."""
        too_large = Denied(413, f"a request has at most {self.limits.max_body} bytes here")
        size = headers.get("content-length", "0")
        if size.isdecimal() and int(size) > self.limits.max_body:
            raise too_large
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self.limits.patience):
                more = True
                while more:
                    got = await receive()
                    if got["type"] == "http.disconnect":
                        raise ConnectionError
                    parts.append(got.get("body", b""))
                    more = got.get("more_body", False)
                    if sum(map(len, parts)) > self.limits.max_body:
                        raise too_large
        except TimeoutError:
            raise Denied(408, f"the request was not sent within {self.limits.patience:g} s") from None
        return b"".join(parts)

    async def _send(self, send: Send, message: Message) -> None:
        """A client that does not take what it is sent is let go."""
        try:
            async with asyncio.timeout(self.limits.patience):
                await send(message)
        except TimeoutError:
            raise ConnectionError("the client does not take its answer") from None


def _name(netloc: str) -> str:
    """A host without its port and brackets."""
    try:
        return urlsplit(netloc).hostname or ""
    except ValueError:
        return ""


def _with_body(body: bytes, receive: Receive) -> Receive:
    """The body that was read, then whatever else the client does."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return left.pop() if left else await receive()

    return received


def error_body(message: str, status: int, param: str | None = None) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(
        status, "invalid_request_error" if status < 500 else "server_error"
    )
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}
