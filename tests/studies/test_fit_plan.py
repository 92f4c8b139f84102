"""The fitted grid is the best of all grids, and what it is said to be worth is measured on other texts."""

import itertools
import math
import statistics
from fractions import Fraction

import pytest
import torch
from tests.inference.chains import head, tiny_body

from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.inference.chain import Chain
from unmask.inference.ready import make_ready
from unmask.plans.grids import make_grid
from unmask.plans.laws import Comb
from unmask.plans.plan import Blocks, Locked, draw_u, locked_plans, make_plan
from unmask.processes import Masked
from unmask.processes.schedule import Cosine, LogLinear
from unmask.sampling.teacher_forcing import teacher_force
from unmask.sampling.verbs import sample
from unmask.studies.fit_plan import choose_levels, fit_on
from unmask.theory.oracle import Enumerated, topic

CPU = torch.device("cpu")


class Crooked:
    """A denoiser with an arbitrary answer at each view (a cheap hash of it), for lines of any length."""

    vocab_size, mask_id = 6, 5

    def __init__(self, length):
        self.length = length
        self.weight = torch.randn(6, length, length, 6, generator=stream(0, "weight"), dtype=torch.float64)

    def features(self, z_BL):
        return sum(self.weight[z_BL[:, j], j] for j in range(z_BL.shape[1])).sin() * 2

    def logits(self, h):
        return h


def texts(model, n, seed=0):
    return torch.randint(model.mask_id, (n, model.length), generator=stream(seed, "texts"))


def nelbo_of(model, x_L, order, counts):
    """-log q per token of one text whose positions are revealed in this order, so many a step: by the definition."""
    z_L, total, done = torch.full_like(x_L, model.mask_id), 0.0, 0
    for count in counts:
        now = order[done : done + count]
        law_LV = model.features(z_L[None])[0, :, : model.mask_id].log_softmax(-1)
        total -= sum(float(law_LV[i, x_L[i]]) for i in now)
        z_L[now] = x_L[now]
        done += count
    return total / len(x_L)


def order_of(plan, length, steps, seed, i):
    if plan == "left_to_right":
        return list(range(length))
    u_L = draw_u((1, length), plan, generator=stream(seed, "reveal", i), steps=steps)[0].tolist()
    return sorted(range(length), key=lambda position: u_L[position])


def levels_of(plan, order, steps, levels):
    """The level of each position in order: the r-th of n is r/n on the way; of `stride`, within its residue class."""
    n = len(order)
    shares = [Fraction(r, n) for r in range(n)]
    if plan == "stride":
        classes = [list(group) for _, group in itertools.groupby(order, key=lambda position: position % steps)]
        shares = [(k + Fraction(m, len(c))) / len(classes) for k, c in enumerate(classes) for m in range(len(c))]
    return [math.floor(share * levels) for share in shares]


@pytest.mark.parametrize("levels", [7, 5])  # one a position, and unequal counts: 2, 1, 2, 1, 1 positions
@pytest.mark.parametrize("plan", [*locked_plans(), "left_to_right"])
def test_no_grid_is_better(plan, levels):
    L, N, model = 7, 3, Crooked(7)
    x_TL = texts(model, 6)

    def cost(edges, steps):
        return statistics.mean(cost_of_text(i, edges, steps) for i in range(3))

    def cost_of_text(i, edges, steps):
        order = order_of(plan, L, steps, 4, i)
        level_L = levels_of(plan, order, steps, levels)
        counts = [sum(a <= level < b for level in level_L) for a, b in itertools.pairwise(edges)]
        return nelbo_of(model, x_TL[i], order, counts)

    fitted = fit_on(Checkpoint(model), x_TL, N, plans=[make_plan(plan)], levels=levels, seed=4, device="cpu", batch=5)
    made_for_one = isinstance(make_plan(plan), Locked) and make_plan(plan).for_steps
    assert [len(path.edges) - 1 for path in fitted.paths] == ([N] if made_for_one else [1, 2, 3])
    for found in fitted.paths:
        steps = len(found.edges) - 1
        every = {
            (0, *inner, levels): cost((0, *inner, levels), steps)
            for inner in itertools.combinations(range(1, levels), steps - 1)
        }
        assert found.cost == pytest.approx(min(every.values()), abs=1e-9)
        assert every[found.edges] == pytest.approx(found.cost, abs=1e-9)
    assert fitted.grid.times == pytest.approx([1 - edge / levels for edge in fitted.paths[-1].edges])
    assert (fitted.plan, fitted.grid.by, fitted.grid.steps) == (plan, "rank", N)


