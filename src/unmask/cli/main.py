"""The command `unmask`: runs a verb, imported only then; a user's mistake, or too little memory, is one line and code
2."""

from __future__ import annotations

import importlib
import io
import os
import re
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from unmask.core.errors import Terminated, UserError, from_os_error, unknown
from unmask.version import __version__

if TYPE_CHECKING:
    from unmask.cli.parser import CommandLine


@dataclass(frozen=True)
class Verb:
    """A verb of the command line: the public function, and what shows its result."""

    what: str
    function: str  # "module:name"
    present: str = ""  # "module:name"; without one, the function shows its own
    positional: tuple[str, ...] = ()  # parameters that need no flag
    machine: bool = True  # it computes: --threads
    plugins: bool = True  # it chooses something that a plug-in may add
    resumes: bool = False  # the same command goes on where it stopped
    smaller: str = "free some of it, or take a smaller model"  # what to do where memory has run out

    def line(self, program: str) -> CommandLine:
        from unmask.cli.parser import CommandLine

        present = _named(self.present) if self.present else None
        return CommandLine(
            _named(self.function), program, present,
            positional=self.positional, machine=self.machine, plugins=self.plugins,
        )  # fmt: skip


def _named(home: str) -> Any:
    module, name = home.split(":")
    return getattr(importlib.import_module(module), name)


_MICRO = "give a smaller --micro_batch (without one, a process takes its whole share of --batch); the run then goes on"
_BATCH = "give a smaller --batch"
_JUDGE = "; if it is the judge that is too large, --judge_dtype bf16 or a smaller --judge"

FIRST = {
    "prepare": Verb(
        "text to packed, memory-mapped shards of tokens", "unmask.data.prepare:prepare", "unmask.cli.prepare:present",
        ("inputs",), machine=False, plugins=False, resumes=True,
    ),
    "train": Verb(
        "train a teacher (or a causal judge) on shards",
        "unmask.training.verbs:train", "unmask.cli.train:present", resumes=True, smaller=_MICRO,
    ),
    "distill": Verb(
        "distil a teacher into a student that needs fewer steps",
        "unmask.training.verbs:distill", "unmask.cli.distill:present", resumes=True, smaller=_MICRO,
    ),
    "sample": Verb(
        "write text, in as few steps as you like",
        "unmask.sampling.verbs:sample", "unmask.cli.sample:present", ("infill",),
        smaller=f"{_BATCH}: the samples stay the same",
    ),
    "evaluate": Verb(
        "measure models honestly, and write a report",
        "unmask.studies.evaluate:evaluate", "unmask.cli.evaluate:present", resumes=True, smaller=_BATCH + _JUDGE,
    ),
}  # fmt: skip
MORE = {
    "play": Verb(
        "open a page on which models write, step by step", "unmask.server.verbs:play", positional=("models",),
    ),
    "demo": Verb(
        "a tour of all of this in four minutes", "unmask.cli.demo:demo", machine=False, plugins=False, resumes=True
    ),
    "info": Verb("what a checkpoint is, and where it came from", "unmask.cli.info:info", machine=False),
    "serve": Verb(
        "put models behind an address that OpenAI's clients know", "unmask.server.verbs:serve",
        smaller="give a smaller --batch: the texts stay the same",
    ),
    "report": Verb("one page from several evaluations", "unmask.cli.report:report", machine=False, plugins=False),
    "fit-plan": Verb(
        "find the best plan and step grid for a model on held-out text", "unmask.studies.fit_plan:fit_plan",
        "unmask.cli.fit_plan:present", smaller=_BATCH,
    ),
    "convert": Verb(
        "change a checkpoint's format", "unmask.checkpoint.convert:convert", "unmask.cli.lines:converted",
        ("source", "target"), machine=False,
    ),
    "export": Verb(
        "write a model for onnxruntime", "unmask.checkpoint.export:export", "unmask.cli.lines:exported", ("model",),
        machine=False,
    ),
    "push": Verb(
        "upload a checkpoint or an adapter to a hub, with a model card", "unmask.checkpoint.push:push",
        "unmask.cli.lines:pushed", ("source", "repository"), machine=False,
    ),
    "lm-eval": Verb(
        "run tasks of EleutherAI's evaluation harness", "unmask.studies.harness:lm_eval",
        "unmask.cli.lines:scored", smaller=_BATCH,
    ),
    "duality": Verb(
        "show the Gaussian-discrete duality in numbers and a figure", "unmask.cli.duality:duality", plugins=False
    ),
    "completion": Verb(
        "a script that completes commands in your shell",
        "unmask.cli.completion:completion", machine=False, plugins=False,
    ),
}  # fmt: skip
BENCHES = {
    "sampler": Verb(
        "our sampler against the published one, per forward",
        "unmask.bench.sampler:sampler", plugins=False, smaller=_BATCH,
    ),
    "serve": Verb(
        "many clients at once against one call at a time: rate and waiting",
        "unmask.bench.serve:serve", plugins=False, smaller="give fewer --clients",
    ),
    "distill": Verb(
        "our distillation step against the plain one: speed and memory",
        "unmask.bench.distill:distill", plugins=False, smaller=f"{_BATCH} or --length",
    ),
    "duo": Verb(
        "our training step of Duo against the plain one: speed and memory",
        "unmask.bench.duo:duo", plugins=False, smaller=f"{_BATCH} or --length",
    ),
    "cache": Verb(
        "the error of an approximate cache of keys and values; what it saves",
        "unmask.bench.cache:cache", plugins=False,
    ),
    "chain": Verb(
        "a step with and without a chain's head, and a causal model's step",
        "unmask.bench.chain:chain", plugins=False, smaller="give smaller --batches or --rivals",
    ),
    "llada": Verb(
        "LLaDA's published generate against ours, at full size", "unmask.bench.llada:llada", plugins=False
    ),
    "plans": Verb(
        "every plan's own error on sources whose law is known exactly", "unmask.bench.plans:plans", plugins=False
    ),
}  # fmt: skip
VERBS = FIRST | MORE


