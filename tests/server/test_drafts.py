"""What a draft shows of a token that is only part of a character."""

import asyncio
import json
import random
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("fastapi")

from unmask.data.tokenizer import Tokenizer
from unmask.processes import Masked
from unmask.server.drafts import BROKEN, Spelling, stream_drafts
from unmask.server.engine import Change, Finished, Stepped

TEXT = "Zoë ate naïve 漢字 – 😀😀 é"


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.load("pocket")


@pytest.mark.parametrize("seed", range(20))
def test_a_character_of_several_tokens_comes_whole_with_the_last_of_them(tokenizer, seed):
    ids = tokenizer.encode(TEXT)
    assert sum(BROKEN in tokenizer.decode([token]) for token in ids) > 8
    order, spelling, texts = list(range(len(ids))), Spelling(tokenizer), [""] * len(ids)
    random.Random(seed).shuffle(order)
    for count, at in enumerate(order, 1):
        texts[at] = spelling.add(at, ids[at])
        assert BROKEN not in "".join(texts)
        stood = [tokenizer.decode([ids[i] for i in run]).replace(BROKEN, "") for run in runs(sorted(order[:count]))]
        assert "".join(texts) == "".join(stood)
    assert "".join(texts) == TEXT


def runs(places):
    """Places that stand side by side."""
    found = []
    for place in places:
        if found and found[-1][-1] == place - 1:
            found[-1].append(place)
        else:
            found.append([place])
    return found


def test_the_stream_spells_so_both_what_is_given_and_what_is_drawn(tokenizer):
    ids = tokenizer.encode("😀😀")
    half = len(ids) // 2
    given_L = torch.tensor([*ids[:half], *[-1] * (len(ids) - half)])
    how = SimpleNamespace(
        checkpoint=SimpleNamespace(tokenizer=tokenizer, process=Masked()),
        plan=SimpleNamespace(name="comb", rule=None), grid=SimpleNamespace(steps=2),
    )  # fmt: skip
    drawn = [Change(at, ids[at], -1.0) for at in range(half, len(ids))]

    class Events:
        async def events(self):
            yield 0, Stepped(1, 2, 1, 0.1, drawn[1:])
            yield 0, Stepped(2, 2, 2, 0.2, drawn[:1])
            yield 0, Finished(ids, [0.0] * len(ids), 2, 0.2)

    async def all_of_it():
        return [json.loads(one.removeprefix("data: ")) async for one in stream_drafts(Events(), "tiny", task)]

    task = SimpleNamespace(how=how, given_L=given_L)
    start, first, second, _ = asyncio.run(all_of_it())
    assert "".join(start["texts"][:half]) == "😀"
    assert [change["text"] for change in first["changes"]] == [""] * (len(ids) - half - 1)
    assert [change["text"] for change in second["changes"]] == ["😀"]
