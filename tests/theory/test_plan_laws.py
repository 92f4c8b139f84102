"""The exact law of the samples: against numbers known before, against brute force, and against real draws of u."""

import itertools
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
import torch

from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.inference.categorical import Law
from unmask.inference.ready import make_ready
from unmask.plans.grids import Grid, make_grid
from unmask.plans.plan import PLANS, Blocks, Confidence, LeftToRight, locked_plans, make_plan
from unmask.processes.schedule import Cosine, LogLinear
from unmask.sampling.teacher_forcing import teacher_force
from unmask.theory.exact import Views, estimate_kl, kl, sample_law
from unmask.theory.oracle import SOURCES, Enumerated
from unmask.theory.plan_laws import chain_of

TAILED = Grid("tailed", (1.0, 0.7, 0.3), argmax_tail=True)  # as `mdlm`, with a tail large enough to be seen


@pytest.fixture(scope="module")
def toys():
    """The four sources at L = 8, V = 3, with everything their oracle says."""
    return {name: Views(Enumerated(make()), 8) for name, make in SOURCES.items()}


def error(toys, source, plan, steps, grid="uniform"):
    return sample_law(toys[source], steps, plan=plan, grid=grid).kl(SOURCES[source]())


def kl_given_plan(views, p, chain):
    """E_u KL(p || q_u), exactly: every step costs the cross-entropy of what it reveals given what it saw."""
    cross_entropy = 0.0
    for k, move in enumerate(chain.moves()):
        for (before, after), probability in move.items():
            hidden = [i for i in range(views.length) if not after >> i & 1]
            p_after = p.sum(hidden, keepdim=True) if hidden else p
            q = views.step(before, after, k == chain.argmax_step)
            cross_entropy -= probability * float(torch.special.xlogy(p_after, q).sum())
    return cross_entropy + float(torch.special.xlogy(p, p).sum())


# --- numbers known before ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "plan", "expected"),
    [
        ("sticky", "iid", (1.0786, 0.3038, 0.0881)),
        ("sticky", "permutation", (1.1465, 0.1698, 0)),
        ("sticky", "van_der_corput", (1.0206, 0.0925, 0)),
        ("sticky", "golden", (1.0135, 0.0897, 0.0018)),
        ("copy", "iid", (0.9931, 0.3398, 0.1117)),
        ("copy", "permutation", (0.7110, 0.1325, 0)),
        ("copy", "van_der_corput", (3.2299, 3.2299, 0)),
        ("copy", "golden", (0.0290, 0, 0)),
    ],
)
def test_error_on_the_sticky_and_copy_sources(toys, source, plan, expected):
    """KL(p || Q) in nats at N = 2, 4, 8 on the uniform grid, to 1e-4."""
    found = [error(toys, source, plan, steps) for steps in (2, 4, 8)]
    assert found == pytest.approx(expected, abs=1e-4)


def test_no_plan_wins_everywhere(toys):
    """Spacing pays where neighbours depend, loses where the lag is the spacing, is idle where distance is nothing."""
    for steps in (2, 4):
        assert error(toys, "sticky", "golden", steps) < error(toys, "sticky", "iid", steps)
        assert error(toys, "copy", "van_der_corput", steps) > 3 * error(toys, "copy", "iid", steps)
        assert error(toys, "order2", "van_der_corput", steps) > error(toys, "order2", "iid", steps)
        assert error(toys, "order2", "golden", steps) < error(toys, "order2", "iid", steps)
        assert error(toys, "topic", "golden", steps) > error(toys, "topic", "iid", steps)


@pytest.mark.parametrize("plan", ["confidence", "entropy"])
def test_chance_decides_where_all_positions_are_equally_sure(toys, plan):
    """Of a stationary source no position is surer than another before the first step: two steps are any half, then the
    rest, as those of `permutation`."""
    for source in ("sticky", "order2", "copy"):
        assert error(toys, source, plan, 2, "rank") == pytest.approx(
            error(toys, source, "permutation", 2, "rank"), abs=1e-12
        )


