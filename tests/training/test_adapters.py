"""Training and distilling with LoRA: only the adapter moves, is saved and comes back; the base is never written."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import unmask
from unmask.cli.main import main
from unmask.data.tokenizer import Tokenizer
from unmask.models.family import trainable
from unmask.models.lora import base_of, config_of, does_nothing, merged
from unmask.objectives.distil.teacher import Teacher
from unmask.objectives.registry import METHODS

SIZE = 20
QUICK = {
    "batch": 8, "device": "cpu", "tensorboard": False, "progress": False, "warmup": 2, "eval_batches": 1, "lr": 1e-2,
    "ema": 0.9,
}  # fmt: skip
LORA = {"lora": True, "lora_rank": 4, "lora_alpha": 8.0, "lora_dropout": 0.0}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, write_corpus):
    """Texts in which a token is mostly followed by the next one."""
    rng = np.random.default_rng(0)
    steps = np.where(rng.random(6000) < 0.9, 1, rng.integers(1, 6, 6000))
    text = np.cumsum(steps) % (SIZE - 1)
    return write_corpus(tmp_path_factory.mktemp("corpus") / "text", text[:5000], text[5000:], SIZE)


@pytest.fixture(scope="module")
def base(tmp_path_factory, network, corpus):
    folder = tmp_path_factory.mktemp("base") / "model"
    unmask.save(network(Tokenizer.load(corpus), 1, length=16), folder)
    return folder


@pytest.fixture(scope="module")
def tuned(base, corpus, tmp_path_factory):
    """(the folder of a LoRA run, what it returned)."""
    out = tmp_path_factory.mktemp("tuned") / "run"
    return out, unmask.train(corpus, from_=base, out=out, steps=30, eval_every=30, save_every=10, **LORA, **QUICK)


def test_it_learns_and_only_the_adapter_moves(tuned, base):
    out, made = tuned
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    elbos = [line["elbo"] for line in lines if "elbo" in line]
    assert elbos[-1] < elbos[0] - 0.2
    before, after = unmask.load(base).model.state_dict(), made.model.state_dict()
    for name, value in after.items():
        if ".lora_" not in name:
            assert torch.equal(value, before[name.replace(".base_layer", "")]), name


def test_states_and_checkpoints_hold_the_adapter_only(tuned):
    out, made = tuned
    names = set(trainable(made.model))
    [state, *_] = sorted((out / "state").iterdir())
    saved = json.loads((state / "index.json").read_text())["tensors"]
    assert {name.partition(".")[2] for name in saved if name.startswith("weight.")} == names
    assert {name.removeprefix("ema.") for name in saved if name.startswith("ema.")} == names
    assert not [name for name in saved if ".lora_" not in name]
    assert {path.name for path in (out / "checkpoint").iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "raw.safetensors", "config.json", "provenance.json",
        "tokenizer.json",
    }  # fmt: skip


def test_it_is_loaded_with_the_base_that_it_names_or_one_that_is_given(tuned, base):
    out, made = tuned
    alone, both = unmask.load(out), unmask.load(base, adapter=out)
    raw = unmask.load(out, weights="raw")
    for loaded in (alone, both):
        for name, value in made.model.state_dict().items():
            assert torch.equal(loaded.model.state_dict()[name], value), name
    ids = torch.randint(SIZE, (2, 16))
    assert not torch.equal(raw.model(ids), alone.model(ids))
    assert base_of(alone.model).source == str(base)
    assert {value.data_ptr() for value in trainable(alone.model).values()}


def test_what_peft_reads_of_it_computes_the_same(tuned, base):
    import peft

    out, made = tuned
    theirs = peft.PeftModel.from_pretrained(unmask.load(base).model, str(out / "checkpoint"))
    ids = torch.randint(SIZE, (2, 16))
    assert torch.equal(theirs(ids), made.model(ids))


def test_what_peft_wrote_is_read(base, tmp_path):
    import peft

    config = peft.LoraConfig(r=2, target_modules=["qkv", "mlp_in"], init_lora_weights=False)
    theirs = peft.get_peft_model(unmask.load(base).model, config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = unmask.load(base, adapter=tmp_path / "theirs")
    ids = torch.randint(SIZE, (2, 16))
    assert torch.equal(theirs(ids), ours.model(ids))
    with pytest.raises(unmask.UserError, match="does not name its base"):
        unmask.load(tmp_path / "theirs")
    unmask.save(ours, tmp_path / "again")
    assert torch.equal(theirs(ids), unmask.load(tmp_path / "again").model(ids))


def test_the_same_command_goes_on_and_a_finished_run_is_found(tuned, base, corpus, tmp_path):
    _, made = tuned
    options = {**LORA, **QUICK, "eval_every": 30, "save_every": 10, "from_": base, "out": tmp_path / "run"}
    unmask.train(corpus, steps=10, **options)
    again = unmask.train(corpus, steps=30, **options)
    finished = unmask.train(corpus, steps=30, **options)
    for name, value in trainable(made.model).items():
        assert torch.equal(trainable(again.model)[name], value)
        assert torch.equal(trainable(finished.model)[name], value)


def test_merged_it_is_an_ordinary_checkpoint(tuned, base, tmp_path, capsys):
    out, made = tuned
    assert main(["convert", str(out), str(tmp_path / "whole"), "--merge"]) == 0
    assert main(["convert", str(base), str(tmp_path / "both"), "--adapter", str(out), "--merge"]) == 0
    ids = torch.randint(SIZE, (2, 16))
    for name in ("whole", "both"):
        assert not (tmp_path / name / "adapter_config.json").exists()
        found = unmask.load(tmp_path / name)
        assert base_of(found.model) is None
        assert torch.allclose(found.model(ids), made.model(ids), atol=1e-5)
    assert main(["convert", str(out), str(tmp_path / "folded"), "--fold"]) == 2
    assert "--merge" in capsys.readouterr().err
    assert main(["convert", str(base), str(tmp_path / "nothing"), "--merge"]) == 2
    assert "no adapter to merge" in capsys.readouterr().err


def test_it_writes_as_its_merged_twin_does(tuned):
    _, made = tuned
    twin = unmask.Checkpoint(merged(made.model), made.process, made.tokenizer)
    ours, theirs = (unmask.sample(one, 2, 4, seed=3, device="cpu") for one in (made, twin))
    assert torch.equal(ours.tokens, theirs.tokens)


@pytest.mark.parametrize("method", ["mcd", "sdtt", "cd4lm", "elbo"])
def test_it_is_distilled(method, base, corpus, tmp_path):
    """Two rounds: the first teacher is the base, the second the base with the first round's adapter."""
    options = {"method": method, "rounds": 2, "round_steps": 4, "samples": 2, "sample_steps": 4, **LORA, **QUICK}
    options |= {"delta": 0.25} if method in ("mcd", "sdtt") else {}
    student = unmask.distill(base, corpus, out=tmp_path / "student", **options)
    assert base_of(student.model).source == str(base)
    assert not does_nothing(student.model)
    ids = torch.randint(SIZE, (2, 16))
    assert torch.equal(unmask.load(tmp_path / "student").model(ids), student.model(ids))
    first, second = (unmask.load(tmp_path / "student" / "rounds" / str(number)).model for number in (1, 2))
    assert not torch.equal(first(ids), second(ids))
    assert torch.equal(second(ids), student.model(ids))


