"""Every plan's u is uniform position by position; the spread ones keep their promises."""

import pytest
import torch
from scipy import stats

from unmask.core.errors import UserError
from unmask.plans.plan import draw_u, locked_plans, make_plan

SPREAD = ["golden", "van_der_corput", "comb", "rotation", "stride", "dilated"]


def draws(plan: str, B: int, L: int, steps: int = 8, seed: int = 0) -> torch.Tensor:
    return draw_u((B, L), plan, generator=torch.Generator().manual_seed(seed), steps=steps)


@pytest.mark.parametrize("L", [1, 7, 12, 33])
@pytest.mark.parametrize("plan", locked_plans())
def test_each_position_by_itself_is_uniform(plan: str, L: int) -> None:
    u_BL = draws(plan, 4000, L)
    assert u_BL.dtype == torch.float64
    assert u_BL.min() >= 0
    assert u_BL.max() < 1
    p_values = [stats.kstest(u_BL[:, i].numpy(), "uniform").pvalue for i in range(L)]
    assert min(p_values) > 1e-4 / L
    # a test of this size would see one part in ten moved away
    assert stats.kstest(u_BL[:, 0].numpy() * 0.9, "uniform").pvalue < 1e-10


@pytest.mark.parametrize("plan", ["permutation", "van_der_corput"])
def test_equal_counts_where_they_are_promised(plan: str) -> None:
    L = 16
    cells = (draws(plan, 50, L) * L).long()
    assert all(sorted(row) == list(range(L)) for row in cells.tolist())


@pytest.mark.parametrize("L", [24, 100, 257])
@pytest.mark.parametrize("steps", range(2, 17))
@pytest.mark.parametrize("plan", SPREAD)
def test_positions_of_one_step_keep_their_distance(plan: str, steps: int, L: int) -> None:
    """On N equal intervals of u. What `sample` assigns by rank: test_spacing.py."""
    step_BL = (draws(plan, 60, L, steps) * steps).long()
    promised = make_plan(plan).distance(steps)
    apart = torch.arange(L)[:, None] - torch.arange(L)[None]
    close = (apart > 0) & (apart < promised)
    together_BLL = step_BL[:, :, None] == step_BL[:, None, :]
    assert not bool((together_BLL & close).any())


def test_the_promise_is_worth_something() -> None:
    assert [make_plan("golden").distance(n) for n in (2, 3, 5, 7, 12, 16)] == [1, 2, 3, 5, 8, 8]
    assert [make_plan("van_der_corput").distance(n) for n in (2, 4, 8, 16, 12, 7)] == [2, 4, 8, 16, 4, 1]
    assert [make_plan("stride").distance(n) for n in (2, 7, 16)] == [2, 7, 16]


def star_discrepancy(u_L: torch.Tensor) -> float:
    """The 2-D star discrepancy of (i/L, u_i), exactly: the worst corner box, open and closed."""
    L = u_L.shape[0]
    edges = torch.cat([u_L.sort().values, u_L.new_ones(1)])
    first = torch.arange(1, L + 1, dtype=torch.float64)[:, None] / L  # boxes [0, first) hold that many positions
    below_open = (u_L[:, None] < edges[None]).double().cumsum(0) / L
    below_closed = (u_L[:, None] <= edges[None]).double().cumsum(0) / L
    area = first * edges[None]
    return float(torch.maximum((area - below_open).max(), (below_closed - area).max()))


@pytest.mark.parametrize("plan", SPREAD)
def test_spread_plans_have_lower_discrepancy_than_iid(plan: str) -> None:
    L = 64
    ours = [star_discrepancy(row) for row in draws(plan, 40, L, steps=16)]
    iid = [star_discrepancy(row) for row in draws("iid", 40, L)]
    assert stats.mannwhitneyu(ours, iid, alternative="less").pvalue < 1e-3


def test_unknown_plans_suggest_the_nearest_and_stride_needs_steps() -> None:
    with pytest.raises(UserError, match="did you mean 'golden'"):
        draw_u((1, 4), "goldn", generator=torch.Generator())
    with pytest.raises(UserError, match="steps"):
        draw_u((1, 4), "stride", generator=torch.Generator())


def test_settings_of_a_plan_follow_its_name() -> None:
    falling, rising = make_plan("comb:drift=0"), make_plan("comb:drift=0,rising=true")
    step_L = (falling.draw(1, 40, torch.Generator().manual_seed(0), 8)[0] * 8).long()
    assert ((step_L[1:] - step_L[:-1]) % 8 == 7).all()  # each position one step before its left neighbour
    step_L = (rising.draw(1, 40, torch.Generator().manual_seed(0), 8)[0] * 8).long()
    assert ((step_L[1:] - step_L[:-1]) % 8 == 1).all()
    assert (falling.distance(8), make_plan("comb:drift=1").distance(8)) == (8, 4)
    assert rising.to_json() == {"name": "comb:drift=0,rising=true"}


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("comb:drft=1", "unknown setting of a plan 'drft'.*did you mean 'drift'"),
        ("comb:drift=2", "drift between 0 and 1"), ("comb:drift=x", "NAME=VALUE"), ("comb:drift", "NAME=VALUE"),
        ("golden:drift=1", "golden has no settings"), ("cmb:drift=1", "did you mean 'comb'"),
        ("rotation:most=0", "1 or more"),
    ],
)  # fmt: skip
def test_settings_that_are_none(plan: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_plan(plan)
