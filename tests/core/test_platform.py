"""The package imports, loads and samples where Unix's own modules are absent, as on Windows."""

import subprocess
import sys

PROGRAM = """
import sys
for name in ("fcntl", "resource", "termios", "tty"):
    sys.modules[name] = None  # an import of it fails
import unmask
for name in dir(unmask):
    getattr(unmask, name)
model = unmask.load("pocket")
print(unmask.sample(model, 1, steps=2, device="cpu", seed=0) is not None)
"""


def test_without_the_modules_that_only_unix_has() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr
