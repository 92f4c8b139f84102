"""One progress for all: a bar that fits its terminal, lines in a log, and nothing where it is not shown."""

import io
import itertools
import re

import pytest
from rich.console import Console

from unmask.core.progress import Progress


def drawn(console: Console) -> list[str]:
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]|\r", "", console.file.getvalue())  # type: ignore[attr-defined]
    return [line for line in text.split("\n") if line.strip()]


@pytest.mark.parametrize(
    ("width", "kept"), [(120, ["loss", "tokens/s", "MFU"]), (65, ["loss", "tokens/s"]), (50, ["loss"]), (40, [])]
)
def test_a_narrow_bar_keeps_the_count_and_the_time_and_gives_up_speed_first(width: int, kept: list[str]) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, soft_wrap=True)
    with Progress(console=console) as bar:
        bar.numbers(loss="5.123", **{"tokens/s": "12.3k", "MFU": "42%"})
        bar.show("training", 1200, 15000)
    last = drawn(console)[-1]
    assert re.search(r"training .* +1200/15000 .*(-:--:--|\d:\d\d:\d\d)", last)
    assert [word for word in ("loss", "tokens/s", "MFU") if word in last] == kept
    assert "…" not in last


def test_a_log_gets_lines_of_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    console, now = Console(file=io.StringIO(), width=200), [0.0]
    monkeypatch.setattr("unmask.core.progress.time.monotonic", lambda: now[0])
    with Progress(console=console) as bar:
        bar("first", 0, 2)
        bar("second", 1, 2)
        bar("third", 2, 2)  # within the same second
        bar.stage("looking", 100)(50)
        bar.end()  # at once
        bar.stage("reading", 100)(50)
        now[0] = 2
        bar.end()
        bar.numbers(loss="5.1")
        bar.show("training", 3, 9)
        bar.milestone("ELBO 2")
    said = re.sub(r"\d:\d\d", "TIME", "\n".join(drawn(console)))
    assert said == "1 of 2 done after TIME: first\nreading: done after TIME\nstep 3/9: ELBO 2, loss 5.1"
    with Progress(console=console, shown=False) as bar:
        bar("first", 1, 2)
        bar.milestone("more")
        bar.end()
    assert len(drawn(console)) == 3


def test_a_bar_leaves_the_terminal_to_others_and_comes_back() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=60, color_system=None)
    with Progress(console=console, transient=True) as bar:
        bar.show("drawing", 1, 4)
        bar.pause()
        console.print("a text")
        bar.show("drawing", 2, 4)
    words = re.findall(r"a text|[12]/4", "\n".join(drawn(console)))
    assert [word for word, _ in itertools.groupby(words)] == ["1/4", "a text", "2/4"]
