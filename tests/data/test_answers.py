"""Prompts and answers: what is given, what is learnt, EOS up to the longest row of the global batch."""

import json

import pytest
from tests.models.hub_folder import write_folder

from unmask.core.errors import UserError
from unmask.data.answers import Answers
from unmask.data.tokenizer import Tokenizer


def written(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.fixture
def sums(tmp_path, letters):
    """41 rows whose prompts have 1 to 5 letters and whose answers as many."""
    rows = [{"prompt": "a " * (1 + i % 5), "answer": " b" * (1 + i % 5)} for i in range(41)]
    return Answers(written(tmp_path / "sums.jsonl", rows), letters(6), 32, seed=3)


def test_a_row_is_prompt_answer_and_eos_up_to_the_longest(sums):
    batch = sums.batch(0, 0, 4, 4)
    longest = max(2 * int(n) + 1 for n in batch.prompts_T)
    for row, n in zip(batch.tokens_BL.tolist(), batch.prompts_T.tolist(), strict=True):
        assert row == [0] * n + [1] * n + [5] * (longest - 2 * n)


def test_any_division_gives_the_same_global_batch(sums):
    whole = sums.batch(2, 0, 6, 6)
    for start in (0, 2, 4):
        part = sums.batch(2, start, 2, 6)
        assert part.tokens_BL.tolist() == whole.tokens_BL[start : start + 2].tolist()
        assert part.prompts_T.tolist() == whole.prompts_T.tolist()


def test_an_epoch_has_every_row_once_and_the_last_twentieth_is_held_out(sums):
    assert (sums.blocks, sums.held_out().blocks) == (39, 2)
    seen = sorted(int(n) for step in range(13) for n in sums.batch(step, 0, 3, 3).prompts_T)
    assert seen == sorted(1 + i % 5 for i in range(39))
    [batch] = sums.held_out().eval_batches(None, 8)
    assert batch.prompts_T.tolist() == [1 + 39 % 5, 1 + 40 % 5]
    assert sums.tokens(0, 2, 3) == sum(sums.batch(step, 0, 3, 3).tokens_BL.numel() for step in (0, 1))


def test_a_conversation_is_spelled_by_the_template_and_answers_after_it(tmp_path):
    write_folder(tmp_path / "model")
    tokenizer = Tokenizer.load(tmp_path / "model")
    talk = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "a small time"}]
    data = Answers(written(tmp_path / "talk.jsonl", [{"messages": talk}] * 2), tokenizer, 96)
    batch = data.batch(0, 0, 1, 1)
    given, [ids] = int(batch.prompts_T[0]), batch.tokens_BL.tolist()
    assert ids[:given] == tokenizer.chat("Hello")
    end = [tokenizer._first("<|eot_id|>"), tokenizer.eos_id]
    assert ids[given:] == [*tokenizer.encode("a small time"), *end]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "a"}, "line 2: wanted"),
        ({"prompt": "a", "answer": 3}, "line 2: wanted"),
        ({"messages": [{"role": "user", "content": "a"}]}, "line 2: the last message is the answer"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "no chat template"),
    ],
)
def test_a_bad_line_is_named(row, words, tmp_path, letters):
    path = written(tmp_path / "bad.jsonl", [{"prompt": "a", "answer": "b"}, row])
    with pytest.raises(UserError, match=words):
        Answers(path, letters(6), 32)


def test_rows_that_do_not_fit_are_left_out_aloud(tmp_path, letters, capsys):
    rows = [{"prompt": "a", "answer": "b " * (1 + 20 * (i == 0))} for i in range(5)]
    path = written(tmp_path / "long.jsonl", rows)
    assert Answers(path, letters(6), 8).blocks == 3
    assert "1 of 4 rows" in capsys.readouterr().err
    with pytest.raises(UserError, match="the longest has 23"):
        Answers(path, letters(6), 2)
