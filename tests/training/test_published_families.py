"""Published families are trained, distilled, saved and sampled as our own are: for real, on a CPU, on sample text."""

import json
import lzma
from importlib import resources

import pytest
import torch
from tests.models.test_masked_lm import write_tokenizer

pytest.importorskip("transformers")

import unmask
from unmask.models.lora import does_nothing, merged

QUICK = {"batch": 8, "device": "cpu", "tensorboard": False, "progress": False, "warmup": 10, "eval_batches": 2}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A small BERT with random weights, as transformers saves it, with a tokenizer that has a mask."""
    from transformers import BertConfig, BertForMaskedLM

    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    BertForMaskedLM(BertConfig(vocab_size=264, max_position_embeddings=64, **shape)).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, bert):
    folder = tmp_path_factory.mktemp("text")
    packed = resources.files("unmask") / "assets/sample-corpus.txt.xz"
    text = lzma.decompress(packed.read_bytes()).decode()
    (folder / "text.txt").write_text(text[:400_000])
    unmask.prepare(folder / "text.txt", folder / "corpus", tokenizer=str(bert), progress=False)
    return folder / "corpus"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, bert, corpus):
    """A run that starts from the published folder."""
    out = tmp_path_factory.mktemp("runs") / "tuned"
    unmask.train(corpus, from_=str(bert), length=32, out=out, steps=150, eval_every=50, lr=3e-3, **QUICK)
    return out


def elbos(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["elbo"] for line in lines if "elbo" in line]


def test_a_bert_becomes_a_diffusion_model(tuned, bert):
    found = elbos(tuned)
    assert found[-1] < found[0] - 0.4  # nats a token
    assert found[-1] < 4.0
    loaded = unmask.load(tuned)
    assert loaded.model.mask_id == unmask.load(bert).model.mask_id
    samples = unmask.sample(loaded, prompt="The ", length=24, steps=6, device="cpu")
    assert loaded.model.mask_id not in samples.tokens
    assert samples.text[0].startswith("The")


def test_it_is_evaluated(tuned, corpus, tmp_path):
    unmask.evaluate(
        {"tuned": str(tuned)}, steps=[4], plans=["golden"], data=str(corpus), split="validation", only_bounds=True, n=4,
        device="cpu", out=tmp_path / "evaluation",
    )  # fmt: skip
    found = json.loads((tmp_path / "evaluation/results.json").read_text())
    assert found


def takes_adapters(run, corpus, out):
    """An adapter is trained on a run, saved, loaded and merged; then distilled by each method."""
    lora = {"lora": True, "lora_rank": 4, "lora_dropout": 0.0, "length": 32, "lr": 1e-2, **QUICK, "warmup": 1}
    unmask.train(corpus, from_=str(run), out=out / "adapter", steps=3, **lora)
    again, base = unmask.load(out / "adapter").model.eval(), unmask.load(run).model.eval()
    ids = torch.randint(200, (2, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        plain, adapted = (model.logits(model.features(ids)) for model in (base, again))
        whole = merged(again)
        assert float((plain - adapted).abs().max()) > 1e-3
        assert torch.allclose(whole.logits(whole.features(ids)), adapted, atol=1e-4)
    samples = unmask.sample(str(out / "adapter"), n=1, length=16, steps=4, device="cpu")
    assert unmask.load(run).model.mask_id not in samples.tokens
    for method in ("mcd", "sdtt", "cd4lm"):
        delta = {} if method == "cd4lm" else {"delta": 0.25}
        student = unmask.distill(str(run), corpus, method=method, rounds=2, round_steps=2, **delta, **lora)
        assert not does_nothing(student.model)
        before = base.state_dict()
        for name, value in student.model.state_dict().items():
            assert ".lora_" in name or torch.equal(value, before[name.replace(".base_layer", "")]), name


def takes_a_chain(run, corpus, out):
    """A head learns beside a run, which is not touched; it is saved, loaded, sampled with, and refused elsewhere."""
    shape = {"hidden": 32, "blocks": 1, "heads": 2, "plan": "stride", "plan_steps": 2}
    before = unmask.load(run)
    made = unmask.train(
        corpus, objective="chain", from_=run, length=32, steps=100, out=out / "chain", **shape,
        **QUICK | {"lr": 3e-3, "ema": 0.95, "eval_every": 0},
    )  # fmt: skip
    for one in (made, unmask.load(out / "chain")):
        assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), before.model.parameters(), strict=True))
        with_head, alone = one.step_law.facts["measured"]["stride"]["2"]
        assert with_head < alone - 0.01  # nats a token of held-out text
    drawn = [unmask.sample(out / "chain", n=2, length=16, steps=2, batch=size, device="cpu") for size in (1, 2)]
    assert torch.equal(drawn[0].tokens, drawn[1].tokens)
    assert drawn[0].rounds.min() >= 2
    assert before.model.mask_id not in drawn[0].tokens
    with pytest.raises(unmask.UserError, match="is a chain for another vocabulary"):
        unmask.sample("pocket", n=1, steps=2, step_law=out / "chain", device="cpu")


def test_it_takes_a_chain(tuned, corpus, tmp_path):
    takes_a_chain(tuned, corpus, tmp_path)


def test_it_takes_an_adapter(tuned, corpus, tmp_path):
    takes_adapters(tuned, corpus, tmp_path)


def test_it_is_distilled(tuned, corpus, tmp_path):
    student = unmask.distill(
        tuned, corpus, method="mcd", rounds=1, round_steps=6, delta=0.25, length=32, samples=2, sample_steps=2,
        out=tmp_path / "student", **QUICK,
    )  # fmt: skip
    before = unmask.load(tuned).model
    after = unmask.load(tmp_path / "student").model
    assert type(after) is type(before)
    assert any(not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))
    assert len(unmask.sample(student, n=2, length=16, steps=2, device="cpu")) == 2


@pytest.mark.parametrize("family", ["llada", "dream", "sdar"])
def test_a_decoder_learns_is_distilled_and_comes_back_as_it_was(family, corpus, tmp_path):
    made = unmask.train(corpus, family=family, set_={"blocks": 2}, length=32, out=tmp_path / "run", steps=60,
                        eval_every=30, lr=3e-3, **QUICK)  # fmt: skip
    found = elbos(tmp_path / "run")
    assert found[-1] < found[0] - 0.4
    again = unmask.load(tmp_path / "run")
    assert type(again.model) is type(made.model)
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), made.model.parameters(), strict=True))
    unmask.distill(
        tmp_path / "run", corpus, method="sdtt", rounds=1, round_steps=3, delta=0.25, samples=2, sample_steps=2,
        out=tmp_path / "student", **QUICK,
    )  # fmt: skip
    unmask.evaluate(
        {"teacher": str(tmp_path / "run")}, steps=[4], plans=["golden"], data=str(corpus), split="validation",
        only_bounds=True, n=4, device="cpu", out=tmp_path / "evaluation",
    )  # fmt: skip
    assert (tmp_path / "evaluation/results.json").is_file()
    texts = unmask.sample(str(tmp_path / "student"), prompt=["The", "It was the"], max_new=8, steps=4, device="cpu")
    assert len(texts) == 2
    takes_a_chain(tmp_path / "run", corpus, tmp_path)
    takes_adapters(tmp_path / "run", corpus, tmp_path)
