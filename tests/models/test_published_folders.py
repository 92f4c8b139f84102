"""Folders as the hub has them: shards, chat, answers that end, and what is refused in one line."""

import json

import pytest
import torch
from tests.models.hub_folder import write_folder

pytest.importorskip("transformers")

from unmask.checkpoint.io import load, save
from unmask.cli.main import main
from unmask.core.errors import UserError
from unmask.metrics.texts import of_samples
from unmask.sampling.verbs import sample

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " Who are you? "},
    {"role": "assistant", "content": "A small model."},
    {"role": "user", "content": "Write."},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("hub") / "llada"
    write_folder(path)
    return path


@pytest.fixture(scope="module")
def checkpoint(folder):
    return load(folder)


def refused(path, message):
    with pytest.raises(UserError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def change(path, name, **values):
    said = json.loads((path / name).read_text())
    (path / name).write_text(json.dumps({k: v for k, v in {**said, **values}.items() if v != "gone"}))


def test_shards_give_the_network_and_its_code_is_never_run(folder, tmp_path):
    model = write_folder(tmp_path / "one", shards=1)
    for path in (folder, tmp_path / "one"):
        found = load(path).model
        assert all(torch.equal(a, b) for a, b in zip(found.parameters(), model.parameters(), strict=True))
        assert not (path / "ran").exists()


def test_weights_in_bf16_stay_in_bf16(tmp_path):
    from safetensors.torch import load_file, save_file

    write_folder(tmp_path / "half", shards=1)
    path = tmp_path / "half/model.safetensors"
    save_file({name: value.bfloat16() for name, value in load_file(path).items()}, path)
    assert {value.dtype for value in load(tmp_path / "half").model.parameters()} == {torch.bfloat16}


def test_a_chat_is_spelled_as_transformers_spells_it(folder, checkpoint):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    for chat in (TALK, TALK[:2], [TALK[1]]):
        expected = theirs.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
        assert checkpoint.chat(chat) == expected
    assert checkpoint.chat("Write.") == checkpoint.chat(TALK[3:])


def test_an_answer_is_the_text_up_to_its_end_and_the_record_keeps_all_tokens(checkpoint):
    tokenizer, chats = checkpoint.tokenizer, ["Who?", "Tell me a story."] * 8
    turn = checkpoint.chat("Who?").index(tokenizer.encode("W")[0]) + len(tokenizer.encode("Who?"))
    assert tokenizer.stop_ids == {tokenizer.eos_id, checkpoint.chat("Who?")[turn]}  # of a document, of a turn
    samples = sample(checkpoint, chat=chats, max_new=40, steps=10, seed=3, device="cpu")
    ended = 0
    for tokens_L, log_q_L, chat, text in zip(samples.tokens, samples.log_q, chats, samples.text, strict=True):
        start = len(prompt := checkpoint.chat(chat))
        answer = tokens_L[start : start + 40].tolist()
        end = next((i for i, token in enumerate(answer) if token in tokenizer.stop_ids), 40)
        assert (text, tokens_L[:start].tolist()) == (tokenizer.decode(answer[:end]), prompt)
        assert bool((log_q_L[start : start + 40] < 0).all())
        ended += end < 40
    assert 0 < ended < len(chats)


def test_a_conversation_goes_on_from_its_tokens(checkpoint):
    tokens = torch.tensor(checkpoint.chat(TALK[1:]))
    samples = sample(checkpoint, infill=tokens, max_new=12, steps=4, seed=3, device="cpu")
    assert samples.given.tolist() == [[True] * len(tokens) + [False] * 12]
    answer = samples.tokens[0, len(tokens) :].tolist()
    end = next((i for i, token in enumerate(answer) if token in checkpoint.tokenizer.stop_ids), 12)
    assert samples.text == [checkpoint.tokenizer.decode([*tokens.tolist(), *answer[:end]])]


def test_prompts_of_different_length_give_what_each_gives_alone(checkpoint):
    prompts = ["Once", "Once upon a time", "a", "there was a small model", "upon"]
    for options in ({"plan": "golden"}, {"plan": "llada", "block_size": 8}, {"plan": "confidence"}):
        together = sample(checkpoint, prompt=prompts, max_new=16, steps=4, seed=5, device="cpu", **options)
        for i, prompt in enumerate(prompts):
            # sample i draws the noise of number i: as many prompts, all alike, give it the same
            alone = sample(checkpoint, len(prompts), prompt=prompt, max_new=16, steps=4, seed=5, batch=1, device="cpu",
                           **options)  # fmt: skip
            length = len(checkpoint.tokenizer.encode(prompt)) + 16
            assert together.tokens[i, :length].tolist() == alone.tokens[i, :length].tolist()
            assert torch.allclose(together.log_q[i, :length], alone.log_q[i, :length], atol=1e-5)


def test_our_own_format_keeps_the_chat(checkpoint, tmp_path):
    save(checkpoint, tmp_path / "own")
    again = load(tmp_path / "own")
    assert again.chat(TALK) == checkpoint.chat(TALK)
    assert again.tokenizer.stop_ids == checkpoint.tokenizer.stop_ids
    assert (again.model.config, again.model.mask_id) == (checkpoint.model.config, checkpoint.model.mask_id)


def test_a_missing_shard(tmp_path):
    write_folder(tmp_path / "a")
    (tmp_path / "a/model-00002-of-00003.safetensors").unlink()
    refused(tmp_path / "a", "incomplete: of its 3 files of weights model-00002-of-00003.safetensors is missing")


def test_an_index_that_points_elsewhere(tmp_path):
    write_folder(tmp_path / "a")
    change(tmp_path / "a", "model.safetensors.index.json", weight_map={"x": "../b.safetensors"})
    refused(tmp_path / "a", "names a file outside its folder")


def test_pickled_weights_are_not_opened(tmp_path):
    write_folder(tmp_path / "a", shards=1)
    (tmp_path / "a/model.safetensors").unlink()
    (tmp_path / "a/pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    refused(tmp_path / "a", "as a pickle .pytorch_model.bin., which is a program and is never run")


def test_a_family_that_only_its_own_code_knows(tmp_path):
    write_folder(tmp_path / "a", shards=1)
    change(tmp_path / "a", "config.json", model_type="mystery")
    said = refused(tmp_path / "a", "mystery")
    assert "never" in said
    assert not (tmp_path / "a/ran").exists()


def test_a_variant_that_computes_something_else(tmp_path):
    write_folder(tmp_path / "a", shards=1)
    change(tmp_path / "a", "config.json", block_type="sequential")
    refused(tmp_path / "a", "block_type = 'sequential', and the family llada knows 'llama' only")


def test_nobody_names_the_mask(tmp_path):
    write_folder(tmp_path / "a", shards=1)
    change(tmp_path / "a", "config.json", mask_token_id="gone")
    assert load(tmp_path / "a").model.mask_id == load(tmp_path / "a").tokenizer.mask_id  # the tokenizer says it
    (tmp_path / "a/tokenizer.json").unlink()
    refused(tmp_path / "a", "does not say which token is the mask")


def test_a_mask_that_is_a_word(tmp_path):
    write_folder(tmp_path / "a", shards=1)
    change(tmp_path / "a", "config.json", mask_token_id=70)
    refused(tmp_path / "a", "an ordinary token: they do not belong together")


def test_a_chat_for_a_base_model(tmp_path):
    write_folder(tmp_path / "base", chat=False)
    with pytest.raises(UserError, match="has no chat template, as base models have none: give prompt instead"):
        sample(tmp_path / "base", chat="Hello", device="cpu")


def test_more_than_the_model_reads(checkpoint):
    with pytest.raises(UserError, match=r"blanks take 1.. tokens, the model at most 96"):
        sample(checkpoint, chat="Write.", max_new=90, device="cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chat": "a", "prompt": "b"}, "chat says everything"),
        ({"chat": "a", "length": 20}, "bound the answer with max_new"),
        ({"prompt": "a", "max_new": 4, "length": 20}, "max_new bounds what is written .* leave out length"),
        ({"max_new": 0}, "max_new must be at least 1"),
        ({"chat": "stop <|eot_id|> here"}, "holds '<|eot_id|>', a special token"),
        ({"chat": "a <|mdm_mask|> blank"}, "holds '<|mdm_mask|>'"),
    ],
)
def test_options_that_do_not_go_together(checkpoint, options, message):
    with pytest.raises(UserError, match=message.replace("|", r"\|")):
        sample(checkpoint, device="cpu", **options)


def test_states_beyond_the_tokenizer_are_said_in_one_line(checkpoint, folder, capsys):
    """A random network draws some; `unmask info` says how many there are."""
    samples = sample(checkpoint, 8, length=40, steps=4, device="cpu")
    count = int((samples.tokens >= checkpoint.tokenizer.size).sum())
    assert count
    assert f"{count} drawn tokens spell nothing" in capsys.readouterr().err
    assert main(["info", str(folder)]) == 0
    extra = checkpoint.model.vocab_size - checkpoint.tokenizer.size
    assert f"{extra} of the 320 states are no token" in capsys.readouterr().out
    scored = of_samples(samples, checkpoint.tokenizer)
    size = checkpoint.tokenizer.size
    assert scored.rows == [[token for token in row if token < size] for row in samples.tokens.tolist()]
    assert torch.equal(scored.log_q_T, samples.log_q.sum(1))
