"""JSON lines whose parts must agree: a key that is copied at a lag, a list and its count, numbers and their sum.

python studies/tasks/records.py 200000 > records.txt     # 128 bytes a record, the end included: --length 128
unmask evaluate ... --check studies/tasks/records.py:check
"""

import json
import random
import re
import string
import sys

LENGTH = 127  # of every record, filled up with spaces
LAGS = (13, 40)  # from a key to its copy
ID = re.compile(r"(\d{12})-+(\d{12})-*")


def make(rng: random.Random) -> str:
    """One record. Only the copy's place and the number of tags move what follows; nothing is noise but key and tags."""
    key = "".join(rng.choices(string.digits, k=12))
    copied = f"{key:-<{rng.randint(*LAGS)}}{key}"
    numbers = rng.choices(range(10), k=3)
    tags = ["".join(rng.choices(string.ascii_lowercase, k=2)) for _ in range(rng.randint(1, 4))]
    said = json.dumps({"add": numbers, "sum": 0, "count": len(tags), "tags": tags}, separators=(",", ":"))
    said = said.replace('"sum":0', f'"sum":{sum(numbers):2}')
    return f'{{"id":"{copied:-<{LAGS[1] + 12}}",{said[1:]}'.ljust(LENGTH)


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
    found = ID.fullmatch(both)
    right = {"parses": 1.0, "copy": float(bool(found) and found[1] == found[2]), "count": float(said[0] == len(tags)),
             "sum": float(said[1] == sum(numbers))}  # fmt: skip
    return {**right, "all": float(all(right.values())), "key": both[:12]}


if __name__ == "__main__":
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print("\n<|endoftext|>\n".join(make(rng) for _ in range(int(sys.argv[1]))))