def test_the_teacher_is_the_same_weights_with_the_adapter_off(base, corpus, monkeypatch):
    """What distillation really shares: every weight of the first teacher is the student's own tensor."""
    seen = []

    class Watched(unmask.MCD):
        def __call__(self, student, batch, *, step, generator):
            theirs = {value.data_ptr() for value in self.teacher.model.parameters()}
            frozen = {value.data_ptr() for value in student.parameters() if not value.requires_grad}
            seen.append((theirs - frozen, base_of(self.teacher.model), len(theirs)))
            return super().__call__(student, batch, step=step, generator=generator)

    monkeypatch.setitem(METHODS, "watched", Watched)  # known while this test runs
    unmask.distill(base, corpus, method="watched", rounds=2, round_steps=2, delta=0.25, **LORA, **QUICK)
    (first, off, count), (second, on, _) = seen[0], seen[-1]
    assert off is None
    assert not first
    assert count > 10
    assert on is not None
    adapters = [value for name, value in Teacher(unmask.load(base)).model.named_parameters() if "qkv" in name]
    assert len(second) == 2 * 4 * len(adapters)  # only the adapter of the round before is the teacher's own


def test_a_resumed_distillation_is_the_undisturbed_one(base, corpus, tmp_path):
    options = {"method": "mcd", "round_steps": 4, "delta": 0.25, "samples": 2, **LORA, **QUICK}
    whole = unmask.distill(base, corpus, rounds=2, out=tmp_path / "whole", **options)
    unmask.distill(base, corpus, rounds=1, out=tmp_path / "parts", **options)
    parts = unmask.distill(base, corpus, rounds=2, out=tmp_path / "parts", **options)
    for name, value in trainable(whole.model).items():
        assert torch.equal(trainable(parts.model)[name], value)


