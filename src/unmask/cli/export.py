"""What `unmask export` prints."""

from __future__ import annotations

from unmask.cli.parser import Call


def present(call: Call) -> None:
    about = call()
    print(f"{call.keywords['onnx']}: body and head of {about['parameters']:,} parameters, stored in {about['storage']}")
