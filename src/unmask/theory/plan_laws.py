"""The exact law of a locked plan: with which probability each step reveals which positions.

A plan becomes a Markov chain over sets of revealed positions with a little memory. Two kinds of plan cover all:
- one random scalar (golden: the shift; van der Corput: the digital shift), or two (comb, rotation: shift and turn):
  between the scalars' breakpoints the steps do not change, so the law is a finite mixture of assignments;
- an urn (iid, permutation, stride, dilated): [0, 1) is cut into equal cells, each cell is dealt a class of positions
  at random, and within its cell every position is uniform and independent. By rank, `stride` keeps to its cells.

A set of positions is an int, bit i for position i.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from unmask.core.errors import UserError, unknown
from unmask.plans.blocks import deal_steps
from unmask.plans.grids import Grid, assign_steps, make_grid, places_without_gaps
from unmask.plans.laws import GOLDEN, Turning, Turns
from unmask.plans.plan import Blocks, Confidence, LeftToRight, Locked, Plan, locked_plan
from unmask.processes.schedule import LogLinear, Schedule

State = tuple[tuple[int, ...], int]  # (the plan's memory, the revealed set)
Law = dict[State, float]
_TINY = 1e-9  # float edges that should meet may miss each other by less than this


@dataclass(frozen=True)
class Chain:
    """Where it starts, and one kernel a step: state -> law of the next state. `argmax_step` is MDLM's noise removal."""

    start: Law
    steps: tuple[dict[State, Law], ...]
    argmax_step: int | None = None

    def moves(self) -> list[dict[tuple[int, int], float]]:
        """Of every step, the probability that it takes the revealed set A to A'."""
        law, found = self.start, []
        for kernel in self.steps:
            move: dict[tuple[int, int], float] = defaultdict(float)
            following: Law = defaultdict(float)
            for state, probability in law.items():
                for target, share in kernel[state].items():
                    move[state[1], target[1]] += probability * share
                    following[target] += probability * share
            found.append(dict(move))
            law = following
        return found

    @property
    def nfe(self) -> float:
        """The expected number of forwards for one line: steps that reveal nothing cost nothing."""
        return sum(p for move in self.moves() for (before, after), p in move.items() if before != after)


def members(positions: int) -> list[int]:
    return [i for i in range(positions.bit_length()) if positions >> i & 1]


def subsets(positions: int) -> Iterator[int]:
    """Every subset, the whole first and the empty one last."""
    subset = positions
    while True:
        yield subset
        if subset == 0:
            return
        subset = (subset - 1) & positions


def bits(flags: Tensor) -> int:
    """A boolean line as a set."""
    return sum(1 << i for i, flag in enumerate(flags.tolist()) if flag)


def _edges(grid: Grid, schedule: Schedule) -> list[float]:
    """Where u leaves one step for the next: 0 < edge_1 < ... (for a time grid that ends at t = 0 the last is 1)."""
    gamma = schedule.gamma(torch.tensor(grid.times, dtype=torch.float64))
    return ((gamma[1:] - gamma[0]) / (1 - gamma[0])).tolist()


# --- plans of one or two random scalars -------------------------------------------------------------------------------


def _pieces(breakpoints: list[float]) -> list[tuple[float, float]]:
    """(length, midpoint) of the pieces into which breakpoints cut [0, 1)."""
    cuts = sorted({0.0, 1.0, *(point for point in breakpoints if 0 < point < 1)})
    return [(b - a, (a + b) / 2) for a, b in pairwise(cuts) if b - a > _TINY]


Weighted = list[tuple[float, Tensor]]  # (probability, u)


def _turned(L: int, edges: list[float], turn: float = GOLDEN) -> Weighted:
    """u_i = frac(shift + i turn): something changes where a position passes an edge, or 1."""
    turns_L = (torch.arange(L, dtype=torch.float64) * turn).frac()
    breakpoints = [(edge - turn) % 1 for edge in (0.0, *edges) for turn in turns_L.tolist()]
    return [(length, (turns_L + shift).frac()) for length, shift in _pieces(breakpoints)]


