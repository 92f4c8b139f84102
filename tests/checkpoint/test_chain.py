"""A chain's head is an adapter: trained, saved, loaded beside its model, put on it at sampling, refused elsewhere."""

import json
import shutil

import numpy as np
import pytest
import torch
from tests.scene import LENGTH, SIZE

import unmask
from unmask.checkpoint.identity import identity_of
from unmask.cli.main import run
from unmask.core.errors import UserError
from unmask.data.shards import ShardSet
from unmask.inference.chain import Chain
from unmask.models.chain import ChainHead

QUICK = {"steps": 2, "batch": 4, "hidden": 8, "heads": 2, "blocks": 1, "tensorboard": False, "progress": False,
         "device": "cpu"}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_corpus, network):
    """A corpus, a model `base`, one of other weights, one of another vocabulary, and a run of a chain beside `base`."""
    folder = tmp_path_factory.mktemp("chain")
    tokens = np.cumsum(np.random.default_rng(0).integers(0, 3, 4000)) % (SIZE - 1)
    write_corpus(folder / "corpus", tokens[:3000], tokens[3000:], SIZE)
    codec = ShardSet.open(folder / "corpus").tokenizer()
    unmask.save(network(codec, 0), folder / "base")
    unmask.save(network(codec, 1), folder / "other")
    model = unmask.DiT(SIZE + 5, LENGTH, hidden=16, cond=8, blocks=1, heads=2)
    unmask.save(unmask.Checkpoint(model, tokenizer=codec), folder / "wide")
    unmask.train(folder / "corpus", objective="chain", from_=folder / "base", out=folder / "run", **QUICK)
    return folder


def test_a_run_is_loaded_beside_its_model(folder):
    made = unmask.load(folder / "run")
    assert isinstance(made.step_law, Chain)
    assert isinstance(unmask.load(folder / "base").step_law, unmask.Factorised)
    assert identity_of(made) != identity_of(unmask.load(folder / "base"))
    facts = made.step_law.facts
    assert (set(facts["measured"]), set(facts["measured"]["golden"])) == ({*facts["plans"], "iid"}, {"4", "8"})
    with_head, without = facts["measured"]["iid"]["4"]
    assert 0 < abs(with_head - without) < 0.5


def test_a_head_is_trained_for_the_plan_and_the_steps_that_are_wanted(folder):
    made = unmask.train(
        folder / "corpus", objective="chain", from_=folder / "base", plan="comb", plan_steps=[2, 4], **QUICK
    )
    assert (made.step_law.facts["plans"], made.step_law.facts["steps"]) == (["comb"], [2, 4])


def test_a_model_with_its_head_is_saved_and_loaded_whole(folder, tmp_path):
    made = unmask.load(folder / "run")
    unmask.save(made, tmp_path / "whole")
    again = unmask.load(tmp_path / "whole")
    assert identity_of(again) == identity_of(made)
    drawn = [unmask.sample(one, 2, 4, device="cpu").tokens for one in (made, again)]
    assert torch.equal(*drawn)
    unmask.save(made, tmp_path / "half", dtype=torch.bfloat16)
    half = unmask.load(tmp_path / "half")
    assert {weight.dtype for weight in [*half.model.parameters(), *half.step_law.head.parameters()]} == {torch.bfloat16}
    beside = unmask.sample(folder / "base", 2, 4, step_law=tmp_path / "whole", device="cpu")
    assert torch.equal(beside.tokens, drawn[0])


def test_a_model_may_name_its_head_which_is_then_its_law(folder, tmp_path):
    """One line of its config turns it on; `factorised` turns it off again."""
    shutil.copytree(folder / "base", tmp_path / "base")
    config = json.loads((tmp_path / "base" / "config.json").read_text())
    for law, said in ((folder / "run", None), (folder / "other", "is no chain")):
        config["step_law"] = {"name": "chain", "from": str(law)}
        (tmp_path / "base" / "config.json").write_text(json.dumps(config))
        if said:
            with pytest.raises(UserError, match=said):
                unmask.load(tmp_path / "base")
            continue
        named, off = (
            unmask.sample(tmp_path / "base", 2, 4, device="cpu", step_law=one) for one in (None, "factorised")
        )
        assert torch.equal(named.tokens, unmask.sample(folder / "run", 2, 4, device="cpu").tokens)
        assert torch.equal(off.tokens, unmask.sample(folder / "base", 2, 4, device="cpu").tokens)
        how = {"objective": "chain", "from_": tmp_path / "base", "set_": {"blind": True}}
        assert unmask.train(folder / "corpus", **how, **QUICK).step_law.head.config.blind  # a new head, not that one


def test_two_heads_of_one_shape_are_two_models(folder):
    made = unmask.load(folder / "run")
    law = made.step_law
    other = ChainHead(law.head.config)
    assert identity_of(made) != identity_of(
        unmask.Checkpoint(made.model, made.process, made.tokenizer, {}, Chain(other))
    )


def test_sample_puts_a_head_on_a_model(folder, capsys):
    command = ["sample", "--model", str(folder / "base"), "--steps", "4", "--device", "cpu", "--json"]
    run([*command, "--step_law", str(folder / "run")])
    shown, footer = capsys.readouterr()
    sample, record = map(json.loads, shown.splitlines())
    assert sample["rounds"] >= 4
    assert record["rounds"] == {"mean": sample["rounds"], "most": sample["rounds"]}
    assert f"4 forwards and {sample['rounds']} rounds of the head (at most {sample['rounds']})" in footer
    assert "not trained on" not in footer
    assert torch.equal(torch.tensor([sample["tokens"]]), unmask.sample(folder / "run", 1, 4, device="cpu").tokens)
    run(command)
    shown, footer = capsys.readouterr()
    assert "rounds" not in json.loads(shown.splitlines()[0])
    assert "rounds" not in footer


