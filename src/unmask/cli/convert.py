"""What `unmask convert` prints."""

from __future__ import annotations

from unmask.cli.parser import Call
from unmask.models.family import plain


def present(call: Call) -> None:
    checkpoint = call()
    count = sum(parameter.numel() for parameter in plain(checkpoint.model).parameters())
    print(f"{call.keywords['target']}: {count:,} parameters in {call.keywords['format']} format")
