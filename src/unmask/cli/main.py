"""The command `unmask`: finds the verb, runs it, and turns every user's mistake, and a memory that is too small, into
one line and exit code 2.

Verbs are imported only when they are called, so that `unmask --help` answers at once.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
from typing import Any, NoReturn

from unmask.cli.output import let_stdout_take_any_text, open_what_is_closed
from unmask.core.errors import UserError, from_os_error, unknown
from unmask.version import __version__

VERBS = {
    "prepare": ("unmask.cli.prepare:prepare", "text to packed, memory-mapped shards of tokens"),
    "train": ("unmask.cli.train:train", "train a teacher (or a causal judge) on shards"),
    "distill": ("unmask.cli.distill:distill", "distil a teacher into a student that needs fewer steps"),
    "sample": ("unmask.cli.sample:sample", "write text, in as few steps as you like"),
    "evaluate": ("unmask.cli.evaluate:evaluate", "measure models honestly, and write a report"),
    "report": ("unmask.cli.report:report", "one page from the results of several evaluations"),
    "fit-grid": ("unmask.cli.fit_grid:fit_grid", "find the best step grid for a model on held-out text"),
    "duality": ("unmask.cli.duality:duality", "show the Gaussian-discrete duality in numbers and a figure"),
    "bench": ("", "measure, side by side and in one run: `unmask bench` lists what"),
    "convert": ("unmask.cli.convert:convert", "change a checkpoint's format"),
    "demo": ("unmask.cli.demo:demo", "the whole way on the sample corpus, in under five minutes"),
}

BENCHES = {
    "sampler": ("unmask.bench.sampler:sampler", "our sampler against the published one, per forward"),
    "distill": ("unmask.bench.distill:distill", "our distillation step against the plain one: speed and memory"),
    "plans": ("unmask.bench.plans:plans", "every plan's own error on sources whose law is known exactly"),
}

_MICRO = "give a smaller --micro_batch (without one, a process takes its whole share of --batch); the run then goes on"
_BATCH = "give a smaller --batch"
SMALLER = {  # what to ask for where memory has run out, by command
    "unmask train": _MICRO,
    "unmask distill": _MICRO,
    "unmask sample": f"{_BATCH}: the samples stay the same",
    "unmask evaluate": f"{_BATCH}; if it is the judge that is too large, --judge_dtype bf16 or a smaller --judge",
    "unmask fit-grid": _BATCH,
    "unmask bench sampler": _BATCH,
    "unmask bench distill": f"{_BATCH} or --length",
}

RESUMED = ("prepare", "train", "distill", "evaluate", "demo")  # verbs that go on where they stopped


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a verb as Ctrl-C does."""


def _usage(program: str, choices: dict[str, tuple[str, str]]) -> str:
    width = max(map(len, choices))
    return "\n".join(
        [
            f"usage: {program} [options]",
            "",
            "Masked diffusion language models in a handful of steps.",
            "",
            *(f"  {name:<{width}}  {what}" for name, (_, what) in choices.items()),
            "",
            f"`{program} --help` lists the options.",
        ]
    )


def run(argv: list[str]) -> int:
    """Run one command line; raises UserError for a user's mistake."""
    if argv[:1] in (["-V"], ["--version"]):
        print(f"unmask {__version__}")
        return 0
    program, choices, what = "unmask", VERBS, "verb"
    if argv[:1] == ["bench"]:
        program, choices, what, argv = "unmask bench", BENCHES, "bench", argv[1:]
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_usage(f"{program} {what.upper()}", choices))
        return 0
    if argv[0] not in choices:
        raise unknown(what, argv[0], choices)
    from unmask.cli.parser import CommandLine

    module, name = choices[argv[0]][0].split(":")
    function, command = getattr(importlib.import_module(module), name), f"{program} {argv[0]}"
    try:
        CommandLine(function, command).call(argv[1:])
    except RuntimeError as error:
        if told := _out_of_memory(error, command):
            raise told from error
        raise
    return 0


def _out_of_memory(error: RuntimeError, command: str) -> UserError | None:
    """One line for a memory that has run out; None for an error of another kind.

    It is known by its words: only CUDA's allocator has a class for it, MPS and the CPU have none.
    """
    if not re.search(r"out of memory|allocate memory", str(error)):
        return None
    asked = re.search(r"[Tt]ried to allocate ([\d.]+ \w+)", str(error))
    detail = f" ({asked[1]} more were asked for)" if asked else ""
    return UserError(f"out of memory{detail}: {SMALLER.get(command, 'free some of it, or take a smaller model')}")


def main(argv: list[str] | None = None) -> int:
    """The entry point: 0 when done, 2 for a user's mistake, 130 when interrupted, 143 when terminated."""
    argv = sys.argv[1:] if argv is None else argv
    # torch's threads wait by spinning; on a machine that others use too, sampling is many times slower without a limit
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
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
    except KeyboardInterrupt as stop:  # a verb may know better what is left
        ended, code = ("terminated", 143) if isinstance(stop, Terminated) else ("interrupted", 130)
        resumed = ", and the same command goes on from it" if next(iter(argv), "") in RESUMED else ""
        print(f"{name}: {ended}; {stop if stop.args else f'what was saved is whole{resumed}'}", file=sys.stderr)
        return code


def let_sigterm_say_so() -> None:
    """What a scheduler sends is told like Ctrl-C. Not among several processes: one that waits for the others inside a
    library would never hear of it, and torchrun, which sends it, has words of its own.
    """

    def end(*_: Any) -> NoReturn:
        raise Terminated

    if "RANK" not in os.environ and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)


def leave(code: int) -> NoReturn:
    """End this process, with what it printed. One of several (torchrun) ends at once, without Python's own teardown:
    gloo's threads live as long as the process; one that lets go of its last tensor while the interpreter is taken down
    aborts it (SIGABRT) after all work is done.
    """
    if "RANK" in os.environ:
        if ranks := sys.modules.get("unmask.core.ranks"):  # else nobody has joined, and torch need not be loaded
            ranks.part()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def command() -> NoReturn:
    """What the shell and torchrun call."""
    open_what_is_closed()
    let_stdout_take_any_text()
    let_sigterm_say_so()
    leave(main())