def _turning(turns: Turns, L: int, edges: list[float]) -> Weighted:
    """The turn is uniform too: two breakpoints of the shift meet where d turns are a whole number and two edges apart.

    Between such turns the length of a piece is linear in the turn, so that the middle's is the mean.
    """
    gaps = {(a - b) % 1 for a in (0.0, *edges) for b in (0.0, *edges)}
    meet = sorted({(gap + whole) / d for d in range(1, L) for gap in gaps for whole in range(d)})
    found, total = [], sum(high - low for low, high in turns)
    for low, high in turns:
        cuts = [low, *(turn for turn in meet if low < turn < high), high]
        for a, b in pairwise(cuts):
            share = (b - a) / total if total else 1.0
            found += [(share * length, u_L) for length, u_L in _turned(L, edges, (a + b) / 2) if share > _TINY]
    return found


def _van_der_corput(L: int, edges: list[float]) -> Weighted:
    """u_i = (mirrored_i xor s + w) / 2^m: m random bits s that permute, and one fraction w below them for all."""
    m = max(1, (L - 1).bit_length())
    mirrored_L = torch.tensor([int(f"{i:0{m}b}"[::-1], 2) for i in range(L)])
    pieces = _pieces([edge * 2**m % 1 for edge in edges])
    return [(length / 2**m, ((mirrored_L ^ s) + w) / 2**m) for s in range(2**m) for length, w in pieces]


_SCALAR = {"golden": _turned, "van_der_corput": _van_der_corput}


def _scalar_chain(plan: Locked, blank_L: Tensor, grid: Grid, schedule: Schedule) -> Chain:
    """Every piece of the random scalars with its steps."""
    edges, L = [] if grid.by == "rank" else _edges(grid, schedule), len(blank_L)
    if isinstance(plan.law, Turning):
        drawn = _turning(plan.law.turns(grid.steps), L, edges)
    else:
        drawn = _SCALAR[plan.name](L, edges)
    u_BL = torch.stack([u_L for _, u_L in drawn])
    blank_BL = blank_L.expand_as(u_BL)
    if plan.for_steps:
        u_BL = u_BL.gather(1, places_without_gaps(blank_BL))
    step_BL = assign_steps(u_BL, blank_BL, grid, schedule)
    return _mixture([(p, step_L) for (p, _), step_L in zip(drawn, step_BL, strict=True)], grid.steps + grid.argmax_tail)


def _mixture(weighted: list[tuple[float, Tensor]], steps: int) -> Chain:
    """A finite mixture of assignments (probability, step of every position): the chain remembers which was drawn."""
    weight: dict[tuple[int, ...], float] = defaultdict(float)
    for probability, step_L in weighted:
        weight[tuple(step_L.tolist())] += probability
    total = sum(weight.values())
    start: Law = {(assigned, 0): probability / total for assigned, probability in weight.items()}
    kernels = [
        {(assigned, _earlier(assigned, k)): {(assigned, _earlier(assigned, k + 1)): 1.0} for assigned in weight}
        for k in range(steps)
    ]
    return Chain(start, tuple(kernels))


def _earlier(steps: tuple[int, ...], k: int) -> int:
    """The positions revealed before step k."""
    return sum(1 << i for i, step in enumerate(steps) if 0 <= step < k)


# --- plans that deal classes of positions to cells --------------------------------------------------------------------

Stages = list[list[int]]  # the cells of a stage are dealt its classes in random order; a class may be empty


def _stride_urn(blank_L: Tensor, steps: int) -> list[Stages]:
    """Every N-th blank, whatever stands between."""
    blanks = members(bits(blank_L))
    return [[[sum(1 << i for i in blanks[residue::steps]) for residue in range(steps)]]]


def _dilated_urn(blank_L: Tensor, steps: int) -> list[Stages]:
    """One urn an offset: level by level, each residue of the period holds one position of the line or none."""
    L = len(blank_L)
    m = max(1, (L - 1).bit_length())
    period = 1 << m
    levels = [[0], *(list(range(period >> (j + 1), period, period >> j)) for j in range(m))]
    urns = []
    for offset in range(period):
        position = {(i + offset) % period: 1 << i for i in range(L)}
        urns.append([[position.get(residue, 0) for residue in level] for level in levels])
    return urns


_URNS: dict[str, Callable[[Tensor, int], list[Stages]]] = {
    "iid": lambda blank_L, steps: [[[(1 << len(blank_L)) - 1]]],
    "permutation": lambda blank_L, steps: [[[1 << i for i in range(len(blank_L))]]],
    "stride": _stride_urn,
    "dilated": _dilated_urn,
}


