"""The HTTP app: its addresses, and how a mistake is answered."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from torch import nn

from unmask.core.errors import UserError, unknown
from unmask.models.family import plain
from unmask.plans.plan import PLANS
from unmask.server.ask import DraftAsked, draft_task
from unmask.server.drafts import stream_drafts
from unmask.server.engine import Engine, Refused
from unmask.server.guard import Guard, error_body
from unmask.server.limits import LOCAL, Limits
from unmask.server.wait import Gone, Texts, TimedOut

EVENTS = "text/event-stream"
CLIENT_GONE = 499  # nobody reads it; it stands in the metrics


def create_app(
    engines: Mapping[str, Engine], *, limits: Limits | None = None, hosts: Sequence[str] = LOCAL,
    origins: Sequence[str] = (), key: str | None = None, page: Path | None = None,
) -> FastAPI:  # fmt: skip
    """The app in front of these engines, which start and stop with it; `page` is a folder that is shown at /."""
    limits = limits or Limits()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        for engine in engines.values():
            engine.start()
        yield
        await asyncio.gather(*(asyncio.to_thread(engine.stop, limits.grace) for engine in engines.values()))

    app = FastAPI(title="unmask", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.engines, app.state.limits = engines, limits
    _add_errors(app)
    _add_routes(app, engines, limits)
    if page is not None:
        app.mount("/", StaticFiles(directory=page, html=True))
    app.add_middleware(Guard, limits=limits, hosts=hosts, origins=origins, key=key)
    return app


def engine_named(engines: Mapping[str, Engine], name: str) -> Engine:
    if name not in engines:
        raise HTTPException(404, str(unknown("model", name, engines)))
    return engines[name]


def _add_routes(app: FastAPI, engines: Mapping[str, Engine], limits: Limits) -> None:
    began = int(time.time())

    @app.post("/v1/drafts")
    async def drafts(asked: DraftAsked) -> Response:
        engine = engine_named(engines, asked.model)
        task = await asyncio.to_thread(draft_task, asked, engine.checkpoint, limits)
        texts = Texts(engine, [task], limits.timeout)
        return stream_of(texts, stream_drafts(texts, asked.model, task))

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_about(name, engine, began) for name, engine in engines.items()]}

    @app.get("/v1/models/{name}")
    async def model(name: str) -> dict[str, Any]:
        return _about(name, engine_named(engines, name), began)

    @app.get("/health")
    async def health() -> JSONResponse:
        alive = all(engine.alive for engine in engines.values())
        return JSONResponse({"status": "ok" if alive else "unavailable"}, 200 if alive else 503)


def stream_of(texts: Texts, messages: AsyncIterator[str]) -> StreamingResponse:
    """Server-sent events; whoever stops listening frees the slots."""

    async def sent() -> AsyncIterator[str]:
        with texts:
            async for one in messages:
                yield one

    return StreamingResponse(sent(), media_type=EVENTS, headers={"Cache-Control": "no-store"})


def _about(name: str, engine: Engine, created: int) -> dict[str, Any]:
    checkpoint = engine.checkpoint
    model, by_plan = plain(checkpoint.model), checkpoint.process.by_plan
    parameters = sum(value.numel() for value in model.parameters()) if isinstance(model, nn.Module) else None
    about = {
        "length": checkpoint.model.length, "process": checkpoint.process.name,
        "plans": sorted(PLANS) if by_plan else [], "parameters": parameters,
    }  # fmt: skip
    return {"id": name, "object": "model", "created": created, "owned_by": "unmask", "unmask": about}


def _add_errors(app: FastAPI) -> None:
    """Every mistake as one line in OpenAI's form."""

    def answer(status: int, message: str, param: str | None = None, **headers: str) -> JSONResponse:
        return JSONResponse(error_body(message, status, param), status, headers=headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:] if not isinstance(part, int))
        if first["type"] == "json_invalid":
            return answer(400, f"the body is not valid JSON: {json.dumps(first['ctx']['error'])}")
        return answer(400, f"{where or 'the body'}: {first['msg'][0].lower()}{first['msg'][1:]}", where or None)

    @app.exception_handler(UserError)
    async def mistaken(_: Request, error: UserError) -> JSONResponse:
        return answer(400, str(error))

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        return answer(error.status_code, str(error.detail))

    @app.exception_handler(Refused)
    async def busy(_: Request, error: Refused) -> JSONResponse:
        return answer(429 if error.full else 503, str(error), **{"Retry-After": "1"})

    @app.exception_handler(TimedOut)
    async def late(_: Request, error: TimedOut) -> JSONResponse:
        return answer(504, str(error))

    @app.exception_handler(Gone)
    async def gone(_: Request, __: Gone) -> JSONResponse:
        return answer(CLIENT_GONE, "the client has gone")
