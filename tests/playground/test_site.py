"""The built static page: small, whole, and the bundled model writes in it what Python writes."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.playground.host import PATIENCE, Host
from tests.playground.node import needs_node, write
from tests.server.browser import Page
from tools.playground import MOST, unpack

import unmask
from unmask.core.errors import UserError

# their tokens stay the same when every logit is moved by noise of 1e-4, many times what another runtime moves it
REQUESTS: list[dict[str, Any]] = [
    {"prompt": "Once upon a time", "length": 32, "steps": 6, "seed": 0, "plan": "golden"},
    {"prompt": "It was a dark and", "length": 16, "steps": 5, "seed": 0, "plan": "confidence", "temperature": 0.8},
    {"infill": "The ____ of the______sea.", "steps": 3, "seed": 1, "plan": "comb", "top_p": 0.9},
]
LINK = "#text=Once+upon+a+time&length=32&steps=6&seed=0&plan=golden"  # the first of them
SHOWN = "[...document.querySelectorAll('.tokens')].map(box => box.textContent.replaceAll('↵', '')).join('')"


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


def test_the_page_writes_without_a_network(page: Page, host: Host, site: Path) -> None:
    """A text by the form as the page is opened; with the host gone one by the engine; nobody else is asked."""
    first, second = REQUESTS[0], REQUESTS[2]
    open_with_worker(page, f"{host.address}/{LINK}")
    page.wait(f"{SHOWN} === {json.dumps(unmask.sample('pocket', **first).text[0])}")
    stopped = run_in(page, {"length": 64, "steps": 32}, 2)
    assert [message["type"] for message in stopped] == ["start", "step", "AbortError"]
    host.end()
    *_, done = run_in(page, {"model": "pocket", "alternatives": 3, **second})
    assert done["tokens"] == unmask.sample("pocket", **second).tokens[0].tolist()
    (error,) = run_in(page, {"model": "pocket", "infill": "no blank"})
    assert "has no blank" in error["message"]
    assert {f"{host.address}/{name}" for name in json.loads((site / "files.json").read_text())} <= set(page.requests)
    assert all(asked.startswith((host.address, "data:")) for asked in page.requests), page.requests


def test_the_page_says_how_much_of_the_model_is_there(page: Page, host: Host, site: Path) -> None:
    """Until it can write; then the line is gone and the text is there."""
    sizes = json.loads((site / "files.json").read_text())
    assert {name: (site / name).stat().st_size for name in sizes} == sizes
    host.late = "/model/body.onnx"
    page.open(f"{host.address}/{LINK}")
    total, there = sum(sizes.values()), sum(sizes.values()) - sizes["model/body.onnx"]
    line = f"Loading the model: {there // 10**6} of {round(total / 1e6)} MB"
    page.wait(
        f"document.querySelector('#wait').checkVisibility() && document.querySelector('#wait').textContent === '{line}'"
    )
    assert page.eval("document.querySelectorAll('.tokens span').length") == 0
    host.go_on.set()
    page.wait(f"{SHOWN} === {json.dumps(unmask.sample('pocket', **REQUESTS[0]).text[0])}")
    assert page.eval("document.querySelector('#wait').hidden && document.querySelector('#player').checkVisibility()")


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("/model/head.onnx", "The model cannot be loaded (model/head.onnx: 404). Reload the page to try again."),
        ("/ort-wasm-simd-threaded.mjs", "The model cannot be loaded (no available backend found."),
        ("/ort.wasm.min.mjs", "The model cannot be started in this browser. Reload the page to try again."),
    ],
)
def test_a_model_that_cannot_be_loaded_is_one_line(page: Page, host: Host, missing: str, said: str) -> None:
    """Each time that a text is asked for, until the page is loaded again."""
    host.missing, line = missing, "document.querySelector('#error').textContent"
    page.open(f"{host.address}/{LINK}")
    for _ in range(2):
        page.wait(f"{line}.startsWith({json.dumps(said)}) && !{line}.includes('\\n')")
        assert page.eval("document.querySelector('#wait').hidden && document.querySelector('#player').hidden")
        page.eval(f"{line.removesuffix('.textContent')}.textContent = ''")
        page.click("#write")
    host.missing = ""
    page.call("Page.reload")
    page.wait(f"{SHOWN} === {json.dumps(unmask.sample('pocket', **REQUESTS[0]).text[0])}")
    page.complaints.clear()  # the browser's own note of what is missing