def test_a_plan_it_was_not_trained_on_is_a_note_with_the_measured_loss(folder, capsys):
    measured = unmask.load(folder / "run").step_law.facts["measured"]["iid"]["4"]
    unmask.sample(folder / "run", 1, 3, plan="iid", device="cpu")
    said = " ".join(capsys.readouterr().err.split())
    assert "not trained on the plan iid, but on golden, stride, permutation, comb: in 4 steps" in said
    assert f"{measured[0]:.3f} nats a token, the model alone {measured[1]:.3f}" in said
    unmask.sample(folder / "run", 1, 4, plan="rotation", device="cpu")
    assert "worth there was not measured" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("model", "law", "said"),
    [
        ("other", "run", "is a chain of another model: of .*base with weights .* train one for this model with"),
        ("wide", "run", "is a chain for another vocabulary .* train one for this model with"),
        ("base", "other", "is a model without a chain: give the folder of one"),
        ("base", "chain", "has no chain of its own: give the folder of one"),
        ("base", "factorized", "unknown step law 'factorized': did you mean 'factorised'"),
    ],
)
def test_a_head_that_does_not_belong_is_refused_in_one_line(folder, model, law, said):
    asked = folder / law if (folder / law).exists() else law
    with pytest.raises(UserError, match=said) as refusal:
        unmask.sample(folder / model, 1, 4, step_law=asked, device="cpu")
    assert "\n" not in str(refusal.value)


def test_a_run_whose_model_is_gone_or_changed_says_so(folder, network, tmp_path):
    base, codec = tmp_path / "base", unmask.load(folder / "base").tokenizer
    unmask.save(network(codec, 0), base)
    unmask.train(folder / "corpus", objective="chain", from_=base, out=tmp_path / "run", **QUICK)
    unmask.save(network(codec, 1), base)
    with pytest.raises(UserError, match="is a chain of another model"):
        unmask.load(tmp_path / "run")
    base.rename(tmp_path / "moved")
    with pytest.raises(UserError, match="the model beside which it works cannot be loaded"):
        unmask.load(tmp_path / "run")
    unmask.sample(folder / "base", 1, 4, step_law=tmp_path / "run", device="cpu")  # equal weights, wherever they lie


def test_the_command_prints_what_the_head_is_worth(folder, tmp_path, capsys):
    run(["train", "--objective", "chain", "--from", str(folder / "base"), "--data", str(folder / "corpus"), "--steps",
         "1", "--batch", "4", "--hidden", "8", "--heads", "2", "--blocks", "1", "--plan", "comb", "--plan_steps", "2",
         "--device", "cpu", "--out", str(tmp_path / "run")])  # fmt: skip
    said = capsys.readouterr().out
    assert "run: 1 steps" in said
    assert "comb in 2 steps: " in said
    assert "iid in 2 steps: " in said
    assert "golden in 2 steps: " in said
    assert said.count("a plan that it was not trained on") == 4  # golden, stride, permutation and iid


def test_a_head_is_trained_on_where_the_model_has_one(folder, tmp_path):
    """With hardly any rate it stays what it was, beside the model that it was trained beside; a shape is refused."""
    quick = {name: value for name, value in QUICK.items() if name not in ("hidden", "heads", "blocks")}
    quick |= {"objective": "chain", "from_": folder / "run"}
    same = unmask.train(folder / "corpus", out=tmp_path / "on", lr=1e-12, **quick)
    before, after = unmask.load(folder / "run").step_law.head, unmask.load(tmp_path / "on").step_law.head
    assert after.config == before.config == same.step_law.head.config
    for one, other in zip(before.parameters(), after.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    with pytest.raises(UserError, match="has a head, which is trained on as it is: leave out hidden"):
        unmask.train(folder / "corpus", hidden=16, **quick)


def test_what_is_trained_on_from_a_model_with_a_head_has_none(folder, tmp_path):
    """The head is for the weights that it was trained beside."""
    quick = {name: value for name, value in QUICK.items() if name not in ("hidden", "heads", "blocks", "steps")}
    unmask.train(folder / "corpus", from_=folder / "run", out=tmp_path / "on", steps=1, **quick)
    unmask.distill(folder / "run", folder / "corpus", out=tmp_path / "student", rounds=1, round_steps=1, samples=2,
                   sample_steps=2, **quick)  # fmt: skip
    for name in ("on", "student"):
        assert isinstance(unmask.load(tmp_path / name).step_law, unmask.Factorised)


@pytest.mark.parametrize(("option", "value"), [("process", ["masked"]), ("schedule", ["cosine"]), ("lora", [])])
def test_options_that_would_change_the_model_are_refused(folder, tmp_path, option, value):
    with pytest.raises(UserError, match=f"leaves its model as it is: leave out --{option}"):
        run(["train", "--objective", "chain", "--from", str(folder / "base"), "--data", str(folder / "corpus"),
             f"--{option}", *value, "--device", "cpu", "--out", str(tmp_path / "run")])  # fmt: skip
