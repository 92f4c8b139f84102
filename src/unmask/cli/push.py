"""What `unmask push` prints."""

from __future__ import annotations

from unmask.cli.parser import Call


def present(call: Call) -> None:
    print(f"{call.keywords['repository']}: {call()}")
