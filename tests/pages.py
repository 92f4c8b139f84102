"""The page in a real browser: as `unmask play` serves it, and as `make playground` builds it."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.playground.host import Host
from tests.server.browser import CHROMIUM, Browser, Page


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    one = Browser(tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab of its own, whose visitor wants no motion: a text is there at once. The console stays clean."""
    tab = browser.page()
    tab.media(prefers_reduced_motion="reduce")
    yield tab
    complaints = tab.complaints
    tab.close()
    assert complaints == []


@pytest.fixture(scope="session")
def played() -> Iterator[str]:
    """The address that `unmask play` prints."""
    command = [sys.executable, "-m", "unmask", "play", "--no_browser", "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert address, line
        yield address[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The static page's folder, built once for all tests of it."""
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install 'unmask[export]'")
    from tools.playground import build

    from unmask.core.errors import UserError

    target = tmp_path_factory.mktemp("playground") / "site"
    try:
        build(target)
    except UserError as error:
        if "npm" not in str(error):
            raise
        pytest.skip(f"the runtime of the static page cannot be had here: {error}")
    return target


@pytest.fixture
def host(site: Path) -> Iterator[Host]:
    """The static page behind a server that knows nothing but files."""
    with Host(site) as made:
        yield made


@pytest.fixture(params=["served", "static"])
def either(request: pytest.FixtureRequest, browser: Browser) -> str:
    """The address of the one page and of the other, which do the same."""
    return request.getfixturevalue("played") if request.param == "served" else request.getfixturevalue("host").address
