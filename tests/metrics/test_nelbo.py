"""The N-step NELBO and the ELBO against sources whose likelihood is known, and against direct computations."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from tests.small import shaken

from unmask.checkpoint.io import Checkpoint, load
from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.inference.categorical import Law
from unmask.metrics.nelbo import elbo, nelbo
from unmask.metrics.score import difference
from unmask.metrics.texts import Texts, held_out
from unmask.models.dit.network import DiT
from unmask.plans.grids import Grid
from unmask.plans.plan import Confidence
from unmask.sampling.verbs import sample
from unmask.theory.oracle import Enumerated, sticky


@pytest.fixture(scope="module")
def source(letters):
    return Checkpoint(Enumerated(sticky(length=6, tokens=3)), tokenizer=letters(3))


@pytest.fixture(scope="module")
def texts(source):
    return Texts(source.model.draw(40, stream(0, "texts")), source.tokenizer)


def tiny(tokenizer, causal=False, seed=0):
    model = DiT(tokenizer.size + 1, 16, hidden=16, cond=8, blocks=2, heads=2, causal=causal).eval()
    return Checkpoint(shaken(model, seed=seed), tokenizer=tokenizer)


def test_one_token_a_step_with_an_exact_denoiser_is_the_likelihood(source, texts):
    exact = -source.model.log_prob(texts.tokens_TL)
    for plan in ("golden", "permutation", "left_to_right"):
        found = nelbo(source, texts, 6, plan=plan)
        assert torch.allclose(found.per_token.ratio.top_n, exact, atol=1e-9)
        assert found.per_token.value == pytest.approx(float(exact.mean()) / 6)
        assert found.per_byte.value == pytest.approx(float(exact.sum()) / int(texts.bytes_T.sum()))
        assert found.perplexity.value == pytest.approx(math.exp(float(exact.mean()) / 6))
        assert found.nfe == 6
    few = nelbo(source, texts, 2, plan="iid")
    assert difference(few.per_token.ratio, found.per_token.ratio, "nats/token", {}).low > 0  # few steps cost something


def test_a_block_causal_model_is_scored_inside_its_own_blocks_where_it_writes(letters):
    pytest.importorskip("transformers")
    model = load(Path(__file__).parents[1] / "assets/published/sdar").model
    checkpoint = Checkpoint(model, tokenizer=letters(model.vocab_size))
    drawn = sample(checkpoint, 3, 8, plan="comb", length=16, seed=4)
    texts = Texts(drawn.tokens, checkpoint.tokenizer)
    found = nelbo(checkpoint, texts, 8, plan="comb", seed=4)
    assert drawn.record["plan"]["name"] == found.per_token.record["plan"] == "blocks(4, comb)"
    assert torch.allclose(found.per_token.ratio.top_n, -drawn.log_q.sum(1), atol=1e-4)


def test_texts_that_were_drawn_get_their_recorded_log_q_back(source):
    """Same seed, same number, same plan: what scores a text is what drew it."""
    drawn = sample(source, 12, 3, plan="iid", grid="uniform", temperature=0.8, seed=4)
    texts = Texts(drawn.tokens, source.tokenizer)
    found = nelbo(source, texts, 3, plan="iid", grid="uniform", law=Law(temperature=0.8), seed=4)
    assert torch.allclose(found.per_token.ratio.top_n, -drawn.log_q.sum(1), atol=1e-9)
    assert found.nfe == pytest.approx(float(drawn.nfe.double().mean()))


def test_any_batch_gives_the_same(source, texts):
    whole = nelbo(source, texts, 2, batch=64).per_token.ratio.top_n
    assert torch.equal(nelbo(source, texts, 2, batch=7).per_token.ratio.top_n, whole)


def test_sharpening_an_exact_model_does_not_pay(source, texts):
    plain = nelbo(source, texts, 6)
    sharp = nelbo(source, texts, 6, law=Law(temperature=0.7))
    assert difference(sharp.per_token.ratio, plain.per_token.ratio, "nats/token", {}).value > 0


def test_the_elbo_of_an_exact_denoiser_is_the_likelihood(source, texts):
    found = elbo(source, texts, masks=200)
    gap = difference(found.per_token.ratio, nelbo(source, texts, 6).per_token.ratio, "nats/token", {})
    assert gap.low <= 0 <= gap.high
    assert gap.stderr < 0.01


def test_the_likelihood_of_a_causal_model_is_exact(letters):
    judge = tiny(letters(5), causal=True)
    texts = Texts(torch.randint(0, 4, (7, 16), generator=stream(1, "texts")), judge.tokenizer)
    logits_BLV = judge.model(texts.tokens_TL)[..., :5].detach()
    nll_B = torch.nn.functional.cross_entropy(
        logits_BLV[:, :-1].flatten(0, 1), texts.tokens_TL[:, 1:].flatten(), reduction="none"
    ).view(7, 15)
    found = elbo(judge, texts, batch=2)
    assert found.per_token.value == pytest.approx(float(nll_B.mean()), rel=1e-5)
    assert found.per_byte.value == pytest.approx(float(nll_B.sum()) / (7 * 29), rel=1e-5)  # 15 letters, 14 spaces


def test_zero_shot_on_a_text_file_says_what_was_scored(letters, tmp_path):
    model = tiny(letters(5))
    (tmp_path / "any.txt").write_text("a b c d a b c d a a b b\n" * 20)
    texts = held_out(tmp_path / "any.txt", model.tokenizer, 16, count=6)
    found = nelbo(model, texts, 4)
    assert found.per_token.count == 6
    record = found.per_byte.record
    assert record["texts"]["source"].endswith("any.txt")
    assert (record["plan"], record["steps"], record["precision"]) == ("comb", 4, "float32")
    assert record["model"]["sha256"] != nelbo(tiny(letters(5), seed=1), texts, 4).per_byte.record["model"]["sha256"]


def test_the_number_of_steps_is_the_grids_where_it_has_one(source, texts):
    assert nelbo(source, texts).per_token.record["steps"] == 8
    four = Grid("list", (1.0, 0.8, 0.5, 0.2, 0.0))
    for found in (nelbo(source, texts, grid=four), nelbo(source, texts, 4, grid=four)):
        assert found.per_token.record["steps"] == 4
    with pytest.raises(UserError, match="this grid has 4 steps, and 8 were asked for"):
        nelbo(source, texts, 8, grid=four)
    sure = nelbo(source, texts, plan=Confidence(threshold=1e-9))  # everything at once
    assert (sure.nfe, sure.per_token.record["steps"], sure.per_token.record["grid"]) == (1, None, None)
    with pytest.raises(UserError, match="a threshold decides by itself"):
        nelbo(source, texts, 8, plan=Confidence(threshold=1e-9))


def test_mistakes_are_one_line(source, texts, letters):
    longer = dataclasses.replace(texts, tokens_TL=texts.tokens_TL.repeat(1, 2))
    uneven = Texts(torch.tensor([[0, 1], [0, -1]]), texts.tokenizer)
    for score, given, options, said in (
        (nelbo, (source, texts, 4), {"grid": "mdlm"}, r"argmax.*uniform"),
        (nelbo, (tiny(letters(3), causal=True), texts), {}, "causal"),
        (elbo, (tiny(letters(5)), texts), {}, "tokens of 'letters-3'"),
        (nelbo, (source, texts, 4), {"law": Law(top_k=1)}, "no probability"),
        (nelbo, (source, longer), {}, "length 6"),
        (nelbo, (source, uneven), {}, "different lengths"),
        (nelbo, (source, texts, 2), {"batch": 0}, "at least 1, not 0"),
        (elbo, (source, texts), {"masks": 0}, "masks must be at least 1, not 0"),
    ):
        with pytest.raises(UserError, match=said):
            score(*given, **options)
