"""Kept cells are found by what the sampler does: whatever changes its law changes their key."""

import dataclasses
from functools import partial

import pytest

from unmask.checkpoint.io import Checkpoint
from unmask.inference import categorical
from unmask.plans import plan as plans
from unmask.processes import Masked
from unmask.processes.schedule import Cosine
from unmask.studies import fingerprint
from unmask.studies.plans_on_grids import plans_on_grids
from unmask.theory.oracle import Enumerated, sticky

CHECKPOINT = Checkpoint(Enumerated(sticky(length=4, tokens=2)))


def keys(temperature: float = 1.0, steps: int = 3) -> dict[str, str]:
    """Of every plan, drawn anew."""
    fingerprint.behaviour.cache_clear()
    names = ["iid", "golden", "confidence", "left_to_right", "blocks", "iid@cosine"]
    found = {one.name: one.behaviour(steps, temperature, CHECKPOINT) for one in plans_on_grids(names, [steps])}
    fingerprint.behaviour.cache_clear()
    return found


def test_the_same_law_has_the_same_key_and_another_another() -> None:
    first = keys()
    assert first == keys()
    assert len({first[name] for name in ("iid", "golden", "confidence", "iid@cosine")}) == 4
    for other in (keys(temperature=0.9), keys(steps=2)):
        assert not set(first.values()) & set(other.values())
    (iid,) = plans_on_grids(["iid"], [3])
    assert iid.behaviour(3, 1.0, dataclasses.replace(CHECKPOINT, process=Masked(Cosine()))) != first["iid"]


def other_tokens(draw, logits, uniform, *rest):
    return draw(logits, 1 - uniform, *rest)


def other_log_q(draw, *given):
    drawn = draw(*given)
    return dataclasses.replace(drawn, log_q_M=drawn.log_q_M - 1e-3)


@pytest.mark.parametrize("other", [other_tokens, other_log_q])
def test_a_change_of_the_draw_changes_every_key(monkeypatch, other) -> None:
    before = keys()
    monkeypatch.setattr(categorical, "draw", partial(other, categorical.draw))
    after = keys()
    assert all(after[name] != key for name, key in before.items())
    monkeypatch.undo()
    assert keys() == before


def test_a_change_of_one_plans_law_changes_its_key_alone(monkeypatch) -> None:
    before, confidence = keys(), plans.Confidence.confidence
    monkeypatch.setattr(plans.Confidence, "confidence", lambda self, log_p_MV: -confidence(self, log_p_MV))
    after = keys()
    assert {name for name in before if before[name] != after[name]} == {"confidence"}


@pytest.mark.parametrize("temperature", [1.0, 0.8, 0.4])
def test_the_causal_sampler_has_one_too(monkeypatch, temperature) -> None:
    fingerprint.causal_behaviour.cache_clear()
    before = fingerprint.causal_behaviour(temperature)
    monkeypatch.setattr(categorical, "draw", partial(other_tokens, categorical.draw))
    fingerprint.causal_behaviour.cache_clear()
    assert fingerprint.causal_behaviour(temperature) != before
    fingerprint.causal_behaviour.cache_clear()