@dataclass(frozen=True)
class _Urn:
    """One urn among equally likely ones. Its memory is (urn, positions dealt but not yet revealed)."""

    stages: list[Stages]

    def deal(self, law: Law, cell: int | None) -> Law:
        """Give the next class to a cell. Without a cell: to whoever comes next in rank, empty classes left out."""
        after: Law = defaultdict(float)
        for ((urn, pending), revealed), probability in law.items():
            if cell is None and pending:
                after[(urn, pending), revealed] += probability
                continue
            left, cells = self._left(urn, revealed | pending, cell)
            for positions in left:
                after[(urn, pending | positions), revealed] += probability / cells
            if cells > len(left):
                after[(urn, pending), revealed] += probability * (cells - len(left)) / cells
        return after

    def _left(self, urn: int, dealt: int, cell: int | None) -> tuple[list[int], int]:
        """The non-empty classes still in the stage's urn, and how many cells they may go to."""
        start = 0
        for stage in self.stages[urn]:
            left = [positions for positions in stage if positions & ~dealt]
            if cell is None and left:
                return left, len(left)
            if cell is not None and cell < start + len(stage):
                return left, start + len(stage) - cell
            start += len(stage)
        return [], 1

    @staticmethod
    def pass_time(law: Law, hazard: float) -> Law:
        """Each pending position is revealed with probability `hazard`, independently."""
        after: Law = defaultdict(float)
        for ((urn, pending), revealed), probability in law.items():
            for now in subsets(pending):
                stay = pending & ~now
                chance = hazard ** now.bit_count() * (1 - hazard) ** stay.bit_count()
                if chance > 0:
                    after[(urn, stay), revealed | now] += probability * chance
        return after

    def reveal_share(self, law: Law, share: float) -> Law:
        """This share of the class of a cell is out by now; those who stay are any of them, with the same chance."""
        after: Law = defaultdict(float)
        for ((urn, pending), revealed), probability in law.items():
            size = max(positions.bit_count() for positions in self.stages[urn][0] if positions & pending == pending)
            stay = min(pending.bit_count(), size - math.ceil(size * share - _TINY))
            for left in subsets(pending):
                if left.bit_count() == stay:
                    chance = 1 / math.comb(pending.bit_count(), stay)
                    after[(urn, left), revealed | pending & ~left] += probability * chance
        return after

    @staticmethod
    def reveal_one(law: Law) -> Law:
        """One of the pending positions, any with the same chance."""
        after: Law = defaultdict(float)
        for ((urn, pending), revealed), probability in law.items():
            for i in members(pending):
                after[(urn, pending & ~(1 << i)), revealed | 1 << i] += probability / pending.bit_count()
        return after


Move = Callable[[Law], Law]


def _time_moves(urn: _Urn, grid: Grid, schedule: Schedule) -> list[list[Move]]:
    """What happens in each step of a time grid, cell after cell."""
    edges = [0.0, *_edges(grid, schedule)]
    if grid.argmax_tail:
        edges.append(1.0)

    def pass_time(a: float, b: float) -> Move:
        hazard = 1.0 if b >= 1 - _TINY else (b - a) / (1 - a)
        return lambda law: urn.pass_time(law, hazard)

    return _cell_moves(urn, edges, pass_time)


def _cell_moves(urn: _Urn, edges: list[float], within: Callable[[float, float], Move]) -> list[list[Move]]:
    """Cell after cell: a class is dealt where it begins; `within` is the move from one share of a cell to another."""
    cells = sum(map(len, urn.stages[0]))
    steps: list[list[Move]] = []
    for low, high in pairwise(edges):
        moves: list[Move] = []
        for cell in range(math.floor(low * cells + _TINY), math.ceil(high * cells - _TINY)):
            a, b = max(0.0, low * cells - cell), min(1.0, high * cells - cell)
            if a <= _TINY:
                moves.append(lambda law, cell=cell: urn.deal(law, cell))  # type: ignore[misc]
            moves.append(within(a, b))
        steps.append(moves)
    return steps


def _rank_moves(urn: _Urn, blank_L: Tensor, grid: Grid) -> list[list[Move]]:
    """What happens in each step of a rank grid: its count of positions, one after the other."""
    count = int(blank_L.sum())
    in_order_L = torch.arange(count, dtype=torch.float64) / max(1, count)
    steps_L = assign_steps(in_order_L[None], torch.ones(1, count, dtype=torch.bool), grid, LogLinear())[0]
    one: list[Move] = [lambda law: urn.deal(law, None), urn.reveal_one]
    return [one * int((steps_L == k).sum()) for k in range(grid.steps)]


