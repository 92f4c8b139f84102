"""A process that draws every position at every step follows the law of each of its plans, as enumerated by hand.

The reference is Bayes' rule on tables: q(z_s = v | z_t) is (z_t from v) times (v from the model's p), normalised.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from unmask.checkpoint.io import Checkpoint, load
from unmask.core.errors import UserError
from unmask.inference.categorical import Law, draw_mixture
from unmask.inference.ready import make_ready
from unmask.plans.every import EveryPosition, any_plan
from unmask.plans.grids import make_grid
from unmask.processes import States, Uniform
from unmask.sampling.path_bound import path_bound
from unmask.sampling.verbs import sample

K, L, N = 3, 2, 10_000
CPU = torch.device("cpu")
STATES, LINES = States(K, None), torch.cartesian_prod(*[torch.arange(K)] * L)
PLANS = ["ancestral", "greedy_tail", "psi:share=0.3", "psi:share=0.2,greedy=true"]


class Toy:
    """Arbitrary laws, another for every line and time; no mask."""

    vocab_size, length, mask_id = K, L, None

    def __init__(self) -> None:
        self.table = 1.5 * torch.randn(2, K**L, L, K, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def features(self, z: Tensor, time: Tensor) -> Tensor:
        line_B = (z * K ** torch.arange(L - 1, -1, -1)).sum(1)
        return self.table[0][line_B] + self.table[1][line_B] * torch.exp(-time.double())[:, None, None]

    def logits(self, h: Tensor) -> Tensor:
        return h


def alpha(t: float) -> float:
    return 1 - (1 - 1e-3) * t


def from_clean(p_XLK: Tensor, t: float) -> Tensor:
    return alpha(t) * p_XLK + (1 - alpha(t)) / K


def back(p_XLK: Tensor, s: float, t: float) -> Tensor:
    """q(z_s | z_t), (X, L, K), of all lines z_t."""
    ratio = alpha(t) / alpha(s)
    at_z_XLK = torch.nn.functional.one_hot(LINES, K).double()
    law_XLK = (ratio * at_z_XLK + (1 - ratio) / K) * from_clean(p_XLK, s)
    return law_XLK / law_XLK.sum(-1, keepdim=True)


def step_law(plan: EveryPosition, p_XLK: Tensor, s: float, t: float) -> Tensor:
    """The same of a plan: Psi mixes in what is noised again from a clean draw."""
    noise = 1 - alpha(s)
    renewed = min(plan.share, noise) / noise if noise else 0.0
    return (1 - renewed) * back(p_XLK, s, t) + renewed * from_clean(back(p_XLK, 0, t), s)


def p_of(model: Toy, t: float, heat: float = 1.0, top_p: float = 1.0) -> Tensor:
    sigma = -torch.tensor([alpha(t)]).double().log()
    p_XLK = (model.features(LINES, sigma.expand(len(LINES)).float()) / heat).softmax(-1)
    ahead_XLKK = p_XLK[..., None, :] > p_XLK[..., None]
    kept_XLK = p_XLK * ((ahead_XLKK * p_XLK[..., None, :]).sum(-1) < top_p)  # what lies ahead has not reached top_p
    return kept_XLK / kept_XLK.sum(-1, keepdim=True)


def of_lines(law_XLK: Tensor) -> Tensor:
    """From a line to a line: positions are drawn by themselves."""
    return torch.stack([law_XLK[:, i][:, LINES[:, i]] for i in range(L)]).prod(0)


def sampled_law(plan: EveryPosition, model: Toy, times: tuple[float, ...], **law: float) -> Tensor:
    """The probability of every line."""
    law_X = torch.full((K**L,), K**-L, dtype=torch.float64)
    for t, s in pairwise(times):
        law_X = law_X @ of_lines(step_law(plan, p_of(model, t, **law), s, t))
    if plan.greedy:
        best_XL = p_of(model, times[-1]).argmax(-1)
        law_X = law_X @ (best_XL[:, None] == LINES[None]).all(-1).double()
    return law_X


def p_value(tokens_nL: Tensor, law_X: Tensor) -> float:
    count = torch.bincount((tokens_nL * K ** torch.arange(L - 1, -1, -1)).sum(1), minlength=K**L).double()
    possible = law_X > 0
    assert not bool(count[~possible].any())
    expected = law_X[possible] * len(tokens_nL)
    chi = ((count[possible] - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc((possible.sum() - 1).clamp(min=1).double() / 2, chi / 2))


@pytest.mark.parametrize("plan", PLANS)
def test_the_law_of_a_step_is_bayes_rule_and_the_draw_follows_it(plan: str) -> None:
    chosen, process, model, n = any_plan(plan), Uniform(), Toy(), 4000
    assert isinstance(chosen, EveryPosition)
    even_n = (torch.arange(n).double() + 0.5) / n
    for s, t in ((0.5, 1.0), (0.2, 0.7), (0.0, 0.3), (0.0, 1e-5)):
        p_XLK = p_of(model, t)
        exact_MK = step_law(chosen, p_XLK, s, t).flatten(0, 1)
        times = (torch.tensor(time, dtype=torch.float64) for time in (s, t))
        log_p_MK, z_M = p_XLK.flatten(0, 1).log(), LINES.flatten()
        torch.testing.assert_close(
            chosen.law(process, log_p_MK, z_M, *times, STATES).exp(), exact_MK, rtol=1e-10, atol=1e-12
        )
        mixture = chosen.mixture(process, s, t, STATES)
        assert mixture is not None
        for place in range(0, len(z_M), 5):
            z_n, numbers = z_M[place].expand(n), torch.tensor(mixture, dtype=torch.float64)
            drawn = draw_mixture(log_p_MK[place].expand(n, K), even_n, z_n, numbers, None, Law())
            torch.testing.assert_close(drawn.log_q_M.exp(), exact_MK[place][drawn.token_M], rtol=1e-10, atol=1e-12)
            share_K = torch.bincount(drawn.token_M, minlength=K) / n
            assert float((share_K - exact_MK[place]).abs().max()) < 5 / n  # an even grid misses each edge by one point
            assert bool((drawn.token_M[~mixture.may_change(even_n)] == z_M[place]).all())


@pytest.mark.parametrize(
    ("plan", "grid", "steps"),
    [
        ("ancestral", "uniform", 1), ("ancestral", "cosine", 4), ("ancestral", "mdlm", 2), ("greedy_tail", "mdlm", 3),
        ("greedy_tail", "uniform", 1), ("psi:share=0.3", "uniform", 3), ("psi:share=0.2,greedy=true", "mdlm", 2),
    ],
)  # fmt: skip
def test_samples_follow_the_enumerated_law(plan: str, grid: str, steps: int) -> None:
    chosen, made = any_plan(plan), make_grid(grid, steps)
    assert isinstance(chosen, EveryPosition)
    forwards = steps + (chosen.greedy or grid == "mdlm")  # the published grid ends above 0: one more takes the noise
    drawn = sample(Checkpoint(Toy(), Uniform()), N, steps, plan=plan, grid=grid, seed=3, batch=N // 2, device="cpu")
    times = made.times if chosen.greedy or grid != "mdlm" else (*made.times, 0.0)
    assert p_value(drawn.tokens, sampled_law(chosen, Toy(), times)) > 1e-3
    assert float(drawn.nfe.max()) == forwards
    assert drawn.record["forwards"] == 2 * forwards
    assert drawn.record["plan"]["name"] == chosen.name


@pytest.mark.parametrize(("plan", "temperature", "top_p"), [("psi:share=0.3", 0.5, 1.0), ("ancestral", 1.0, 0.7)])
def test_a_sharper_law_is_sharper_inside_the_posterior(plan: str, temperature: float, top_p: float) -> None:
    how = {"temperature": temperature, "top_p": top_p, "seed": 5, "batch": N // 2, "device": "cpu"}
    drawn = sample(Checkpoint(Toy(), Uniform()), N, 3, plan=plan, **how)  # type: ignore[arg-type]
    chosen, times = any_plan(plan), make_grid("uniform", 3).times
    law_X = sampled_law(chosen, Toy(), times, heat=temperature, top_p=top_p)  # type: ignore[arg-type]
    assert p_value(drawn.tokens, law_X) > 1e-3


def test_a_law_that_is_wrong_is_seen() -> None:
    """The test above would notice another reading of the posterior: x_0 drawn first, z_s given both."""
    model, law_X = Toy(), torch.full((K**L,), K**-L, dtype=torch.float64)
    for t, s in pairwise(make_grid("uniform", 3).times):
        p_XLK = p_of(model, t)
        sure = torch.nn.functional.one_hot(torch.arange(K), K).double()
        mixed_XLK = sum(p_XLK[..., x, None] * back(sure[x].expand(p_XLK.shape), s, t) for x in range(K))
        law_X = law_X @ of_lines(mixed_XLK)
    drawn = sample(Checkpoint(model, Uniform()), N, 3, seed=3, batch=N // 2, device="cpu")
    assert p_value(drawn.tokens, law_X) < 1e-6


@pytest.mark.parametrize("plan", ["ancestral", "psi:share=0.3"])
def test_the_bound_is_the_enumerated_one_and_above_the_samplers_own_likelihood(plan: str) -> None:
    chosen, model, process, n = any_plan(plan), Toy(), Uniform(), 4000
    assert isinstance(chosen, EveryPosition)
    x_L, grid = torch.tensor([2, 0]), make_grid("uniform", 3)
    sure_XLK = torch.nn.functional.one_hot(x_L, K).double().expand(len(LINES), L, K)
    exact = process.prior_nats(STATES) * L
    for t, s in pairwise(grid.times):
        chance_X = from_clean(sure_XLK, t)[:, range(L)].gather(-1, LINES[..., None])[..., 0].prod(1)
        q_XLK, law_XLK = (step_law(chosen, p, s, t) for p in (sure_XLK, p_of(model, t)))
        kl_X = torch.where(q_XLK > 0, q_XLK * (q_XLK / law_XLK).log(), 0.0).sum((1, 2))
        exact += float(chance_X @ kl_X)
    path_n = path_bound(make_ready(model, CPU), x_L.expand(n, L), chosen, grid, process, seed=1, rows=500)
    nats_n = path_n + process.prior_nats(STATES) * L
    assert float(nats_n.mean()) == pytest.approx(exact, abs=4 * float(nats_n.std()) / n**0.5)
    own = -float(sampled_law(chosen, model, grid.times)[int((x_L == LINES).all(1).nonzero())].log())
    assert exact > own
    one = path_bound(make_ready(model, CPU), x_L.expand(1, L), chosen, grid, process, seed=1, indices=[7], rows=1)
    assert float(one) + process.prior_nats(STATES) * L == pytest.approx(float(nats_n[7]))  # whatever its company


def test_the_priors_term_is_a_kl() -> None:
    q_K = torch.full((5,), 0.999 / 5, dtype=torch.float64)
    q_K[0] += 1e-3
    assert Uniform().prior_nats(States(5, None)) == pytest.approx(float((q_K * (5 * q_K).log()).sum()))


def test_given_words_are_held() -> None:
    template = torch.tensor([1, -1])
    for plan in PLANS:
        drawn = sample(Checkpoint(Toy(), Uniform()), 64, 4, infill=template, plan=plan, device="cpu")
        assert bool((drawn.tokens[:, 0] == 1).all())
        assert len(drawn.tokens[:, 1].unique()) > 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"plan": "golden"}, "draws every position at every step, which the plan golden does not: take ancestral"),
        ({"grid": "rank"}, "goes on a grid of times: take uniform, cosine or mdlm, not rank"),
        ({"remask": "cap"}, "remasking is for a masked process: for this one take the plan psi"),
        ({"plan": "psi:share=2"}, "between 0 and 1, not 2"),
        ({"plan": "psi:half=1"}, "setting of a plan"),
        ({"plan": "ancestral:share=0.1"}, "the plan ancestral has no settings"),
        ({"plan": "psi:share=x"}, "NAME=VALUE"),
    ],
)
def test_what_does_not_go_together_is_said(options: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        sample(Checkpoint(Toy(), Uniform()), 1, 2, device="cpu", **options)


def test_a_masked_model_has_no_such_plan() -> None:
    with pytest.raises(UserError, match="reveals each position once, which the plan psi does not"):
        sample("pocket", 1, 2, plan="psi", device="cpu")


# --- Duo's own sampler, replayed --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Published(EveryPosition):
    """Psi with the c of the published run at each step."""

    c: float = 1.0

    def kept(self, gamma_s: Tensor) -> Tensor:
        return torch.full_like(gamma_s, self.c)


@pytest.mark.parametrize("run", ["ancestral", "greedy_tail", "psi"])
def test_duos_published_runs_come_out_again_token_for_token(run: str) -> None:
    """Its Gumbel races with its uniforms, on our law of a step; every race is won by a clear gap."""
    folder = Path(__file__).parents[1] / "assets/published/duo"
    found = np.load(folder / "reference.npz")
    checkpoint = load(folder)
    states, grid = States(checkpoint.model.vocab_size, None), make_grid("mdlm", 4)
    inputs = torch.tensor(found[f"gen_{run}_inputs"]).long()
    kappa = found["gen_psi_kappa"].tolist() if run == "psi" else [1.0] * 5
    for step, (t, s) in enumerate(pairwise((*grid.times, 0.0))):
        times = (torch.tensor(time, dtype=torch.float64) for time in (s, t))
        sigma_B = checkpoint.process.condition(torch.full((2,), t, dtype=torch.float64))
        assert sigma_B is not None
        torch.testing.assert_close(sigma_B, torch.tensor(found[f"gen_{run}_sigma"][step]), rtol=1e-5, atol=1e-7)
        with torch.no_grad():
            logits_BLV = checkpoint.model.logits(checkpoint.model.features(inputs[step], sigma_B))  # type: ignore[call-arg]
        log_p_MV = logits_BLV.double().log_softmax(-1).flatten(0, 1)
        if run == "greedy_tail" and s == 0:
            drawn_M = log_p_MV.argmax(-1)
        else:
            plan = Published("psi", share=float(kappa[step] < 1), c=kappa[step] if s else 1.0)
            law_MV = plan.law(checkpoint.process, log_p_MV, inputs[step].flatten(), *times, states).exp()
            u_MV = torch.tensor(found["gen_uniforms"][step]).flatten(0, 1)
            drawn_M = (law_MV / (1e-10 - (u_MV + 1e-10).log())).argmax(-1)
        after_BL = inputs[step + 1] if step < 4 else torch.tensor(found[f"gen_{run}_out"])
        assert torch.equal(drawn_M.view(2, -1), after_BL)


def test_duos_model_writes_the_same_in_any_batch() -> None:
    """In float32 on a CPU, and from any company: sample i has the same tokens."""
    checkpoint = load(Path(__file__).parents[1] / "assets/published/duo")
    how = {"steps": 6, "plan": "psi:share=0.1,greedy=true", "seed": 2, "device": "cpu"}
    together = sample(checkpoint, 5, batch=5, **how).tokens  # type: ignore[arg-type]
    assert torch.equal(together, sample(checkpoint, 5, batch=2, **how).tokens)  # type: ignore[arg-type]
    assert torch.equal(together[3:4], sample(checkpoint, 1, numbers=[3], **how).tokens)  # type: ignore[arg-type]
    assert len({tuple(row) for row in together.tolist()}) == 5
