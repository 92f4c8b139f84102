"""A real browser for tests: Chromium without a window, driven by its DevTools protocol over a pipe."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHROMIUM = next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--disable-extensions", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE = 60.0  # seconds that anything may take on a busy machine
KEYS = {"Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39,
        "ArrowDown": 40, "Tab": 9}  # fmt: skip
TEXTS = {"Enter": "\r", " ": " "}


class Browser:
    """Chromium with a fresh profile. Messages go through file descriptors 3 and 4, each ended by a zero byte."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        (its_in, ours_out), (ours_in, its_out) = os.pipe(), os.pipe()
        high = [fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (its_in, its_out)]  # so that neither is 3 or 4 already
        command = ["bash", "-c", f'exec "$@" 3<&{high[0]} 4>&{high[1]}', "chromium", CHROMIUM, *FLAGS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}"],
            pass_fds=high, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        for one in (its_in, its_out, *high):
            os.close(one)
        self._out, self._in = os.fdopen(ours_out, "wb", buffering=0), os.fdopen(ours_in, "rb")
        self._news = threading.Condition()
        self._answers: dict[int, dict[str, Any]] = {}
        self._listeners: dict[str, Callable[[str, dict[str, Any]], None]] = {}
        self._count = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        rest = b""
        while chunk := self._in.read1(1 << 16):
            *whole, rest = (rest + chunk).split(b"\0")
            for message in map(json.loads, whole):
                if "id" not in message:
                    listener = self._listeners.get(message.get("sessionId", ""))
                    if listener:
                        listener(message["method"], message["params"])
                    continue
                with self._news:
                    self._answers[message["id"]] = message
                    self._news.notify_all()

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._count += 1
        number, message = self._count, {"id": self._count, "method": method, "params": params}
        self._out.write(json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        with self._news:
            assert self._news.wait_for(lambda: number in self._answers, PATIENCE), f"no answer to {method}"
            answer = self._answers.pop(number)
        assert "error" not in answer, f"{method}: {answer}"
        return answer["result"]

    def page(self, width: int = 1280, height: int = 900) -> Page:
        """A new tab of its own, with nothing kept from another."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, context)
        self._listeners[session] = page.hear
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        return page

    def close(self) -> None:
        """End it with all its processes."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        self._out.close()
        self._in.close()


class Page:
    """A tab: it is looked at, clicked and typed into. Remembers every request and every complaint of its console."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self.browser, self.session, self.context = browser, session, context
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def hear(self, method: str, params: dict[str, Any]) -> None:
        """Events, on the thread that reads."""
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.complaints.append(json.dumps(params["args"]))

    def close(self) -> None:
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def media(self, **features: str) -> None:
        """What the visitor's system says: `prefers_color_scheme="dark"`."""
        said = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=said)

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def eval(self, expression: str) -> Any:
        """The value of an expression on the page; a promise's once it is kept."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, f"{expression}: {found['exceptionDetails']}"
        return found["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Until it is true; an element counts, and comes as an empty dictionary."""
        end = time.monotonic() + PATIENCE
        while (value := self.eval(expression)) in (None, False, 0, ""):
            assert time.monotonic() < end, f"never true: {expression}\n{self.complaints}"
            time.sleep(0.02)
        return value

    def _at(self, selector: str) -> dict[str, float]:
        """The middle of an element's first line, scrolled into view; what the scrolling sets off is over."""
        found = self.eval(
            f"(async () => {{ const one = document.querySelector({json.dumps(selector)}); if (!one) return null;"
            "one.scrollIntoView({ block: 'center', behavior: 'instant' });"
            "await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));"
            "const box = one.getClientRects()[0]; return { x: box.x + box.width / 2, y: box.y + box.height / 2 }; })()"
        )
        assert found, f"nothing matches {selector}"
        return found

    def _mouse(self, kind: str, at: dict[str, float], **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, **at, **more)

    def hover(self, selector: str) -> None:
        self._mouse("mouseMoved", self._at(selector))

    def click(self, selector: str) -> None:
        at = self._at(selector)
        self._mouse("mouseMoved", at)
        for kind in ("mousePressed", "mouseReleased"):
            self._mouse(kind, at, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """One key, to whatever has the focus."""
        about = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": KEYS[key]}
        text = {"text": TEXTS[key]} if key in TEXTS else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def type(self, selector: str, text: str) -> None:
        """Click into a field and replace what it holds."""
        self.click(selector)
        self.eval("document.activeElement.select()")
        self.call("Input.insertText", text=text)

    def choose(self, selector: str, value: str) -> None:
        """An entry of a list; its menu is the system's own, which no test can click."""
        self.eval(
            f"(() => {{ const list = document.querySelector({json.dumps(selector)}); list.value = {json.dumps(value)};"
            "list.dispatchEvent(new Event('change', { bubbles: true })); })()"
        )

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
