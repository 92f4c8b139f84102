"""`unmask bench sampler` says what it timed, and which model it cannot time; the benches know every preset."""

import json

import pytest
import torch

from unmask.bench import plain_uniform
from unmask.bench.distill import distill
from unmask.bench.sampler import sampler
from unmask.checkpoint.io import Checkpoint, save
from unmask.cli.main import run
from unmask.cli.parser import options_of
from unmask.core.errors import UserError
from unmask.models.dit.network import PRESETS, DiT
from unmask.processes import States, Uniform
from unmask.processes.schedule import LogLinear


def test_what_cannot_be_timed_is_refused_in_one_line(tmp_path):
    save(Checkpoint(DiT(7, length=4, hidden=8, cond=4, blocks=1, heads=1, causal=True)), tmp_path / "judge")
    with pytest.raises(UserError, match=r"this model is causal .* give a diffusion model"):
        run(["bench", "sampler", "--model", str(tmp_path / "judge"), "--device", "cpu"])
    with pytest.raises(UserError, match="--model pocket brings its own shape: leave out --preset, or --model"):
        run(["bench", "sampler", "--model", "pocket", "--preset", "tiny", "--device", "cpu"])


def test_the_bench_runs_in_miniature(capsys):
    options = "--preset tiny --steps 2 3 --batch 2 --repeats 1 --device cpu --json"
    run(["bench", "sampler", *options.split()])
    said = json.loads(capsys.readouterr().out)
    lines = {(line["name"], line["steps"]): line["ms_per_sequence_step"] for line in said["lines"]}
    assert list(lines) == [
        ("body alone", None), ("ours", 2), ("a call of sample", 2), ("ours", 3), ("a call of sample", 3),
            ("plain, our body", None), ("plain, eager body", None),
    ]  # fmt: skip
    for ratio in said["ratios"]:
        mine = lines["ours", ratio["steps"]]
        assert ratio["over_body"] == pytest.approx(mine / lines["body alone", None])
        for name in ("plain, our body", "plain, eager body"):
            assert ratio[f"faster than {name}"] == pytest.approx(lines[name, None] / mine)


def test_duos_sampler_too(capsys):
    """With the plain algorithm's law equal to ours, and a plan of the process."""
    words = "sampler --process uniform --preset tiny --steps 2 --batch 2 --repeats 1 --device cpu --json"
    run(["bench", *words.split()])
    said = json.loads(capsys.readouterr().out)
    assert (said["record"]["process"], said["record"]["plan"]) == ("uniform", "ancestral")
    assert {"faster than plain, our body", "faster than plain, eager body"} <= said["ratios"][0].keys()
    logits = torch.randn(2, 3, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z = torch.randint(9, (2, 3), generator=torch.Generator().manual_seed(1))
    times = (torch.tensor(time, dtype=torch.float64) for time in (0.45, 0.5))
    ours = Uniform(LogLinear(0.0)).posterior(logits.flatten(0, 1).log_softmax(-1), z.flatten(), *times, States(9, None))
    plain = plain_uniform.posterior(logits, z, 0.5, 0.55).flatten(0, 1)
    torch.testing.assert_close(plain, ours.exp(), rtol=1e-10, atol=1e-12)
    drawn = plain_uniform.race(plain.expand(4000, -1, -1), lambda *shape: torch.rand(*shape[:1], dtype=shape[1]))
    share = torch.nn.functional.one_hot(drawn, 9).double().mean(0)
    assert float((share - plain).abs().max()) < 5 * (0.25 / 4000) ** 0.5


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("sampler --steps 2", ["x body alone", "plain, our body", "2 steps: ", "x faster than plain, eager body"]),
        ("distill --length 16", ["ms / sequence", "plain", "ours does ", "x the tokens of the plain step"]),
        ("chain --steps 2", ["rounds / step", "batch 1, 2 steps: ", "x the speed of the causal model"]),
    ],
)
def test_a_table_for_a_person(words, shown, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    rows = "--batches 1 --rivals 1" if "chain" in words else "--batch 2"
    run(f"bench {words} --preset tiny {rows} --repeats 1 --device cpu".split())
    out = capsys.readouterr().out
    assert all(part in out for part in [*shown, "matmul rate measured here: "])


@pytest.mark.parametrize("bench", [sampler, distill])
def test_every_preset_can_be_timed(bench):
    (preset,) = [option for option in options_of(bench) if option.name == "preset"]
    assert set(preset.choices) == set(PRESETS)
