"""`unmask prepare` at the command line: what it prints, and one line with exit 2 for every mistake."""

import json
from pathlib import Path

import pytest

from unmask.cli.main import main
from unmask.data.shards import ShardSet

TEXT = "\n<|endoftext|>\n".join(f"Call me Ishmael, number {i}. " * 20 for i in range(20))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path / "text.txt"


def test_it_says_what_it_made_and_does_nothing_the_second_time(text, tmp_path, capsys):
    out = tmp_path / "out[/bold]"  # no markup
    command = ["prepare", str(text), "--out", str(out), "--vocab_size", "300"]
    assert main(command) == 0
    first = capsys.readouterr()
    assert "out[/bold] is ready" in first.out
    assert first.err == ""  # no terminal, and no stage that takes long
    shards = ShardSet.open(out)
    assert f"{shards.count('train'):,}" in first.out
    assert main(command) == 0
    second = capsys.readouterr()
    assert ("was prepared already, nothing to do" in second.out, second.err) == (True, "")
    assert main([*command[:-1], "301"]) == 2
    refused = capsys.readouterr().err
    assert (refused.count("\n"), "vocab_size was 300, is 301" in refused) == (1, True)
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == shards.index


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.txt"], "cannot read nowhere.txt: it does not exist; check the path"),
        (["sampel"], "cannot read sampel: it does not exist; did you mean 'sample'?"),
        (["empty.txt"], "no text in empty.txt: a corpus needs at least one document that is not empty"),
        (["hollow"], "no text in the folder hollow: files are taken that end in .txt, .jsonl, .xz, .gz, .zst"),
        (
            ["latin.txt"],
            "latin.txt is not UTF-8 text (byte 0xe9 at offset 3): convert it, or read it with `unmask prepare --errors "
            "replace`",
        ),
        (["false.gz"], "false.gz is not UTF-8 text (byte 0x80 at offset 128)"),
        (["number.jsonl"], "number.jsonl, line 1: no text in the field 'text' (it holds 5)"),
        (["text.txt", "--tokenizer", "gpt2", "--vocab_size", "300"], "exclude each other"),
        (["text.txt", "--vocab_size", "256"], "a tokenizer of 256 tokens is too small"),
        (["text.txt", "--vocab_size", "1000000000"], "too large: at most 1,000,000"),
        (["text.txt", "--validation", "1.5"], "--validation 1.5 is not a fraction"),
        (["text.txt", "--validation", "0.5", "--test", "0.5"], "leave nothing to train on"),
        (["text.txt", "--shard_tokens", "0"], "--shard_tokens 0 is too small"),
        (["text.txt", "--errors", "ignore"], "--errors 'ignore'"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(arguments, message, text, tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "number.jsonl").write_text('{"text": 5}')
    (tmp_path / "false.gz").write_bytes(bytes(range(256)))
    (tmp_path / "hollow").mkdir()
    assert message in refused("prepare", *arguments, "--out", "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.permissions
def test_without_permission(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text(TEXT, encoding="utf-8")
    secret.chmod(0)
    for name, mode in (("shut", 0o500), ("cave", 0)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    cases = [
        (secret, tmp_path / "o1", f"cannot read {secret}"),
        (text, tmp_path / "shut" / "o2", f"cannot write {tmp_path}/shut/o2"),
        (text, tmp_path / "shut", f"cannot write {tmp_path}/shut/unmask.json"),
        (tmp_path / "cave", tmp_path / "o3", f"cannot read {tmp_path}/cave"),
    ]
    for source, out, message in cases:
        before = out.exists()
        assert main(["prepare", str(source), "--out", str(out), "--vocab_size", "300"]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"unmask: {message}: permission denied"), "and no temporary name"
        assert out.exists() == before
