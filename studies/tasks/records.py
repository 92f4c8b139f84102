"""JSON lines whose parts must agree: a key that is copied at a lag, a list and its count, numbers and their sum.

python studies/tasks/records.py 200000 > records.txt     # 128 bytes a record, the end included: --length 128
unmask evaluate ... --check studies/tasks/records.py:check
"""

import json
import random
import string
import sys

LENGTH = 127  # of every record, filled up with spaces
LAGS = (13, 40)  # from a key to its copy


def make(rng: random.Random) -> str:
    """One record."""
    key = "".join(rng.choices(string.digits, k=12))
    between = "".join(rng.choices(string.ascii_lowercase, k=rng.randint(*LAGS) - len(key)))
    tags = ["".join(rng.choices(string.ascii_lowercase, k=2)) for _ in range(rng.randint(1, 4))]
    numbers = [rng.randint(0, 99) for _ in range(rng.randint(1, 3))]
    record = {"id": key + between + key, "tags": tags, "count": len(tags), "add": numbers, "sum": sum(numbers)}
    return json.dumps(record, separators=(",", ":")).ljust(LENGTH)


def check(text: str) -> dict[str, float | str]:
    """What of a text is right, and its key, of which there should be many."""
    right = {"parses": 0.0, "copy": 0.0, "count": 0.0, "sum": 0.0, "all": 0.0}
    try:
        record = json.loads(text)
        both, tags, numbers = record["id"], record["tags"], record["add"]
        said = record["count"], record["sum"]
        whole = isinstance(both, str) and all(isinstance(x, int) for x in (*numbers, *said)) and isinstance(tags, list)
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        return {**right, "key": ""}
    key, copy = both[:12], both[-12:]
    digits = len(both) >= 12 + LAGS[0] and (key + copy).isdigit() and both[12:-12].isalpha()
    right = {"parses": 1.0, "copy": float(digits and key == copy), "count": float(said[0] == len(tags)),
             "sum": float(said[1] == sum(numbers))}  # fmt: skip
    return {**right, "all": float(all(right.values())), "key": key}


if __name__ == "__main__":
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print("\n<|endoftext|>\n".join(make(rng) for _ in range(int(sys.argv[1]))))
