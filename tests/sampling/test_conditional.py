"""What is given stays, whatever the plan; a sample does not depend on its company; NFE is what really ran.

The network is a small random DiT in float64, so that equal means equal although batches of different sizes are summed
in different orders.
"""

import copy
import json
from collections import Counter

import pytest
import torch
from torch import nn

from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.models.dit.network import DiT
from unmask.plans.grids import Grid
from unmask.plans.plan import PLANS, Blocks, Confidence, LeftToRight, by_threshold, make_plan
from unmask.plans.remask import USUAL_ETA, Remask
from unmask.sampling.verbs import sample

L, TOKENS = 12, 20
MASK = TOKENS

SETTINGS = {
    **{name: {"plan": name, "steps": None if by_threshold(plan) else 4} for name, plan in PLANS.items()},
    "confidence, threshold": {"plan": Confidence(threshold=0.2), "steps": None},
    "entropy, threshold": {"plan": Confidence("entropy", threshold=2.5), "steps": None},
    "blocks, confidence": {"plan": Blocks(5, Confidence())},
    "blocks, threshold": {"plan": Blocks(5, Confidence(threshold=0.2)), "steps": None},
    "small blocks": {"plan": Blocks(5)},
    "blocks, in order": {"plan": Blocks(5, LeftToRight()), "grid": "uniform"},
    "golden, cosine": {"plan": "golden", "grid": "cosine"},
    "iid, mdlm": {"plan": "iid", "grid": "mdlm"},
    "stride, times": {"plan": "stride", "grid": [0.7, 0.4, 0.2]},
    **{
        f"remask {rule}": {"plan": "iid", "grid": "uniform", "steps": 9, "remask": Remask(rule, max(0.4, usual))}
        for rule, usual in USUAL_ETA.items()
    },
    "legacy_fp32": {"plan": "iid", "grid": "mdlm", "draw": "legacy_fp32"},
}


@pytest.fixture(scope="module")
def checkpoint():
    model = DiT(vocab_size=TOKENS + 1, length=L, hidden=16, cond=8, blocks=2, heads=2).double().eval()
    generator = stream(0, "weights")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return Checkpoint(model)


def given_rows(rows, length=L, seed=1):
    """Random words at random places: each row gives a different share, from nothing to all but one."""
    generator = stream(seed, "given")
    tokens_BL = torch.randint(TOKENS, (rows, length), generator=generator)
    order_BL = torch.rand((rows, length), generator=generator).argsort(1)
    blanks_B1 = torch.linspace(1, length, rows).round().long()[:, None]
    return tokens_BL.masked_fill(order_BL < blanks_B1, MASK)


def run(checkpoint, n, way, **settings):
    return sample(checkpoint, n, **({"steps": 4, "device": "cpu", "seed": 5} | SETTINGS[way] | settings))


@pytest.mark.parametrize("way", SETTINGS)
def test_given_positions_never_change(way, checkpoint):
    template_BL = given_rows(6)
    given_BL = template_BL != MASK
    seen = []

    def look(view):
        seen.append(view)
        rows = template_BL[list(view.indices)]
        assert torch.equal(view.given_BL, rows != MASK)
        assert torch.equal(view.tokens_BL[view.given_BL], rows[view.given_BL])

    made = run(checkpoint, 6, way, infill=template_BL, batch=4, callback=look)
    assert torch.equal(made.given, given_BL)
    assert torch.equal(made.tokens[given_BL], template_BL[given_BL])
    assert bool((made.log_q[given_BL] == 0).all())
    drawn = made.tokens[~given_BL]
    assert bool(((drawn >= 0) & (drawn < MASK)).all())
    assert len(drawn.unique()) > 5  # the network really writes
    # a callback may keep what it sees: the last view of a batch is the finished batch, the ones before it are not
    ends = {view.indices: view for view in seen}
    assert sorted(index for indices in ends for index in indices) == [*range(6)]
    assert bool((seen[0].tokens_BL == MASK).any())
    for indices, view in ends.items():
        assert torch.equal(view.tokens_BL, made.tokens[list(indices)])
        assert [view.step for view in seen if view.indices == indices] == [*range(1, view.step + 1)]
        assert view.step == view.steps or "threshold" in way  # which stops when it is done


