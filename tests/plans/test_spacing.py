"""Which positions really share a step: read off the assignment that `sample` and teacher forcing use."""

import pytest
import torch

from unmask.core.streams import stream
from unmask.inference.ready import make_ready
from unmask.plans.grids import Grid, assign_steps, make_grid
from unmask.plans.plan import draw_u, make_plan
from unmask.processes.schedule import LogLinear
from unmask.sampling.teacher_forcing import teacher_force
from unmask.theory.oracle import Enumerated, sticky

B = 40


def generators():
    return [stream(0, "reveal", i) for i in range(B)]


def stride_steps(blank_BL, steps, grid="rank"):
    return make_plan("stride").assign(blank_BL, make_grid(grid, steps), LogLinear(), generators()).step_BL


def least_distance(step_BL):
    """Between two positions of one step, over all sequences; the length where no two share a step."""
    L = step_BL.shape[1]
    for distance in range(1, L):
        here, there = step_BL[:, :-distance], step_BL[:, distance:]
        if bool(((here == there) & (here >= 0)).any()):
            return distance
    return L


def counts_of(step_BL, steps):
    return torch.stack([(step_BL == k).sum(1) for k in range(steps)], dim=1)


def blanks(kind, L):
    """All blank, all but a prompt of 37 tokens, or random places, in each sequence others."""
    blank_BL = torch.ones(B, L, dtype=torch.bool)
    if kind == "prompt":
        blank_BL[:, :37] = False
    if kind == "scattered":
        blank_BL = torch.rand(B, L, generator=stream(0, "blank")) < torch.linspace(0.1, 0.9, B)[:, None]
    return blank_BL


@pytest.mark.parametrize("grid", ["rank", "uniform"])
@pytest.mark.parametrize("L", [100, 256])
@pytest.mark.parametrize("steps", [2, 7, 8, 12, 24, 48, 100])
def test_stride_is_exactly_n_apart_for_any_n(steps, L, grid):
    for kind in ("all", "prompt"):
        blank_BL = blanks(kind, L)
        step_BL = stride_steps(blank_BL, steps, grid)
        several = int(blank_BL[0].sum()) > steps
        assert least_distance(step_BL) == (make_plan("stride").distance(steps) if several else L)


@pytest.mark.parametrize("kind", ["all", "prompt", "scattered"])
@pytest.mark.parametrize("steps", [3, 8, 24, 60])
def test_strides_steps_differ_by_at_most_one_position(kind, steps):
    """Wherever given words stand: still N apart or more, and no step goes without while another has two."""
    blank_BL = blanks(kind, 100)
    step_BL = stride_steps(blank_BL, steps)
    assert torch.equal(step_BL >= 0, blank_BL)
    assert least_distance(step_BL) >= steps
    counts_BN = counts_of(step_BL, steps)
    assert int((counts_BN.amax(1) - counts_BN.amin(1)).max()) <= 1
    assert len(counts_BN.unique(dim=0)) > 1 or (counts_BN == counts_BN[0, 0]).all()  # not always the first steps


def by_counts(blank_BL, grid):
    """Cut by counts alone, which is all that other plans need."""
    L = blank_BL.shape[1]
    u_BL = torch.cat([draw_u((1, L), "stride", generator=g, steps=grid.steps) for g in generators()])
    return assign_steps(u_BL, blank_BL, grid, LogLinear())


@pytest.mark.parametrize(
    ("L", "prompt", "steps"),
    [(256, 0, 1), (256, 0, 8), (256, 0, 32), (256, 0, 256), (256, 37, 3), (256, 37, 73), (8, 0, 4)],
)
def test_where_n_divides_the_blanks_counts_alone_give_the_same(L, prompt, steps):
    """So the results published for such N stand, on fitted grids too."""
    blank_BL = torch.ones(B, L, dtype=torch.bool)
    blank_BL[:, :prompt] = False
    uneven = Grid("fitted", tuple(1 - (k / steps) ** 2 for k in range(steps + 1)), by="rank")
    for grid in (make_grid("rank", steps), uneven):
        assert torch.equal(stride_steps(blank_BL, steps, grid), by_counts(blank_BL, grid))


def test_as_many_steps_as_blanks_is_one_at_a_time_wherever_they_stand():
    blank_BL = torch.zeros(B, 60, dtype=torch.bool)
    blank_BL[:, ::10] = True  # one residue class of positions, were positions counted
    assert counts_of(stride_steps(blank_BL, 6), 6).unique().tolist() == [1]
    source = Enumerated(sticky(length=7))
    x_TL = source.draw(20, stream(0, "draw"))
    blank_TL = torch.tensor([True, False, True, True, False, False, True]).expand(20, 7)
    forced = teacher_force(
        make_ready(source, torch.device("cpu")), x_TL, make_plan("stride"), make_grid("rank", 4), LogLinear(),
        blank_TL=blank_TL,
    )  # fmt: skip
    given_TL = torch.where(blank_TL, source.mask_id, x_TL)
    exact_T = source.log_prob(x_TL) - source.log_prob(given_TL)
    assert torch.allclose(forced.log_q_TL.sum(1), exact_T, rtol=0, atol=1e-9)
    assert forced.nfe_T.tolist() == [4] * 20