def _usage() -> str:
    width = max(map(len, VERBS))

    def listed(verbs: dict[str, Verb]) -> list[str]:
        return [f"  {name:<{width}}  {verb.what}" for name, verb in verbs.items()]

    return "\n".join([
        "usage: unmask VERB [options]", "", "Masked diffusion language models in a handful of steps.",
        "", "Start here:", *listed(FIRST),
        "", "More:", *listed(MORE), f"  {'bench':<{width}}  measurements side by side: `unmask bench` lists them",
        "", "`unmask help VERB` lists its options.",
    ])  # fmt: skip


def _find(argv: list[str]) -> tuple[str, Verb | None, list[str]]:
    """(the command, its verb, the rest of the line); no verb where only the list is asked for."""
    program, choices, what = "unmask", VERBS, "verb"
    if argv[:1] == ["bench"]:
        program, choices, what, argv = "unmask bench", BENCHES, "bench", argv[1:]
    if not argv or argv[0] in ("-h", "--help"):
        return program, None, []
    if argv[0] not in choices:
        raise unknown(what, argv[0], [*choices, *(["bench", "help"] if what == "verb" else [])])
    return f"{program} {argv[0]}", choices[argv[0]], argv[1:]


def run(argv: list[str]) -> int:
    """Run one command line; raises UserError for a user's mistake."""
    if argv[:1] in (["-V"], ["--version"]):
        print(f"unmask {__version__}")
        return 0
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    program, verb, rest = _find(argv)
    if verb is None:
        benches = "\n".join(f"  {name:<8} {one.what}" for name, one in BENCHES.items())
        print(_usage() if program == "unmask" else f"usage: unmask bench WHAT [options]\n\n{benches}")
        return 0
    try:
        verb.line(program).call(rest)
    except RuntimeError as error:
        if not re.search(r"out of memory|allocate memory", str(error)):  # only CUDA's allocator has a class for it
            raise
        tried = re.search(r"[Tt]ried to allocate ([\d.]+ \w+)", str(error))
        detail = f" ({tried[1]} more were asked for)" if tried else ""
        raise UserError(f"out of memory{detail}: {verb.smaller}") from error
    return 0


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
        verb = VERBS.get(next(iter(argv), ""))
        resumed = ", and the same command goes on from it" if verb and verb.resumes else ""
        print(f"{name}: {ended}; {stop if stop.args else f'what was saved is whole{resumed}'}", file=sys.stderr)
        return code


# --- the process ------------------------------------------------------------------------------------------------------


def open_streams() -> None:
    """A closed stdout (`unmask sample >&-`) is no reason to fail. A model may write any character: a file or pipe gets
    UTF-8, whatever the locale says; a terminal shows a ? for what its encoding lacks."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (open as long as the process)
    if isinstance(sys.stdout, io.TextIOWrapper):  # else a stream of the caller's making
        sys.stdout.reconfigure(encoding=None if sys.stdout.isatty() else "utf-8", errors="replace")


def catch_sigterm() -> None:
    """What a scheduler sends ends a verb like Ctrl-C; not among several processes: one that waits would not hear."""

    def end(*_: Any) -> NoReturn:
        raise Terminated

    if "RANK" not in os.environ and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)


def leave(code: int) -> NoReturn:
    """End this process, with what it printed. One of several (torchrun) ends without Python's own teardown, in which
    a thread of gloo that lets go of its last tensor would abort it (SIGABRT) after all work is done."""
    if "RANK" in os.environ:
        if ranks := sys.modules.get("unmask.core.ranks"):  # else nobody has joined, and torch need not be loaded
            ranks.part()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def command() -> NoReturn:
    """What the shell and torchrun call."""
    open_streams()
    catch_sigterm()
    leave(main())
