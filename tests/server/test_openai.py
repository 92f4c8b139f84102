"""OpenAI's own client against a live server: whole and streamed, stops, laws, usage, errors."""

import math
from dataclasses import replace

import openai
import pytest
from tests.server.conftest import LENGTH, listening

import unmask
from unmask.checkpoint.io import Checkpoint
from unmask.data.chat import Specials
from unmask.data.tokenizer import Tokenizer

TEMPLATE = "{% for one in messages %}[{{ one.role[0] }}]{{ one.content }}{% endfor %}[a]"


def client_of(address: str, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0, timeout=30)


@pytest.fixture(scope="module")
def client(address):
    return client_of(address)


def expected(checkpoint: Checkpoint, prompt: str, new: int, n: int = 1, **how) -> list[tuple[str, str, list[int]]]:
    """(text up to the end of the document, why it ends, its tokens) by `sample`."""
    head = checkpoint.tokenizer.encode(prompt)
    written = unmask.sample(checkpoint, n, prompt=prompt, length=len(head) + new, device="cpu", **how)
    found = []
    for row in written.tokens.tolist():
        tokens, reason = row[len(head) :], "length"
        if checkpoint.tokenizer.eos_id in tokens:
            tokens, reason = tokens[: tokens.index(checkpoint.tokenizer.eos_id)], "stop"
        found.append((checkpoint.tokenizer.decode(tokens), reason, tokens))
    return found


def test_choices_are_the_samples_of_one_call_with_their_log_probabilities(client, checkpoint):
    how = {"seed": 5, "steps": 4, "temperature": 1.3, "top_p": 0.9}
    said = client.completions.create(
        model="tiny", prompt="ab", max_tokens=12, n=3, seed=5, temperature=1.3, top_p=0.9, logprobs=2,
        extra_body={"steps": 4},
    )  # fmt: skip
    texts = expected(checkpoint, "ab", 12, n=3, **how)
    assert [(one.text, one.finish_reason) for one in said.choices] == [one[:2] for one in texts]
    written = unmask.sample(checkpoint, 3, prompt="ab", length=14, device="cpu", **how)
    for number, choice in enumerate(said.choices):
        count = len(texts[number][2])
        log_q = written.log_q[number, 2 : 2 + count].tolist()
        assert choice.logprobs.token_logprobs == pytest.approx(log_q, abs=1e-5)
        assert all(len(one) <= 2 and math.exp(max(one.values())) <= 1 for one in choice.logprobs.top_logprobs)
        assert choice.logprobs.text_offset[:1] == [0]
    assert said.usage.prompt_tokens == 2
    assert said.usage.completion_tokens == sum(len(one[2]) for one in texts)
    assert said.unmask["seed"] == 5


@pytest.mark.parametrize("plan", ["left_to_right", "golden"])
def test_a_stream_adds_up_to_the_whole(client, plan):
    def ask(**more):
        return client.completions.create(
            model="tiny", prompt=["ab", "c"], max_tokens=20, seed=1, logprobs=1, stop=["e", "zz"],
            extra_body={"steps": 10, "plan": plan}, **more,
        )  # fmt: skip

    whole, parts = ask(), list(ask(stream=True, stream_options={"include_usage": True}))
    for number, choice in enumerate(whole.choices):
        mine = [part.choices[0] for part in parts if part.choices and part.choices[0].index == number]
        assert "".join(one.text for one in mine) == choice.text
        assert [one.finish_reason for one in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1].finish_reason == choice.finish_reason
        laws = [law for one in mine for law in one.logprobs.token_logprobs]
        assert laws == pytest.approx(choice.logprobs.token_logprobs, abs=1e-6)
        assert "e" not in choice.text
    assert parts[-1].usage == whole.usage
    if plan == "left_to_right":
        assert len(parts) > 5, "a delta is what has settled"


def test_a_stop_string_ends_a_text_before_it(client, checkpoint):
    (text, _, _) = expected(checkpoint, "", 30, seed=0, steps=30)[0]
    stop = text[7:9]
    said = client.completions.create(
        model="tiny", prompt="", max_tokens=30, seed=0, stop=[stop], extra_body={"steps": 30}
    )
    assert (said.choices[0].text, said.choices[0].finish_reason) == (text[: text.find(stop)], "stop")


