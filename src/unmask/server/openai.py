"""Completions and chat as OpenAI's clients ask for them and read them."""

from __future__ import annotations

import math
import secrets
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError
from unmask.data.tokenizer import Tokenizer
from unmask.server.drafts import BROKEN, finite, message, piece
from unmask.server.engine import Change, Finished, Stepped, Task
from unmask.server.guard import error_body
from unmask.server.limits import ALTERNATIVES, STOP, STOPS, Limits, bounded
from unmask.server.request import TextRequest, how_of, ids_of, longest, tokenizer_of
from unmask.server.wait import Fault, Texts, TimedOut

Ids = Annotated[list[int], Field(min_length=1)]
ANSWER = 128  # tokens of an answer in a chat where nobody says, as `sample` has it


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    include_usage: bool = False


class OpenAIRequest(TextRequest):
    """What completions and chats both take."""

    n: int = Field(1, ge=1)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    stop: str | list[str] = Field(default_factory=list)
    user: str | None = None  # the client's own note
    frequency_penalty: float = Field(0.0, ge=0, le=0)  # clients send the zeros of what they do not use
    presence_penalty: float = Field(0.0, ge=0, le=0)

    @property
    def stops(self) -> list[str]:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop
        bounded("the number of stop strings", len(stops), STOPS)
        bounded("the length of a stop string", max(map(len, stops), default=0), STOP)
        if "" in stops:
            raise UserError("a stop string is empty: leave it out")
        return stops


class CompletionRequest(OpenAIRequest):
    """A continuation of a text, or what goes between a text and its `suffix`."""

    prompt: str | list[str] | Ids | list[Ids] = ""
    suffix: str | None = None
    max_tokens: int = Field(16, ge=1)
    logprobs: int | None = Field(None, ge=0)


class Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    type: Literal["text"]
    text: str


class Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]

    def plain(self) -> dict[str, str]:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": text}


