"""Sixteen lines a + b = c of six digits, all to be written at once; every line is checked.

python studies/tasks/equations.py 100000 > equations.txt     # 336 bytes a text, the end included: --length 336
unmask evaluate ... --check studies/tasks/equations.py:check
"""

import random
import re
import sys

LINES = 16


def make(rng: random.Random) -> str:
    """One text; no sum needs a seventh digit."""
    pairs = [sorted(rng.sample(range(1_000_000), 2)) for _ in range(LINES)]
    return "\n".join(f"{a:06}+{c - a:06}={c:06}" for a, c in pairs)


def check(text: str) -> dict[str, float | str]:
    """The share of lines that are equations, that are right, and whether all sixteen are; the first line."""
    lines = text.strip().split("\n")
    found = [re.fullmatch(r"(\d{6})\+(\d{6})=(\d{6})", line) for line in lines[:LINES]]
    right = sum(int(m[1]) + int(m[2]) == int(m[3]) for m in found if m)
    parsed = sum(m is not None for m in found)
    whole = float(right == LINES == len(lines))
    return {"lines": parsed / LINES, "right": right / LINES, "all": whole, "first": lines[0]}


if __name__ == "__main__":
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print("\n<|endoftext|>\n".join(make(rng) for _ in range(int(sys.argv[1]))))
