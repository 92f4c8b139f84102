"""Texts as they come: each is printed once it and those before it are done, so that an interrupt loses none of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from json import dumps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask.sampling.samples import Samples


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
    from unmask.cli.watch import legible

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
