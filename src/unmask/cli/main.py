"""The command `unmask`: finds the verb, runs it, and turns every user's mistake into one line and exit code 2.

Verbs are imported only when they are called, so that `unmask --help` answers at once.
"""

from __future__ import annotations

import importlib
import os
import sys

from unmask.base.errors import UserError, from_os_error, unknown
from unmask.version import __version__

VERBS = {
    "prepare": ("unmask.cli.prepare:prepare", "text to packed, memory-mapped shards of tokens"),
    "train": ("unmask.cli.train:train", "train a teacher (or a causal judge) on shards"),
    "sample": ("unmask.cli.sample:sample", "write text, in as few steps as you like"),
    "fit-grid": ("unmask.cli.fit_grid:fit_grid", "find the best step grid for a model on held-out text"),
    "duality": ("unmask.cli.duality:duality", "show the Gaussian-discrete duality in numbers and a figure"),
    "bench": ("unmask.cli.bench:bench", "measure speed against the published algorithm, in one run"),
    "convert": ("unmask.cli.convert:convert", "change a checkpoint's format"),
    "demo": ("unmask.cli.demo:demo", "the whole way on the sample corpus, in under five minutes"),
}


def _usage() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {what}" for verb, (_, what) in VERBS.items()]
    return "\n".join(
        [
            "usage: unmask VERB [options]",
            "",
            "Masked diffusion language models in a handful of steps.",
            "",
            *lines,
            "",
            "`unmask VERB --help` lists a verb's options.",
        ]
    )


def run(argv: list[str]) -> int:
    """Run one command line; raises UserError for a user's mistake."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if argv[0] in ("-V", "--version"):
        print(f"unmask {__version__}")
        return 0
    verb = argv[0]
    if verb not in VERBS:
        raise unknown("verb", verb, VERBS)
    from unmask.cli.parser import CommandLine

    module, name = VERBS[verb][0].split(":")
    function = getattr(importlib.import_module(module), name)
    CommandLine(function, f"unmask {verb}").call(argv[1:])
    return 0


def main(argv: list[str] | None = None) -> int:
    """The entry point: 0 when done, 2 for a user's mistake, 130 when interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    rank = os.environ.get("RANK", "0")
    name = "unmask" if rank == "0" else f"unmask [rank {rank}]"
    try:
        return run(argv)
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `unmask sample | head` is no mistake
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno is None:  # not the operating system's word: a fault of ours, shown whole
            raise
        print(f"{name}: {from_os_error(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted; what was saved is whole", file=sys.stderr)
        return 130
