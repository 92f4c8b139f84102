"""The engine: one thread owns a model and steps all texts that are asked for together.

Between two steps new texts come in and finished ones leave, so that a forward is shared by requests of any length,
number of steps, plan, temperature and seed. Noise is keyed by the seed and the number of the sample: a text does not
depend on its company.

Shapes: S rows of the table, L positions, M positions drawn, K alternatives.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError
from unmask.inference.ready import Precision, Ready, make_ready, usual_batch
from unmask.plans.moves import Move
from unmask.sampling.drafts import Draft, Drawn, How, check_law, new_table, start_draft, take_step
from unmask.sampling.infill import USUAL_LENGTH
from unmask.server.limits import Limits

CROWD = 4  # texts under way for each that fits into a forward


class Refused(Exception):
    """The engine takes no more now: `full`, or it is about to end."""

    def __init__(self, message: str, full: bool) -> None:
        super().__init__(message)
        self.full = full


@dataclass(frozen=True)
class Task:
    """One text to write: sample `index` of a call of `sample` with these settings."""

    how: How
    index: int
    given_L: Tensor  # the template: token ids, -1 where it is blank
    watch: bool = False  # say what every step drew
    alternatives: int = 0  # of the law of every token that is drawn, so many of the likeliest


@dataclass(frozen=True)
class Change:
    """A token that a step put in its place."""

    position: int
    token: int
    log_prob: float
    alternatives: tuple[tuple[int, float], ...] = ()  # (token, probability), the likeliest first


@dataclass(frozen=True)
class Stepped:
    """What one step of one text drew."""

    step: int  # counts from 1
    steps: int
    nfe: int
    seconds: float  # since the text was begun
    changes: list[Change]


@dataclass(frozen=True)
class Finished:
    """A text that is done."""

    tokens: list[int]
    log_q: list[float]  # 0 where given; not a number where the process knows no law of its text
    nfe: int
    seconds: float
    rounds: int | None = None  # of a chain's head

    def counts(self) -> dict[str, int]:
        """Forwards, and rounds where there were some."""
        return {"nfe": self.nfe} if self.rounds is None else {"nfe": self.nfe, "rounds": self.rounds}


@dataclass(frozen=True)
class Failed:
    """A text that cannot be written."""

    message: str
    fault: bool  # ours, not the request's


Event = Stepped | Finished | Failed
Sink = Callable[[Event], None]  # called on the engine's thread: must not wait


@dataclass(eq=False)
class Ticket:
    """A task in the engine's hands."""

    task: Task
    sink: Sink
    cancelled: bool = False

    def cancel(self) -> None:
        """Its slot is free at the next step; nothing more is said of it."""
        self.cancelled = True


@dataclass(eq=False)
class _Live:
    """A text under way."""

    ticket: Ticket
    draft: Draft
    moves: Iterator[Move]
    move: Move
    began: float
    nfe: int = 0
    tokens: list[int] = field(default_factory=list)  # as last said, for those who watch


@dataclass
class Counts:
    """What an engine has done since it began."""

    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    tokens: int = 0
    forwards: int = 0
    rows: int = 0
    busy_seconds: float = 0.0


