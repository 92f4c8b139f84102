"""A verb's signature is its command line: lists, switches, recipes, and one line for every mistake."""

import importlib
import inspect
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

import unmask
from unmask.cli.main import BENCHES, VERBS, main
from unmask.cli.options import MISSING
from unmask.cli.parser import Call, CommandLine, _as_yaml
from unmask.core.errors import UserError
from unmask.core.verbs import documented
from unmask.core.verbs import verb as make_verb

LINES = {f"unmask {name}": verb for name, verb in VERBS.items()} | {
    f"unmask bench {name}": verb for name, verb in BENCHES.items()
}


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


@pytest.fixture(params=["as it is", "as a verb"])
def call(request: pytest.FixtureRequest) -> Any:
    """The command line of a plain function, and of a public verb: they are one."""
    function = make_verb(verb) if request.param == "as a verb" else verb
    return lambda *words: CommandLine(function, "verb").call(list(words))


def test_types_lists_switches_and_spread_out_dataclasses(call: Any) -> None:
    got = call("hello", "--gamma", "0.1", "5e-1", "--kind", "fast", "--json", "--from", "a/b", "--power", "1e2")
    assert got == {
        "text": "hello", "gamma": [0.1, 0.5], "kind": "fast", "json": True, "from": Path("a/b"), "engine": Engine(100),
    }  # fmt: skip
    assert call("--gamma", "1")["engine"] == Engine()
    assert call("--gamma", "1/512")["gamma"] == [1 / 512]


@pytest.mark.parametrize("off", ["--no-json", "--no_json"])
def test_a_switch_goes_off_spelled_either_way(call: Any, off: str) -> None:
    assert call("--gamma", "1", "--json")["json"] is True
    assert call("--gamma", "1", "--json", off)["json"] is False


def unions(
    model: str | Engine = "pocket", *, n: int | Sequence[int] | None = None, grid: str | Sequence[float] | None = None,
    prompt: str | Sequence[str] | None = None, models: Mapping[str, str | Engine] | None = None,
    out: Path | None = None, callback: Any = None, block_size: int = 1,
) -> dict[str, Any]:  # fmt: skip
    return {name: value for name, value in locals().items() if value is not None}


@pytest.mark.parametrize(
    ("words", "got"),
    [
        ("-n 3", {"n": 3}),
        ("--n 3 4", {"n": [3, 4]}),
        ("--grid rank", {"grid": "rank"}),
        ("--grid 0.5", {"grid": [0.5]}),
        ("--grid 0.8 0.5", {"grid": [0.8, 0.5]}),
        ("--prompt a --block-size 2", {"prompt": "a", "block_size": 2}),
        ("--prompt a b", {"prompt": ["a", "b"]}),
        ("--models a=b c=d=e", {"models": {"a": "b", "c": "d=e"}}),
        ("here -o there", {"model": "here", "out": Path("there")}),
    ],
)
def test_a_union_takes_the_first_type_that_fits(words: str, got: dict[str, Any]) -> None:
    line = CommandLine(unions, "unions", positional=["model"])
    assert line.call(words.split()) == {"model": "pocket", "block_size": 1} | got
    assert "callback" not in line.options  # no word can give one


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--grid rank cosine", "--grid takes a text or several numbers, not 'rank cosine'"),
        ("--models a", "--models takes NAME=VALUE, such as student=a; 'a' is not of that form"),
        ("--models a=b a=c", "two of --models are named 'a'"),
    ],
)
def test_mistakes_in_unions(words: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        CommandLine(unions, "unions").call(words.split())


def test_a_presenter_adds_options_and_calls_the_verb() -> None:
    def present(call: Call, *, loud: bool = False) -> tuple[bool, Any]:
        """Args:
        loud: say it aloud
        """
        return loud, call(callback=print)

    line = CommandLine(unions, "unions", present)
    assert line.call(["--loud"]) == (True, {"model": "pocket", "block_size": 1, "callback": print})
    assert "output:" in line.parser.format_help()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gama", "1"], "unknown option --gama: did you mean --gamma?"),
        (["--gamma", "1", "--bogus"], "unknown option --bogus: see --help"),
        (["--gamma", "1/0"], "--gamma takes a number, not '1/0'"),
        (["--gamma", "x"], "--gamma takes a number, not 'x'"),
        (["--gamma", "1,0.9"], "--gamma takes a number, not '1,0.9'; put spaces between several"),
        (["--gamma", "1", "--config", "tiny"], "the bundled recipe tiny is for another verb: this one has no option"),
        (["--gamma", "1", "--kind", "fst"], "did you mean 'fast'"),
        (["--gamma", "1", "--power", "1.5"], "--power takes a whole number"),
        ([], "--gamma must be given"),
        (["--gamma", "1", "--config", "nowhere"], "no recipe 'nowhere'"),
    ],
)
def test_mistakes_are_one_line(call: Any, words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said.replace("?", r"\?")) as caught:
        call(*words)
    assert "\n" not in str(caught.value)