@pytest.mark.parametrize("way", SETTINGS)
def test_a_sample_does_not_depend_on_the_batch_size(way, checkpoint):
    template_BL = given_rows(7, seed=2)
    whole, *others = (run(checkpoint, 7, way, infill=template_BL, batch=batch) for batch in (7, 1, 3))
    for other in others:
        assert torch.equal(other.tokens, whole.tokens)
        assert torch.allclose(other.log_q, whole.log_q, rtol=0, atol=1e-9, equal_nan=True)
        assert torch.equal(other.nfe, whole.nfe)
    assert len({tuple(row) for row in run(checkpoint, 7, way).tokens.tolist()}) == 7  # each has noise of its own


@pytest.mark.parametrize("way", ["confidence", "entropy", "blocks, confidence", "blocks, threshold"])
def test_rounding_does_not_choose_where_all_positions_tie(way, checkpoint):
    """With nothing given every position has the same law, in float32 but for a rounding that changes with the batch."""
    single = Checkpoint(copy.deepcopy(checkpoint.model).float())
    whole, *others = (run(single, 7, way, batch=batch) for batch in (7, 1, 3))
    assert all(torch.equal(other.tokens, whole.tokens) for other in others)
    assert torch.equal(run(checkpoint, 7, way).tokens, whole.tokens)  # nor does the network's dtype


@pytest.mark.parametrize("way", ["golden", "confidence", "small blocks", "remask cap", "legacy_fp32"])
def test_different_prompts_and_lengths_together_equal_each_alone(way, checkpoint):
    """Sample i drawn among others, and drawn last of i + 1 samples that are something else altogether."""
    lengths = [L, 7, 5, L, 9, 7]
    rows = [given_rows(1, length, seed=i)[0] for i, length in enumerate(lengths)]
    rows[1][:3] = torch.tensor([1, 2, 3])
    codec = _Codec(rows)
    named = Checkpoint(checkpoint.model, tokenizer=codec)
    together = run(named, 6, way, prompt=codec.prompts, length=lengths, batch=4)
    assert together.tokens.shape == (6, L)
    for i, length in enumerate(lengths):
        others = ["x"] * i
        alone = run(named, i + 1, way, prompt=[*others, codec.prompts[i]], length=[L] * i + [length], batch=1)
        assert torch.equal(together.tokens[i, :length], alone.tokens[i, :length])
        assert torch.allclose(together.log_q[i, :length], alone.log_q[i, :length], atol=1e-9, equal_nan=True)
        assert together.tokens[i, length:].tolist() == [-1] * (L - length)  # padding
        assert bool(together.given[i, length:].all())
        prompt = codec.encode(codec.prompts[i])
        assert together.tokens[i, : len(prompt)].tolist() == prompt
        assert together.text[i] == codec.decode(together.tokens[i, :length].tolist())


class _Codec:
    """A prompt is a run of letters, a letter is a token."""

    size = TOKENS
    name = "letters"

    def __init__(self, rows):
        self.prompts = [self.decode(row[: i % 4].clamp(max=TOKENS - 1).tolist()) for i, row in enumerate(rows)]

    def encode(self, text):
        return [ord(letter) - ord("a") if letter < "x" else 0 for letter in text]

    def decode(self, ids):
        return "".join(chr(ord("a") + token) for token in ids)

    def decode_batch(self, rows):
        return [self.decode(row) for row in rows]


@pytest.mark.parametrize("way", SETTINGS)
def test_nfe_is_what_a_hook_on_the_network_counts(way, checkpoint):
    """Each sample's forwards, and the batches': counted where tokens enter the network, not by the sampler."""
    rows_seen = Counter()

    def count(module, arguments, _):
        if isinstance(module, nn.Embedding):
            rows_seen[len(arguments[0])] += 1

    hook = nn.modules.module.register_module_forward_hook(count)
    try:
        together = run(checkpoint, 5, way, batch=5)
        assert together.record["forwards"] == rows_seen.total()
        assert int(together.nfe.sum()) == sum(rows * times for rows, times in rows_seen.items())
        assert together.record["nfe"] == pytest.approx(float(together.nfe.double().mean()))
        rows_seen.clear()
        alone = run(checkpoint, 5, way, batch=1)
        assert int(alone.nfe.sum()) == rows_seen.total() == alone.record["forwards"]
    finally:
        hook.remove()