class Engine:
    """A model with its thread. `start` it, `submit` tasks, `stop` it."""

    def __init__(
        self, checkpoint: Checkpoint, name: str, place: torch.device, *, precision: Precision = "auto",
        compile: bool = False, batch: int | None = None, limits: Limits | None = None,
    ) -> None:  # fmt: skip
        limits = limits or Limits()
        self.checkpoint, self.name, self.queue = checkpoint, name, limits.max_queue
        self.length = min(checkpoint.model.length, limits.max_length)
        self.ready: Ready = make_ready(checkpoint.model, place, precision, compile)
        self.batch = batch or usual_batch(self.ready.model, self.ready.device)
        self.counts = Counts()
        self.live: dict[int, _Live] = {}  # by row of the table
        self._pending: deque[Ticket] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"engine {name}", daemon=True)

    @property
    def slots(self) -> int:
        return CROWD * self.batch

    @property
    def waiting(self) -> int:
        return len(self._pending)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._closing

    def start(self) -> None:
        self._thread.start()

    def submit(self, task: Task, sink: Sink) -> Ticket:
        return self.submit_all([(task, sink)])[0]

    def submit_all(self, tasks: Sequence[tuple[Task, Sink]]) -> list[Ticket]:
        """Take all of them, or none."""
        tickets = [Ticket(task, sink) for task, sink in tasks]
        with self._wake:
            if not self.alive:
                raise Refused("the server is shutting down: ask another one", full=False)
            if len(self._pending) + len(tickets) > self.queue:
                raise Refused(f"{len(self._pending)} texts wait already: ask again later", full=True)
            self._pending.extend(tickets)
            self._wake.notify()
        return tickets

    def stop(self, patience: float | None = None) -> None:
        """Take no more; finish what was taken, or after so many seconds give it up."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if not self._thread.is_alive():
            return
        self._thread.join(patience)
        if self._thread.is_alive():
            for ticket in [*self._pending, *(one.ticket for one in list(self.live.values()))]:
                ticket.cancel()
            self._thread.join()

    # --- the thread ---------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _run(self) -> None:
        table = new_table(self.ready, self.slots, self.length)
        self.ready.expect(self.batch, self.length)
        while True:
            with self._wake:
                while not (self.live or self._pending or self._closing):
                    self._wake.wait()
                if self._closing and not (self.live or self._pending):
                    return
            began = time.perf_counter()
            for at in [at for at, one in self.live.items() if one.ticket.cancelled]:
                del self.live[at]  # nobody wants it any more: its slot is free
                self.counts.cancelled += 1
            self._take_in(table)
            for part in self._forwards():
                try:
                    self._step(table, part)
                except Exception as error:  # of one forward: the texts in it are lost, the engine goes on
                    for one in part:
                        if self.live.pop(one.draft.at, None) is not None:
                            self._tell(one.ticket, _failure(error, fault=True))
            self.counts.busy_seconds += time.perf_counter() - began

    def _take_in(self, table: Any) -> None:
        """First come, first served, while there are free rows."""
        free = [at for at in range(self.slots) if at not in self.live]
        while free and self._pending:
            ticket = self._pending.popleft()
            if ticket.cancelled:
                self.counts.cancelled += 1
                continue
            try:
                self._begin(table, ticket, free[0])
                free.pop(0)
            except Exception as error:
                self._tell(ticket, _failure(error))

    def _begin(self, table: Any, ticket: Ticket, at: int) -> None:
        task, began = ticket.task, time.perf_counter()
        draft = start_draft(task.how, self.ready, table, [task.index], task.given_L[None], at)
        moves = draft.moves(torch.device("cpu"))
        move = _next(moves)
        assert move is not None, "a template has a blank"
        self.live[at] = _Live(ticket, draft, moves, move, began)
        if task.watch:
            self.live[at].tokens = draft.state.z_BL[0].tolist()

    def _forwards(self) -> list[list[_Live]]:
        """The texts under way, those of a length together, in parts that fit into a forward."""
        most = self.batch * min(self.length, USUAL_LENGTH)
        parts: list[list[_Live]] = []
        left = 0
        for one in sorted(self.live.values(), key=lambda one: one.draft.length):
            if one.draft.length > left:
                parts.append([])
                left = most
            parts[-1].append(one)
            left -= one.draft.length
        return parts

    def _step(self, table: Any, part: list[_Live]) -> None:
        forwards, rows = self.ready.forwards, self.ready.rows
        drawn = take_step(self.ready, table, [(one.draft, one.move) for one in part])
        self.counts.forwards += self.ready.forwards - forwards
        self.counts.rows += self.ready.rows - rows
        for one in part:
            one.nfe += 1
        watching = {one.draft.at: one for one in part if one.ticket.task.watch}
        changes = self._changes(drawn, watching) if watching else {}
        done: list[_Live] = []
        for one in part:
            if changed := changes.get(one.draft.at):
                seconds = time.perf_counter() - one.began
                self._tell(one.ticket, Stepped(one.move.step + 1, one.move.steps, one.nfe, seconds, changed))
            following = _next(one.moves)
            if following is None:
                done.append(one)
            else:
                one.move = following
        if done:
            self._finish(table, done)

    def _changes(self, drawn: list[Drawn], watching: dict[int, _Live]) -> dict[int, list[Change]]:
        """What a forward changed in the texts that are watched, by row."""
        found: dict[int, list[Change]] = {at: [] for at in watching}
        for group in drawn:
            length, flat = group.step.length, group.step.flat_M.tolist()
            tokens, log_q = group.draw.token_M.tolist(), group.draw.log_q_M.tolist()
            mine = [m for m, place in enumerate(flat) if place // length in watching]
            likeliest = _alternatives(group, mine, [watching[flat[m] // length].ticket.task.alternatives for m in mine])
            for m, others in zip(mine, likeliest, strict=True):
                one, position = watching[flat[m] // length], flat[m] % length
                if one.tokens[position] != tokens[m]:
                    one.tokens[position] = tokens[m]
                    found[one.draft.at].append(Change(position, tokens[m], log_q[m], others))
        return found

    def _finish(self, table: Any, done: list[_Live]) -> None:
        rows = torch.tensor([one.draft.at for one in done])
        z_BL, log_q_BL = (of_B[rows.to(of_B.device)].cpu() for of_B in (table.z_BL, table.log_q_BL))
        for one, z_L, log_q_L in zip(done, z_BL, log_q_BL, strict=True):
            del self.live[one.draft.at]
            length, blank_L = one.draft.length, one.draft.blank_BL[0]
            log_q_L = torch.where(blank_L, log_q_L[:length], 0)
            try:
                check_law(log_q_L, self.ready.precision)
            except UserError as error:
                self._tell(one.ticket, _failure(error, fault=True))
                continue
            if not self.checkpoint.process.by_plan:
                log_q_L.masked_fill_(blank_L, torch.nan)  # what was drawn is a path; the law of the text is not known
            self.counts.finished += 1
            self.counts.tokens += int(blank_L.sum())
            seconds = time.perf_counter() - one.began
            rounds = int(table.rounds_B[one.draft.at]) or None
            self._tell(one.ticket, Finished(z_L[:length].tolist(), log_q_L.tolist(), one.nfe, seconds, rounds))

    def _tell(self, ticket: Ticket, event: Event) -> None:
        if isinstance(event, Failed):
            self.counts.failed += 1
        if not ticket.cancelled:
            try:
                ticket.sink(event)
            except Exception:  # whoever asked is gone
                ticket.cancel()


def _next(moves: Iterator[Move]) -> Move | None:
    """The next move that draws something."""
    return next((move for move in moves if move.reveal_M.numel()), None)


def _failure(error: Exception, fault: bool = False) -> Failed:
    """A user's mistake in its own words; anything else is shown to the operator only."""
    if isinstance(error, UserError):
        return Failed(str(error), fault)
    print("".join(traceback.format_exception(error)), file=sys.stderr, end="")
    return Failed(f"an error within the server ({type(error).__name__})", True)


def _alternatives(group: Drawn, mine: list[int], wanted: list[int]) -> list[tuple[tuple[int, float], ...]]:
    """Of the law at some of the drawn positions the likeliest tokens; a law that is not factorised has none to show."""
    most = max(wanted, default=0)
    if most == 0 or group.going[0][0].how.step_law.name != "factorised":
        return [()] * len(mine)
    step = group.step
    found: list[tuple[tuple[int, float], ...]] = []
    for part in torch.tensor(mine, device=step.flat_M.device).split(step.ready.chunk):
        p_MK, token_MK = step.shaped(part).softmax(-1).topk(min(most, step.ready.states.size))
        for p_K, token_K in zip(p_MK.tolist(), token_MK.tolist(), strict=True):
            k = wanted[len(found)]
            found.append(tuple((token, p) for token, p in zip(token_K[:k], p_K[:k], strict=True) if p > 0))
    return found
