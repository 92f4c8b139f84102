"""The settled beginning of an answer, as text: what a stream may send, and where an answer ends."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from unmask.data.tokenizer import Tokenizer
from unmask.server.engine import Change, Finished, Stepped, Task
from unmask.server.wait import Texts

BROKEN = "�"  # bytes that are no character, or not yet


@dataclass
class Answer:
    """The blanks of one text from `start` to `end`."""

    tokenizer: Tokenizer
    start: int
    end: int
    stops: Sequence[str] = ()
    settles: bool = True  # a token that is drawn stays; else all is open until the end
    drawn: dict[int, Change] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)  # settled, without what ends an answer
    text: str = ""  # what may be sent
    reason: Literal["stop", "length"] | None = None
    nfe: int = 0
    rounds: int | None = None  # of a chain's head, once the text is done

    @classmethod
    def of(cls, task: Task, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> Answer:
        """The first run of blanks of a template."""
        blank = (task.given_L < 0).tolist()
        start = blank.index(True)
        end = blank.index(False, start) if False in blank[start:] else len(blank)
        return cls(tokenizer, start, end, stops, task.how.checkpoint.process.by_plan)

    def take(self, event: Stepped | Finished) -> str:
        self.nfe, before = event.nfe, self.text
        if isinstance(event, Stepped):
            self.drawn |= {change.position: change for change in event.changes}
            if not self.settles:
                return ""
        else:
            self.rounds = event.rounds
            for at in range(self.start, self.end):
                if at not in self.drawn or self.drawn[at].token != event.tokens[at]:
                    self.drawn[at] = Change(at, event.tokens[at], event.log_q[at])
        self._settle(last=isinstance(event, Finished))
        return self.text[len(before) :]

    def _settle(self, last: bool) -> None:
        while (at := self.start + len(self.tokens)) < self.end and at in self.drawn:
            if self.drawn[at].token in self.tokenizer.stop_ids:
                self.reason = "stop"
                break
            self.tokens.append(self.drawn[at].token)
        text = self.tokenizer.decode(self.tokens)
        found = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        if found:
            self.text, self.reason = text[: min(found)], "stop"
        elif last or self.reason:
            self.text, self.reason = text, self.reason or "length"
        else:
            safe = text.rstrip(BROKEN)
            begun = [size for stop in self.stops for size in range(1, len(stop)) if safe.endswith(stop[:size])]
            safe = safe[: len(safe) - max(begun, default=0)]  # its end may be the beginning of a stop string
            if len(safe) > len(self.text):
                self.text = safe

    def shown(self) -> int:
        """How many tokens the text has come from."""
        counts, tokenizer = range(len(self.tokens)), self.tokenizer
        return bisect_left(counts, len(self.text), key=lambda count: len(tokenizer.decode(self.tokens[:count])))

    def changes(self, first: int, last: int) -> list[Change]:
        """Of the tokens from one number to another, with their laws."""
        return [self.drawn[self.start + number] for number in range(first, last)]


async def written(texts: Texts, answers: Sequence[Answer]) -> AsyncIterator[tuple[int, str]]:
    """(number of the answer, what may be sent of it now); an answer that has a reason has ended."""
    async for number, event in texts.events():
        delta = answers[number].take(event)
        if answers[number].reason:
            texts.leave(number)
        if delta or answers[number].reason:
            yield number, delta
