"""`unmask info` says what a checkpoint is; in Python a repr does, in one line."""

import json

import unmask
from unmask.cli.main import main


def test_info_in_words_and_as_json(folder, capsys):
    assert main(["info", str(folder / "model")]) == 0
    shown = capsys.readouterr().out
    for word in (
        "family      dit",
        "hidden 16",
        "process     name masked",
        "step law    name factorised",
        "model.safe",
    ):
        assert word in shown
    assert main(["info", str(folder / "causal"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["shape"]["causal"], found["stored_in"], "config.json" in found["files"]) == (True, "float64", True)
    assert found["parameters"] == sum(weight.numel() for weight in unmask.load(folder / "causal").model.parameters())
    assert main(["info", "pokcet"]) == 2
    assert "did you mean 'pocket'?" in capsys.readouterr().err


def test_short_reprs_and_tab_completion(folder):
    assert repr(unmask.load("pocket")) == "Checkpoint(pocket, 6.3M, masked, L=256)"
    made = unmask.sample(unmask.load(folder / "model"), 2, 3, device="cpu")
    assert repr(made) == "Samples(2 of 24 tokens, 3 forwards, comb)"
    assert repr(unmask.Trainer(steps=3, out="run")) == "Trainer(steps=3, out='run')"
    verbs = {"prepare", "train", "distill", "sample", "evaluate", "fit_plan", "load", "save", "UserError"}
    nouns = {"Masked", "DiT", "Checkpoint", "Samples", "Trainer", "MDLM", "AR", "MCD", "SDTT", "CD4LM", "Factorised"}
    added = {f"register_{noun}" for noun in ("plan", "process", "family", "step_law", "objective", "metric")}
    assert verbs | nouns | added | {"GaussianDuality"} <= set(dir(unmask))
