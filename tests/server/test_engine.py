"""Texts that share forwards are those that `sample` writes alone, token for token: float32 on a CPU."""

from __future__ import annotations

import math
import queue
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import unmask
from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.inference.categorical import Law
from unmask.inference.chain import Chain
from unmask.models.dit.folded import FoldedDiT
from unmask.plans.plan import make_plan
from unmask.sampling.drafts import How
from unmask.sampling.verbs import plan_and_grid
from unmask.server.engine import Engine, Failed, Finished, Refused, Stepped, Task
from unmask.server.limits import Limits
from unmask.training.chain import new_head

PLANS = ["golden", "iid", "left_to_right", "confidence", "entropy", "stride", "blocks"]


@dataclass(frozen=True)
class Asked:
    """A request as `sample` would be given it."""

    length: int
    given: int
    steps: int
    plan: str
    temperature: float
    top_p: float
    seed: int
    index: int

    def template(self, vocabulary: int) -> torch.Tensor:
        ids_L = torch.randint(vocabulary - 1, (self.length,), generator=stream(self.seed, "given"))
        return torch.where(torch.arange(self.length) < self.given, ids_L, -1)

    def task(self, checkpoint: Checkpoint, **more: Any) -> Task:
        plan, grid = plan_and_grid(checkpoint.process, make_plan(self.plan), None, self.steps)
        law = Law(self.temperature, self.top_p)
        how = How(checkpoint, plan, grid, law, seed=self.seed)
        return Task(how, self.index, self.template(checkpoint.model.vocab_size), **more)

    def alone(self, checkpoint: Checkpoint) -> tuple[list[int], list[float]]:
        """Sample `index` of a call of `sample`, written by itself."""
        template_L = self.template(checkpoint.model.vocab_size)
        written = unmask.sample(
            checkpoint, self.index + 1, self.steps, infill=template_L, plan=self.plan, seed=self.seed,
            temperature=self.temperature, top_p=self.top_p, batch=1, device="cpu",
        )  # fmt: skip
        return written.tokens[self.index].tolist(), written.log_q[self.index].tolist()


def mixed(number: int, length: int = 48) -> Asked:
    """Any length, steps, plan, temperature, top_p and seed."""
    draw = stream(number, "asked")

    def one(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=draw))

    size = one(1, length + 1)
    return Asked(
        size, one(0, size), one(1, 12), PLANS[one(0, len(PLANS))], (0.7, 1.0, 1.3)[one(0, 3)], (0.9, 1.0)[one(0, 2)],
        one(0, 1000), one(0, 3),
    )  # fmt: skip


