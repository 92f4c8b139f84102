"""Small random models that write, and `unmask sample` on them."""

import pytest
from tests.small import shaken

from unmask.checkpoint.io import Checkpoint, save
from unmask.cli.main import main
from unmask.data.tokenizer import Tokenizer
from unmask.models.dit.network import DiT

L = 24
WORDS = "once upon a time there lived a wolf. naïve café, 日本語 🙂! "


def _random_checkpoint(causal=False):
    tokenizer = Tokenizer.train([WORDS * 3], 300)
    model = DiT(tokenizer.size + 1, L, hidden=16, cond=8, blocks=1, heads=2, causal=causal)
    return Checkpoint(shaken(model).double(), tokenizer=tokenizer)


@pytest.fixture
def random_checkpoint():
    """Makes a model with random weights and a tokenizer of a few words."""
    return _random_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    save(_random_checkpoint(), place / "model")
    save(_random_checkpoint(causal=True), place / "causal")
    return place


@pytest.fixture
def unmask(folder, tmp_path, monkeypatch, capsys):
    """Run `unmask sample` on the model; gives (stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*words, expect=0, model="model"):
        assert main(["sample", *words, "--device", "cpu", "--model", str(folder / model)]) == expect
        said = capsys.readouterr()
        assert expect != 2 or (said.out, said.err.count("\n")) == ("", 1), said.err  # a mistake is one line
        return said.out, said.err

    return call


@pytest.fixture
def refused(capsys):
    """Runs a command that must end with exit code 2 and one line on stderr alone; gives that line."""

    def call(*words):
        capsys.readouterr()
        code, said = main([str(word) for word in words]), capsys.readouterr()
        assert (code, said.out, said.err.count("\n")) == (2, "", 1), said.err
        return said.err

    return call
