"""Every protocol against its definition, written out as loops over hand-made logits."""

import dataclasses
import math

import pytest
import torch

from unmask.core.errors import UserError
from unmask.metrics import built_in, reading  # noqa: F401 (built_in registers)
from unmask.metrics.cache import Store
from unmask.metrics.gen_ppl import PROTOCOLS, gen_ppl, unigram_entropy
from unmask.metrics.texts import Texts

E = 6  # the end of a document among 7 tokens
ROWS = [
    [0, 1, 2, 3, 4, 5, 0, 1],
    [E, 2, 2, E, 3, E, E, 1],  # begins with an end: that one is the first
    [1, 1, 1, 1, E, 0, 5, E],
    [3, E, 4, -1, -1, -1, -1, -1],  # shorter
]


@pytest.fixture
def texts(letters):
    return Texts(torch.tensor(ROWS), letters(7))


def rows_of(texts):
    return [[token for token in row if token >= 0] for row in texts.tokens_TL.tolist()]


def nlls(made, row, start=0, lead=()):
    """-log p of each token after the first of a window that starts at `start`, by token's place in the row."""
    return {i: -float(made.after([*lead, *row[start:i]])[row[i]]) for i in range(start + 1, len(row))}


def test_mdlm_is_the_token_mean_with_the_first_end_of_each_text(texts, hand_made):
    judge, made = hand_made(texts.tokenizer)
    total, count = 0.0, 0
    for row in rows_of(texts):
        ends = [i for i, token in enumerate(row) if token == E]
        for i, nll in nlls(made, row).items():
            if row[i] != E or i == ends[0]:
                total, count = total + nll, count + 1
    found = gen_ppl(texts, judge, protocol="mdlm")
    assert count == 7 + 4 + 6 + 2
    assert found.ppl.value == pytest.approx(math.exp(total / count), rel=1e-9)
    assert found.ppl.record["scored_tokens"] == count


def test_sdtt_and_sedd_average_text_by_text_and_score_every_end(texts, hand_made):
    judge, made = hand_made(texts.tokenizer)
    means = [sum(nlls(made, row).values()) / (len(row) - 1) for row in rows_of(texts)]
    sdtt, sedd = (gen_ppl(texts, judge, protocol=name).ppl.value for name in ("sdtt", "sedd"))
    assert sdtt == pytest.approx(math.exp(sum(means) / len(means)), rel=1e-9)
    assert sedd == pytest.approx(sum(map(math.exp, means)) / len(means), rel=1e-9)
    assert sedd > sdtt


def test_bd3lm_slides_a_window_and_scores_no_end(texts, hand_made, monkeypatch):
    """Windows of 5, stride 2 (for 1024, 512): the first scores all but its first token, the others two tokens each."""
    monkeypatch.setitem(PROTOCOLS, "bd3lm", dataclasses.replace(PROTOCOLS["bd3lm"], width=5, stride=2))
    judge, made = hand_made(texts.tokenizer)
    total, count = 0.0, 0
    for row in rows_of(texts):
        begins = {1: 0, 2: 0, 3: 0, 4: 0, 5: 2, 6: 2, 7: 4}  # the window in which each place is scored
        for i in range(1, len(row)):
            if row[i] != E:
                total, count = total + nlls(made, row, begins[i])[i], count + 1
    found = gen_ppl(texts, judge, protocol="bd3lm")
    assert found.ppl.value == pytest.approx(math.exp(total / count), rel=1e-9)
    assert found.ppl.record["scored_tokens"] == count


@pytest.mark.parametrize(
    ("length", "width", "stride"), [(1024, 1024, 512), (1025, 1024, 512), (2600, 1024, 512), (9, 4, 3), (3, 8, 4)]
)
def test_windows_score_every_token_once_with_at_least_half_a_window_before_it(length, width, stride):
    places = []
    for window in reading.windows(0, length, width, stride):
        assert window.end - window.start <= width
        assert window.first == 1 or window.first - window.start >= width - stride
        places += range(window.first, window.end)
    assert places == list(range(1, length))


def test_a_judge_that_must_begin_with_a_token_gets_it_unscored(texts, hand_made):
    judge, made = hand_made(texts.tokenizer, bos=True)
    means = [sum(nlls(made, row, lead=[judge.bos_id]).values()) / (len(row) - 1) for row in rows_of(texts)]
    found = gen_ppl(texts, judge, protocol="sdtt")
    assert found.ppl.value == pytest.approx(math.exp(sum(means) / len(means)), rel=1e-9)
    assert found.ppl.record["scored_tokens"] == sum(len(row) - 1 for row in rows_of(texts))