def test_a_suffix_stands_after_the_answer(client, checkpoint):
    said = client.completions.create(model="tiny", prompt="ab", suffix="yz", max_tokens=5, seed=2, n=1)
    written = unmask.sample(checkpoint, 1, prompt="ab", suffix="yz", length=9, seed=2, device="cpu")
    assert checkpoint.tokenizer.decode(written.tokens[0, 2:7].tolist()).startswith(said.choices[0].text)
    assert said.usage.prompt_tokens == 4


def test_without_a_seed_texts_differ_and_the_answer_tells_how_to_repeat_it(client):
    first, second = (client.completions.create(model="tiny", prompt="a", max_tokens=30) for _ in range(2))
    assert first.choices[0].text != second.choices[0].text
    again = client.completions.create(model="tiny", prompt="a", max_tokens=30, seed=first.unmask["seed"])
    assert again.choices[0].text == first.choices[0].text


def test_tokens_may_be_given_instead_of_text(client, checkpoint):
    ids = checkpoint.tokenizer.encode("ab")
    texts = [client.completions.create(model="tiny", prompt=one, seed=1).choices[0].text for one in ("ab", ids, [ids])]
    assert len(set(texts)) == 1


def test_models_are_listed(client, checkpoint):
    (model,) = client.models.list().data
    assert model.id == "tiny"
    assert model.unmask["length"] == LENGTH
    assert "golden" in model.unmask["plans"]
    assert client.models.retrieve("tiny") == model


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"max_tokens": 60}, f"maximum context length is {LENGTH}"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"n": 17}, "at most 16"),
        ({"n": 0}, "n:"),
        ({"stop": ["a"] * 5}, "stop strings"),
        ({"stop": ""}, "stop string is empty"),
        ({"logprobs": 21}, "at most 20"),
        ({"presence_penalty": 1.0}, "presence_penalty"),
        ({"prompt": [300]}, "there is no token 300"),
        ({"prompt": [257]}, "there is no token 257"),
        ({"prompt": []}, "empty list"),
        ({"extra_body": {"steps": 5000}}, "steps is at most 1024"),
        ({"extra_body": {"plan": "goldn"}}, "did you mean 'golden'"),
        ({"extra_body": {"plan": "/etc/passwd"}}, "unknown plan"),
        ({"extra_body": {"grid": "/etc/passwd"}}, "grid: extra inputs are not permitted"),
        ({"seed": 2**64}, "seed"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(client, asked, said):
    with pytest.raises(openai.BadRequestError, match=said) as caught:
        client.completions.create(**{"model": "tiny", "prompt": "a", **asked})
    assert "\n" not in caught.value.body["message"]


def test_a_model_that_the_operator_did_not_name_is_not_there(client):
    for name in ("pocket", "/etc", "../tiny", ""):
        with pytest.raises(openai.NotFoundError, match="unknown model"):
            client.completions.create(model=name, prompt="a")


def test_a_chat_needs_a_template(client):
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])


def test_a_chat_by_the_models_own_template(checkpoint):
    tokenizer = Tokenizer(checkpoint.tokenizer.to_json(), "chatty", Specials(chat_template=TEMPLATE))
    chatty = replace(checkpoint, tokenizer=tokenizer)
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    with listening(chatty) as address:
        ask = client_of(address).chat.completions.create

        def say(**more):
            return ask(
                model="tiny", messages=messages, seed=3, max_tokens=15, logprobs=True, top_logprobs=1,
                extra_body={"steps": 15, "plan": "left_to_right"}, **more,
            )  # fmt: skip

        whole, parts = say(), list(say(stream=True))
    choice = whole.choices[0]
    (text, reason, tokens) = expected(chatty, "[s]x[u]hi[a]", 15, seed=3, steps=15, plan="left_to_right")[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", text, reason)
    assert len(choice.logprobs.content) == len(tokens)
    assert all(one.logprob <= 0 and len(one.top_logprobs) == 1 for one in choice.logprobs.content)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == text
    assert (parts[0].choices[0].delta.role, parts[-1].choices[0].finish_reason) == ("assistant", reason)
    assert whole.usage.prompt_tokens == len("[s]x[u]hi[a]")
