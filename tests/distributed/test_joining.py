"""Processes of torchrun join as often as they like, and end when their work is done.

A script of the user's own may call `sample` and `evaluate` one after the other, and each joins.
"""

SCRIPT = """
import sys
from unmask.core.ranks import joined
for turn in range(10):
    with joined("cpu") as ranks:
        assert ranks.gather([ranks.rank, turn]) == [[0, turn], [1, turn]]
sys.stdout.write(f"done {ranks.rank} of {ranks.world}\\n")
"""


def test_processes_join_again_and_again(two_processes, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = two_processes(str(tmp_path / "script.py"))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["done 0 of 2", "done 1 of 2"]
