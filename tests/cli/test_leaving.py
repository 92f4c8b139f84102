"""How the command ends. Without a stdout it does its work all the same. One of several processes ends with its work:
with its words and its code, whatever threads still live in it.

The thread there stands for gloo's, which outlive the group: Python's teardown under one of them aborts the process.
"""

import os
import signal
import subprocess
import sys

import pytest

from unmask.cli.main import catch_sigterm

SCRIPT = """
import threading, time
from unmask.cli.main import leave
threading.Thread(target=lambda: (time.sleep(1), print("; the thread's"))).start()
print("the last words", end="")  # no newline: only a flush brings them out
leave(3)
"""


@pytest.mark.parametrize(("rank", "said"), [("1", "the last words"), (None, "the last words; the thread's\n")])
def test_one_of_several_does_not_wait_for_its_threads(rank, said):
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    if rank is not None:
        environment["RANK"] = rank
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, said), done.stderr


def test_a_closed_stream_is_no_reason_to_fail(folder):
    words = f"{sys.executable} -m unmask sample --model {folder / 'model'} --device cpu --steps 2 --n 2"
    assert subprocess.run(["sh", "-c", f"{words} >&- 2>&-"]).returncode == 0


def test_one_of_several_ends_at_once_when_torchrun_says_so(monkeypatch):
    """It may wait for the others inside a library, where Python hears of no signal."""
    monkeypatch.setenv("RANK", "1")
    before = signal.getsignal(signal.SIGTERM)
    catch_sigterm()
    assert signal.getsignal(signal.SIGTERM) is before
