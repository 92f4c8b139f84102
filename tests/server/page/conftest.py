"""A browser, and `unmask play` as a person starts it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.server.browser import CHROMIUM, Browser, Page


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    one = Browser(tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.fixture
def page(browser) -> Iterator[Page]:
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