def test_a_text_longer_than_the_judge_is_cut(texts, hand_made):
    judge, made = hand_made(texts.tokenizer, context=4)
    means = []
    for row in rows_of(texts):
        seen = row[:4]
        means.append(sum(nlls(made, seen).values()) / (len(seen) - 1))
    assert gen_ppl(texts, judge, protocol="sdtt").ppl.value == pytest.approx(math.exp(sum(means) / 4), rel=1e-9)


def test_ends_become_the_ends_of_the_judge(letters, hand_made):
    """A judge with other ids reads the same letters, and its own end of a document between them."""
    texts, judge = Texts(torch.tensor([[0, 1, E, 2, E]]), letters(7)), hand_made(letters(12))[0]
    assert reading.retokenised(texts, judge) == [[0, 1, 11, 2, 11]]


def test_entropies(texts, hand_made):
    judge, made = hand_made(texts.tokenizer)
    found = gen_ppl(texts, judge, protocol="sdtt")
    by_hand = []
    for row in rows_of(texts):
        shares = [row.count(token) / len(row) for token in set(row)]
        by_hand.append(-sum(share * math.log(share) for share in shares))
    assert unigram_entropy(texts.rows).tolist() == pytest.approx(by_hand, rel=1e-12)
    assert float(unigram_entropy([list(range(50))])) == pytest.approx(math.log(50))
    laws = [made.after(row[:i]) for row in rows_of(texts) for i in range(1, len(row))]
    doubts = [float(-(law.exp() * law).sum()) for law in laws]
    assert found.judge_entropy.value == pytest.approx(sum(doubts) / len(doubts), rel=1e-9)


def test_what_was_judged_once_is_not_judged_again(texts, hand_made):
    judge, made = hand_made(texts.tokenizer)
    store = Store.open()
    first = gen_ppl(texts, judge, store=store)
    calls = made.calls
    again = gen_ppl(texts, judge, store=Store.open())
    assert made.calls == calls > 0
    assert again.ppl.value == first.ppl.value
    assert again.judge_entropy.value == first.judge_entropy.value
    gen_ppl(texts, judge, protocol="sdtt", store=store)  # another way of reading
    assert made.calls > calls
    other, elsewhere = hand_made(texts.tokenizer, seed=1)  # another judge
    assert gen_ppl(texts, other, store=store).ppl.value != first.ppl.value
    assert elsewhere.calls > 0


def test_a_run_that_breaks_keeps_what_was_judged(letters, hand_made, monkeypatch):
    """70 texts are judged 64 at a time; the judge breaks on the last ones, and the next run asks only for those."""
    random = torch.Generator().manual_seed(0)
    texts = Texts(torch.randint(0, 6, (70, 5), generator=random), letters(7))
    judge, made = hand_made(texts.tokenizer)
    rows = []

    def breaking(ids_BT):
        rows.append(len(ids_BT))
        return made.logits(ids_BT) if sum(rows) <= 64 else made.logits(ids_BT) * math.nan

    with pytest.raises(UserError, match=r"hand-made.*NaN"):
        gen_ppl(texts, dataclasses.replace(judge, logits=breaking), store=Store.open())
    asked = []

    def counting(ids_BT):
        asked.append(len(ids_BT))
        return made.logits(ids_BT)

    gen_ppl(texts, dataclasses.replace(judge, logits=counting), store=Store.open())
    assert sum(asked) == 6


def test_mistakes_are_one_line(texts, letters, hand_made):
    judge, _ = hand_made(texts.tokenizer)
    with pytest.raises(UserError, match="did you mean 'mdlm'"):
        gen_ppl(texts, judge, protocol="mdml")
    for raw in ("sdtt", "sedd"):
        with pytest.raises(UserError, match=r"another tokenizer.*mdlm, bd3lm"):
            gen_ppl(texts, hand_made(letters(12))[0], protocol=raw)
    for decoded in ("mdlm", "bd3lm"):
        with pytest.raises(UserError, match="no end-of-document token"):
            gen_ppl(texts, hand_made(texts.tokenizer, eos=False)[0], protocol=decoded)
    with pytest.raises(UserError, match="no token of any text is scored"):
        gen_ppl(Texts(torch.full((2, 4), E), texts.tokenizer), judge)
    with pytest.raises(UserError, match="empty"):
        Texts(torch.tensor([[1, 2], [-1, -1]]), texts.tokenizer)
