"""A diffusion model as lm_eval's harness asks it: for answers, and for the likelihood of continuations.

log p(continuation | context) is bounded from below by minus the ELBO of the continuation alone, the context being
given: the mean over views, k of its n tokens masked, of n times the mean of log p over the masked ones. The standard
error is that of the mean over views; they are stratified over k, so it overstates the error. One token is exact.

Shapes: P views, L positions.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from lm_eval.api.model import LM

from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError
from unmask.core.ranks import pick_device
from unmask.core.streams import seed_of, stream
from unmask.inference.ready import make_ready
from unmask.metrics.elbo import elbo_of, order_agnostic_masks
from unmask.sampling.answers import answer


class DiffusionLM(LM):
    """A model for `simple_evaluate`; `how` is what `sample` takes."""

    def __init__(
        self, checkpoint: Checkpoint, how: dict[str, Any], *, max_new: int, steps: int | None, temperature: float,
        views: int, seed: int,
    ) -> None:  # fmt: skip
        super().__init__()
        if checkpoint.tokenizer is None:
            raise UserError("this model has no tokenizer, and the harness asks in text")
        if not checkpoint.process.by_plan:
            raise UserError(f"lm-eval is for masked models, and this one is {checkpoint.process.name}")
        self.checkpoint, self.how, self.codec = checkpoint, how, checkpoint.tokenizer
        self.max_new, self.steps, self.temperature, self.views, self.seed = max_new, steps, temperature, views, seed
        self.ready = make_ready(checkpoint.model, pick_device(how["device"]), how["precision"])
        self.chatting = False
        self.bounds: list[dict[str, Any]] = []
        self.written: dict[str, Any] = {}  # the last answers' record: the plan, whether a cache is approximate

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers, each cut at the first of its stops."""
        answers: list[str] = [""] * len(requests)
        alike: dict[tuple[int, float], list[int]] = {}  # requests by length and temperature
        for i, request in enumerate(requests):
            settings = request.args[1]
            heat = float(settings.get("temperature", self.temperature)) if settings.get("do_sample", True) else 0.0
            alike.setdefault((int(settings.get("max_gen_toks", self.max_new)), heat), []).append(i)
        how = {"seed": self.seed, "steps": self.steps, **self.how}
        for (blanks, heat), numbers in alike.items():
            prompts = [self._encode(requests[i].args[0])[-(self._length - blanks) :] for i in numbers]
            written = answer(self.checkpoint, prompts, blanks, temperature=heat, **how)
            self.written = written.record
            for i, one in zip(numbers, written.each, strict=True):
                answers[i] = _cut(one.text, requests[i].args[1].get("until", []))
        return answers

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Of each continuation: its bound, and whether it is what is written at temperature 0, one token a step."""
        likelihoods, machine = [], {name: self.how[name] for name in ("device", "precision")}
        for request in requests:
            context, continuation = self._pair(*request.args)
            value = self._bound(context, continuation, request.args)
            greedy = answer(self.checkpoint, [context], len(continuation), temperature=0.0, **machine)
            likelihoods.append((value, greedy.each[0].text == self.codec.decode(continuation)))
        return likelihoods

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Of whole texts: the sum over pieces of the model's length, each by itself."""
        likelihoods = []
        for request in requests:
            ids = self._encode(request.args[0])
            pieces = [ids[start : start + self._length] for start in range(0, len(ids), self._length)]
            likelihoods.append(sum(self._bound([], piece, request.args) for piece in pieces))
        return likelihoods

    @torch.no_grad()
    def _bound(self, context: list[int], continuation: list[int], request: Any) -> float:
        """The bound on log p(continuation | context), in nats; its error goes into `bounds`."""
        ids_L, n = torch.tensor([*context, *continuation]), len(continuation)
        if n == 0:
            return 0.0
        given_1L = (torch.arange(len(ids_L)) < len(context))[None]
        noise = stream(self.seed, "likelihood", seed_of(len(context), *ids_L.tolist()))
        views = 1 if n == 1 else self.views  # one token is masked in every view alike
        masked_PL = order_agnostic_masks(1, len(ids_L), noise, views=views, given_TL=given_1L)[:, 0]
        x0_PL = ids_L.to(self.ready.device).expand_as(masked_PL)
        parts = zip(*(of_PL.split(self.how.get("batch") or 8) for of_PL in (x0_PL, masked_PL)), strict=True)
        nats_P = torch.cat([elbo_of(self.ready.model, *part).double().cpu() for part in parts])  # a masked token
        value, error = -n * float(nats_P.mean()), n * float(nats_P.std()) / math.sqrt(views) if views > 1 else 0.0
        self.bounds.append({"request": list(request), "tokens": n, "bound": value, "stderr": error, "views": views})
        return value

    def summary(self) -> dict[str, Any]:
        """What the likelihoods of this session came to, for the record."""
        errors = [row["stderr"] for row in self.bounds]
        mean = sum(errors) / len(errors) if errors else None
        return {"count": len(errors), "mean_stderr": mean, "views": self.views, "kind": "bound (ELBO), nats"}

    def settings(self) -> dict[str, Any]:
        own = {"max_new": self.max_new, "steps": self.steps, "temperature": self.temperature, "seed": self.seed}
        return {**self.how, **own, "model": self.checkpoint.name, "answers": self.written}

    @property
    def _length(self) -> int:
        return int(self.checkpoint.model.length)

    def _encode(self, text: str) -> list[int]:
        return self.codec.encode_special(text) if self.chatting else self.codec.encode(text)

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Tokens of both; spaces between them belong to the continuation, and what does not fit is cut off in front."""
        bare = context.rstrip(" ")
        continuation = context[len(bare) :] + continuation
        whole, head = self._encode(bare + continuation), self._encode(bare)
        if whole[: len(head)] != head:  # the border is no border of tokens
            whole = [*head, *self._encode(continuation)]
        tail = whole[len(head) :]
        if len(tail) > self._length:
            raise UserError(f"a continuation of {len(tail)} tokens is longer than the model's {self._length}")
        return head[max(0, len(whole) - self._length) :], tail

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        self.chatting = True
        return self.codec.spell(chat_history, open_answer=add_generation_prompt)

    @property
    def tokenizer_name(self) -> str:
        """The harness's key for what it has spelled before."""
        return f"unmask-{self.codec.hash[:16]}"

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self.codec.specials.chat_template if chat_template else None


def _cut(text: str, stops: str | list[str]) -> str:
    """A text up to the first of its stops."""
    for stop in [stops] if isinstance(stops, str) else stops:
        if stop:
            text = text.split(stop)[0]
    return text
