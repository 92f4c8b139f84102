"""The ELBO on a source whose likelihood can be enumerated: it is a bound, it is tight, and training reaches it.

The source is the sticky chain over V = 3 tokens at L = 5 positions: 243 sequences, 31 sets of masked positions.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from unmask.core.streams import stream
from unmask.metrics.elbo import elbo_of, nll_of, order_agnostic_masks
from unmask.models.dit.network import DiT
from unmask.objectives.ar import AR
from unmask.objectives.elbo import MDLM
from unmask.processes import Masked
from unmask.processes.schedule import Cosine, LogLinear
from unmask.theory.oracle import Enumerated, sticky
from unmask.training.trainer import Trainer

V, L = 3, 5
ORACLE = Enumerated(sticky(L, V))
LINES = torch.tensor(list(itertools.product(range(V), repeat=L)))  # all 243, in the order of ORACLE.p.flatten()
P = ORACLE.p.flatten()
ENTROPY = float(-(P * P.log()).sum())


@dataclass(frozen=True)
class Rows:
    tokens_BL: Tensor
    start: int
    total: int


class Bent:
    """The exact posterior with its log-probabilities scaled: 1 is the truth, 0 knows nothing."""

    vocab_size, mask_id, length = V + 1, V, L

    def __init__(self, sharpness: float) -> None:
        self.sharpness = sharpness

    def features(self, z: Tensor) -> Tensor:
        return ORACLE.features(z).clamp(min=-50) * self.sharpness

    def logits(self, h: Tensor) -> Tensor:
        return h


def log_p_given(model, visible: set[int]) -> Tensor:
    """log p(x_i | x_visible) of every line: (243, L)."""
    z = LINES.clone()
    z[:, [i for i in range(L) if i not in visible]] = V
    logits = model.logits(model.features(z))[..., :V].double()
    return logits.log_softmax(-1).gather(-1, LINES[..., None])[..., 0]


@torch.no_grad()
def enumerated_nelbo(model) -> Tensor:
    """The NELBO of every line: sum over masked sets M of (|M|-1)! (L-|M|)! / L! times the cross-entropy on M."""
    total = torch.zeros(len(LINES), dtype=torch.float64)
    for k in range(1, L + 1):
        weight = math.factorial(k - 1) * math.factorial(L - k) / math.factorial(L)
        for masked in itertools.combinations(range(L), k):
            total -= weight * log_p_given(model, set(range(L)) - set(masked))[:, list(masked)].sum(1)
    return total


@torch.no_grad()
def enumerated_nll(model) -> Tensor:
    """-log of the model's own probability of every line: the mean over all L! orders of revealing it."""
    given = {frozenset(c): log_p_given(model, set(c)) for k in range(L) for c in itertools.combinations(range(L), k)}
    per_order = [
        sum(given[frozenset(order[:j])][:, order[j]] for j in range(L)) for order in itertools.permutations(range(L))
    ]
    return math.log(len(per_order)) - torch.stack(per_order).logsumexp(0)


def test_the_bound_is_the_likelihood_itself_for_the_exact_posterior():
    assert torch.allclose(enumerated_nelbo(ORACLE), -P.log(), atol=1e-12)


@pytest.mark.parametrize("sharpness", [0.3, 0.7, 1.5])
def test_the_bound_holds_for_a_wrong_model(sharpness):
    """Line by line above the model's own likelihood, and on average above the entropy by the model's own error."""
    nelbo, nll = enumerated_nelbo(Bent(sharpness)), enumerated_nll(Bent(sharpness))
    assert bool((nelbo >= nll - 1e-12).all())
    assert float((nelbo - nll).max()) > 1e-3  # and here it is a bound, not an equality
    assert float(P @ nll) > ENTROPY


