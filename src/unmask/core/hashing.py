"""Names by content: equal values have equal names."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def key_of(*parts: Any) -> str:
    """A name for JSON values: equal parts, equal name."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
