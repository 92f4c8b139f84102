"""The HTTP app: its addresses, and how a mistake is answered."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from torch import nn

from unmask.core.errors import UserError, unknown
from unmask.models.family import plain
from unmask.plans.every import PLANS_OF_EVERY
from unmask.plans.plan import PLANS, USUAL
from unmask.server.drafts import filled, stream_drafts
from unmask.server.engine import Engine, Refused, Task
from unmask.server.guard import CLIENT_GONE, Guard, error_body
from unmask.server.limits import LOCAL, Limits
from unmask.server.metrics import Requests, prometheus
from unmask.server.openai import ChatRequest, CompletionRequest, Reply, chat_tasks, completion_tasks
from unmask.server.request import DraftRequest, InfillRequest, draft_tasks, infill_tasks
from unmask.server.wait import Fault, Gone, Texts, TimedOut, while_listening

EVENTS = "text/event-stream"


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
    _add_errors(app)
    requests = Requests()
    _add_routes(app, engines, limits)
    _add_facts(app, engines, requests)
    if page is not None:
        app.mount("/", _Page(directory=page, html=True))
    app.add_middleware(Guard, limits=limits, requests=requests, hosts=hosts, origins=origins, key=key)
    return app


class _Page(StaticFiles):
    """Files that a browser asks for again: old ones must not mix with those of a newer version."""

    def file_response(self, *given: Any, **named: Any) -> Response:
        response = super().file_response(*given, **named)
        response.headers["Cache-Control"] = "no-cache"
        return response


def engine_named(engines: Mapping[str, Engine], name: str) -> Engine:
    if name not in engines:
        raise HTTPException(404, str(unknown("model", name, engines)))
    return engines[name]


def _add_routes(app: FastAPI, engines: Mapping[str, Engine], limits: Limits) -> None:
    async def submitted(body: Any, tasks_of: Callable[..., list[Task]]) -> tuple[list[Task], Texts]:
        engine = engine_named(engines, body.model)
        tasks = await asyncio.to_thread(tasks_of, body, engine.checkpoint, limits)
        return tasks, Texts(engine, tasks, limits.timeout)

    @app.post("/v1/drafts")
    async def drafts(body: DraftRequest) -> Response:
        tasks, texts = await submitted(body, draft_tasks)
        return stream_of(texts, stream_drafts(texts, body.model, tasks[0]))

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        return await replied(body, completion_tasks, request)

    @app.post("/v1/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        return await replied(body, chat_tasks, request)

    async def replied(body: Any, tasks_of: Callable[..., list[Task]], request: Request) -> Response:
        tasks, texts = await submitted(body, tasks_of)
        reply = Reply(body, tasks)
        if body.stream:
            return stream_of(texts, reply.streamed(texts))
        return await whole(texts, reply.whole(texts), request)

    @app.post("/v1/infill")
    async def infill(body: InfillRequest, request: Request) -> Response:
        tasks, texts = await submitted(body, infill_tasks)
        return await whole(texts, filled(texts, body, tasks), request)

    async def whole(texts: Texts, answer: Awaitable[dict[str, Any]], request: Request) -> Response:
        async with while_listening(request):
            with texts:
                return JSONResponse(await answer)


def _add_facts(app: FastAPI, engines: Mapping[str, Engine], requests: Requests) -> None:
    began = int(time.time())

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

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(prometheus(requests, engines), media_type="text/plain; version=0.0.4")


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
    plans = sorted(PLANS, key=lambda plan: (plan != USUAL, plan)) if by_plan else list(PLANS_OF_EVERY)
    facts = {"length": checkpoint.model.length, "process": checkpoint.process.name}
    about = {**facts, "plans": plans, "parameters": parameters}
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

    @app.exception_handler(HTTPException)
    async def not_found(_: Request, error: HTTPException) -> JSONResponse:
        return answer(error.status_code, str(error.detail))

    @app.exception_handler(Refused)
    async def busy(_: Request, error: Refused) -> JSONResponse:
        return answer(429 if error.full else 503, str(error), **{"Retry-After": "1"})

    async def failed(_: Request, error: Exception, status: int) -> JSONResponse:
        return answer(status, str(error))

    for kind, status in ((UserError, 400), (TimedOut, 504), (Fault, 500), (Gone, CLIENT_GONE)):
        app.add_exception_handler(kind, partial(failed, status=status))
