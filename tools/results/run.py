"""Runs the commands of studies on this machine: each after what it needs, several at a time.

A command makes its `--out` (`convert`: its target) and waits for the commands that make what it names. Of evaluations
that share `--cells` and differ only by judge, the second waits for the first, which draws for both. A line may begin
with `for S in 0 1 2:`, and is then one command for each. The same call goes on where it stopped: finished commands are
listed in a file, and every verb resumes by itself.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask.core.errors import UserError

LOOP = re.compile(r"for (\w+) in ([^:]+): (.+)")
WAIT = 0.2  # seconds between looks at what runs


@dataclass(frozen=True)
class Job:
    """One command line, without the program's name."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join(self.words)

    @property
    def product(self) -> str | None:
        """What it makes: a path."""
        return self.words[2] if self.words[0] == "convert" else self._after("--out")

    def needs(self, product: str) -> bool:
        """Whether one of its words is what another command makes, or lies in it and is not there yet."""
        inside = f"{product}/"
        return any(path == product or (path.startswith(inside) and not Path(path).exists()) for path in self._paths())

    @property
    def lacks(self) -> bool:
        """Whether a path it names is not there: somebody else has to bring it."""
        return not all(Path(path).exists() for path in self._paths())

    def _paths(self) -> Iterator[str]:
        """The files and folders it reads, which are the words with a slash: PATH, NAME=PATH or PLAN@PATH."""
        shared = self._after("--cells")
        for word in self.words:
            path = re.split("[=@]", word)[-1]
            if "/" in path and word not in (self.product, shared):
                yield path

    def _after(self, option: str) -> str | None:
        return self.words[self.words.index(option) + 1] if option in self.words else None

    @property
    def drawing(self) -> tuple[str, ...] | None:
        """What an evaluation draws into cells that others share, whoever judges it."""
        if "--cells" not in self.words:
            return None
        apart = [self.words.index(name) for name in ("--judge", "--judge_dtype", "--out") if name in self.words]
        return tuple(word for i, word in enumerate(self.words) if i not in apart and i - 1 not in apart)

    @property
    def name(self) -> str:
        """Of its log."""
        return re.sub(r"[^\w.-]+", "_", self.product or str(self))[-80:]


def jobs_of(commands: Iterable[str]) -> list[Job]:
    """Every command once, loops written out."""
    lines: list[str] = []
    for line in commands:
        loop = LOOP.fullmatch(line)
        lines += [line] if loop is None else [loop[3].replace(f"${loop[1]}", value) for value in loop[2].split()]
    found = [shlex.split(line) for line in lines]
    if other := next((line for line, words in zip(lines, found, strict=True) if words[:1] != ["unmask"]), None):
        raise UserError(f"a study's command begins with unmask, not {other!r}: it would be left out without a word")
    return list(dict.fromkeys(Job(tuple(words[1:])) for words in found))


class Queue:
    """Jobs in the order of their list, each as soon as it can start and what it needs is there."""

    def __init__(self, jobs: Sequence[Job], program: Sequence[str], folder: Path, parallel: int) -> None:
        self.program, self.folder, self.parallel = list(program), folder, parallel
        folder.mkdir(parents=True, exist_ok=True)
        self.ledger = folder / "done.txt"
        done = set(self.ledger.read_text(encoding="utf-8").splitlines()) if self.ledger.is_file() else set()
        self.waiting = [job for job in jobs if str(job) not in done]
        self.running: list[tuple[Job, subprocess.Popen[bytes], float]] = []  # and since when
        self.failed: list[Job] = []
        self.began = time.monotonic()

    def go(self, minutes: float) -> bool:
        """Run everything, or what fits into so many minutes. Whether all of it is done."""
        while self.waiting or self.running:
            if time.monotonic() - self.began > 60 * minutes:
                self._stop()
                return False
            self._collect()
            self._start()
            if self.waiting and not self.running:
                break  # what waits needs something that failed
            time.sleep(WAIT)
        for job in self.waiting:
            self._say(f"left out, needs what failed: {job}")
        return not (self.waiting or self.failed)

    def _start(self) -> None:
        for job in list(self.waiting):
            if len(self.running) == self.parallel:
                return
            if self._must_wait(job):
                continue
            self.waiting.remove(job)
            threads = max(1, (os.cpu_count() or 1) // self.parallel)
            environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
            with open(self.folder / f"{job.name}.log", "ab") as log:
                command = [*self.program, *job.words]
                process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
            self.running.append((job, process, time.monotonic()))
            self._say(f"begins: {job}")

    def _must_wait(self, job: Job) -> bool:
        """For what another command makes, for what somebody brings, or for whoever draws the same cells."""
        running = [job for job, _, _ in self.running]
        earlier = self.waiting[: self.waiting.index(job)]
        unmade = [other for other in (*self.waiting, *running, *self.failed) if other is not job]
        return (
            any(other.product and job.needs(other.product) for other in unmade)
            or (job.drawing is not None and any(other.drawing == job.drawing for other in (*earlier, *running)))
            or job.lacks
        )

    def _collect(self) -> None:
        ended = [one for one in self.running if one[1].poll() is not None]
        self.running = [one for one in self.running if one not in ended]
        for job, process, since in ended:
            code = process.returncode
            if code == 0:
                with open(self.ledger, "a", encoding="utf-8") as handle:
                    handle.write(f"{job}\n")
            else:
                self.failed.append(job)
            result = "done" if code == 0 else f"FAILED ({code})"
            self._say(f"{result} after {time.monotonic() - since:.0f} s: {job}")

    def _stop(self) -> None:
        """Out of time: what runs is ended, and goes on in the next call."""
        for _, process, _ in self.running:
            process.terminate()
        for job, process, _ in self.running:
            process.wait()
            self._say(f"stopped: {job}")
        self._say(f"out of time, {len(self.waiting)} not begun")

    def _say(self, text: str) -> None:
        line = f"[{time.monotonic() - self.began:6.0f} s] {text}"
        print(line, flush=True)
        with open(self.folder / "log.txt", "a", encoding="utf-8") as handle:
            handle.write(f"{line}\n")
