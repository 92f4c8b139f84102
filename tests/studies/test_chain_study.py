"""The scripts of studies/chain, at toy size: heads trained with their model's last blocks, tables, figure, card."""

import json
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from tests.scene import LENGTH, SIZE

import unmask
from unmask.checkpoint.io import save, stored
from unmask.cli.main import run
from unmask.core.errors import UserError
from unmask.data.shards import ShardSet
from unmask.metrics.score import Ratio
from unmask.studies.results import Bound

QUICK = {"steps": 2, "batch": 4, "hidden": 8, "heads": 2, "blocks": 1, "tensorboard": False, "progress": False,
         "device": "cpu", "plan": "comb", "plan_steps": 2}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_corpus, network):
    """A corpus, a model `base`, and `run`: a head beside it and bounds of both, as run.sh leaves them."""
    folder = tmp_path_factory.mktemp("study")
    tokens = np.cumsum(np.random.default_rng(0).integers(0, 3, 4000)) % (SIZE - 1)
    write_corpus(folder / "corpus", tokens[:3000], tokens[3000:], SIZE)
    unmask.save(network(ShardSet.open(folder / "corpus").tokenizer(), 0), folder / "base")
    unmask.train(folder / "corpus", objective="chain", from_=folder / "base", out=folder / "head", **QUICK)
    made = folder / "run"
    save(stored(folder / "head" / "checkpoint"), made / "bf16" / "small-muon", dtype=torch.bfloat16)
    bounds(folder, "teacher", folder / "base", "comb", "2", "4")
    bounds(folder, "one-token", folder / "base", "permutation", str(LENGTH))
    for name in ("small-muon", "blind-muon"):  # one head in both places: the scripts only read files
        bounds(folder, name, made / "bf16" / "small-muon", "comb", "2", "4")
    return folder


def bounds(folder: Path, name: str, model: Path, plan: str, *steps: str) -> None:
    called = "teacher" if name == "one-token" else name
    asked = f"--only_bounds -n 3 --models {called}={model} --plans {plan} --steps {' '.join(steps)} --device cpu"
    run(["evaluate", *asked.split(), "--data", str(folder / "corpus"), "--out", str(folder / "run" / f"{name}-bounds")])


def said(monkeypatch, module: ModuleType, *options: object) -> None:
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, options)])
    module.main()


def test_blocks_learn_with_a_head_and_both_are_saved_when_the_time_is_up(folder, script, monkeypatch, tmp_path, capsys):
    joint = script("chain/joint")
    how = ["--blocks", "1", "0", "--batch", "2", "--warmup", "1", "--steps", "1000", "--seconds", "1e-9"]
    said(monkeypatch, joint, "--model", folder / "base", "--data", folder / "corpus", "--out", tmp_path, *how)
    assert "step 1, " in capsys.readouterr().out
    base, one, none = (unmask.load(path) for path in (folder / "base", tmp_path / "joint-1", tmp_path / "joint-0"))
    before, after = base.model.state_dict(), one.model.state_dict()
    moved = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    assert moved
    assert all(name.startswith("blocks.1.") for name in moved)
    assert all(torch.equal(weight, before[name]) for name, weight in none.model.state_dict().items())
    assert bool(none.step_law.head.out.weight.any())
    assert one.provenance["chain"]["step"] == 1
    unmask.sample(folder / "base", 1, 4, step_law=tmp_path / "joint-0", device="cpu")
    with pytest.raises(UserError, match="is a chain of another model"):
        unmask.sample(folder / "base", 1, 4, step_law=tmp_path / "joint-1", device="cpu")


def test_the_loss_of_joint_training_reaches_the_blocks_as_the_derivative_says(folder, script):
    """The gradient of a weight of the last block against a difference quotient of the loss."""
    joint = script("chain/joint")
    base = unmask.load(folder / "base")
    pupil = joint.Pupil(base, 1, Namespace(head_lr=1e-3, lr=1e-3), torch.device("cpu"))
    torch.nn.init.normal_(pupil.head.out.weight, std=0.3, generator=torch.Generator().manual_seed(0))
    tokens_BL = torch.randint(SIZE, (4, LENGTH), generator=torch.Generator().manual_seed(1))
    batch = joint.Batch(tokens_BL, 0, 4)
    weight = pupil.body.blocks[-1].qkv.weight

    def loss() -> torch.Tensor:
        return pupil.objective(pupil.head, batch, step=0, generator=torch.Generator().manual_seed(2)).loss_BL.mean()

    loss().backward()
    assert weight.grad is not None
    along = torch.sign(weight.grad) * 1e-3
    with torch.no_grad():
        weight += along
        up = loss()
        weight -= 2 * along
        down = loss()
    assert float(up - down) / 2 == pytest.approx(float((weight.grad * along).sum()), rel=0.02)


