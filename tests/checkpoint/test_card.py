"""What is given away: the same function in fewer numbers and bytes, with a card, without one machine's paths."""

import json
import re

import pytest
import torch

from unmask.checkpoint.card import portable
from unmask.checkpoint.convert import convert
from unmask.checkpoint.io import Checkpoint, load, save
from unmask.core.errors import UserError
from unmask.core.files import sha256_file
from unmask.models.dit.folded import fold
from unmask.sampling.verbs import sample

RUN = {
    "unmask": "0.1.0", "revision": "0123456789abcdef+local changes", "torch": "2.6", "device": "a CPU",
    "time": "2026-01-02T03:04:05+00:00", "step": 200,
    "config": {
        "trainer": {"batch": 32, "lr": 2e-3, "decay": "cosine", "warmup": 10, "ema": 0.99, "precision": "fp32",
                    "seed": 5},
        "objective": {"name": "mdlm"},
        "data": {"length": 12, "content": "c0ffee", "tokenizer": "beef"},
        "facts": {"from": {"source": "/home/ann/runs/first", "weights": "abcd", "step": 1500}, "teacher": None},
    },
    "score": {"kind": "elbo", "nats": 4.25, "stderr": 0.125, "sequences": 64},
}  # fmt: skip


def test_a_bfloat16_checkpoint_writes_as_its_rounded_float32_twin(checkpoint, random_dit, tmp_path):
    convert_from = tmp_path / "full"
    save(checkpoint, convert_from)
    convert(convert_from, tmp_path / "half", dtype="bf16")
    half = load(tmp_path / "half")
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.bfloat16}
    twin = random_dit(vocab_size=checkpoint.model.vocab_size)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.copy_(parameter.bfloat16())
    texts = [
        sample(Checkpoint(model, checkpoint.process, checkpoint.tokenizer), 4, 5, seed=1, device="cpu")
        for model in (half.model, twin)
    ]
    assert torch.equal(texts[0].tokens, texts[1].tokens)
    assert torch.equal(texts[0].log_q, texts[1].log_q)
    assert texts[0].text == texts[1].text


@pytest.mark.parametrize("causal", [False, True])
def test_folding_keeps_the_function_and_stays_trainable(random_dit, causal):
    model = random_dit(causal=causal).double()
    folded = fold(model)
    z_BL = torch.randint(20, (3, 12), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(folded(z_BL), model(z_BL), rtol=1e-12, atol=1e-9)
    assert sum(p.numel() for p in folded.parameters()) < sum(p.numel() for p in model.parameters())
    assert torch.equal(fold(folded)(z_BL), folded(z_BL))
    folded(z_BL).square().mean().backward()
    assert folded.blocks[0].modulation.bias.grad.abs().sum() > 0


def test_the_card_says_what_the_checkpoint_is(checkpoint, tmp_path):
    source = Checkpoint(checkpoint.model, checkpoint.process, checkpoint.tokenizer, RUN)
    save(source, tmp_path / "run", raw=checkpoint.model.state_dict())
    target = tmp_path / "minnow"
    convert(tmp_path / "run", target, dtype="bf16", fold=True, card="Reads fish stories.", licence="CC0-1.0")
    card = (target / "README.md").read_text()
    assert card.startswith("# minnow\n\nReads fish stories.\n")
    rows = dict(re.findall(r"^\| (.+?) \| (.+) \|$", card, re.MULTILINE))
    count = sum(parameter.numel() for parameter in load(target).model.parameters())
    assert rows["parameters"] == f"{count:,}, stored as bfloat16"
    assert rows["licence"] == "CC0-1.0"
    assert "200 steps of 32 x 12 tokens: 0.1 million" in rows["training"]
    assert "learning rate 0.002 (cosine)" in rows["optimiser"]
    assert "EMA 0.99" in rows["optimiser"]
    assert "4.2500 ± 0.1250 nats a token (ELBO" in rows["held-out text"]
    assert "before the rounding" in rows["held-out text"]
    assert f"{sha256_file(target / 'model.safetensors')}  model.safetensors" in card
    assert "unmask sample --model minnow" in card
    assert load(target).provenance["config"]["facts"]["from"]["source"] == "first"
    assert rows["start"] == "from first, after 1,500 steps"

    convert(tmp_path / "run", tmp_path / "raw", weights="raw", card="Raw.")
    rows = dict(re.findall(r"^\| (.+?) \| (.+) \|$", (tmp_path / "raw" / "README.md").read_text(), re.MULTILINE))
    assert "raw weights" in rows["optimiser"]
    assert "held-out text" not in rows  # the score is the averaged weights'
    assert "licence" not in rows
    with pytest.raises(UserError, match="give --card"):
        convert(tmp_path / "run", tmp_path / "own", licence="MIT")
    convert(tmp_path / "run", tmp_path / "own")
    assert not (tmp_path / "own" / "README.md").exists()
    assert load(tmp_path / "own").provenance == RUN  # at home, paths lead somewhere


def test_a_student_names_its_teacher_and_a_causal_model_its_use(checkpoint, random_dit, tmp_path):
    facts = {"teacher": {"source": "/data/runs/pike", "weights": "ab"}}
    about = {"method": "mcd", "round": 3, "rounds": 5, "round_steps": 1000, "delta": 0.125, "tau": 0.9}
    provenance = RUN | {"config": RUN["config"] | {"facts": facts}, "distillation": about}
    causal = random_dit(vocab_size=checkpoint.model.vocab_size, causal=True)
    save(Checkpoint(checkpoint.model, provenance=provenance), tmp_path / "a")
    save(Checkpoint(causal), tmp_path / "b")
    for name in ("a", "b"):
        convert(tmp_path / name, tmp_path / f"{name}-out", card="About.")
    card = (tmp_path / "a-out" / "README.md").read_text()
    assert "| distilled | from pike by mcd |" in card
    assert "| rounds | 3 of 1,000 steps, the last with delta 0.125 and tau 0.9 |" in card
    card = (tmp_path / "b-out" / "README.md").read_text()
    assert "unmask evaluate --models teacher=MODEL --judge b-out --data CORPUS\n" in card, "not text it may have read"
    assert "unmask sample --model" not in card


def test_no_absolute_path_is_left():
    found = portable({"a": ["/home/x/y", {"b": "C:\\runs\\z"}], "c": "owner/name", "d": "runs/t", "e": 3, "f": None})
    assert found == {"a": ["y", {"b": "z"}], "c": "owner/name", "d": "runs/t", "e": 3, "f": None}
    assert json.loads(json.dumps(found)) == found