def _urn_moves(urn: _Urn, blank_L: Tensor, grid: Grid, schedule: Schedule, cells: int) -> list[list[Move]]:
    """What happens in each step; a rank grid of a plan with cells counts within them."""
    if grid.by == "time":
        return _time_moves(urn, grid, schedule)
    if cells == 1:
        return _rank_moves(urn, blank_L, grid)
    return _cell_moves(urn, [1 - t for t in grid.times], lambda _, b: lambda law: urn.reveal_share(law, b))


def _urn_chain(plan: str, blank_L: Tensor, grid: Grid, schedule: Schedule) -> Chain:
    urns, blank = _URNS[plan](blank_L, grid.steps), bits(blank_L)
    urn = _Urn([[[positions & blank for positions in stage] for stage in stages] for stages in urns])
    start: Law = {((which, 0), 0): 1 / len(urns) for which in range(len(urns))}
    reached, kernels = set(start), []
    for step in _urn_moves(urn, blank_L, grid, schedule, locked_plan(plan).cells(grid.steps)):
        kernel: dict[State, Law] = {}
        for state in reached:
            law: Law = {state: 1.0}
            for move in step:
                law = move(law)
            kernel[state] = law
        reached = {target for law in kernel.values() for target in law}
        kernels.append(kernel)
    return Chain(start, tuple(kernels))


# --- all of them ------------------------------------------------------------------------------------------------------


def chain_of(plan: Plan, blank_L: Tensor, grid: Grid, schedule: Schedule) -> Chain:
    """The law of a plan that is known before the first forward, over the blank positions of one line."""
    if isinstance(plan, Confidence):
        raise UserError(f"the plan {plan.name!r} looks at the model: it has no law of its own")
    if isinstance(plan, Blocks):
        return _blocks(plan, blank_L, grid, schedule)
    tail = grid.steps if grid.argmax_tail else None
    if isinstance(plan, LeftToRight):
        assigned = plan.assign(blank_L[None], grid, schedule, [])
        chain = _mixture([(1.0, assigned.step_BL[0])], assigned.steps)
    elif isinstance(plan, Locked) and (isinstance(plan.law, Turning) or plan.name in _SCALAR):
        chain = _scalar_chain(plan, blank_L, grid, schedule)
    elif plan.name in _URNS:
        chain = _urn_chain(plan.name, blank_L, grid, schedule)
    else:
        raise unknown("plan with a known law", plan.name, [*_SCALAR, "comb", "rotation", *_URNS])
    return Chain(chain.start, chain.steps, tail)


def parts(plan: Blocks, blank_L: Tensor, grid: Grid) -> list[tuple[Tensor, Grid]]:
    """The blanks of each block that has some, and the grid within it."""
    block_L, blanks_1C = plan.blanks(blank_L[None])
    dealt = enumerate(deal_steps(blanks_1C[0].tolist(), grid.steps))
    return [(blank_L & (block_L == block), make_grid(grid.name, share)) for block, share in dealt if share]


def _blocks(plan: Blocks, blank_L: Tensor, grid: Grid, schedule: Schedule) -> Chain:
    """Block after block: where one ends, the start of the next is drawn afresh."""
    start: Law = {((), 0): 1.0}
    kernels: list[dict[State, Law]] = []
    done = 0
    for block, (inside_L, inner_grid) in enumerate(parts(plan, blank_L, grid)):
        inner = chain_of(plan.inner, inside_L, inner_grid, schedule)
        opening = _moved(inner.start, block, done)
        if kernels:
            kernels[-1] = dict.fromkeys(kernels[-1], opening)  # every line has finished the block before
        else:
            start = opening
        for kernel in inner.steps:
            moved = {state: _moved(law, block, done) for state, law in kernel.items()}
            kernels.append({((block, *memory), revealed | done): law for (memory, revealed), law in moved.items()})
        done |= bits(inside_L)
    return Chain(start, tuple(kernels))


def _moved(law: Law, block: int, done: int) -> Law:
    """An inner chain's law as the blocks' chain sees it: with what earlier blocks revealed."""
    return {((block, *memory), revealed | done): probability for (memory, revealed), probability in law.items()}