EXACT = [
    *locked_plans().values(),
    LeftToRight(),
    Confidence(),
    Confidence("entropy"),
    Blocks(4, Confidence()),
    Blocks(3),
]


@pytest.mark.parametrize("plan", EXACT, ids=str)
def test_one_token_a_step_is_exact(toys, plan):
    """By rank with steps = length every plan is exact under an exact denoiser."""
    for source in ("sticky", "order2"):
        assert error(toys, source, plan, 8, "rank") < 1e-12


# --- against real draws of u ------------------------------------------------------------------------------------------


def assignments(chain, length):
    """{step of every position: probability}, by following every path of the chain."""
    paths = {(state, (-1,) * length): p for state, p in chain.start.items()}
    for k, kernel in enumerate(chain.steps):
        following = defaultdict(float)
        for (state, steps), probability in paths.items():
            for target, share in kernel[state].items():
                new = tuple(k if (target[1] & ~state[1]) >> i & 1 else s for i, s in enumerate(steps))
                following[target, new] += probability * share
        paths = following
    law = defaultdict(float)
    for (_, steps), probability in paths.items():
        law[steps] += probability
    return law


def p_value(seen: Counter, law: dict, n: int) -> float:
    """Chi-square of counts against a law; unlikely cells are pooled until 5 are expected."""
    assert set(seen) <= {key for key, p in law.items() if p > 0}, "drew what has no probability"
    cells, observed, expected = [], 0, 0.0
    for key in sorted(law, key=lambda key: (-law[key], key)):
        observed, expected = observed + seen[key], expected + n * law[key]
        if expected >= 5:
            cells.append((observed, expected))
            observed, expected = 0, 0.0
    if expected > 0:
        last = cells.pop()
        cells.append((last[0] + observed, last[1] + expected))
    if len(cells) == 1:
        return 1.0
    chi = sum((o - e) ** 2 / e for o, e in cells)
    return float(torch.special.gammaincc(torch.tensor((len(cells) - 1) / 2), torch.tensor(chi / 2)))


PLACES = [
    ("uniform", 3, "11111"),
    ("uniform", 8, "11011"),
    ("rank", 2, "11111"),
    ("rank", 3, "10111"),
    ("cosine", 3, "01111"),
    ("mdlm", 2, "11111"),
    (TAILED, 2, "11111"),
    ([0.9, 0.45], 3, "11110"),
]


@pytest.mark.parametrize("plan", [*locked_plans(), "blocks(2, golden)", "blocks(3, stride)"])
@pytest.mark.parametrize("schedule", [LogLinear(), Cosine()], ids=["log_linear", "cosine"])
def test_the_law_of_steps_is_that_of_drawn_u(plan, schedule):
    """Every plan, on grids of every kind, with and without given positions."""
    n = 800
    made_plan = Blocks(int(plan[7]), make_plan(plan[10:-1])) if plan.startswith("blocks") else make_plan(plan)
    generators = [stream(0, plan, i) for i in range(n)]
    for grid, steps, shown in PLACES:
        if plan.startswith("blocks") and grid not in ("uniform", "rank", "cosine"):
            continue
        made = make_grid(grid, steps)
        blank_L = torch.tensor([flag == "1" for flag in shown])
        chain = chain_of(made_plan, blank_L, made, schedule)
        law = assignments(chain, 5)
        assert sum(law.values()) == pytest.approx(1, abs=1e-9)
        drawn_BL = made_plan.assign(blank_L.expand(n, 5), made, schedule, generators).step_BL
        assert p_value(Counter(map(tuple, drawn_BL.tolist())), law, n) > 1e-3, (grid, steps)
        distinct = sum(len({s for s in steps if s >= 0}) * p for steps, p in law.items())
        assert chain.nfe == pytest.approx(distinct)


