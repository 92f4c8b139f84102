"""Published families behind an address: a small LLaDA with its chat template, LLaDA and Dream by their tokens alone."""

from pathlib import Path

import httpx
import pytest
import torch
from tests.models.hub_folder import write_folder
from tests.server.conftest import listening
from tests.server.test_openai import client_of

pytest.importorskip("transformers")

import unmask
from unmask.checkpoint.io import Checkpoint, load

PUBLISHED = Path(__file__).parents[1] / "assets/published"
QUESTION = "Who are you?"


@pytest.fixture(scope="module")
def llada(tmp_path_factory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("hub") / "llada"
    write_folder(folder)
    return load(folder)


def test_a_completion_of_llada_is_sample_alone(llada):
    """Three choices in one forward, and a stream: texts, laws and where each text ends."""
    asked = [("Once upon", 24, "golden", 0), ("a small", 17, "llada", 1), ("time", 40, "confidence", 2)]
    with listening(llada) as address:
        ask = client_of(address).completions.create
        for prompt, new, plan, seed in asked:
            how = {"max_tokens": new, "seed": seed, "extra_body": {"steps": 8, "plan": plan}}
            said = ask(model="tiny", prompt=prompt, n=3, logprobs=1, **how)
            alone = unmask.sample(llada, 3, 8, prompt=prompt, max_new=new, plan=plan, seed=seed, device="cpu")
            assert [prompt + one.text for one in said.choices] == alone.text
            for choice, log_q_L, given_L in zip(said.choices, alone.log_q, alone.given, strict=True):
                laws = choice.logprobs.token_logprobs
                assert laws == pytest.approx(log_q_L[~given_L].tolist()[: len(laws)], abs=1e-5)
            streamed = "".join(part.choices[0].text for part in ask(model="tiny", prompt=prompt, stream=True, **how))
            assert prompt + streamed == alone.text[0]


def test_a_chat_with_llada_by_the_template_of_its_folder(llada):
    with listening(llada) as address:
        ask = client_of(address).chat.completions.create
        talk = [{"role": "user", "content": QUESTION}]
        said = ask(model="tiny", messages=talk, max_tokens=20, seed=7, n=2, extra_body={"steps": 10})
    alone = unmask.sample(llada, 2, 10, chat=QUESTION, max_new=20, seed=7, device="cpu")
    assert [one.message.content for one in said.choices] == alone.text
    assert said.usage.prompt_tokens == len(llada.chat(QUESTION)) == int(alone.given[0].sum())


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_checkpoint_without_a_tokenizer_fills_tokens(family):
    checkpoint = load(PUBLISHED / family)
    tokens = [5, 9, 14, *[None] * 20, 33, None]
    blank = torch.tensor([-1 if one is None else one for one in tokens])
    with listening(checkpoint) as address:
        asked = {"model": "tiny", "tokens": tokens, "steps": 6, "seed": 3, "n": 2, "temperature": 0.7}
        said = httpx.post(f"{address}/v1/infill", json=asked).json()["choices"]
        refused = httpx.post(f"{address}/v1/completions", json={"model": "tiny", "prompt": "a"})
    alone = unmask.sample(checkpoint, 2, 6, infill=blank, seed=3, temperature=0.7, device="cpu")
    assert [one["tokens"] for one in said] == alone.tokens.tolist()
    assert [one["log_prob"] for one in said] == pytest.approx(alone.log_q.sum(1).tolist(), abs=1e-4)
    assert (refused.status_code, "no tokenizer" in refused.text) == (400, True)