def test_a_recipe_gives_values_and_options_override_it(call, tmp_path, capsys):
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


@pytest.mark.parametrize("program", LINES)
def test_what_any_verb_prints_as_its_config_it_reads_back(program: str, tmp_path: Path, capsys) -> None:
    line = LINES[program].line(program)
    words = []
    for option in line.options.values():
        if option.default is MISSING:
            word = "a=1" if option.named else option.metavar.strip("{}").split(",")[0] if "{" in option.metavar else "1"
            words += [word] if option.positional else [f"--{option.flag}", word]
    assert line.parse([*words, "--print_config"]) is None
    (tmp_path / "r.yaml").write_text(capsys.readouterr().out)
    read = [line.parse(given) for given in (["--config", str(tmp_path / "r.yaml")], words)]
    once, again = (yaml.safe_load(yaml.dump(_as_yaml(one))) for one in read)  # tuples are lists there
    assert once == again


@pytest.mark.parametrize("program", [*LINES, "unmask", "unmask bench"])
def test_help_fits_a_terminal_and_says_what_every_option_is(program: str, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = program.split()[1:]
    if program in LINES:
        with pytest.raises(SystemExit):
            main(["help", *words])
        undocumented = [option.name for option in LINES[program].line(program).options.values() if not option.help]
        assert undocumented == []
    else:
        assert main([*words, "--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize("name", [name for name in dir(unmask) if name.replace("_", "-") in VERBS])
def test_a_verb_of_the_command_line_is_the_public_function(name: str) -> None:
    function = getattr(unmask, name)
    module, inner = VERBS[name.replace("_", "-")].function.split(":")
    assert getattr(importlib.import_module(module), inner) is function
    assert set(inspect.signature(function).parameters) <= documented(function.__doc__)[1].keys()  # all documented


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_of_that_shell(shell: str, capsys) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "temperature" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)
    assert main(["completion", "powershel"]) == 2


def test_a_recipe_s_null_is_no_text(call: Any, tmp_path: Path) -> None:
    """`text:` with nothing behind it, where something must be."""
    (tmp_path / "r.yaml").write_text("text:\nfuel:\n")
    with pytest.raises(UserError, match="TEXT must have a value, not null"):
        call("--gamma", "1", "--config", str(tmp_path / "r.yaml"))
    (tmp_path / "r.yaml").write_text("fuel:\n")
    assert call("--gamma", "1", "--config", str(tmp_path / "r.yaml"))["engine"] == Engine()


@pytest.mark.parametrize("written", ["3.0", "3", "0.3e1", "0.3e+1", "'3'", "3.9", "-0.5", ".inf", ".nan", "'3.9'"])
def test_a_whole_number_in_a_recipe_however_it_is_written_and_no_number_rounded(call: Any, tmp_path, written: str):
    (tmp_path / "r.yaml").write_text(f"power: {written}\n")
    words, number = ["--gamma", "1", "--config", str(tmp_path / "r.yaml")], yaml.safe_load(written)
    if float(number) == 3:
        power = call(*words)["engine"].power
        assert (power, type(power)) == (3, int)
        return
    with pytest.raises(UserError, match=f"--power takes a whole number, not {number!r}"):
        call(*words)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("fuel: café\n".encode("latin-1"), "is damaged ('utf-8' codec can't decode byte 0xe9 in position 9"),
        (b"fuel: [", "is damaged (while parsing"),
        (b"fuel: 2024-13-01", "is damaged (month must be"),
        (b"- 3", "is damaged (it must map option names to values): save it as YAML in UTF-8"),
    ],
)
def test_a_recipe_that_cannot_be_read_is_one_line(tmp_path, capsys, content, said):
    (tmp_path / "r.yaml").write_bytes(content)
    assert main(["train", "--config", str(tmp_path / "r.yaml")]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"unmask: recipe {tmp_path / 'r.yaml'} {said}")
    assert shown.count("\n") == 1


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert main(["convert", "pocket"]) == 2
    assert capsys.readouterr().err == "unmask: TARGET must be given; see --help\n"
    assert main(["trian"]) == 2
    assert capsys.readouterr().err == (
        f"unmask: unknown verb 'trian': did you mean 'train'? allowed: {', '.join(sorted([*VERBS, 'bench', 'help']))}\n"
    )
    assert main(["duality", "--sttes", "3"]) == 2
    assert capsys.readouterr().err == "unmask: unknown option --sttes: did you mean --states?\n"
    assert main(["distill", "--steps", "3"]) == 2
    assert "did you mean --round_steps or --plan_steps or --sample_steps?" in capsys.readouterr().err
    assert main(["sample", "--temp", "3"]) == 2
    assert capsys.readouterr().err == "unmask: unknown option --temp: did you mean --temperature?\n"
