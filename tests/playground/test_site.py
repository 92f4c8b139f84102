"""The built static page: small, whole, and the bundled model writes in it what Python writes."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.playground.node import needs_node, write
from tests.server.browser import CHROMIUM, PATIENCE, Browser
from tools.playground import MOST, unpack

import unmask
from unmask.core.errors import UserError

# their tokens stay the same when every logit is moved by noise of 1e-4, many times what another runtime moves it
REQUESTS: list[dict[str, Any]] = [
    {"prompt": "Once upon a time", "length": 32, "steps": 6, "seed": 0, "plan": "golden"},
    {"prompt": "It was a dark and", "length": 16, "steps": 5, "seed": 0, "plan": "confidence", "temperature": 0.8},
    {"infill": "The ____ of the______sea.", "steps": 3, "seed": 1, "plan": "comb", "top_p": 0.9},
]


def test_an_archive_that_is_not_what_it_was_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not what it was"):
        unpack(b"something else", tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_folder_is_small_and_asks_nobody_else(site: Path) -> None:
    files = [path for path in site.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MOST
    assert "local.js" in (site / "engine.js").read_text()
    runtime = {path.name for path in site.glob("ort*")}
    for path in files:
        if path.suffix in (".js", ".html", ".css") and path.name not in runtime:
            assert not re.findall(r"https?://(?!www\.w3\.org)", path.read_text(encoding="utf-8")), path


@needs_node
def test_onnxruntime_web_writes_what_python_writes(site: Path) -> None:
    """For these requests; in general a last bit of a logit may decide otherwise."""
    for request, said in zip(REQUESTS, write(REQUESTS, ort=str(site), folder=str(site / "model")), strict=True):
        expected = unmask.sample("pocket", **request)
        assert said["done"]["tokens"] == expected.tokens[0].tolist()
        assert said["done"]["text"] == expected.text[0]
        assert said["done"]["log_prob"] == pytest.approx(float(expected.log_q.sum()), abs=1e-3)


@pytest.fixture
def server(site: Path) -> Iterator[ThreadingHTTPServer]:
    """The folder behind a server that knows nothing but files."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def open_with_worker(page: Any, address: str) -> None:
    """Open a page whose worker waits until its requests are heard too."""
    workers: list[str] = []

    def hear(method: str, params: dict[str, Any]) -> None:
        if method == "Target.attachedToTarget":
            workers.append(params["sessionId"])
        page.hear(method, params)

    page.browser._listeners[page.session] = hear
    page.call("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=True, flatten=True)
    page.open(address)
    end = time.monotonic() + PATIENCE
    while not workers:
        assert time.monotonic() < end, "the page starts no worker"
        time.sleep(0.02)
    page.browser._listeners[workers[0]] = page.hear
    page.browser.call("Network.enable", workers[0])
    page.browser.call("Runtime.runIfWaitingForDebugger", workers[0])


def run_in(page: Any, request: dict[str, Any], stop_after: int = 10**6) -> list[dict[str, Any]]:
    """Every message of the page's own engine; the text is stopped after so many."""
    ask = f"""(async () => {{
      const {{ run }} = await import("./engine.js"), messages = [], control = new AbortController();
      try {{
        for await (const message of run({json.dumps(request)}, control.signal)) {{
          if (messages.push(message) >= {stop_after}) control.abort();
        }}
      }} catch (error) {{
        messages.push({{ type: error.name }});
      }}
      return messages;
    }})()"""
    return page.eval(ask)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
def test_the_page_writes_in_a_browser_without_a_network(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    """A text by the form as the page is opened; with the server gone one by the engine; nobody else is asked."""
    first, second = REQUESTS[0], REQUESTS[2]
    browser, address = Browser(tmp_path / "profile"), f"http://127.0.0.1:{server.server_port}"
    try:
        page = browser.page()
        open_with_worker(page, f"{address}/#text=Once+upon+a+time&length=32&steps=6&seed=0&plan=golden")
        shown = "[...document.querySelectorAll('.tokens')].map(box => box.textContent.replaceAll('↵', '')).join('')"
        page.wait(f"{shown} === {json.dumps(unmask.sample('pocket', **first).text[0])}")
        assert [message["type"] for message in run_in(page, {"length": 64, "steps": 32}, 2)] == [
            "start",
            "step",
            "AbortError",
        ]
        server.shutdown()
        server.server_close()
        *_, done = run_in(page, {"model": "pocket", "alternatives": 3, **second})
        assert done["tokens"] == unmask.sample("pocket", **second).tokens[0].tolist()
        (error,) = run_in(page, {"model": "pocket", "infill": "no blank"})
        assert "has no blank" in error["message"]
        assert {f"{address}/model/body.onnx", f"{address}/ort-wasm-simd-threaded.wasm"} <= set(page.requests)
        assert all(asked.startswith((address, "data:")) for asked in page.requests), page.requests
        assert not page.complaints
    finally:
        browser.close()
