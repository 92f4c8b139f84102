"""What `unmask train` prints."""

from __future__ import annotations

from unmask.cli.parser import Call
from unmask.core.errors import UserError
from unmask.core.ranks import is_first
from unmask.training.evaluate import with_stderr


def present(call: Call) -> None:
    """Train, then say in one line what came of it."""
    out = check_out(call)
    about = call().provenance
    if is_first():
        score = about["score"]
        number = f", {with_stderr(score['nats'], score['stderr'])} nats/token on held-out text" if score else ""
        print(f"{out}: {about['step']} steps{number}")


def check_out(call: Call) -> str:
    """In Python a run may live in memory alone; of a command nothing would be left."""
    if call.keywords["out"] is None:
        raise UserError("--out must be given: the folder that the run lives in")
    return str(call.keywords["out"])