@pytest.mark.parametrize("plan", ["golden", "stride"])
def test_the_price_of_a_path_is_the_nelbo_of_its_grid(plan):
    """Levels that do not divide the length: both must cut the same positions."""
    model = Crooked(50)
    x_TL = texts(model, 8)
    for levels, steps in [(37, 5), (50, 7), (9, 9)]:
        fitted = fit_on(
            Checkpoint(model, Masked(Cosine())), x_TL, steps, plans=[plan], levels=levels, seed=1, device="cpu"
        )
        forced = teacher_force(make_ready(model, CPU), x_TL[:4], make_plan(plan), fitted.grid, Cosine(), seed=1)
        assert float(forced.nats_T.mean()) == pytest.approx(fitted.paths[-1].cost, abs=1e-9)


@pytest.mark.parametrize("order", ["left_to_right", "plan"])
def test_a_plan_is_fitted_for_the_head_where_there_is_one(order):
    """Its NELBO chooses the plan, and the price of a path is that of its grid; another than the model's alone."""
    x_TL = torch.randint(11, (8, 16), generator=stream(0, "texts"))
    chained = Checkpoint(tiny_body(), step_law=Chain(head(order)))
    made = {"device": "cpu", "levels": 6, "seed": 1, "batch": 5}
    fitted, alone = (
        fit_on(one, x_TL, 3, plans=["golden", "iid"], **made) for one in (chained, Checkpoint(tiny_body()))
    )
    ready = make_ready(chained.model, CPU)

    def nats(plan, grid):
        how = make_plan(plan), grid, chained.process.schedule
        return float(teacher_force(ready, x_TL[:4], *how, step_law=chained.step_law, seed=1).nats_T.mean())

    for path in fitted.paths:
        assert nats(fitted.plan, path.grid()) == pytest.approx(path.cost, abs=1e-9)
    chosen_from = {plan: nats(plan, make_grid("rank", 3)) for plan in ("golden", "iid")}
    assert fitted.record["chosen_from"] == pytest.approx(chosen_from)
    assert fitted.paths[-1].cost <= chosen_from[fitted.plan] + 1e-9
    assert abs(fitted.paths[-1].cost - alone.paths[-1].cost) > 0.05
    assert (fitted.record["step_law"], alone.record["step_law"]) == ("chain", "factorised")


def test_its_worth_is_measured_on_the_other_half():
    model = Crooked(16)
    x_TL = texts(model, 12)
    fitted = fit_on(Checkpoint(model), x_TL, 4, plans=["iid"], seed=2, device="cpu")
    nats = {}
    for name, grid in {"fitted": fitted.grid, "rank": "rank", "cosine": "cosine"}.items():
        forced = teacher_force(
            make_ready(model, CPU), x_TL[6:], make_plan("iid"), make_grid(grid, 4), LogLinear(),
            seed=2, indices=range(6, 12),
        )  # fmt: skip
        nats[name], worth = forced.nats_T.tolist(), fitted.worth[name]
        assert worth.nelbo.value == pytest.approx(statistics.mean(nats[name]))
        assert worth.nelbo.stderr == pytest.approx(statistics.stdev(nats[name]) / 6**0.5, rel=0.08)  # by a bootstrap
        gap = [ours - theirs for ours, theirs in zip(nats["fitted"], nats[name], strict=True)]
        assert worth.fitted_minus_this.value == pytest.approx(statistics.mean(gap), abs=1e-12)
        assert worth.fitted_minus_this.stderr == pytest.approx(statistics.stdev(gap) / 6**0.5, rel=0.08, abs=1e-12)
        assert worth.nfe == pytest.approx(float(forced.nfe_T.double().mean()))
        assert sum(worth.tokens_a_step) == pytest.approx(16)
    assert fitted.worth["rank"].tokens_a_step == (4, 4, 4, 4)
    others = torch.cat([x_TL[:6], texts(model, 6, seed=9)])
    again = fit_on(Checkpoint(model), others, 4, plans=["iid"], seed=2, device="cpu")
    assert again.paths == fitted.paths
    assert again.worth["fitted"].nelbo != fitted.worth["fitted"].nelbo


@pytest.mark.parametrize("known", [True, False])
def test_its_errors_are_those_of_documents(known):
    """Documents of four equal texts say no more than one of each; where there is one document, its stretches do."""
    model = Crooked(16)
    once_DL = texts(model, 16)
    x_TL = once_DL.repeat_interleave(4, dim=0)
    document_T = torch.arange(16).repeat_interleave(4) if known else None
    fitted = fit_on(Checkpoint(model), x_TL, 4, document_T=document_T, plans=["left_to_right"], device="cpu")
    assert fitted.record["texts"]["clusters"] == 8
    nats = {
        name: teacher_force(
            make_ready(model, CPU), once_DL[8:], make_plan("left_to_right"), make_grid(grid, 4), LogLinear()
        ).nats_T.tolist()
        for name, grid in {"fitted": fitted.grid, "rank": "rank", "cosine": "cosine"}.items()
    }
    for name, worth in fitted.worth.items():
        gap = [ours - theirs for ours, theirs in zip(nats["fitted"], nats[name], strict=True)]
        assert worth.nelbo.value == pytest.approx(statistics.mean(nats[name]))
        assert worth.nelbo.stderr == pytest.approx(statistics.stdev(nats[name]) / 8**0.5, rel=0.08)
        assert worth.fitted_minus_this.stderr == pytest.approx(statistics.stdev(gap) / 8**0.5, rel=0.08, abs=1e-12)