def test_left_to_right_counts_are_equal_on_the_uniform_grid():
    """No rank is rounded into the step before it, also where an edge falls on it."""
    for length, steps in itertools.product(range(1, 33), range(1, 33)):
        if length % steps == 0:
            blank_1L = torch.ones(1, length, dtype=torch.bool)
            step_L = LeftToRight().assign(blank_1L, make_grid("uniform", steps), LogLinear(), []).step_BL[0]
            assert step_L.tolist() == [i * steps // length for i in range(length)]


def test_the_test_of_steps_has_power():
    """A law of the right plan on the wrong grid is refused."""
    blank_L, n = torch.ones(5, dtype=torch.bool), 1500
    cases = (("iid", "uniform", "cosine"), ("golden", "uniform", TAILED), ("permutation", "mdlm", "cosine"))
    generators = [stream(0, "power", i) for i in range(n)]
    for plan, right, wrong in cases:
        drawn_BL = make_plan(plan).assign(blank_L.expand(n, 5), make_grid(right, 3), LogLinear(), generators).step_BL
        seen = Counter(map(tuple, drawn_BL.tolist()))
        for grid in (right, wrong):
            made = make_grid(grid, 3) if isinstance(grid, str) else grid
            law = assignments(chain_of(make_plan(plan), blank_L, made, LogLinear()), 5)
            possible = Counter({steps: count for steps, count in seen.items() if law.get(steps)})
            assert (p_value(possible, law, n) > 1e-3) == (grid == right)


# --- against brute force ----------------------------------------------------------------------------------------------


def random_denoiser(L, V, seed):
    """A denoiser that is wrong: its answers at different views have nothing to do with each other, and never tie."""

    class Wrong:
        vocab_size, mask_id, length = V + 1, V, L

        def features(self, z):
            streams = [stream(seed, str(row)) for row in z.tolist()]
            return torch.stack([4 * torch.rand(L, V + 1, generator=g, dtype=torch.float64) for g in streams])

        def logits(self, h):
            return h

    return Wrong()


def test_iid_law_by_summing_over_every_assignment():
    """Q(x) = sum over the N^L assignments of their probability times prod p(x_i | seen)^(1/T), normalised."""
    L, V, T, grid = 3, 2, 0.6, make_grid("cosine", 3)
    model = random_denoiser(L, V, seed=0)
    found = sample_law(model, 3, plan="iid", grid=grid, law=Law(temperature=T)).q
    chance = [a - b for a, b in itertools.pairwise(grid.times)]
    expected = torch.zeros((V,) * L, dtype=torch.float64)
    for steps in itertools.product(range(3), repeat=L):
        for x in itertools.product(range(V), repeat=L):
            q = 1.0
            for i in range(L):
                z = torch.tensor([[x[j] if steps[j] < steps[i] else V for j in range(L)]])
                weight = model.features(z)[0, i, :V].exp() ** (1 / T)
                q *= chance[steps[i]] * float(weight[x[i]] / weight.sum())
            expected[x] += q
    assert torch.allclose(found, expected, atol=1e-12)


RULES = [Confidence(), Confidence("entropy"), Confidence(threshold=0.9), Blocks(4, Confidence())]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_adaptive_law_by_following_every_line(rule):
    """Every line x in turn: the positions chosen on the way follow from what is seen, so Q(x) is one product."""
    L, V = 8, 2
    model = random_denoiser(L, V, seed=1)
    inner = rule.inner if isinstance(rule, Blocks) else rule
    steps = 4 if inner.threshold is None else None  # two tokens a step, two steps a block
    found = sample_law(model, steps, plan=rule).q
    for x in itertools.product(range(V), repeat=L):
        z, q = [V] * L, 1.0
        while V in z:
            p = model.features(torch.tensor([z]))[0, :, :V].softmax(-1)
            sure = p.amax(-1) if inner.score == "probability" else (p * p.log()).sum(-1)
            left = [i for i in range(L) if z[i] == V]
            if isinstance(rule, Blocks):
                left = [i for i in left if i // 4 == left[0] // 4]
            left.sort(key=lambda i: -float(sure[i]))
            count = 2 if inner.threshold is None else max(1, sum(float(sure[i]) >= inner.threshold for i in left))
            for i in left[:count]:
                q *= float(p[i, x[i]])
            for i in left[:count]:
                z[i] = x[i]
        assert float(found[x]) == pytest.approx(q, abs=1e-12)


def test_given_tokens_condition_the_law():
    """One token a step with an exact denoiser: Q(x) is p(x | what was given), for any plan."""
    p = SOURCES["order2"](length=5)
    given_L = torch.tensor([3, 1, 3, 3, 2])
    conditional = torch.zeros_like(p)
    conditional[:, 1, :, :, 2] = p[:, 1, :, :, 2]
    conditional /= conditional.sum()
    for plan in ("golden", "iid", "dilated", "confidence"):
        law = sample_law(Enumerated(p), 3, plan=plan, grid="rank", given_L=given_L)
        assert torch.allclose(law.q, conditional, atol=1e-12)
        assert law.nfe == pytest.approx(3)


# --- the error given the plan -----------------------------------------------------------------------------------------


FORCED = [("iid", "uniform", 3), ("golden", "rank", 4), ("stride", "cosine", 6), ("entropy", "rank", 4)]


@pytest.mark.parametrize(("plan", "grid", "steps"), FORCED)
def test_teacher_forcing_estimates_the_error_given_the_plan(toys, plan, grid, steps):
    """It agrees with the exact value within its own error; the mixture's KL is below it, and equal if adaptive and no
    positions tie."""
    oracle, views, n = Enumerated(SOURCES["order2"]()), toys["order2"], 1500
    if plan == "entropy":
        tilted = oracle.p * (0.5 + torch.rand(oracle.p.shape, generator=stream(0, "tilt"), dtype=torch.float64))
        oracle = Enumerated(tilted / tilted.sum())
        views = Views(oracle, 8)
    x_BL, body = oracle.draw(n, stream(0, "x")), make_ready(oracle, torch.device("cpu"))
    forced = teacher_force(body, x_BL, make_plan(plan), make_grid(grid, steps), LogLinear(), rows=n)
    found = estimate_kl(oracle, x_BL, forced)
    mixture = sample_law(views, steps, plan=plan, grid=grid)
    exact = mixture.kl(oracle.p)
    if plan != "entropy":
        chain = chain_of(make_plan(plan), torch.ones(8, dtype=torch.bool), make_grid(grid, steps), LogLinear())
        exact = kl_given_plan(views, oracle.p, chain)
        assert mixture.kl(oracle.p) < exact
    assert abs(found.kl - exact) < 3 * found.standard_error
    assert found.nfe == pytest.approx(mixture.nfe, abs=0.1)
    plain_B = oracle.log_prob(x_BL) - forced.log_q_TL.sum(1)  # the same without the control: noisier
    assert found.standard_error < 1.01 * float(plain_B.std()) / n**0.5


def test_what_cannot_be_computed_is_refused():
    with pytest.raises(UserError, match="too many"):
        Views(random_denoiser(40, 9, 0), 40)
    with pytest.raises(UserError, match="looks at the model"):
        chain_of(Confidence(), torch.ones(3, dtype=torch.bool), make_grid("rank", 2), LogLinear())


def test_kl_is_that_of_the_textbook():
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.25, 0.5, 0.25])
    assert kl(p, q) == pytest.approx(0.5 * torch.tensor(2.0).log().item())
    assert kl(q, p) == float("inf")


def test_a_new_plan_whose_law_is_not_written_yet_is_not_told_to_be_itself(monkeypatch):
    monkeypatch.setitem(PLANS, "silver", replace(PLANS["golden"], name="silver"))
    with pytest.raises(UserError, match=r"unknown plan with a known law 'silver': allowed: ((?!silver).)*$"):
        chain_of(make_plan("silver"), torch.ones(4, dtype=torch.bool), make_grid("rank", 2), LogLinear())