class Inbox:
    """Collects what an engine says of some texts."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue = queue.SimpleQueue()

    def sink(self, name: Any):
        return lambda event: self.events.put((name, event))

    def until_done(self, count: int) -> tuple[dict[Any, Any], dict[Any, list[Stepped]]]:
        done: dict[Any, Any] = {}
        steps: dict[Any, list[Stepped]] = {}
        while len(done) < count:
            name, event = self.events.get(timeout=60)
            if isinstance(event, Stepped):
                steps.setdefault(name, []).append(event)
            else:
                done[name] = event
        return done, steps


def together(engine: Engine, many: list[Asked]) -> list[Finished]:
    """What an engine writes of texts that are asked for at once."""
    inbox = Inbox()
    for number, asked in enumerate(many):
        engine.submit(asked.task(engine.checkpoint), inbox.sink(number))
    done, _ = inbox.until_done(len(many))
    return [done[number] for number in range(len(many))]


def assert_as_alone(engine: Engine, many: list[Asked]) -> list[Finished]:
    found = together(engine, many)
    for one, asked in zip(found, many, strict=True):
        tokens, log_q = asked.alone(engine.checkpoint)
        assert one.tokens == tokens, asked
        assert one.log_q == pytest.approx(log_q, abs=1e-4)
    return found


def test_mixed_texts_together_are_those_alone(engine):
    steps = sum(one.nfe for one in assert_as_alone(engine, [mixed(number) for number in range(80)]))
    assert engine.counts.forwards < steps / 4, "forwards are shared"
    assert engine.counts.rows == steps
    assert engine.counts.finished == 80
    assert not engine.live


def test_a_chain_writes_the_same_in_company(checkpoint):
    """Its head goes over the slots of each text by itself, whatever stands beside it."""
    head = new_head(checkpoint, "tiny", 0, {"hidden": 16, "heads": 2, "blocks": 1})
    with torch.no_grad():
        head.out.weight.normal_(std=2.0, generator=stream(0, "chained"))
    chained = replace(checkpoint, step_law=Chain(head.eval()))
    engine = Engine(chained, "tiny", torch.device("cpu"))
    engine.start()
    many = [mixed(number) for number in range(400, 430)]
    found = assert_as_alone(engine, many)
    engine.stop()
    assert any(one.tokens != asked.alone(checkpoint)[0] for one, asked in zip(found, many, strict=True))
    assert all(one.rounds >= one.nfe for one in found)  # at least one a step, and told beside the forwards


def test_texts_of_different_length_share_a_forward_with_the_features_that_each_has_alone(checkpoint):
    torch.manual_seed(1)
    body = FoldedDiT(checkpoint.model, torch.float32)
    lengths = [9, 9, 30, 48, 17]
    texts = [torch.randint(257, (length,)) for length in lengths]
    with torch.inference_mode():
        packed = body.packed_features(torch.cat(texts), lengths).split(lengths)
        for text_L, h_LD in zip(texts, packed, strict=True):
            torch.testing.assert_close(h_LD, body.features(text_L[None])[0], rtol=1e-5, atol=1e-5)


def test_a_network_that_cannot_mix_lengths_writes_the_same(checkpoint, monkeypatch):
    monkeypatch.delattr(FoldedDiT, "packed_features")
    engine = Engine(checkpoint, "tiny", torch.device("cpu"))
    engine.start()
    assert_as_alone(engine, [mixed(number) for number in range(300, 320)])
    engine.stop()


def test_steps_tell_every_token_with_its_law(engine, checkpoint):
    asked, inbox = Asked(20, 5, 4, "golden", 1.3, 0.9, 7, 0), Inbox()
    engine.submit(asked.task(checkpoint, watch=True, alternatives=258), inbox.sink("it"))
    done, steps = inbox.until_done(1)
    changes = {change.position: change for step in steps["it"] for change in step.changes}
    assert sorted(changes) == list(range(5, 20))
    assert [step.step for step in steps["it"]] == [step.nfe for step in steps["it"]] == [1, 2, 3, 4]
    assert {step.steps for step in steps["it"]} == {4}
    for position, change in changes.items():
        assert done["it"].tokens[position] == change.token
        assert done["it"].log_q[position] == pytest.approx(change.log_prob, abs=1e-6)
        law = dict(change.alternatives)
        assert sum(law.values()) == pytest.approx(1)
        assert law[change.token] == pytest.approx(math.exp(change.log_prob))
        assert list(law.values()) == sorted(law.values(), reverse=True)


def test_a_text_that_nobody_wants_frees_its_slot(checkpoint):
    engine, inbox = Engine(checkpoint, "tiny", torch.device("cpu"), batch=1), Inbox()
    tickets = [
        engine_task for asked in (Asked(48, 0, 48, "golden", 1, 1, seed, 0) for seed in range(40))
        for engine_task in [asked.task(checkpoint)]
    ]  # fmt: skip
    engine.start()
    held = [engine.submit(task, inbox.sink(number)) for number, task in enumerate(tickets)]
    for ticket in held[:-1]:
        ticket.cancel()
    done, _ = inbox.until_done(1)
    engine.stop()
    assert 39 in done, "the last one waited for a slot"
    assert engine.counts.cancelled + engine.counts.finished == 40
    assert engine.counts.cancelled >= 30


def test_a_full_queue_refuses_and_an_ending_engine_finishes_what_it_took(checkpoint):
    engine, inbox = Engine(checkpoint, "tiny", torch.device("cpu"), batch=1, limits=Limits(max_queue=3)), Inbox()
    task = Asked(48, 0, 48, "golden", 1, 1, 0, 0).task(checkpoint)
    with pytest.raises(Refused, match="shutting down"):
        engine.submit(task, inbox.sink("early"))
    engine.start()
    with pytest.raises(Refused, match="ask again later"):
        engine.submit_all([(task, inbox.sink("many"))] * 4)
    engine.submit_all([(task, inbox.sink(number)) for number in range(3)])
    engine.stop()
    assert set(inbox.until_done(3)[0]) == {0, 1, 2}
    with pytest.raises(Refused, match="shutting down"):
        engine.submit(task, inbox.sink("late"))


def test_a_broken_step_fails_its_texts_and_not_the_engine(engine, checkpoint, monkeypatch, capsys):
    task, inbox = Asked(8, 0, 2, "golden", 1, 1, 0, 0).task(checkpoint), Inbox()

    def broken(*_: object) -> None:
        raise RuntimeError("a secret of the machine")

    with monkeypatch.context() as patch:
        patch.setattr("unmask.server.engine.take_step", broken)
        engine.submit(task, inbox.sink("first"))
        first = inbox.until_done(1)[0]["first"]
    assert first == Failed("an error within the server (RuntimeError)", fault=True)
    assert "a secret of the machine" in capsys.readouterr().err
    engine.submit(task, inbox.sink("second"))
    assert isinstance(inbox.until_done(1)[0]["second"], Finished)


def test_what_cannot_be_begun_is_told_to_whoever_asked(engine, checkpoint):
    plan, grid = make_plan("blocks"), plan_and_grid(checkpoint.process, make_plan("iid"), "mdlm", 4)[1]
    how, inbox = How(checkpoint, plan, grid), Inbox()
    engine.submit(Task(how, 0, torch.full((8,), -1)), inbox.sink("it"))
    assert "blocks take the grids" in inbox.until_done(1)[0]["it"].message
    with pytest.raises(UserError):
        how.plan.assign(torch.ones(1, 8, dtype=torch.bool), grid, checkpoint.process.schedule, [stream(0)])
