"""R against a source whose law the judge knows exactly: then log q - log p is known for every sample."""

import dataclasses

import pytest
import torch

from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError
from unmask.metrics.judges import Judge, vocabulary_hash
from unmask.metrics.path_gap import path_gap
from unmask.metrics.texts import Texts, of_samples
from unmask.sampling.verbs import sample
from unmask.theory.oracle import Enumerated, sticky

L = 6


@pytest.fixture(scope="module")
def source(letters):
    """Tokens a and b; the third is the end of a document, which the source never draws."""
    p = torch.zeros((3,) * L, dtype=torch.float64)
    p[(slice(2),) * L] = sticky(length=L, tokens=2)
    return Checkpoint(Enumerated(p), tokenizer=letters(3))


@pytest.fixture(scope="module")
def judge(source):
    """The source itself, read from left to right: after a start token and x_1..x_i comes p(x_{i+1} | x_1..x_i)."""
    model, tokenizer = source.model, source.tokenizer

    def logits(ids_BT):
        found = []
        for i in range(ids_BT.shape[1]):
            z_BL = torch.full((len(ids_BT), L), model.mask_id)
            z_BL[:, :i] = ids_BT[:, 1 : i + 1]
            found.append(model.features(z_BL)[:, min(i, L - 1), :3])
        return torch.stack(found, dim=1)

    return Judge(
        name="exact", id="exact", kind="test", context=L, eos_id=2, bos_id=None, vocabulary=vocabulary_hash(tokenizer),
        states=3, device=torch.device("cpu"), dtype="float64", encode=tokenizer.encode_batch, logits=logits,
        features=logits,
    )  # fmt: skip


def drawn(source, steps, temperature=1.0, n=300):
    samples = sample(source, n, steps, temperature=temperature, seed=1, batch=n)
    return of_samples(samples, source.tokenizer)


def test_a_sampler_that_draws_what_the_judge_believes_has_no_gap(source, judge):
    found = path_gap(drawn(source, L), judge)  # one token a step
    assert float(found.gap.ratio.top_n.abs().max()) < 1e-9
    assert found.gap.value == pytest.approx(0, abs=1e-9)


def test_the_gap_of_few_steps_is_log_q_less_log_p_in_nats_per_byte(source, judge):
    texts = drawn(source, 2)
    found = path_gap(texts, judge)
    gap_T = texts.log_q_T - source.model.log_prob(texts.tokens_TL)
    assert torch.allclose(found.gap.ratio.top_n, gap_T, atol=1e-9)
    assert found.gap.value == pytest.approx(float(gap_T.sum()) / (300 * (2 * L - 1)))  # six letters, five spaces
    assert found.gap.low > 0
    assert found.gap.value == pytest.approx(found.judge_nll.value - found.sampler_entropy.value)


def test_a_lower_temperature_pleases_the_judge_but_not_the_gap(source, judge):
    warm, cool = (path_gap(drawn(source, L, t), judge) for t in (1.0, 0.7))
    assert cool.judge_nll.value < warm.judge_nll.value
    assert cool.gap.low > warm.gap.high


def test_a_text_longer_than_the_judge_is_read_to_its_end(letters, hand_made):
    """Windows of 5 tokens, the later ones scored from their middle on; the first token from the end of a document."""
    judge, made = hand_made(letters(7), context=4)
    row = [0, 3, 6, 1, 5, 2, 2, 4]
    texts = Texts(torch.tensor([row]), letters(7), log_q_T=torch.tensor([-10.0], dtype=torch.float64))
    seen = [6, *row]
    begins = {1: 0, 2: 0, 3: 0, 4: 0, 5: 2, 6: 2, 7: 4, 8: 4}
    log_p = sum(float(made.after(seen[begins[i] : i])[seen[i]]) for i in range(1, 9))
    assert float(path_gap(texts, judge).gap.ratio.top_n) == pytest.approx(-10 - log_p, rel=1e-9)


def test_mistakes_are_one_line(source, judge):
    texts = drawn(source, 2, n=4)
    with pytest.raises(UserError, match="nobody drew has none"):
        path_gap(dataclasses.replace(texts, log_q_T=None), judge)
    with pytest.raises(UserError, match="without a prompt"):
        path_gap(of_samples(sample(source, 2, 2, prompt="a"), source.tokenizer), judge)
    with pytest.raises(UserError, match="remasking"):
        path_gap(of_samples(sample(source, 2, 4, plan="iid", grid="uniform", remask="cap"), source.tokenizer), judge)
    with pytest.raises(UserError, match="legacy_fp32"):
        path_gap(of_samples(sample(source, 2, 2, plan="iid", grid="mdlm", draw="legacy_fp32"), source.tokenizer), judge)
