"""Sudoku from nothing, 4 x 4 or 9 x 9, and puzzles of 30 givens that have one solution.

python studies/tasks/sudoku.py 4 100000 > sudoku4.txt     # 17 bytes a grid, the end included: --length 17
python studies/tasks/sudoku.py 9 500000 > sudoku9.txt     # 82 bytes: --length 82
python studies/tasks/sudoku.py puzzles 2048 > puzzles.txt   # puzzle and solution of a line, _ for a blank
unmask evaluate ... --check studies/tasks/sudoku.py:check

4 x 4 grids are uniform over all 288. 9 x 9 grids are random fillings under random symmetries: valid and hardly ever
the same, not exactly uniform.
"""

import random
import sys
from itertools import permutations

GIVENS = 30


def valid(text: str) -> bool:
    """Whether every row, column and box of a grid holds each digit once."""
    size = {16: 4, 81: 9}.get(len(text), 0)
    digits = set("123456789"[:size])
    return bool(size) and all({text[i] for i in unit} == digits for unit in units(size))


def check(text: str) -> dict[str, float | str]:
    """Whether a grid is valid, and the grid, of which there should be many."""
    return {"valid": float(valid(text.strip())), "grid": text.strip()}


def units(size: int) -> list[list[int]]:
    """The cells of every row, column and box."""
    box, every = 2 if size == 4 else 3, range(size)
    rows = [[r * size + c for c in every] for r in every]
    columns = [[r * size + c for r in every] for c in every]
    corners = [(r, c) for r in range(0, size, box) for c in range(0, size, box)]
    boxes = [[(r + i // box) * size + c + i % box for i in every] for r, c in corners]
    return rows + columns + boxes


def every_small_grid() -> list[str]:
    """All valid 4 x 4 grids."""
    rows = ["".join(row) for row in permutations("1234")]
    return [g for a in rows for b in rows for c in rows for d in rows if valid(g := a + b + c + d)]


PEERS = [sorted({j for unit in units(9) if i in unit for j in unit} - {i}) for i in range(81)]


def solutions(cells: list[int], most: int, rng: random.Random | None = None) -> list[list[int]]:
    """At most so many fillings of a 9 x 9 grid (0 for a blank), tried in a random order if there is chance."""
    found: list[list[int]] = []
    grid = list(cells)
    free = [0x3FE & ~sum({1 << grid[j] for j in PEERS[i] if grid[j]}) for i in range(81)]

    def go() -> None:
        blanks = [i for i in range(81) if not grid[i]]
        if not blanks:
            found.append(list(grid))
            return
        i = min(blanks, key=lambda i: free[i].bit_count())
        digits = [d for d in range(1, 10) if free[i] >> d & 1]
        if rng is not None:
            rng.shuffle(digits)
        for d in digits:
            touched = [j for j in PEERS[i] if not grid[j] and free[j] >> d & 1]
            grid[i] = d
            for j in touched:
                free[j] &= ~(1 << d)
            go()
            for j in touched:
                free[j] |= 1 << d
            grid[i] = 0
            if len(found) >= most:
                return

    go()
    return found


def shuffled(grid: list[int], rng: random.Random) -> str:
    """The same grid under a random symmetry: digits renamed, bands, rows, stacks and columns moved, or turned over."""
    names = rng.sample("123456789", 9)

    def lines() -> list[int]:
        return [3 * band + line for band in rng.sample(range(3), 3) for line in rng.sample(range(3), 3)]

    rows, columns, flip = lines(), lines(), rng.random() < 0.5
    return "".join(names[grid[(c * 9 + r) if flip else (r * 9 + c)] - 1] for r in rows for c in columns)


def grids(count: int, rng: random.Random) -> list[str]:
    """9 x 9 grids; a filling serves for a hundred of them, each under a symmetry of its own."""
    bases = [solutions([0] * 81, 1, rng)[0] for _ in range(-(-count // 100))]
    return [shuffled(bases[i % len(bases)], rng) for i in range(count)]


def puzzle(rng: random.Random) -> tuple[str, str]:
    """A puzzle of 30 givens and its one solution."""
    while True:
        grid = solutions([0] * 81, 1, rng)[0]
        cells, left = list(grid), 81
        for i in rng.sample(range(81), 81):
            kept, cells[i] = cells[i], 0
            if len(solutions(cells, 2)) > 1:
                cells[i] = kept
            else:
                left -= 1
            if left == GIVENS:
                return "".join(str(d or "_") for d in cells), "".join(map(str, grid))


if __name__ == "__main__":
    kind, count = sys.argv[1], int(sys.argv[2])
    rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
    if kind == "puzzles":
        print("\n".join(" ".join(puzzle(rng)) for _ in range(count)))
    else:
        small = every_small_grid() if kind == "4" else []
        print("\n<|endoftext|>\n".join(rng.choices(small, k=count) if small else grids(count, rng)))