def test_steps_that_reveal_nothing_cost_nothing(checkpoint):
    many = sample(checkpoint, 8, 500, plan="iid", grid="uniform", device="cpu")
    assert int(many.nfe.max()) <= L < 500
    assert many.record["steps"] == 500
    assert sample(checkpoint, 2, 4, device="cpu").nfe.tolist() == [4, 4]
    blanks = given_rows(1)[0]  # one blank: one forward, however many steps
    assert int((blanks == MASK).sum()) == 1
    assert sample(checkpoint, 2, 6, infill=blanks, device="cpu").nfe.tolist() == [1, 1]
    legacy = run(checkpoint, 2, "legacy_fp32", steps=6)
    assert legacy.nfe.tolist() == [7, 7]  # as published: every step, and the noise removal
    assert legacy.record["draw"] == "legacy_fp32"


TIES = {"ties": "chance"}


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("golden", {"name": "golden"}),
        ("left_to_right", {"name": "left_to_right"}),
        ("entropy", {"name": "entropy", "score": "entropy", "threshold": None, **TIES}),
        (Confidence(threshold=0.2), {"name": "confidence", "score": "probability", "threshold": 0.2, **TIES}),
        ("blocks", {"name": "blocks(32, golden)", "size": 32, "inner": {"name": "golden"}}),
        (Blocks(5, make_plan("iid")), {"name": "blocks(5, iid)", "size": 5, "inner": {"name": "iid"}}),
        (
            Blocks(4, Confidence("entropy", 2.5)),
            {
                "name": "blocks(4, entropy)",
                "size": 4,
                "inner": {"name": "entropy", "score": "entropy", "threshold": 2.5, **TIES},
            },
        ),
    ],
)
def test_the_record_says_which_plan_was_run_and_with_what(plan, said, checkpoint):
    """Two runs that differ in a setting have records that differ; what a threshold does not use is not claimed."""
    by_threshold = bool(said.get("threshold") or said.get("inner", {}).get("threshold"))
    record = sample(checkpoint, 1, None if by_threshold else 4, plan=plan, device="cpu").record
    assert json.loads(json.dumps(record, allow_nan=False))["plan"] == said
    assert (record["steps"], record["grid"] and record["grid"]["name"]) == (
        (None, None) if by_threshold else (4, "rank")
    )


@pytest.mark.parametrize("settings", [{"steps": 4}, {"grid": "cosine"}, {"steps": 4, "grid": "rank"}], ids=str)
@pytest.mark.parametrize("plan", [Confidence(threshold=0.2), Blocks(5, Confidence("entropy", 2.5))], ids=str)
def test_what_a_threshold_does_not_use_is_refused(plan, settings, checkpoint):
    with pytest.raises(UserError, match=r"a threshold decides by itself .* leave out steps and grid"):
        sample(checkpoint, 1, plan=plan, device="cpu", **settings)


@pytest.mark.parametrize("grid", [[0.5], Grid("mine", (1.0, 0.5, 0.0))], ids=str)
def test_times_take_no_other_number_of_steps(grid, checkpoint):
    assert sample(checkpoint, 1, grid=grid, device="cpu").record["steps"] == 2
    assert sample(checkpoint, 1, 2, grid=grid, device="cpu").record["steps"] == 2
    with pytest.raises(UserError, match="this grid has 2 steps, and 16 were asked for: leave out steps"):
        sample(checkpoint, 1, 16, grid=grid, device="cpu")


def test_a_model_without_a_mask_state_is_refused():
    causal = DiT(vocab_size=9, length=6, hidden=8, cond=4, blocks=1, heads=2, causal=True)
    with pytest.raises(UserError, match="mask state"):
        sample(Checkpoint(causal), device="cpu")

    class Maskless:
        vocab_size, length, mask_id = 9, 6, None

        def features(self, z):
            return z

        logits = features

    with pytest.raises(UserError, match="mask state"):
        sample(Checkpoint(Maskless()), device="cpu")
    with pytest.raises(UserError, match=r"model takes a Checkpoint or a text or a path, not a .*Maskless"):
        sample(Maskless(), device="cpu")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_law_that_is_not_finite_is_refused(checkpoint, value):
    broken = copy.deepcopy(checkpoint.model)
    with torch.no_grad():
        broken.head.linear.bias[3] = value
    with pytest.raises(UserError, match="a law that is not finite"):
        sample(Checkpoint(broken), 2, 4, device="cpu")
