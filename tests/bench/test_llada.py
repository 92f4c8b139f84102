"""`unmask bench llada`: its plain side is the published algorithm, and what fails in one part stops no other."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from unmask.bench import llada as bench
from unmask.bench.plain_llada import plain_step
from unmask.checkpoint.io import load
from unmask.cli.main import run

FOLDER = Path(__file__).parents[1] / "assets/published/llada"


def quotas(masked_BL, steps):
    """How many positions each of a block's steps reveals: (B, steps); the remainder goes to the first ones."""
    count_B1 = masked_BL.sum(1, keepdim=True)
    return count_B1 // steps + (torch.arange(steps, device=masked_BL.device) < count_B1 % steps).long()


def plain_generate(model, prompt_BL, answer, steps, block, temperature):
    """The prompt and an answer of so many tokens, in blocks, with equally many steps each."""
    x_BL = torch.nn.functional.pad(prompt_BL, (0, answer), value=model.mask_id)
    first = prompt_BL.shape[1]
    for start in range(first, first + answer, block):
        quota_BS = quotas(x_BL[:, start : start + block] == model.mask_id, steps * block // answer)
        for quota_B in quota_BS.T:
            x_BL = plain_step(model, model, x_BL, start + block, quota_B, temperature)
    return x_BL


@pytest.mark.parametrize("name", ["greedy_one_row", "greedy_uneven_quota", "greedy_single_block", "seeded_temperature"])
def test_plain_is_the_published_algorithm(name):
    """On the prompt that has no padding, of which plain knows nothing; with its noise where it draws."""
    reference, model = np.load(FOLDER / "reference.npz"), load(FOLDER).model
    run = next(run for run in json.loads(str(reference["meta"]))["generation"] if run["name"] == name)
    prompts, how = torch.tensor(reference["gen_prompts"])[:1], run["args"]
    with torch.random.fork_rng():
        torch.manual_seed(run["seed"])
        ours = plain_generate(model, prompts, how["gen_length"], how["steps"], how["block_length"], how["temperature"])
    assert torch.equal(ours, torch.tensor(reference[f"gen_{name}_out"])[:1])


@pytest.fixture
def small(monkeypatch):
    for name, value in {"BATCHES": (2,), "TEMPERATURES": (1.0,), "STEPS": (32,), "TOKENS": (8,)}.items():
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # which takes half a minute


def test_the_bench_runs_in_miniature(small, tmp_path, capsys):
    pytest.importorskip("peft")
    run(["bench", "llada", "--size", "tiny", "--device", "cpu", "--out", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["errors"] == {}
    names = {line["name"] for line in found["lines"]}
    assert {"weights read once", "plain", "ours, golden", "ours, compiled, golden", "cached block step, body"} <= names
    assert any("LoRA" in name for name in names)
    rows = {row["name"]: row for row in found["lines"]}
    for name in ("ours, golden", "ours, compiled, llada's order", "dual cache, golden", "prefix cache, confidence"):
        row, least, most = rows[name], *sorted(rows[name]["faster"][1:])
        assert 0 < least <= row["faster"][0] <= most
        assert row["ms_a_token"] == pytest.approx(row["ms_a_forward"] / 16)  # two rows, eight tokens each
        assert row.get("faster_a_token", row["faster"])[0] == row["faster"][0] * (8 if "cache" in name else 1)
    shown = capsys.readouterr().out
    assert "with a cache, batch 2, temperature 1" in shown
    assert "cached block step, body: " in shown
    least = rows["ours, compiled, llada's order"]["faster"][0]
    assert f"no cache, temperature 1, times as fast as plain: at least 1.3; found {least:.3g}" in shown


def test_a_part_that_fails_is_said_and_the_next_goes_on(small, tmp_path, monkeypatch, capsys):
    def no_cache(*_, **__):
        raise ValueError("no such kernel")

    monkeypatch.setattr(bench, "no_cache", no_cache)
    run(["bench", "llada", "--size", "tiny", "--device", "cpu", "--out", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())
    (name,) = found["errors"]
    assert name == "no cache, batch 2, temperature 1"
    assert "no such kernel" in found["errors"][name]
    assert any(line["name"].startswith("dual cache") for line in found["lines"])
    assert "no such kernel" in capsys.readouterr().out
    run(["bench", "llada", "--size", "tiny", "--device", "cpu", "--seconds", "0", "--out", str(tmp_path / "none.json")])
    none = json.loads((tmp_path / "none.json").read_text())
    assert len(none["errors"]) == 5
    assert all(why.startswith("not begun") for why in none["errors"].values())
    assert [line["name"] for line in none["lines"]] == ["model made"]