def test_a_model_with_an_adapter_trains_it_on(tuned, corpus):
    out, made = tuned
    more = unmask.train(corpus, from_=out, steps=2, **QUICK)
    assert set(trainable(more.model)) == set(trainable(made.model))
    assert config_of(more.model).r == 4
    with pytest.raises(unmask.UserError, match="has an adapter already"):
        unmask.train(corpus, from_=out, steps=2, **LORA, **QUICK)


def test_an_adapter_of_another_base_is_one_line(tuned, network, tmp_path):
    out, made = tuned
    unmask.save(network(made.tokenizer, 2, length=16), tmp_path / "other")
    with pytest.raises(unmask.UserError, match=r"of another base: it was trained on .*, and these are not its weights"):
        unmask.load(tmp_path / "other", adapter=out)
    (out / "checkpoint" / "config.json").rename(tmp_path / "config.json")  # as peft would have left it
    try:
        with pytest.raises(unmask.UserError, match="of another base"):
            unmask.load("pocket", adapter=out / "checkpoint")
    finally:
        (tmp_path / "config.json").rename(out / "checkpoint" / "config.json")
    with pytest.raises(unmask.UserError, match="is no adapter"):
        unmask.load(tmp_path / "other", adapter=tmp_path / "other")


def test_a_pickled_adapter_is_never_opened(base, tmp_path):
    import peft

    theirs = peft.get_peft_model(unmask.load(base).model, peft.LoraConfig(r=2, target_modules=["qkv"]))
    theirs.save_pretrained(tmp_path / "theirs")
    with safe_open(tmp_path / "theirs" / "adapter_model.safetensors", "pt") as file:
        assert len(list(file.keys())) == 4
    (tmp_path / "theirs" / "adapter_model.safetensors").rename(tmp_path / "theirs" / "adapter_model.bin")
    with pytest.raises(unmask.UserError, match="pickle"):
        unmask.load(base, adapter=tmp_path / "theirs")


def test_names_in_the_file_are_pefts(tuned):
    out, _ = tuned
    names = load_file(out / "checkpoint" / "adapter_model.safetensors").keys()
    assert {name.split(".")[0] + "." + name.split(".")[1] for name in names} == {"base_model.model"}
    assert names == load_file(out / "checkpoint" / "raw.safetensors").keys()


def test_options_without_a_use_are_refused(base, corpus):
    with pytest.raises(unmask.UserError, match="add --lora"):
        unmask.train(corpus, from_=base, lora_rank=4, **QUICK)
    with pytest.raises(unmask.UserError, match="give it with --from"):
        unmask.train(corpus, lora=True, preset="tiny", **QUICK)


@pytest.mark.parametrize("lora", [LORA, {}])
def test_computing_blocks_again_changes_nothing(lora, base, corpus):
    options = {"from_": base, "steps": 3, "eval_every": 2, **lora, **QUICK}
    kept, again = (unmask.train(corpus, recompute=recompute, **options) for recompute in (False, True))
    for name, value in kept.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value)
