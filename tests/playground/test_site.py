"""The built static page: small, whole, and the bundled model writes in it what Python writes."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.playground.node import needs_node, write
from tests.server.browser import CHROMIUM, Browser
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
def address(site: Path) -> Iterator[str]:
    """The folder behind a server that knows nothing but files."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def run_in(page: Any, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Every message of the page's own engine."""
    ask = f"""(async () => {{
      const {{ run }} = await import("./engine.js"), messages = [];
      for await (const message of run({json.dumps(request)})) messages.push(message);
      return messages;
    }})()"""
    return page.eval(ask)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
def test_the_page_writes_in_a_browser_without_a_network(address: str, tmp_path: Path) -> None:
    """A text by the form as the page is opened; then offline one by the engine; nobody else is asked."""
    first, second = REQUESTS[0], REQUESTS[2]
    browser = Browser(tmp_path / "profile")
    try:
        page = browser.page()
        page.open(f"{address}/#text=Once+upon+a+time&length=32&steps=6&seed=0&plan=golden")
        expected = unmask.sample("pocket", **first)
        shown = "[...document.querySelectorAll('.tokens')].map(box => box.textContent.replaceAll('↵', '')).join('')"
        page.wait(f"{shown} === {json.dumps(expected.text[0])}")
        page.call(
            "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1
        )
        *_, done = run_in(page, {"model": "pocket", "alternatives": 3, **second})
        assert done["tokens"] == unmask.sample("pocket", **second).tokens[0].tolist()
        (error,) = run_in(page, {"model": "pocket", "infill": "no blank"})
        assert "has no blank" in error["message"]
        assert page.requests
        assert all(asked.startswith((address, "data:")) for asked in page.requests), page.requests
        assert not page.complaints
    finally:
        browser.close()
