"""Objectives against direct float64 computations from full logits."""

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from tests.objectives.subs import carry_over
from torch import Tensor, nn

from unmask.core.streams import stream
from unmask.objectives.ar import AR
from unmask.objectives.base import IDENTITY, RECONSTRUCT, describe
from unmask.objectives.elbo import MDLM
from unmask.plans.plan import draw_u
from unmask.processes import Masked
from unmask.processes.schedule import Cosine, LogLinear, stratified

MASK, LENGTH = 5, 7


@dataclass(frozen=True)
class Rows:
    tokens_BL: Tensor
    start: int
    total: int


class Net(nn.Module):
    """A float64 denoiser in which every position sees every other one."""

    vocab_size, mask_id, length = MASK + 1, MASK, LENGTH

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(MASK + 1, 4).double(), nn.Linear(4, MASK + 1).double()
        mix = torch.randn(LENGTH, LENGTH, dtype=torch.float64)
        self.mix = mix.tril() if causal else mix

    def features(self, z: Tensor) -> Tensor:
        return torch.tanh(self.mix[: z.shape[1], : z.shape[1]] @ self.embedding(z))

    def logits(self, h: Tensor) -> Tensor:
        return self.head(h)


@pytest.fixture
def batch() -> Rows:
    return Rows(torch.randint(MASK, (6, LENGTH), generator=stream(0, "tokens")), start=0, total=6)


def gradient(net: Net, value: Tensor) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, list(net.parameters()))])


@pytest.mark.parametrize("schedule", [LogLinear(), Cosine()], ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("plan", ["iid", "golden"])
def test_mdlm_is_the_weighted_cross_entropy_of_the_masked_positions(batch, schedule, plan):
    net = Net()
    output = MDLM(Masked(schedule), plan)(net, batch, step=0, generator=stream(1, "noise"))

    noise = stream(1, "noise")
    t_B = stratified(6, noise)
    u_BL = draw_u((6, LENGTH), plan, generator=noise)
    direct_BL = torch.zeros(6, LENGTH, dtype=torch.float64)
    for b in range(6):
        gamma = float(schedule.gamma(t_B[b]))
        pairs = zip(batch.tokens_BL[b].tolist(), u_BL[b].tolist(), strict=True)
        z_L = torch.tensor([x if u < gamma else MASK for x, u in pairs])
        logp_LV = carry_over(net.logits(net.features(z_L[None])), z_L[None], MASK)[0]
        for i in range(LENGTH):  # at visible positions the carry-over rule gives log 1 = 0
            direct_BL[b, i] = float(schedule.elbo_weight(t_B[b])) * -logp_LV[i, batch.tokens_BL[b, i]]
            assert output.region_BL[b, i] == (RECONSTRUCT if z_L[i] == MASK else IDENTITY)
    assert torch.allclose(output.loss_BL, direct_BL, atol=1e-12)
    assert torch.allclose(gradient(net, output.loss_BL.sum()), gradient(net, direct_BL.sum()), atol=1e-10)
    assert bool((output.weight_BL == 1).all())


def test_ar_scores_every_token_but_the_first_from_those_before(batch):
    net = Net(causal=True)
    output = AR()(net, batch, step=0, generator=stream(0))
    for b, row in enumerate(batch.tokens_BL):
        for i in range(1, LENGTH):
            logits_V = net.logits(net.features(row[None, :i]))[0, -1, :MASK]
            assert torch.allclose(output.loss_BL[b, i], F.cross_entropy(logits_V, row[i]), atol=1e-12)
    assert bool((output.weight_BL[:, 0] == 0).all() and (output.weight_BL[:, 1:] == 1).all())


@pytest.mark.parametrize("objective", [MDLM(), MDLM(plan="van_der_corput"), AR()], ids=lambda o: str(describe(o)))
def test_parts_of_a_batch_give_what_the_whole_gives(batch, objective):
    """Ranks and micro-batches draw the noise of the whole global batch and take their own rows."""
    net = Net(causal=isinstance(objective, AR))
    whole = objective(net, batch, step=3, generator=stream(2))
    parts = [replace(batch, tokens_BL=batch.tokens_BL[a:b], start=a) for a, b in ((0, 1), (1, 4), (4, 6))]
    split = [objective(net, part, step=3, generator=stream(2)) for part in parts]
    assert torch.allclose(torch.cat([part.loss_BL for part in split]), whole.loss_BL, atol=1e-13)
    assert torch.equal(torch.cat([part.region_BL for part in split]), whole.region_BL)
