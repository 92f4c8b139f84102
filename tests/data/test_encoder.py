"""Fast encoding gives the library's own tokens, alone or in many processes, and helpers do not outlive their parent."""

from __future__ import annotations

import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from unmask.core.errors import UserError
from unmask.data import encoder as encoding
from unmask.data.encoder import Encoder, EncoderPool
from unmask.data.tokenizer import Tokenizer

# every kind of white space and of what Python calls white space, apostrophes, digits, marks, a zero-width space
SPACES = " \n\r\t\x0b\x0c\x1c\x1d\x85\u00a0\u180e\u2003\u2028\u3000\u200b"
HARD = [*SPACES, *"aB'st12.,!_\"-é北²½\u0301", "'s", "'ll", "  "]

Prose = Callable[[int, int], str]


def test_against_the_library_on_hard_cases(small: Tokenizer) -> None:
    draw = random.Random(0)
    for tokenizer in (Tokenizer.load("gpt2"), small):
        encoder = Encoder(tokenizer.to_json())
        assert encoder.by_word
        for _ in range(2000):
            text = "".join(draw.choices(HARD, k=draw.randrange(1, 24)))
            assert encoder.encode(text).tolist() == tokenizer.encode(text), repr(text)


def test_the_memory_of_words_may_overflow(prose: Prose, small: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.data.encoder._REMEMBERED", 10)
    encoder = Encoder(small.to_json())
    for seed in range(5):
        assert encoder.encode(prose(seed, 100)).tolist() == small.encode(prose(seed, 100))


def test_a_tokenizer_that_joins_words_is_given_whole_texts(prose: Prose) -> None:
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=["</s>"], initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator([prose(0, 300)], trainer)
    encoder = Encoder(inner.to_str())
    assert not encoder.by_word
    assert encoder.encode(prose(1, 300)).tolist() == inner.encode(prose(1, 300)).ids


def test_many_processes_give_what_one_gives_in_order(prose: Prose, small: Tokenizer) -> None:
    jobs = [[prose(10 * job + text, 30) for text in range(job % 4)] for job in range(40)]
    found = {}
    for processes in (1, 2):
        with EncoderPool(small.to_json(), processes) as pool:
            found[processes] = list(pool.map(jobs))
    for job, one, two in zip(jobs, found[1], found[2], strict=True):
        assert [small.encode(text) for text in job] == [ids.tolist() for ids in one]
        assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_a_helper_that_was_killed_is_reported(small: Tokenizer) -> None:
    with EncoderPool(small.to_json(), 2) as pool:
        for helper in pool._helpers:
            helper.kill()
        with pytest.raises(UserError, match="run the same command again"):
            list(pool.map([["a b"]] * 9))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.99])
def test_a_helper_killed_while_it_answers_is_reported(
    small: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    answer = pickle.dumps([np.array([1, 2], dtype=np.uint32), np.array([3, 4], dtype=np.uint32)])
    (tmp_path / "helper.py").write_text(
        "import pickle, sys\n"
        "pickle.load(sys.stdin.buffer), pickle.load(sys.stdin.buffer)\n"  # the tokenizer, then the job
        f"sys.stdout.buffer.write({answer[: int(share * len(answer))]!r})\n"
    )
    monkeypatch.setattr(encoding, "__file__", str(tmp_path / "helper.py"))
    with (
        EncoderPool(small.to_json(), 2) as pool,
        pytest.raises(UserError, match=r"an encoder process was killed: .* run the same command again"),
    ):
        list(pool.map([["a b", "c d"]]))


def test_helpers_end_when_the_parent_is_killed(small: Tokenizer, tmp_path) -> None:
    (tmp_path / "t.json").write_text(small.to_json(), encoding="utf-8")
    script = (
        "import pathlib, sys; from unmask.data.encoder import EncoderPool\n"
        f"with EncoderPool(pathlib.Path({str(tmp_path / 't.json')!r}).read_text(), 2) as pool:\n"
        "    print(next(pool.map([['a b']] * 9))[0].size, flush=True); sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with parent:
        assert parent.stdout.readline().strip().isdigit()
        parent.send_signal(signal.SIGKILL)
        assert parent.stderr.read() == b""  # the helpers hold this pipe too: it ends when the last of them is gone