def test_predictions_are_told_from_the_bounds(script):
    """Of made-up bounds: what is printed is their arithmetic."""
    table, found = script("chain/table"), {}
    nats = {("teacher", "permutation", 256): 4.0, ("teacher", "comb", 2): 4.6, ("teacher", "comb", 4): 4.2,
            ("small-muon", "comb", 2): 4.15, ("small-muon", "comb", 4): 4.1, ("small-muon", "golden", 4): 4.05,
            ("small-muon", "comb", 8): 4.01, ("small-adamw", "comb", 2): 4.2, ("blind-muon", "comb", 2): 4.57,
            ("blind-muon", "comb", 4): 4.17, ("order-plan", "comb", 2): 4.3, ("order-plan", "iid", 2): 4.1,
            ("order-left_to_right", "comb", 2): 4.25, ("order-confidence", "comb", 2): 4.26,
            ("joint-2", "comb", 2): 4.2, ("joint-0", "comb", 2): 4.23,
            ("distil", "comb", 2): 4.26, ("comb", "comb", 4): 4.1, ("teacher", "comb", 8): 4.03}  # fmt: skip
    for cell, value in nats.items():
        found[cell] = Ratio.of(torch.full((4,), 10 * value), torch.full((4,), 10.0))
    timed = [{"name": name, "batch": 1, "steps": N, "seconds": s}
             for name, N, s in (("no head", 8, 2.0), ("head, gumbel", 4, 1.5))]  # fmt: skip
    lines = "\n".join(table.Told(found, {"lines": timed}).lines())
    assert "(1) N = 4, best plan, at most +0.06: +0.0500, held" in lines
    assert "(2) N = 2, best plan, at most +0.13: +0.1500, failed" in lines
    assert "(3) N = 8 on comb, at most 0: +0.0100, failed" in lines
    assert "(4) the blind head lacks at least 75% of the gain (both by Muon): +0.8000, held" in lines  # at N = 4
    assert "(4) Muon less AdamW at N = 2: -0.0500, held" in lines
    assert "best order: left_to_right, held" in lines
    assert "(1) with the last two blocks less the head alone, N = 2 on comb, at most -0.02: -0.0300, held" in lines
    assert "(2) the model's draws less the text, N = 2, at least +0.02: +0.0100, failed" in lines
    assert "(5) 7.4M parameters, N = 2, at most +0.11: not measured" in lines
    assert "(5) 4 steps with it less 8 without, seconds, batch 1: -0.5000, held" in lines
    assert "(5) N = 4 with it less the middle of 4 and 8 without, at most 0: -0.0150, held" in lines
    del found["order-left_to_right", "comb", 2]
    assert "best order: not measured" in "\n".join(table.Told(found).lines())
    rows = [*table.table(found)]
    assert rows[0] == "| head | plan | N = 2 | N = 4 | N = 8 |"
    assert "| none | `comb` | +0.600 ± 0.000 | +0.200 ± 0.000 | +0.030 ± 0.000 |" in rows


def test_a_head_becomes_an_asset_with_its_own_figures(folder, script, tmp_path):
    script("chain/ship").main(folder / "run", tmp_path / "asset")
    made, base = stored(tmp_path / "asset"), unmask.load(folder / "base")
    assert {weight.dtype for weight in made.model.parameters()} == {torch.bfloat16}
    card, found = (tmp_path / "asset" / "README.md").read_text(), script("chain/table").found_in(folder / "run")
    alone, mine, blind = (found[name, "comb", 2].value for name in ("teacher", "small-muon", "blind-muon"))
    shown = next(line for line in card.splitlines() if line.startswith("| `comb` | 2 |")).split(" | ")
    assert shown[2] == f"{alone:.4f}"
    for value, less in zip(shown[3:], (mine - alone, blind - alone), strict=True):
        assert value.startswith(f"{less:+.3f} ± ")
    asset, kept = (
        unmask.sample(base, 1, 4, step_law=law, device="cpu")
        for law in (tmp_path / "asset", folder / "run/bf16/small-muon")
    )
    assert torch.equal(asset.tokens, kept.tokens)
    assert str(folder) not in (tmp_path / "asset" / "provenance.json").read_text()


def test_the_figure_puts_bounds_and_seconds_together(folder, script, monkeypatch, tmp_path, capsys):
    bench = tmp_path / "bench.json"
    how = ["--steps", "2", "4", "--batches", "1", "--rivals", "1", "--repeats", "1", "--device", "cpu", "--json"]
    how += ["--data", str(folder / "corpus"), "--texts", "3"]
    run(["bench", "chain", "--model", str(folder / "run" / "bf16" / "small-muon"), *how])
    bench.write_text(capsys.readouterr().out)
    measured = script("chain/table").found_in(folder / "run")
    for row in json.loads(bench.read_text())["lines"]:
        if row["name"] in (models := {"no head": "teacher", "head, gumbel": "small-muon"}):
            assert row["nats"] == pytest.approx(measured[models[row["name"]], "comb", row["steps"]].value, abs=1e-5)
    said(monkeypatch, script("chain/figure"), folder / "run", "--bench", bench)
    shown = capsys.readouterr().out
    assert [line.split(" | ")[:2] for line in shown.splitlines()[3:5]] == [["| 1", "2"], ["| 1", "4"]]
    rows = {row["name"]: row for row in json.loads(bench.read_text())["lines"] if row["steps"] in (2, LENGTH)}
    times = rows["causal, cached"]["ms_per_text"] / rows["head, gumbel"]["ms_per_text"]
    assert shown.splitlines()[3].split(" | ")[7] == f"{times:.1f}"
    slower = rows["head, acceptance"]["seconds"] / rows["head, gumbel"]["seconds"]
    assert f"batch 1, N = 2: {slower:.2f}" in shown
    assert (folder / "run" / "cost.svg").read_bytes().startswith(b"<?xml")


def test_equal_seconds_lie_between_two_numbers_of_steps(script):
    figure = script("chain/figure")

    def bound(nats: float, size: float = 4.0) -> Bound:
        ratio = Ratio.of(torch.full((3,), nats), torch.full((3,), 1.0))
        return Bound("teacher", "comb", 2, 2.0, {}, ratio, bytes_n=(size,) * 3)

    one = figure.Costs(1, {"no head": {2: (1.0, bound(5)), 4: (4.0, bound(4))}, "head": {2: (2.0, bound(4.25))}}, 40.0)
    assert one.at(2.0).value == pytest.approx(4.5)
    assert one.at(0.5) is None
    cells = [*figure.table([one], bound(4.0))][2].split(" | ")
    assert cells[6:] == ["-0.250 ± 0.000", "20.0", "+0.062 |"]  # (4.25 - 4) / 4 bytes
