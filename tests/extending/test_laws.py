"""What a plug-in adds follows its own law: samples of a new process and a new step law are as enumerated."""

from itertools import pairwise, product

import pytest
import torch

from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError
from unmask.inference.ready import make_ready
from unmask.objectives.distil.sdtt import SDTT
from unmask.objectives.elbo import MDLM
from unmask.plans.grids import make_grid
from unmask.plans.plan import make_plan
from unmask.processes import Masked, States
from unmask.processes.schedule import LogLinear
from unmask.sampling.teacher_forcing import teacher_force
from unmask.sampling.verbs import sample

V, L, N = 3, 3, 20_000
SOURCE = torch.rand(V, V, V, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 3
SOURCE /= SOURCE.sum()
LINES = torch.cartesian_prod(*[torch.arange(V)] * L)


def p_value(tokens_nL: torch.Tensor, law: torch.Tensor) -> float:
    """Of the chi-square test of drawn lines against a table of shape (V,) * L."""
    count = torch.bincount((tokens_nL * V ** torch.arange(L - 1, -1, -1)).sum(1), minlength=V**L).double()
    expected = law.flatten() * len(tokens_nL)
    chi = ((count - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc(torch.tensor((V**L - 1) / 2).double(), chi / 2))


class ExactUniform:
    """p(x_i | z_t) of the source under uniform noise, by enumeration: a Denoiser without a mask."""

    vocab_size, length, mask_id = V, L, None

    def features(self, z: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        gamma_B = LogLinear().gamma(time.double())
        return torch.stack([self.one(row, float(gamma)) for row, gamma in zip(z, gamma_B, strict=True)])

    def one(self, z_L: torch.Tensor, gamma: float) -> torch.Tensor:
        hit_XL = (z_L == LINES).double()
        weight_X = SOURCE.flatten() * (gamma * hit_XL + (1 - gamma) / V).prod(1)
        law_LV = torch.zeros(L, V, dtype=torch.float64)
        for i, v in product(range(L), range(V)):
            law_LV[i, v] = weight_X[LINES[:, i] == v].sum()
        return (law_LV / weight_X.sum()).log()

    def logits(self, h: torch.Tensor) -> torch.Tensor:
        return h


def test_the_posterior_is_bayes_rule(plugin):
    process, states = plugin.AnyToken(), States(V, None)
    s, t = torch.tensor(0.3, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64)
    a, b = (float(process.schedule.gamma(time)) for time in (s, t))
    p_V = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    for z in range(V):
        law_V = process.posterior(p_V.log()[None], torch.tensor([z]), s, t, states).exp()[0]
        for v in range(V):
            expected = 0.0
            for x in range(V):
                to_v, to_z = a * (x == v) + (1 - a) / V, b / a * (v == z) + (1 - b / a) / V
                expected += float(p_V[x]) * to_v * to_z / (b * (x == z) + (1 - b) / V)
            assert float(law_V[v]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("steps", [1, 3])
def test_samples_of_a_new_process_follow_its_enumerated_law(plugin, steps):
    """z_1 uniform, then every position from its posterior at each step: the law of all z is a table, step by step."""
    process, model = plugin.AnyToken(), ExactUniform()
    drawn = sample(Checkpoint(model, process), N, steps, seed=1, batch=N // 4, device="cpu")
    law_X = torch.full((V**L,), V**-L, dtype=torch.float64)
    times = make_grid("uniform", steps).times
    for t, s in pairwise(torch.tensor(times).double()):
        log_p_XLV = model.features(LINES, t.expand(len(LINES)))
        moved = process.posterior(
            log_p_XLV.flatten(0, 1),
            LINES.flatten(),
            s,
            t,
            States(V, None),
        )
        moved_XLV = moved.exp().view(len(LINES), L, V)
        after_X = torch.zeros_like(law_X)
        for x, line in enumerate(LINES.tolist()):
            to = law_X * torch.stack([moved_XLV[:, i, v] for i, v in enumerate(line)]).prod(0)
            after_X[x] = to.sum()
        law_X = after_X
    assert p_value(drawn.tokens, law_X) > 1e-3
    assert bool(drawn.log_q.isnan().all())  # of a path, not of the text
    assert drawn.record["nfe"] == steps
    assert drawn.record["plan"]["name"] == "ancestral"


def test_given_words_are_held_and_a_plan_has_no_place(plugin):
    given = torch.tensor([-1, 2, -1])
    drawn = sample(Checkpoint(ExactUniform(), plugin.AnyToken()), 50, 4, infill=given, device="cpu")
    assert bool((drawn.tokens[:, 1] == 2).all())
    with pytest.raises(UserError, match="draws every position at every step, which the plan golden does not"):
        sample(Checkpoint(ExactUniform(), plugin.AnyToken()), 1, 2, plan="golden", device="cpu")


def test_the_bound_is_that_of_the_chain_by_numerical_expectation(plugin):
    """The objective's mean over all noise is the N-step bound less the prior's term, computed by enumerating z."""
    process, model, bins = plugin.AnyToken(bins=2), ExactUniform(), 2
    states, x0 = States(V, None), torch.tensor([[0, 1, 2]])
    expected = 0.0
    for k in range(1, bins + 1):
        t, s = (torch.tensor(time / bins, dtype=torch.float64) for time in (k, k - 1))
        gamma = float(process.schedule.gamma(t))
        for z in LINES:
            chance = float((gamma * (z == x0[0]).double() + (1 - gamma) / V).prod())
            log_p_LV = model.one(z, gamma)
            law = process.posterior(log_p_LV, z, s, t, states)
            sure = torch.nn.functional.one_hot(x0[0], V).double().log()
            exact = process.posterior(sure, z, s, t, states)
            expected += chance * float((exact.exp() * (exact - law)).sum())
    total, generator = 20_000, torch.Generator().manual_seed(3)
    t_T = (torch.arange(total) % bins + 1).double() / bins
    u_TL = torch.rand(total, L, generator=generator, dtype=torch.float64)
    x_TL = x0.expand(total, L)
    view = process.view(x_TL, process.noise(u_TL, states, generator), t_T, states)
    nats_T = MDLM(process).nats_of(model, x_TL, view, t_T).sum(1)
    assert float(nats_T.mean()) == pytest.approx(expected, abs=5 * float(nats_T.std()) / total**0.5)


class Table:
    """Arbitrary answers, one for each masked view; its mask is state 1, in the middle."""

    vocab_size, length, mask_id = V + 1, L, 1

    def __init__(self) -> None:
        shape = (V + 1,) * L + (L, V + 1)
        self.table = 2 * torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def features(self, z: torch.Tensor) -> torch.Tensor:
        return self.table[tuple(z.T)]

    def logits(self, h: torch.Tensor) -> torch.Tensor:
        return h


TOKENS = torch.tensor([0, 2, 3])  # all states but the mask


def chain_law(model: Table, stay: float) -> torch.Tensor:
    """q of every line when one step draws positions 0 and 1, the next position 2: written out by hand."""
    law = torch.zeros((V,) * L, dtype=torch.float64)
    empty = torch.full((1, L), model.mask_id)
    for line in product(range(V), repeat=L):
        x = TOKENS[list(line)]
        p = model.features(empty)[0][:, TOKENS].softmax(-1)
        second = p[1] * torch.exp(stay * (x[0] == TOKENS).double())
        seen = torch.tensor([[int(x[0]), int(x[1]), model.mask_id]])
        third = model.features(seen)[0][2, TOKENS].softmax(-1)
        law[line] = p[0, line[0]] * second[line[1]] / second.sum() * third[line[2]]
    return law


def test_samples_of_a_new_step_law_follow_it_and_so_do_its_probabilities(plugin):
    model, stay = Table(), 1.7
    law = chain_law(model, stay)
    assert float(law.sum()) == pytest.approx(1)
    checkpoint = Checkpoint(model, step_law=plugin.Sticky(stay))
    drawn = sample(checkpoint, 3000, 2, plan="left_to_right", grid="rank", seed=2, batch=500, device="cpu")
    place_nL = torch.searchsorted(TOKENS, drawn.tokens)
    assert p_value(place_nL, law) > 1e-3
    torch.testing.assert_close(drawn.log_q.sum(1), law[tuple(place_nL.T)].log())
    assert drawn.record["step_law"] == {"name": "sticky", "stay": stay}
    forced = teacher_force(
        make_ready(model, torch.device("cpu")), TOKENS[LINES], make_plan("left_to_right"), make_grid("rank", 2),
        LogLinear(), step_law=plugin.Sticky(stay),
    )  # fmt: skip
    torch.testing.assert_close(forced.log_q_TL.sum(1), law.flatten().log())


def test_the_published_algorithm_takes_no_other_step_law(plugin):
    checkpoint = Checkpoint(Table(), step_law=plugin.Sticky())
    with pytest.raises(UserError, match="or other step law"):
        sample(checkpoint, 1, 2, plan="iid", grid="mdlm", draw="legacy_fp32", device="cpu")


def test_a_rollout_of_sdtt_draws_from_the_teachers_step_law(plugin, monkeypatch):
    """With a law that always repeats, the teacher's small step reveals equal neighbours."""
    model = Table()
    seen = []
    method = SDTT(Checkpoint(model, Masked(), step_law=plugin.Sticky(1e6)), delta=0.9, k=2)
    monkeypatch.setattr(method.teacher, "features", lambda z, *_, **__: seen.append(z.clone()) or model.features(z))
    x0 = torch.full((64, L), 3)

    class Rows:
        tokens_BL, start, total = x0, 0, 64

    method(model, Rows, step=0, generator=torch.Generator().manual_seed(0))
    before, after = seen[:2]
    newly = (before == model.mask_id) & (after != model.mask_id)
    several = newly.sum(1) > 1
    assert int(several.sum()) > 5
    for row in several.nonzero()[:, 0].tolist():
        assert len(set(after[row][newly[row]].tolist())) == 1
