"""The law of what `sample` draws is the law computed exactly: every plan, grid, number of steps and temperature.

The model is a table of arbitrary answers, one for each masked view, so nothing cancels: a position revealed a step too
early or too late, a law taken at the wrong view, a wrong tail, each changes Q. Chi-square on all V^L lines, fixed seed.
"""

import itertools
import math
from collections import defaultdict

import pytest
import torch

from unmask.checkpoint.io import Checkpoint
from unmask.core.streams import stream
from unmask.inference.categorical import Law
from unmask.plans.grids import Grid, make_grid
from unmask.plans.plan import Blocks, Confidence, EntropyBounded, LeftToRight, locked_plans, make_plan
from unmask.plans.remask import Remask, reveal_chance
from unmask.processes import Masked
from unmask.processes.masked import stay_masked
from unmask.processes.schedule import Cosine, LogLinear
from unmask.sampling.ancestral import ancestral, masked_shares
from unmask.sampling.verbs import sample
from unmask.theory.exact import Views, sample_law
from unmask.theory.oracle import SOURCES, Enumerated

N = 2000  # draws a case
BELIEVABLE = 1e-4  # the p-value below which a law is refused
TAILED = Grid("tailed", (1.0, 0.75, 0.4), argmax_tail=True)  # `mdlm` has a tail of 1e-5: here it is large enough to see
FITTED = Grid("fitted", (1.0, 0.8, 0.3, 0.0), by="rank")


class TableModel:
    """A denoiser whose answer at each masked view is its own random law; no two positions tie."""

    def __init__(self, length, tokens, seed=0):
        self.length, self.vocab_size, self.mask_id = length, tokens + 1, tokens
        shape = (self.vocab_size**length, length, self.vocab_size)
        self.table = 2.5 * torch.randn(shape, generator=stream(seed, "table"), dtype=torch.float64)

    def features(self, z):
        place_L = self.vocab_size ** torch.arange(self.length - 1, -1, -1)
        return self.table[(z * place_L).sum(-1)]

    def logits(self, h):
        return h


MODEL = TableModel(length=4, tokens=3)


