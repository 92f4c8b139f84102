"""Caches of keys and values: exact where they say so, the same for a row in any company, and less work."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from unmask.checkpoint.io import load
from unmask.core.errors import UserError
from unmask.models.decoder import DecoderFamily
from unmask.plans.plan import Blocks, Confidence, EntropyBounded, make_plan
from unmask.sampling.verbs import sample

PUBLISHED = Path(__file__).parents[1] / "assets/published"
L, SIZE = 32, 8
PLANS = {
    "golden": ("golden", 12),
    "blocks of golden": (Blocks(SIZE), 12),
    "blocks of comb": (Blocks(SIZE, make_plan("comb")), 12),
    "blocks of confidence": (Blocks(SIZE, Confidence()), 12),
    "a threshold": (Blocks(SIZE, Confidence(threshold=0.03)), None),
    "bounded entropy": (Blocks(SIZE, EntropyBounded(threshold=9.0)), None),
}


@pytest.fixture(scope="module")
def models():
    return {name: load(PUBLISHED / name) for name in ("llada", "dream", "sdar")}


def ragged(n=3):
    """Lines with prompts of different length, so that rows are in different blocks."""
    given_nL = torch.full((n, L), -1)
    for row, length in enumerate([9, 3, 17][:n]):
        given_nL[row, :length] = torch.randint(0, 130, (length,), generator=torch.Generator().manual_seed(row))
    return given_nL


def draw(checkpoint, plan, steps, rows=None, **how):
    given_nL = ragged() if rows is None else ragged()[rows]
    return sample(checkpoint, len(given_nL), steps, plan=plan, infill=given_nL, device="cpu", **how)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(
    ("family", "cache", "refresh"),
    [("sdar", "exact", None), ("llada", "prefix", 1), ("llada", "dual", 1), ("dream", "dual", 1)],
)
def test_an_exact_cache_and_a_refresh_at_every_step_change_no_token(models, family, cache, refresh, plan):
    made, steps = PLANS[plan]
    plain = draw(models[family], made, steps, cache="none")
    cached = draw(models[family], made, steps, cache=cache, refresh=refresh)
    assert torch.equal(cached.tokens, plain.tokens)
    assert torch.allclose(cached.log_q, plain.log_q, atol=1e-5)
    assert torch.equal(cached.nfe, plain.nfe)
    assert cached.record["cache"]["approximate"] is False


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(
    ("family", "cache", "refresh"),
    [("sdar", "exact", None), ("llada", "prefix", None), ("llada", "dual", 3), ("dream", "prefix", 2)],
)
def test_a_row_is_what_it_is_alone(models, family, cache, refresh, plan):
    """Their blocks begin and end at different steps."""
    made, steps = PLANS[plan]
    model = models[family]
    together = draw(model, made, steps, cache=cache, refresh=refresh, batch=3)
    apart = draw(model, made, steps, cache=cache, refresh=refresh, batch=1)
    assert torch.equal(together.tokens, apart.tokens)
    assert torch.allclose(together.log_q, apart.log_q, atol=1e-5)


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_between_refreshes_the_law_is_another_and_the_record_says_so(models, family, cache):
    plain = draw(models[family], Blocks(SIZE), 12, cache="none")
    cached = draw(models[family], Blocks(SIZE), 12, cache=cache)
    assert cached.record["cache"]["approximate"] is True
    assert not torch.allclose(cached.log_q, plain.log_q, atol=1e-4)
    assert float((cached.log_q - plain.log_q).abs().max()) < 5, "stale, not nonsense"


def places(checkpoint, cache, refresh=None):
    """The places that went through the body, for one line of 8 given and 24 blank in blocks of 8, 4 steps each."""
    seen = []
    inner = checkpoint.model.model.norm
    hook = inner.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[1]))
    given_L = torch.cat([torch.arange(SIZE), torch.full((L - SIZE,), -1)])
    sample(checkpoint, 1, 12, plan=Blocks(SIZE), infill=given_L, cache=cache, refresh=refresh, device="cpu")
    hook.remove()
    return seen


def test_what_a_step_computes(monkeypatch):
    monkeypatch.setattr(DecoderFamily, "quick", lambda *_: None)  # the quick pass calls no norm as a module
    fresh = {name: load(PUBLISHED / name) for name in ("llada", "dream", "sdar")}  # nothing is kept ready for them
    assert places(fresh["llada"], "none") == [L] * 12
    assert places(fresh["llada"], "dual") == [L, 8, 8, 8] * 3
    assert places(fresh["llada"], "dual", 2) == [L, 8, L, 8] * 3
    assert places(fresh["llada"], "prefix") == [L, 24, 24, 24, L, 16, 16, 16, L, 8, 8, 8]
    assert places(fresh["dream"], "dual") == [L, 9, 9, 9] * 3  # the output before a block predicts its first token
    # blocks of 4 in the network: the prompt with the first block, then each finished block once more
    assert places(fresh["sdar"], "exact") == [16, 8, 8, 8, 16, 8, 8, 8, 16, 8, 8, 8]


@pytest.mark.parametrize(
    ("family", "how", "message"),
    [
        ("llada", {"cache": "exact"}, "'exact' is not for this network"),
        ("sdar", {"cache": "dual"}, "'dual' is not for this network, which is block-causal"),
        ("llada", {"refresh": 2}, "refresh belongs to a cache"),
        ("llada", {"cache": "dual", "refresh": 0}, "refresh must be at least 1"),
        ("sdar", {"refresh": 4}, "an exact cache needs no refresh"),
        ("llada", {"cache": "duel"}, "did you mean 'dual'?"),
        ("llada", {"cache": "dual", "plan": "iid", "grid": "uniform", "remask": "cap"}, "leave out the cache"),
    ],
)
def test_mistakes_are_one_line(models, family, how, message):
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        sample(models[family], 1, 4, length=16, device="cpu", **how)


def test_a_network_without_one_says_so():
    with pytest.raises(UserError, match="this network has no cache"):
        sample("pocket", 1, 4, length=16, device="cpu", cache="dual")