def test_a_gain_where_there_is_one_and_none_where_there_is_none():
    """Once the topic is known the tokens are independent: few first, then all the rest."""
    source = Enumerated(topic(length=8, keep=0.9))
    x_TL = source.draw(400, stream(0, "topic"))
    fitted = fit_on(Checkpoint(source), x_TL, 3, plans=["permutation"], device="cpu", batch=256)
    assert fitted.worth["fitted"].tokens_a_step == (1, 2, 5)
    for rival in ("rank", "cosine"):
        gain = fitted.worth[rival].fitted_minus_this
        assert gain.value < -4 * gain.stderr < 0
    coins = Enumerated(torch.full((2,) * 6, 1 / 64, dtype=torch.float64))
    fitted = fit_on(Checkpoint(coins), coins.draw(8, stream(0, "coins")), 2, device="cpu", plans=["golden"])
    assert fitted.worth["fitted"].nelbo.value == pytest.approx(math.log(2))
    assert abs(fitted.worth["rank"].fitted_minus_this.value) < 1e-12


def test_the_default_levels_hold_the_grid_rank():
    assert [choose_levels(None, steps, 256) for steps in (1, 3, 8, 16, 64, 100)] == [32, 33, 32, 64, 256, 256]
    for length, steps in [(33, 8), (20, 8), (40, 3)]:
        model = Crooked(length)
        x_TL = texts(model, 6)
        fitted = fit_on(Checkpoint(model), x_TL, steps, seed=3, device="cpu", plans=["golden"])
        rank = make_grid("rank", steps)
        forced = teacher_force(make_ready(model, CPU), x_TL[:3], make_plan("golden"), rank, LogLinear(), seed=3)
        assert fitted.paths[-1].cost <= float(forced.nats_T.mean()) + 1e-12


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"plans": ["confidence"]}, "locked plan"),
        ({"plans": [Blocks(4, make_plan("golden"))]}, "locked plan"),
        ({"plans": ["goldn"]}, "did you mean 'golden'"),
        ({"steps": 0}, "at least 1"),
        ({"steps": 13}, "at most one step a token"),
        ({"levels": 2}, "between the 3 steps"),
        ({"levels": 13}, "the 12 tokens"),
        ({"batch": 0}, "batch"),
        ({"n": 3}, "at least 4"),
    ],
    ids=str,
)
def test_mistakes(settings, word):
    model = Crooked(12)
    x_TL = texts(model, settings.pop("n", 4))
    with pytest.raises(UserError, match=word):
        fit_on(Checkpoint(model), x_TL, **{"steps": 3, "device": "cpu", **settings})


def test_the_sampler_follows_the_fitted_grid():
    model = Crooked(16)
    fitted = fit_on(Checkpoint(model), texts(model, 6), 4, device="cpu", plans=["golden"])
    shown = []
    sample(Checkpoint(model), 1, grid=fitted.grid, device="cpu",
           callback=lambda view: shown.append(int((view.tokens_BL != model.mask_id).sum())))  # fmt: skip
    steps = [after - before for before, after in itertools.pairwise([0, *shown])]
    assert steps == list(fitted.worth["fitted"].tokens_a_step)


def test_the_likeliest_plan_is_chosen_on_one_half_and_held_against_the_first_on_the_other():
    model, N = Crooked(7), 3
    x_TL = texts(model, 12)
    fitted = fit_on(Checkpoint(model), x_TL, N, plans=["comb", "iid"], levels=7, seed=4, device="cpu")
    nats = fitted.record["chosen_from"]
    assert list(nats) == ["comb", *(f"comb:{choice}" for choice in Comb.choices), "iid"]
    for plan, found in nats.items():
        mine = [nelbo_of(model, x_TL[i], order_of(plan, 7, N, 4, i), [3, 2, 2]) for i in range(6)]
        assert found == pytest.approx(statistics.mean(mine), abs=1e-9)
    assert nats[fitted.plan] == min(nats.values())
    others = ["rank", "cosine"] + ["comb"] * (fitted.plan != "comb")
    assert list(fitted.worth) == ["fitted", *others]
    if "comb" in others:
        comb = [nelbo_of(model, x_TL[i], order_of("comb", 7, N, 4, i), [3, 2, 2]) for i in range(6, 12)]
        assert fitted.worth["comb"].nelbo.value == pytest.approx(statistics.mean(comb), abs=1e-9)
    assert fitted.plan != "comb"  # of the texts of this seed; else the last lines would test nothing
