"""A verb's signature is its command line: lists, switches, recipes, and one line for every mistake."""

import importlib
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from unmask.cli.main import BENCHES, VERBS, main
from unmask.cli.parser import CommandLine
from unmask.core.errors import UserError


@dataclass
class Engine:
    """How it runs.

    Args:
        power: in horses
    """

    power: int = 3
    fuel: str | None = None


def verb(
    text: str = "none", /, *, gamma: list[float], kind: Literal["slow", "fast"] = "slow", json: bool = False,
    from_: Path | None = None, engine: Engine,
) -> dict[str, Any]:  # fmt: skip
    """Do it.

    Args:
        gamma: several numbers
    """
    return {"text": text, "gamma": gamma, "kind": kind, "json": json, "from": from_, "engine": engine}


def call(*words: str) -> dict[str, Any]:
    return CommandLine(verb, "verb").call(list(words))


def test_types_lists_switches_and_spread_out_dataclasses() -> None:
    got = call("hello", "--gamma", "0.1", "5e-1", "--kind", "fast", "--json", "--from", "a/b", "--power", "1e2")
    assert got == {
        "text": "hello", "gamma": [0.1, 0.5], "kind": "fast", "json": True, "from": Path("a/b"), "engine": Engine(100),
    }  # fmt: skip
    assert call("--gamma", "1")["engine"] == Engine()
    assert call("--gamma", "1/512")["gamma"] == [1 / 512]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gama", "1"], "unknown option --gama: did you mean --gamma?"),
        (["--gamma", "1", "--bogus"], "unknown option --bogus: see --help"),
        (["--gamma", "1", "--fuel", "x\udce9"], r"--fuel is not UTF-8 text: x\\udce9"),
        (["--gamma", "1/0"], "--gamma takes a number, not '1/0'"),
        (["--gamma", "x"], "--gamma takes a number, not 'x'"),
        (["--gamma", "1,0.9"], "--gamma takes a number, not '1,0.9'; put spaces between several"),
        (["--gamma", "1", "--config", "tiny"], "the bundled recipe tiny is for another verb: this one has no option"),
        (["--gamma", "1", "--kind", "fst"], "did you mean 'fast'"),
        (["--gamma", "1", "--power", "1.5"], "--power takes a whole number"),
        (["--gamma", "1", "--power", "1e30"], "--power takes a whole number of at most 64 bits, not 1"),
        (["--gamma", "1", "--power", str(2**63)], "--power takes a whole number of at most 64 bits, not 9"),
        ([], "--gamma must be given"),
        (["--gamma", "1", "--config", "nowhere"], "no recipe 'nowhere'"),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said.replace("?", r"\?")) as caught:
        call(*words)
    assert "\n" not in str(caught.value)


def test_a_recipe_gives_values_and_options_override_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("gamma: [0.25]\npower: 7\nfrom: here\n")
    assert call("--config", str(recipe))["engine"] == Engine(7)
    assert call("--config", str(recipe), "--power", "8")["engine"] == Engine(8)
    call("--config", str(recipe), "--kind", "fast", "--print_config")
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["gamma"] == [0.25]
    assert (shown["power"], shown["kind"], shown["from"]) == (7, "fast", "here")
    recipe.write_text(yaml.safe_dump(shown))
    assert call("--config", str(recipe))["kind"] == "fast"  # what is printed can be read back
    recipe.write_text("powr: 7\n")
    with pytest.raises(UserError, match="unknown key 'powr': did you mean 'power'"):
        call("--config", str(recipe), "--gamma", "1")


@pytest.mark.parametrize("home", [home for home, _ in (VERBS | BENCHES).values() if home])
def test_what_any_verb_prints_as_its_config_it_reads_back(home: str, tmp_path: Path, capsys) -> None:
    module, name = home.split(":")
    line = CommandLine(getattr(importlib.import_module(module), name), name)
    words = []
    for option in line.options.values():
        if option.default is inspect.Parameter.empty:
            words += ["1"] if option.positional else [f"--{option.flag}", "1"]
    assert line.parse([*words, "--print_config"]) is None
    (tmp_path / "r.yaml").write_text(capsys.readouterr().out)
    assert line.parse(["--config", str(tmp_path / "r.yaml")]) == line.parse(words)


def test_positional_values_are_asked_for_where_neither_line_nor_recipe_has_them(capsys) -> None:
    assert main(["convert", "pocket"]) == 2
    assert capsys.readouterr().err == "unmask: TARGET must be given; see --help\n"


def test_a_recipe_s_null_is_no_text(tmp_path: Path) -> None:
    """`text:` with nothing behind it, where something must be."""
    (tmp_path / "r.yaml").write_text("text:\nfuel:\n")
    with pytest.raises(UserError, match="--text must have a value, not null"):
        call("--gamma", "1", "--config", str(tmp_path / "r.yaml"))
    (tmp_path / "r.yaml").write_text("fuel:\n")
    assert call("--gamma", "1", "--config", str(tmp_path / "r.yaml"))["engine"] == Engine()


def test_help_tells_every_default_a_zero_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["sample", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "names the noise (default: 0)" in shown
    assert "step by step (default" not in shown  # a switch that is off


@pytest.mark.parametrize("written", ["3.0", "3", "0.3e1", "0.3e+1", "'3'"])
def test_a_whole_number_in_a_recipe_however_it_is_written(tmp_path: Path, written: str) -> None:
    (tmp_path / "r.yaml").write_text(f"power: {written}\n")
    power = call("--gamma", "1", "--config", str(tmp_path / "r.yaml"))["engine"].power
    assert (power, type(power)) == (3, int)


@pytest.mark.parametrize("written", ["3.9", "-0.5", ".inf", ".nan", "'3.9'"])
def test_a_recipe_s_number_is_not_rounded(tmp_path: Path, written: str) -> None:
    (tmp_path / "r.yaml").write_text(f"power: {written}\n")
    with pytest.raises(UserError, match=f"--power takes a whole number, not {yaml.safe_load(written)!r}"):
        call("--gamma", "1", "--config", str(tmp_path / "r.yaml"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("fuel: café\n".encode("latin-1"), "is not UTF-8 text (byte 0xe9 at offset 9): save it as UTF-8"),
        (b"fuel: [", "is not valid YAML"),
        (b"fuel: 2024-13-01", "is not valid YAML"),
    ],
)
def test_a_recipe_that_cannot_be_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, said: str
) -> None:
    (tmp_path / "r.yaml").write_bytes(content)
    assert main(["train", "--config", str(tmp_path / "r.yaml")]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"unmask: recipe {tmp_path / 'r.yaml'} {said}")
    assert shown.count("\n") == 1


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert main(["trian"]) == 2
    assert capsys.readouterr().err == (
        f"unmask: unknown verb 'trian': did you mean 'train'? allowed: {', '.join(sorted(VERBS))}\n"
    )
    assert main(["duality", "--sttes", "3"]) == 2
    assert capsys.readouterr().err == "unmask: unknown option --sttes: did you mean --states?\n"
