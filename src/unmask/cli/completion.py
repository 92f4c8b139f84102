"""`unmask completion`: a script that lets a shell complete verbs and options."""

from __future__ import annotations

import argparse
from typing import Literal


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print a script for your shell. Load it from the shell's start-up file:

      bash   eval "$(unmask completion bash)"
      zsh    eval "$(unmask completion zsh)"
      fish   unmask completion fish | source

    Args:
        shell: bash, zsh or fish
    """
    import shtab

    print(shtab.complete(whole_parser(), shell=shell))


def whole_parser() -> argparse.ArgumentParser:
    """All verbs in one parser."""
    from unmask.cli.main import BENCHES, VERBS

    parser = argparse.ArgumentParser("unmask")
    verbs = parser.add_subparsers()
    for name, verb in VERBS.items():
        verb.line(f"unmask {name}").fill(verbs.add_parser(name, help=verb.what))
    benches = verbs.add_parser("bench", help="measurements side by side").add_subparsers()
    for name, verb in BENCHES.items():
        verb.line(f"unmask bench {name}").fill(benches.add_parser(name, help=verb.what))
    verbs.add_parser("help", help="the options of a verb").add_argument("verb", choices=[*VERBS])
    return parser
