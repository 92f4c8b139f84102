"""What `unmask sample` shows: text as it is made, JSON lines, a view of every step, animations.

Text goes to stdout and one line about the run to stderr, so that `unmask sample > story.txt` holds only text, in UTF-8.

`--json` prints a line for each sample as soon as it is done, in order, with
    kind     "sample"
    index    its number, from 0: with the same seed, sample i is the same whatever n, batch or number of processes
    text     null if the model has no tokenizer
    tokens   token ids
    given    true for each token that was given (prompt, suffix, fixed words)
    nfe      forwards this sample took part in
    rounds   rounds of the head (only with the step law chain)
    log_q    log-probability of all drawn tokens, in nats, each under the law it was drawn from
    token_log_q   the same for each token, 0 where given
and at last the run: {"kind": "run", ...} with everything that was really used (versions, device, model, plan, grid,
NFE, dtype of the draw, seed). Both log_q are null under legacy_fp32, whose race has no law to record; under a threshold
`steps` and `grid` are null, since they were not used.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unmask.checkpoint.io import Checkpoint, load
from unmask.cli.animation import Camera, check_name, save_gif, save_html
from unmask.cli.parser import Call
from unmask.cli.watch import Watch, legible
from unmask.core.files import check_writable, write_text
from unmask.core.ranks import is_first
from unmask.plans.grids import Grid, fitted_for_another
from unmask.sampling.samples import Samples, StepView
from unmask.sampling.verbs import how_many

if TYPE_CHECKING:
    from unmask.core.progress import Progress


def present(
    call: Call,
    *,
    weights: Literal["ema", "raw"] = "ema",
    out: Path | None = None,
    json: bool = False,
    watch: bool = False,
    gif: Path | None = None,
    html: Path | None = None,
) -> None:
    """Sample, and show what is written while it is.

    Args:
        weights: the averaged weights or the raw ones, where the checkpoint has both
        out: write to this file instead of stdout
        json: print JSON lines: one for each sample as it is done, then the run
        watch: show the text appear, step by step
        gif: save how the first sample appeared as a .gif
        html: the same as a page to play in a browser
    """
    check_name(gif, ".gif")
    check_name(html, ".html")
    for target in (out, gif, html) if is_first() else ():  # who writes has to be able to
        check_writable(target)
    given = call.keywords
    checkpoint = load(given["model"], weights=weights, device_map=given["device_map"])
    n = how_many(*(given[name] for name in ("n", "prompt", "chat", "suffix", "length", "infill")))
    lines = as_json if json else partial(plain, n=n, is_terminal=sys.stdout.isatty() and out is None)
    printer = Printer(lines, waits=watch) if out is None and is_first() else None
    with _Audience(checkpoint, n, watch, film=bool(gif or html), printer=printer) as audience:
        samples = call(model=checkpoint, device_map=None, callback=audience.callback, finished=audience.finished)
    if not is_first():
        return
    every = range(len(samples))
    if printer is not None:
        printer.take(samples, every)  # those of other processes too
        printer.print_all()
        if json:
            print(json_line(kind="run", **samples.record), flush=True)
    elif out is not None:
        texts = [line for i in every for line in lines(samples, i, i)]
        texts += [json_line(kind="run", **samples.record)] if json else []
        write_text(out, "".join(f"{line}\n" for line in texts))
    audience.save(samples, Path(str(given["model"])).name, gif, html)
    print(_footer(samples, audience.seconds, str(given["grid"])), file=sys.stderr)


class _Audience:
    """Everybody who looks on while samples are made, and how long it took without them; only on the first process."""

    def __init__(self, checkpoint: Checkpoint, n: int, watch: bool, *, film: bool, printer: Printer | None) -> None:
        here = is_first()
        self.codec, self.n, self.done, self.printer = checkpoint.tokenizer, n, 0, printer
        self.camera = Camera() if film and here else None
        self.watch = Watch(self.codec) if watch and here else None
        self.bar = _bar() if here and not watch else None
        self.seconds, self._stack = 0.0, ExitStack()
        self.callback = self._show if self.camera or self.watch or self.bar else None
        self.finished = self._take if here else None

    def __enter__(self) -> _Audience:
        for one in (self.watch, self.bar):
            if one is not None:
                self._stack.enter_context(one)
        self.seconds -= time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.seconds += time.perf_counter()
        self._stack.close()
        if kind is not None and issubclass(kind, KeyboardInterrupt):  # Ctrl-C, or SIGTERM
            if self.printer:
                self.printer.print_all()
            count = len(self.printer.printed) if self.printer else 0
            raise kind(f"{count} of {self.n} texts were printed" if count else "nothing was written")

    def _show(self, view: StepView) -> None:
        began = time.perf_counter()
        if self.camera is not None:
            self.camera(view)
        if self.watch is not None:
            self.watch(view)
        if self.bar is not None:
            texts = f", {self.done} of {counted(self.n, 'text')} done" if self.n > 1 else ""
            self.bar.show(f"step{texts}", view.step, view.steps)
        self.seconds -= time.perf_counter() - began

    def _take(self, samples: Samples, indices: list[int]) -> None:
        """A batch is done."""
        began = time.perf_counter()
        self.done += len(indices)
        if self.bar is not None:
            self.bar.pause()
        if self.printer is not None:
            self.printer.take(samples, indices)
        self.seconds -= time.perf_counter() - began

    def save(self, samples: Samples, model: str, gif: Path | None, html: Path | None) -> None:
        if self.camera is None:
            return
        forwards, heat = counted(int(samples.nfe[0]), "forward"), samples.record["temperature"]
        at = "" if heat == 1 else f" · T = {heat:g}"
        film = self.camera.film(self.codec, f"{model} · {_order(samples.record)} · {forwards}{at}")
        if gif is not None:
            save_gif(film, gif)
        if html is not None:
            save_html(film, html)


def _bar() -> Progress | None:
    """The step under way, where stderr is a terminal; elsewhere rich is not even loaded."""
    if not sys.stderr.isatty():
        return None
    from unmask.core.progress import Progress

    bar = Progress(transient=True)
    return bar if bar.is_bar else None


def _footer(samples: Samples, seconds: float, grid_name: str) -> str:
    """One line about the run, and one before it on a grid that was fitted for another plan."""
    n, drawn, record = len(samples), int((~samples.given).sum()), samples.record
    many = f"{n} texts, " if n > 1 else ""
    plan, rounds = _order(record), record["rounds"]
    beside = f" and {counted(rounds['mean'], 'round')} of the head (at most {rounds['most']})" if rounds else ""
    grid = record["grid"] and Grid(**record["grid"])
    note = grid and fitted_for_another(grid, plan, f"{plan}@{grid_name}")
    return (f"{note}\n" if note else "") + (
        f"{many}{counted(drawn, 'token')} in {seconds:.2f} s ({drawn / seconds:,.0f} tokens/s) · "
        f"{counted(record['nfe'], 'forward')}{beside}{nats(samples, [*range(n)])} · "
        f"{plan}, drawn in {record['draw']} · seed {record['seed']} · {record['device']}"
    )


def _order(record: dict[str, Any]) -> str:
    """The plan that was gone by, or the process that goes by none."""
    return str(record["plan"]["name"] if record["plan"] else record["process"]["name"])


def counted(number: float, thing: str) -> str:
    """1 token, 2 tokens, 12.5 forwards."""
    shown = f"{number:,}" if isinstance(number, int) else f"{number:.4g}"
    return f"{shown} {thing}" + ("" if number == 1 else "s")


def nats(samples: Samples, rows: Sequence[int]) -> str:
    """Nats of a drawn token over some samples; nothing for a draw that has no law."""
    drawn = ~samples.given[rows]
    per_token = 0.0 - float(samples.log_q[rows][drawn].mean())  # no -0.000 at temperature 0
    return "" if per_token != per_token else f" · {per_token:.3f} nats/token"


def plain(samples: Samples, row: int, index: int, n: int, is_terminal: bool = False) -> Iterator[str]:
    """The text of a row, which is sample `index` of n; if there are several, with a rule above."""
    if index:
        yield ""
    if n > 1:
        rule = f"── {index + 1} of {n} · {counted(int(samples.nfe[row]), 'forward')}{nats(samples, [row])} "
        rule = f"{rule:─<72}"
        yield f"\x1b[2m{rule}\x1b[0m" if is_terminal else rule
    if samples.text:
        yield legible(samples.text[row]) if is_terminal else samples.text[row]
    else:
        yield " ".join(str(token) for token in samples.tokens[row].tolist() if token >= 0)


def as_json(samples: Samples, row: int, index: int) -> Iterator[str]:
    """A sample as a line of JSON; see cli/sample.py."""
    is_real = samples.tokens[row] >= 0  # shorter samples are padded
    log_q = samples.log_q[row][is_real]
    has_law = not bool(log_q.isnan().any())
    yield json_line(
        kind="sample", index=index, text=samples.text[row] if samples.text else None,
        tokens=samples.tokens[row][is_real].tolist(), given=samples.given[row][is_real].tolist(),
        nfe=int(samples.nfe[row]), log_q=float(log_q.sum()) if has_law else None,
        token_log_q=log_q.tolist() if has_law else None,
        **({} if samples.rounds is None else {"rounds": int(samples.rounds[row])}),
    )  # fmt: skip


def json_line(**content: Any) -> str:
    return dumps(content, ensure_ascii=False, allow_nan=False)


class Printer:
    """Prints the `lines` of samples to stdout in their order, whatever that of batches; one that waits does so at the
    end."""

    def __init__(self, lines: Callable[[Samples, int, int], Iterator[str]], waits: bool = False) -> None:
        self._lines, self._waits = lines, waits
        self._waiting: dict[int, list[str]] = {}
        self.printed: set[int] = set()

    def take(self, samples: Samples, indices: Sequence[int]) -> None:
        """Samples that are done; prints all that have no gap before them."""
        for row, index in enumerate(indices):
            if index not in self.printed:
                self._waiting[index] = list(self._lines(samples, row, index))
        while not self._waits and (index := len(self.printed)) in self._waiting:
            self._print(index)

    def print_all(self) -> None:
        """All that are done, gaps or not: no more will come."""
        for index in sorted(self._waiting):
            self._print(index)

    def _print(self, index: int) -> None:
        for line in self._waiting.pop(index):
            print(line)
        sys.stdout.flush()
        self.printed.add(index)
