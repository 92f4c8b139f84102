"""What `unmask push` prints."""

from __future__ import annotations

from unmask.cli.parser import Call


def present(call: Call) -> None:
    """Push, then say where it is."""
    print(f"{call.keywords['repository']}: {call()}")