def p_value(tokens_nL, q):
    """Chi-square of drawn lines against a law q of shape (V,) * L; unlikely lines are pooled until 5 are expected."""
    V, n = q.shape[0], len(tokens_nL)
    place_L = V ** torch.arange(q.ndim - 1, -1, -1)
    seen = torch.bincount((tokens_nL * place_L).sum(1), minlength=q.numel())
    expected, order = (n * q.flatten()).sort(descending=True)
    assert int(seen[order][expected == 0].sum()) == 0, "drew a line that has no probability"
    cells = [[0, 0.0]]
    for observed, hoped in zip(seen[order].tolist(), expected.tolist(), strict=True):
        if cells[-1][1] >= 5:
            cells.append([0, 0.0])
        cells[-1][0] += observed
        cells[-1][1] += hoped
    if len(cells) > 1 and cells[-1][1] < 5:
        observed, hoped = cells.pop()
        cells[-1][0] += observed
        cells[-1][1] += hoped
    chi = sum((observed - hoped) ** 2 / hoped for observed, hoped in cells)
    half = torch.tensor([(len(cells) - 1) / 2, chi / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def draws(model, steps, seed=0, schedule=None, **settings):
    checkpoint = Checkpoint(model, Masked(schedule or LogLinear()))
    return sample(checkpoint, N, steps, batch=N, seed=seed, device="cpu", **settings)


def check(model, steps, plan, grid, *, views=None, schedule=None, seed=0):
    """Sampler and exact law agree: the lines, and the number of forwards."""
    drawn = draws(model, steps, plan=plan, grid=grid, schedule=schedule, seed=seed)
    law = sample_law(views or Views(model, model.length), steps, plan=plan, grid=grid, schedule=schedule)
    assert float(law.q.sum()) == pytest.approx(1, abs=1e-9)
    assert p_value(drawn.tokens, law.q) > BELIEVABLE, (plan, grid, steps)
    spread = float(drawn.nfe.double().std()) / N**0.5
    assert abs(float(drawn.nfe.double().mean()) - law.nfe) <= 4 * spread + 1e-3, (plan, grid, steps)
    return drawn, law


@pytest.fixture(scope="module")
def views():
    return Views(MODEL, MODEL.length)


GRIDS = [
    ("uniform", 3), ("rank", 2), ("rank", 3), (FITTED, 3), ("cosine", 6), ("mdlm", 4), (TAILED, 2), ([0.8, 0.3], 3),
]  # fmt: skip


@pytest.mark.parametrize("plan", [*locked_plans(), "left_to_right"])
def test_locked_plans_on_every_grid(plan, views):
    for grid, steps in GRIDS:
        check(MODEL, steps, plan, grid, views=views)


ADAPTIVE = [
    Confidence(),
    Confidence("entropy"),
    Blocks(2, Confidence()),
]
THRESHOLDS = [
    Confidence(threshold=0.7), Confidence("entropy", threshold=0.5), Blocks(3, Confidence(threshold=0.6)),
    EntropyBounded(), EntropyBounded(threshold=0.8), Blocks(3, EntropyBounded(threshold=0.6)),
]  # fmt: skip


@pytest.mark.parametrize("plan", [*ADAPTIVE, *THRESHOLDS], ids=str)
def test_adaptive_plans(plan, views):
    for grid, steps in [(None, None)] if plan in THRESHOLDS else [("rank", 2), ("cosine", 3)]:
        drawn, law = check(MODEL, steps, plan, grid, views=views)
        # the order is a function of the tokens seen, so log q of a line is log Q of it, and not only given the plan
        at = law.q[tuple(drawn.tokens.T)]
        assert torch.allclose(drawn.log_q.sum(1), at.log(), atol=1e-9)


@pytest.mark.parametrize("plan", [*ADAPTIVE, *THRESHOLDS], ids=str)
def test_adaptive_plans_where_positions_tie(plan):
    """An exact model of a stationary source: all positions tie at first, and later those as far from what is known."""
    model = Enumerated(SOURCES["sticky"](length=4))
    for grid, steps in [(None, None)] if plan in THRESHOLDS else [("rank", 2), ("rank", 3)]:
        check(model, steps, plan, grid)


@pytest.mark.parametrize("bound", [0.6, 1.2, 2.5])
def test_the_bound_on_entropy_bounds_the_error_of_every_step(bound):
    """An exact model loses in a step the total correlation of what it reveals, at most summed entropy less the largest.

    Lines of 6 take at most 6 steps, and whoever is revealed alone loses nothing.
    """
    model = Enumerated(SOURCES["sticky"](length=6, tokens=3))
    law = sample_law(model, plan=EntropyBounded(threshold=bound))
    assert law.nfe < 6
    assert 0 < law.kl(model.p) <= bound * 5


@pytest.mark.parametrize("inner", [make_plan("golden"), make_plan("stride"), LeftToRight()], ids=str)
def test_blocks_of_locked_plans(inner, views):
    for grid, steps in [("rank", 3), ("uniform", 5)]:
        check(MODEL, steps, Blocks(3, inner), grid, views=views)


def test_blocks_as_they_come(views):
    """What a name or a size alone gives: golden inside."""
    for plan in ("blocks", Blocks(2), Blocks(3)):
        for grid, steps in [("rank", 2), ("cosine", 3)]:
            check(MODEL, steps, plan, grid, views=views)


def test_other_schedules_lengths_and_seeds():
    """A time grid passes through the schedule's gamma; L = 5 has no power of two, which van der Corput is made for."""
    model = TableModel(length=5, tokens=2, seed=1)
    views = Views(model, 5)
    for plan, seed in (("iid", 1), ("golden", 2), ("van_der_corput", 3), ("dilated", 4)):
        check(model, 3, plan, "uniform", views=views, schedule=Cosine(), seed=seed)
        check(model, 2, plan, "rank", views=views, seed=seed)


@pytest.mark.parametrize("law", [Law(0.6), Law(1.5), Law(top_p=0.8), Law(top_k=2), Law(0.8, 0.9, 2)], ids=str)
def test_shaped_laws(law):
    """Temperature, top-p and top-k act on every draw, and on what an adaptive plan is sure of."""
    shaped = Views(MODEL, MODEL.length, law)
    settings = {"temperature": law.temperature, "top_p": law.top_p, "top_k": law.top_k}
    for plan, grid, steps in (("golden", "rank", 2), ("iid", TAILED, 2), (Confidence(threshold=0.8), None, None)):
        drawn = draws(MODEL, steps, plan=plan, grid=grid, **settings)
        assert p_value(drawn.tokens, sample_law(shaped, steps, plan=plan, grid=grid).q) > BELIEVABLE, plan


@pytest.mark.parametrize("plan", [*locked_plans(), Confidence(), Blocks(2), Blocks(2, Confidence())], ids=str)
def test_given_tokens(plan, views):
    """Given positions stay, and the law of the rest is that of the plan on the blanks alone."""
    given_L = torch.tensor([3, 1, 3, 3])
    for grid in ("rank", "cosine"):  # blocks of two have one blank and two
        drawn = draws(MODEL, 2, plan=plan, grid=grid, infill=given_L)
        law = sample_law(views, 2, plan=plan, grid=grid, given_L=given_L)
        assert p_value(drawn.tokens, law.q) > BELIEVABLE, grid


def test_a_wrong_law_is_refused(views):
    """The test has power: laws that are only nearly right are not believed."""
    drawn = draws(MODEL, 3, plan="golden", grid="rank").tokens
    wrong = [
        sample_law(views, 3, plan="permutation", grid="rank"),  # equal counts, but no spacing
        sample_law(views, 4, plan="golden", grid="rank"),  # one step more
        sample_law(views, 3, plan="golden", grid="uniform"),  # by time instead of by rank
        sample_law(Views(MODEL, 4, Law(1.2)), 3, plan="golden", grid="rank"),  # a little warmer
    ]
    assert [p_value(drawn, law.q) < 1e-6 for law in wrong] == [True] * 4
    tailed = draws(MODEL, 2, plan="iid", grid=TAILED).tokens
    assert p_value(tailed, sample_law(views, 3, plan="iid", grid=[0.75, 0.4]).q) < 1e-6  # a tail that draws


# --- the published sampler --------------------------------------------------------------------------------------------


def ancestral_law(model, times, temperature=1.0):
    """The law of the ancestral sampler by recursion over masked views, straight from its definition.

    From t to s a masked position stays masked with chance s/t (log-linear), else takes a token of the model's law at
    the whole view; what is masked at the end takes the likeliest token.
    """
    L, V = model.length, model.mask_id
    law = {(V,) * L: 1.0}
    for t, s in [*itertools.pairwise(times), (1.0, None)]:
        following = defaultdict(float)
        for z, mass in law.items():
            p = (model.features(torch.tensor([z]))[0, :, :V] / temperature).softmax(-1)
            choices = []
            for i in range(L):
                if z[i] != V:
                    choices.append([(z[i], 1.0)])
                elif s is None:
                    choices.append([(int(p[i].argmax()), 1.0)])
                else:
                    choices.append([(V, s / t), *((v, (1 - s / t) * float(p[i, v])) for v in range(V))])
            for outcome in itertools.product(*choices):
                chance = mass
                for _, share in outcome:
                    chance *= share
                following[tuple(token for token, _ in outcome)] += chance
        law = following
    q = torch.zeros((V,) * L, dtype=torch.float64)
    for x, mass in law.items():
        q[x] = mass
    return q


@pytest.mark.parametrize("times", [make_grid("mdlm", 3).times, TAILED.times], ids=["mdlm", "tailed"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_iid_on_the_mdlm_grid_is_the_ancestral_sampler(times, temperature):
    """One law: by recursion from the definition, by the exact law of the plan, drawn by schedule, drawn by the race."""
    grid = Grid("mdlm", times, argmax_tail=True)
    published = ancestral_law(MODEL, times, temperature)
    ours = sample_law(MODEL, grid.steps, plan="iid", grid=grid, law=Law(temperature))
    assert torch.allclose(ours.q, published, atol=1e-12)
    by_schedule = draws(MODEL, grid.steps, plan="iid", grid=grid, temperature=temperature)
    assert p_value(by_schedule.tokens, published) > BELIEVABLE
    generator = stream(0, "race")
    start_BL = torch.full((N, MODEL.length), MODEL.mask_id)

    def noise(shape, dtype):
        return torch.rand(shape, generator=generator, dtype=dtype)

    for z_BL in ancestral(
        MODEL, start_BL, times, states=MODEL.vocab_size, mask_id=MODEL.mask_id, temperature=temperature,
        dtype=torch.float64, noise=noise,
    ):  # fmt: skip
        by_race = z_BL
    assert p_value(by_race, published) > BELIEVABLE


def test_legacy_fp32_has_the_published_law_but_for_its_rounding():
    drawn = draws(MODEL, 3, plan="iid", grid="mdlm", draw="legacy_fp32")
    assert p_value(drawn.tokens, ancestral_law(MODEL, make_grid("mdlm", 3).times)) > BELIEVABLE


class MaskFirst(TableModel):
    """The same model with its states in another order: the mask is state 0, as it may be in a vocabulary not ours."""

    def __init__(self):
        super().__init__(length=4, tokens=3)
        self.mask_id = 0

    def features(self, z):
        return super().features((z - 1) % self.vocab_size).roll(1, dims=-1)


@pytest.mark.parametrize("dtype", ["float64", "legacy_fp32"])
def test_a_mask_that_is_not_the_last_state_changes_nothing(dtype):
    drawn = draws(MaskFirst(), 3, plan="iid", grid="mdlm", draw=dtype)
    assert p_value(drawn.tokens - 1, ancestral_law(MODEL, make_grid("mdlm", 3).times)) > BELIEVABLE


def test_legacy_fp32_goes_by_the_models_own_schedule(views):
    """For a cosine model another law than for a log-linear one, and the one that the sampler without the bias has."""
    times = make_grid("mdlm", 2).times
    drawn = draws(MODEL, 2, plan="iid", grid="mdlm", draw="legacy_fp32", schedule=Cosine())
    assert p_value(drawn.tokens, sample_law(views, 2, plan="iid", grid="mdlm", schedule=Cosine()).q) > BELIEVABLE
    assert p_value(drawn.tokens, ancestral_law(MODEL, times)) < 1e-6
    shares = masked_shares(times, Cosine())
    stay = stay_masked(*Cosine().gamma(torch.tensor([times[2], times[1]], dtype=torch.float64)))
    assert shares[2] / shares[1] == pytest.approx(float(stay), rel=1e-12)
    assert masked_shares(times, LogLinear()) == times  # exactly: the published code divides times


# --- remasking --------------------------------------------------------------------------------------------------------


def remasking_law(model, grid, rule):
    """The law of ReMDM by recursion over (view, probability each visible token was drawn with): one coin a position."""
    L, V = model.length, model.mask_id
    law = {((V,) * L, (0.0,) * L): 1.0}
    for t, s in itertools.pairwise(grid.times):
        gamma_t, gamma_s = 1 - t, 1 - s
        following = defaultdict(float)
        for (z, drawn_with), mass in law.items():
            p = model.features(torch.tensor([z]))[0, :, :V].softmax(-1)
            visible = [token != V for token in z]
            most = min(1.0, (1 - gamma_s) / gamma_t) if gamma_t > 0 else 1.0
            if rule.rule == "confidence":
                weight = [math.exp(-drawn_with[i]) * visible[i] for i in range(L)]
                sigma = [rule.eta * most * w / (sum(weight) or 1) for w in weight]
                reveal = float(reveal_chance(gamma_t, gamma_s, torch.tensor(0.0)))
            else:
                sigma = [min(rule.eta, most) if rule.rule == "cap" else rule.eta * most] * L
                reveal = float(reveal_chance(gamma_t, gamma_s, torch.tensor(sigma[0])))
            choices = []
            for i in range(L):
                if visible[i]:
                    choices.append([((z[i], drawn_with[i]), 1 - sigma[i]), ((V, 0.0), sigma[i])])
                else:
                    tokens = [((v, float(p[i, v])), reveal * float(p[i, v])) for v in range(V)]
                    choices.append([((V, 0.0), 1 - reveal), *tokens])
            for outcome in itertools.product(*choices):
                chance = mass
                for _, share in outcome:
                    chance *= share
                if chance > 0:
                    tokens, probabilities = zip(*(choice for choice, _ in outcome), strict=True)
                    following[tokens, probabilities] += chance
        law = following
    q = torch.zeros((V,) * L, dtype=torch.float64)
    for (x, _), mass in law.items():
        q[x] += mass
    return q


@pytest.mark.parametrize("rule", [Remask("cap", 0.5), Remask("rescale", 0.5), Remask("confidence", 0.8)], ids=str)
def test_remasking_laws(rule):
    model, grid = TableModel(length=3, tokens=2, seed=2), make_grid([0.6, 0.3], 3)
    drawn = draws(model, 3, plan="iid", grid=grid, remask=rule, schedule=LogLinear(eps=0.0))
    q = remasking_law(model, grid, rule)
    assert float(q.sum()) == pytest.approx(1, abs=1e-9)
    assert p_value(drawn.tokens, q) > BELIEVABLE
    plain = sample_law(model, 3, plan="iid", grid=grid).q
    assert p_value(drawn.tokens, plain) < 1e-6  # remasking does change the law
