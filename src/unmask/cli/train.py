"""What `unmask train` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from unmask.cli.parser import Call
from unmask.core.errors import UserError
from unmask.core.ranks import is_first
from unmask.training.evaluate import with_stderr


def present(call: Call) -> None:
    """Train, then say in one line what came of it."""
    out = check_out(call)
    about = call().provenance
    if "chain" in about and call.keywords["objective"] == "chain":
        about = about["chain"]  # of the head, not of the model beside which it was trained
    if is_first():
        score = about["score"]
        number = f", {with_stderr(score['nats'], score['stderr'])} nats/token on held-out text" if score else ""
        print(f"{out}: {about['step']} steps{number}")
        for line in _with_and_without(about.get("chain", {})):
            print(line)


def _with_and_without(facts: Mapping[str, Any]) -> Iterator[str]:
    """The table of a chain: what it was measured to be worth on each plan."""
    for plan, cells in facts.get("measured", {}).items():
        for steps, (nats, without) in cells.items():
            note = "" if plan in facts["plans"] else ", a plan that it was not trained on"
            yield f"  {plan} in {steps} steps: {nats:.3f} nats/token, without the head {without:.3f}{note}"


def check_out(call: Call) -> str:
    """In Python a run may live in memory alone; of a command nothing would be left."""
    if call.keywords["out"] is None:
        raise UserError("--out must be given: the folder that the run lives in")
    return str(call.keywords["out"])
