"""The documentation keeps its word: links lead somewhere, commands parse, the README's Python runs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from unmask.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/unmask/assets/*/README.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def commands() -> list[str]:
    """Every complete `unmask` command in a fenced block, continued lines joined."""
    found = []
    for page in PAGES:
        for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            lines = block.replace("\\\n", " ").splitlines() if language in ("", "bash") else []
            found += [line for line in lines if line.startswith("unmask ") and not re.search(r"\.\.\.|…", line)]
    return sorted(set(found))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        if not re.match(r"https?:", link):
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("line", commands())
def test_a_command_in_the_documentation_is_one_that_unmask_takes(line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").touch()  # the plug-in of docs/extending.md
    words = shlex.split(line, comments=True)[1:]
    asks_for_help = words[0] in ("help", "completion") or words[0].startswith("-")
    assert main(words if asks_for_help else [*words, "--print_config"]) == 0, capsys.readouterr().err


def test_the_readmes_python_runs(capsys):
    blocks = [
        code
        for language, code in BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
        if language == "python"
    ]
    assert blocks
    for code in blocks:
        exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_the_blocks_of_extending_are_a_plug_in(tmp_path):
    """All Python blocks of docs/extending.md as one file; in a process of its own, since what it adds stays."""
    blocks = BLOCK.findall((ROOT / "docs" / "extending.md").read_text(encoding="utf-8"))
    (tmp_path / "mine.py").write_text("\n\n".join(code for language, code in blocks if language == "python"))
    words = shlex.split("sample --plugin mine.py --plan evens_first --step_law sure_first --length 16 --steps 4")
    done = subprocess.run([sys.executable, "-m", "unmask", *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "evens_first" in done.stderr


def test_the_readme_and_the_glossary_stay_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) < 660
    rows = re.findall(r"^\| (?!---|word)", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) <= 25