def test_the_bound_tightens_as_the_model_approaches_the_truth():
    values = [float(P @ enumerated_nelbo(Bent(sharpness))) for sharpness in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(L * math.log(V))
    assert values[-1] == pytest.approx(ENTROPY)


@pytest.mark.parametrize("estimate", ["log_linear", "cosine", "spread", "evaluation"])
def test_every_estimate_of_the_bound_has_its_enumerated_mean(estimate):
    """Training's estimate does not depend on the schedule, evaluation's order-agnostic one agrees: 4 standard errors.

    A plan that spreads u keeps the marginals but not the law of masked sets, so there the bound is another one.
    """
    model, n = Bent(0.5), 40_000
    generator = stream(0, "elbo", estimate)
    rows = torch.multinomial(P, n, replacement=True, generator=generator)
    x0 = LINES[rows]
    if estimate == "evaluation":
        values = L * elbo_of(model, x0, order_agnostic_masks(n, L, generator)[0])
    else:
        schedule = Cosine(eps=0.0) if estimate == "cosine" else LogLinear(eps=0.0)
        objective = MDLM(Masked(schedule), "golden" if estimate == "spread" else "iid")
        values = objective(model, Rows(x0, 0, n), step=0, generator=generator).loss_BL.sum(1)
    error = float(values.mean()) - float(P @ enumerated_nelbo(model))
    bound = 4 * float(values.std()) / math.sqrt(n)
    assert bound < 0.2
    assert (abs(error) > bound) if estimate == "spread" else (abs(error) < bound)


def test_views_of_a_text_are_spread_over_how_much_is_masked():
    """One of 4 views in each quarter of 1..L, and all views together one in each of 4 T equal parts."""
    masked_PTL = order_agnostic_masks(25, 1000, stream(0), views=4)
    k_PT = masked_PTL.sum(2)
    assert torch.equal((k_PT - 1) // 250, torch.arange(4)[:, None].expand(4, 25))
    assert torch.equal(((k_PT - 1) // 10).flatten().sort().values, torch.arange(100))


def test_evaluation_has_less_noise_than_the_training_loss():
    model, n = Bent(0.5), 10_000
    x0 = LINES[torch.multinomial(P, n, replacement=True, generator=stream(1))]
    ours = L * elbo_of(model, x0, order_agnostic_masks(n, L, stream(2))[0])
    theirs = MDLM(Masked(LogLinear(eps=0.0)))(model, Rows(x0, 0, n), step=0, generator=stream(3)).loss_BL.sum(1)
    assert float(ours.std()) < 0.5 * float(theirs.std())


@pytest.fixture(scope="module")
def chain(write_corpus, tmp_path_factory):
    """A long run of the sticky chain, cut into blocks of L: each block is a draw from the source."""
    rng = np.random.default_rng(0)
    jump = rng.random(120_000) < 0.2  # with probability 0.2 anywhere, else stay
    tokens = rng.integers(0, V, 120_000)
    last = np.maximum.accumulate(np.where(jump, np.arange(120_000), 0))
    path = tokens[last]
    return write_corpus(tmp_path_factory.mktemp("chain") / "corpus", path[:100_000], path[100_000:], V)


def trained(objective, corpus, steps: int) -> DiT:
    torch.manual_seed(0)
    model = DiT(V + 1, L, hidden=32, cond=16, blocks=2, heads=2, dropout=0.0, causal=isinstance(objective, AR))
    trainer = Trainer(
        steps=steps, batch=128, lr=3e-3, warmup=20, decay="cosine", ema=0.98, device="cpu", eval_every=0, progress=False
    )
    return trainer.fit(model, objective, corpus).model


def test_training_on_the_elbo_reaches_the_entropy_of_the_source(chain):
    """Within 0.02 nats of the source's 0.608 nats per token, and never below."""
    excess = (float(P @ enumerated_nelbo(trained(MDLM(), chain, steps=400))) - ENTROPY) / L
    assert 0 < excess < 0.02


def test_next_token_training_reaches_the_entropy_of_the_source(chain):
    """Within 0.005 nats per token. The first is not scored: what is left is H(x_1..L) - H(x_1) = ENTROPY - log V."""
    model = trained(AR(), chain, steps=150)
    with torch.no_grad():
        nll = (L - 1) * nll_of(model, LINES).double()
    excess = (float(P @ nll) - (ENTROPY - math.log(V))) / (L - 1)
    assert 0 < excess < 0.005
