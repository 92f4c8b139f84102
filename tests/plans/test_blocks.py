"""Blocks: how the steps are shared out, and that this makes one token a step exact for them too."""

import pytest
import torch

from unmask.core.streams import stream
from unmask.plans.blocks import deal_steps
from unmask.plans.grids import make_grid
from unmask.plans.plan import Blocks, Confidence, LeftToRight, make_plan
from unmask.processes.schedule import LogLinear
from unmask.theory.exact import Views, sample_law
from unmask.theory.oracle import SOURCES, Enumerated
from unmask.theory.plan_laws import chain_of

INNER = [make_plan("golden"), make_plan("stride"), make_plan("iid"), LeftToRight(), Confidence(), Confidence("entropy")]


@pytest.mark.parametrize(
    ("blanks", "steps", "dealt"),
    [
        ([32, 32, 32, 32], 10, [3, 3, 2, 2]),  # equal blocks: as even as can be, the first ones first
        ([32, 32, 32, 4], 100, [32, 32, 32, 4]),
        ([32, 32, 32, 4], 50, [16, 16, 16, 2]),
        ([32, 32, 32, 4], 32, [10, 10, 10, 2]),
        ([32, 0, 1, 7], 3, [1, 0, 1, 1]),
        ([32, 0, 1, 7], 2, [1, 0, 1, 1]),  # at least one where there is a blank
        ([2, 0, 3], 99, [2, 0, 3]),  # no more than can be used
        ([0, 0], 4, [0, 0]),
    ],
)
def test_steps_are_dealt_by_blanks(blanks, steps, dealt):
    assert deal_steps(blanks, steps) == dealt


def test_no_deal_is_worse_off_than_another():
    """Any blanks, any steps: all are dealt, none wasted, and no step has two blanks more than it needs to have."""
    counts = torch.randint(0, 33, (200, 6), generator=stream(0, "blanks")).tolist()
    for case, blanks in enumerate(counts):
        steps = 1 + case
        dealt = deal_steps(blanks, steps)
        assert sum(dealt) == max(min(steps, sum(blanks)), sum(n > 0 for n in blanks))
        assert all(bool(n) <= k <= n for k, n in zip(dealt, blanks, strict=True))
        crowded = max(n / k for k, n in zip(dealt, blanks, strict=True) if k)
        assert all(n / (k - 1) >= crowded for k, n in zip(dealt, blanks, strict=True) if k > 1)


def assign(plan, blank_BL, steps, grid="rank"):
    generators = [stream(0, "reveal", i) for i in range(len(blank_BL))]
    return plan.assign(blank_BL, make_grid(grid, steps), LogLinear(), generators)


@pytest.mark.parametrize("inner", INNER, ids=str)
def test_as_many_steps_as_blanks_is_one_position_a_step(inner):
    blank_BL = torch.ones(5, 100, dtype=torch.bool)
    blank_BL[1, :37], blank_BL[2, 60:], blank_BL[3, ::3] = False, False, False
    for row in range(5):
        steps = int(blank_BL[row].sum())
        step_BL = assign(Blocks(32, inner), blank_BL, steps).step_BL
        assert sorted(step_BL[row][blank_BL[row]].tolist()) == list(range(steps))


@pytest.mark.parametrize("inner", INNER, ids=str)
def test_every_row_has_a_deal_of_its_own_whoever_is_with_it(inner):
    blank_BL = torch.rand(12, 50, generator=stream(0, "blank")) < torch.linspace(0.05, 1, 12)[:, None]
    blank_BL[:, 0] = True
    plan = Blocks(8, inner)
    together = assign(plan, blank_BL, 20)
    for row in range(12):
        generators = [stream(0, "reveal", row)]
        alone = plan.assign(blank_BL[row : row + 1], make_grid("rank", 20), LogLinear(), generators)
        assert torch.equal(together.step_BL[row], alone.step_BL[0])
        of_block = [(i // 8, step) for i, step in enumerate(alone.step_BL[0].tolist()) if blank_BL[row, i]]
        assert {step for _, step in of_block} == set(range(alone.steps))  # no step goes without
        assert alone.steps == min(20, len(of_block))
        assert all(step < later for block, step in of_block for after, later in of_block if block < after)


@pytest.mark.parametrize("inner", INNER, ids=str)
def test_one_token_a_step_is_exact_in_blocks_that_do_not_fit(inner):
    """Blocks of 3, 3 and 2 of eight, with and without given words: Q is the source, or its conditional."""
    p = SOURCES["order2"]()
    views = Views(Enumerated(p), 8)
    assert sample_law(views, 8, plan=Blocks(3, inner), grid="rank").kl(p) < 1e-12
    given_L = torch.tensor([3, 1, 3, 2, 0, 1, 3, 3])
    conditional = torch.zeros_like(p)
    conditional[:, 1, :, 2, 0, 1] = p[:, 1, :, 2, 0, 1]
    law = sample_law(views, 4, plan=Blocks(3, inner), grid="rank", given_L=given_L)
    assert torch.allclose(law.q, conditional / conditional.sum(), atol=1e-12)
    assert law.nfe == pytest.approx(4)


def test_the_exact_law_knows_a_line_without_blanks():
    chain = chain_of(
        Blocks(2, make_plan("golden")), torch.zeros(4, dtype=torch.bool), make_grid("rank", 3), LogLinear()
    )
    assert (sum(chain.start.values()), chain.nfe) == (1, 0)