class ChatRequest(OpenAIRequest):
    """An answer to a conversation."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0)


def completion_tasks(body: CompletionRequest, checkpoint: Checkpoint, limits: Limits) -> list[Task]:
    """A task for every choice: choice i is sample i of a call of `sample` with this seed."""
    tokenizer = tokenizer_of(checkpoint)
    if body.prompt == []:
        raise UserError("prompt is an empty list: give a text, or several")
    one = isinstance(body.prompt, str) or isinstance(body.prompt[0], int)  # a list of numbers is one prompt
    prompts: Sequence[Any] = [body.prompt] if one else body.prompt
    tail = tokenizer.encode(body.suffix) if body.suffix else []
    heads = [tokenizer.encode(one) if isinstance(one, str) else one for one in prompts]
    return _tasks(body, checkpoint, limits, heads, tail, body.max_tokens, body.logprobs or 0)


def chat_tasks(body: ChatRequest, checkpoint: Checkpoint, limits: Limits) -> list[Task]:
    """A task for every choice of an answer to a conversation."""
    if body.top_logprobs and not body.logprobs:
        raise UserError("top_logprobs goes with logprobs: true")
    head = checkpoint.chat([one.plain() for one in body.messages])
    most = max(1, longest(checkpoint, limits) - len(head))
    blanks = body.max_completion_tokens or body.max_tokens or min(most, ANSWER)
    return _tasks(body, checkpoint, limits, [head], [], blanks, body.top_logprobs)


def _tasks(
    body: OpenAIRequest, checkpoint: Checkpoint, limits: Limits, heads: Sequence[list[int]], tail: list[int],
    blanks: int, alternatives: int,
) -> list[Task]:  # fmt: skip
    bounded("the number of texts", len(heads) * body.n, limits.max_texts)
    bounded("logprobs", alternatives, ALTERNATIVES)
    how, most = how_of(body, checkpoint, limits), longest(checkpoint, limits)
    watch = bool(body.stops or body.stream or alternatives or isinstance(body, ChatRequest))
    tasks: list[Task] = []
    for head in heads:
        given = len(head) + len(tail)
        if given + blanks > most:
            raise UserError(f"this model's maximum context length is {most} tokens: {given} are given, and {blanks} "
                            "are to come (max_tokens)")  # fmt: skip
        template_L = ids_of([*head, *[None] * blanks, *tail], checkpoint)
        tasks += [Task(how, len(tasks) + i, template_L, watch, alternatives) for i in range(body.n)]
    return tasks


class Reply:
    """The answers to one request, in OpenAI's form: whole, or bit by bit."""

    def __init__(self, body: CompletionRequest | ChatRequest, tasks: Sequence[Task]) -> None:
        self.body, self.tasks, self.tokenizer = body, tasks, tokenizer_of(tasks[0].how.checkpoint)
        self.chat = isinstance(body, ChatRequest)
        self.answers = [Answer.of(task, self.tokenizer, body.stops) for task in tasks]
        self.sent = [0] * len(tasks)  # tokens whose laws were sent
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}"
        self.created = int(time.time())

    async def whole(self, texts: Texts) -> dict[str, Any]:
        async for _ in written(texts, self.answers):
            pass
        choices = [self._choice(number, answer.text, whole=True) for number, answer in enumerate(self.answers)]
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head(kind, choices), "usage": self._usage(), "unmask": self._about()}

    async def streamed(self, texts: Texts) -> AsyncIterator[str]:
        """A message for every beginning that has settled further."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        usage: dict[str, Any] = {"usage": None} if self.body.stream_options.include_usage else {}
        try:
            if self.chat:
                for number in range(len(self.tasks)):
                    first = {"index": number, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
                    yield message({**self._head(kind, [first]), **usage})
            async for number, delta in written(texts, self.answers):
                yield message({**self._head(kind, [self._choice(number, delta, whole=False)]), **usage})
            if usage:
                yield message({**self._head(kind, []), "usage": self._usage(), "unmask": self._about()})
            yield message("[DONE]")
        except (TimedOut, Fault, UserError) as error:
            yield message(error_body(str(error), 400 if isinstance(error, UserError) else 500))

    def _head(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.body.model}
        return {**head, "choices": choices}

    def _choice(self, number: int, text: str, whole: bool) -> dict[str, Any]:
        answer = self.answers[number]
        choice: dict[str, Any] = {"index": number, "finish_reason": answer.reason, "logprobs": self._logprobs(number)}
        if not self.chat:
            return {**choice, "text": text}
        if whole:
            return {**choice, "message": {"role": "assistant", "content": text}}
        return {**choice, "delta": {"content": text} if text else {}}

    def _logprobs(self, number: int) -> dict[str, Any] | None:
        if self.body.logprobs is None or self.body.logprobs is False:
            return None
        answer, first = self.answers[number], self.sent[number]
        self.sent[number] = last = answer.shown()
        changes = answer.changes(first, last)
        if self.chat:
            return {"content": [self._chat_logprob(change) for change in changes], "refusal": None}
        pieces = [self._piece(change.token) for change in changes]
        offsets = [len(self.tokenizer.decode(answer.tokens[:count])) for count in range(first, last)]
        likeliest = [{self._piece(token): math.log(p) for token, p in reversed(one.alternatives)} for one in changes]
        return {
            "tokens": pieces, "token_logprobs": [finite(one.log_prob) for one in changes], "text_offset": offsets,
            "top_logprobs": likeliest if self.body.logprobs else None,
        }  # fmt: skip

    def _chat_logprob(self, change: Change) -> dict[str, Any]:
        def one(token: int, log_prob: float) -> dict[str, Any]:
            text = self._piece(token)
            return {"token": text, "logprob": finite(log_prob), "bytes": list(text.encode())}

        top = [one(token, math.log(p)) for token, p in change.alternatives]
        return {**one(change.token, change.log_prob), "top_logprobs": top}

    def _piece(self, token: int) -> str:
        return piece(self.tokenizer, token) or ""

    def _usage(self) -> dict[str, int]:
        prompts = self.tasks[:: self.body.n]
        given = sum(int((task.given_L >= 0).sum()) for task in prompts)
        new = sum(answer.shown() for answer in self.answers)
        return {"prompt_tokens": given, "completion_tokens": new, "total_tokens": given + new}

    def _about(self) -> dict[str, Any]:
        """What OpenAI's form has no place for: the seed with which the same request gives the same texts again."""
        how, rounds = self.tasks[0].how, [answer.rounds for answer in self.answers]
        more = {"rounds": None if None in rounds else rounds, "note": how.warning()}  # of a chain's head
        about = {"seed": how.seed, "nfe": [answer.nfe for answer in self.answers]}
        return about | {name: value for name, value in more.items() if value}


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
