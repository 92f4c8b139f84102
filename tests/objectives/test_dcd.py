"""DCD against a direct computation, and its pair of views against the argmax of Gaussian latents drawn whole."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import unmask
from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.objectives.distil.curriculum import Curriculum
from unmask.objectives.distil.dcd import DCD, WINDOW, clock
from unmask.plans.plan import draw_u
from unmask.processes import Masked, States, Uniform
from unmask.processes.schedule import LogLinear, stratified

K, L, B = 7, 5, 6
NOISE = (-4.0, -1.0)  # of the latent, at times 0 and 1
STATES = States(K, None)


def shares(noise: tuple[float, float], states: int = K) -> tuple[float, ...]:
    """The window: how many tokens are not drawn anew, by the argmax of the latent."""
    kept_2 = unmask.GaussianDuality(states).cdf(torch.exp(-torch.tensor(noise, dtype=torch.float64) / 2))
    return tuple(((states * kept_2 - 1) / (states - 1)).tolist())


class Small:
    """Features that know the token, its left neighbour and the time."""

    vocab_size, length, mask_id = K, L, None

    def __init__(self, seed: int) -> None:
        generator = stream(seed, "weights")
        shapes = ((K, 4), (K, 4), (1, 4), (4, K))
        self.parts = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
        for part in self.parts:
            part.requires_grad_(True)

    def features(self, z: Tensor, time: Tensor) -> Tensor:
        own, left, clock_1D, _ = self.parts
        return torch.tanh(own[z] + left[z.roll(1, 1)] + time.double()[:, None, None] * clock_1D)

    def logits(self, h: Tensor) -> Tensor:
        return h @ self.parts[3]

    def __deepcopy__(self, _: object) -> Small:
        made = Small(0)
        made.parts = [part.detach().clone() for part in self.parts]
        return made


@dataclass(frozen=True)
class Rows:
    tokens_BL: Tensor
    start: int
    total: int


TEXT = Rows(torch.randint(K, (B, L), generator=stream(0, "tokens")), 0, B)


def plain_loss(student: Small, teacher: Small, delta: float, tau: float) -> Tensor:
    """KL(student || teacher) from two full tables, the views made of the two numbers of each position."""
    noise = stream(1, "noise")
    t_B = stratified(B, noise, low=delta)
    u_BL = draw_u((B, L), "iid", generator=noise)
    v_BL = torch.rand(B, L, generator=noise, dtype=torch.float64)
    views = []
    for time_B in (t_B, t_B - delta):
        ratio_B = torch.exp(-(NOISE[0] + (NOISE[1] - NOISE[0]) * time_B) / 2)
        kept_B = unmask.GaussianDuality(K).cdf(ratio_B)
        alpha_B = (K * kept_B - 1) / (K - 1)
        rival_BL = (v_BL * (K - 1)).long()
        rival_BL += rival_BL >= TEXT.tokens_BL
        views.append((torch.where(u_BL < kept_B[:, None], TEXT.tokens_BL, rival_BL), -alpha_B.log().float()))
    log_p, log_q = (
        (model.logits(model.features(*view)) / heat).log_softmax(-1)
        for model, view, heat in zip((student, teacher), views, (1.0, tau), strict=True)
    )
    return (log_p.exp() * (log_p - log_q.detach())).sum(-1).mean()


@pytest.mark.parametrize(("delta", "tau"), [(1 / 512, 1.0), (0.25, 1.0), (0.25, 0.8)])
def test_loss_and_gradient_are_those_of_full_tables(delta: float, tau: float) -> None:
    student, teacher = Small(1), Small(2)
    objective = DCD(Checkpoint(teacher, Uniform(LogLinear(eps=0.0))), delta=delta, tau=tau, window=shares(NOISE))
    output = objective(student, TEXT, step=0, generator=stream(1, "noise"))
    loss = (output.loss_BL * output.weight_BL).sum() / output.weight_BL.sum()
    expected = plain_loss(student, teacher, delta, tau)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-7)  # the process's time is in float32
    for found, direct in zip(
        torch.autograd.grad(loss, student.parts), torch.autograd.grad(expected, student.parts), strict=True
    ):
        torch.testing.assert_close(found, direct, rtol=1e-5, atol=1e-8)
    assert output.region_BL.eq(1).all()


def test_parts_of_a_batch_give_what_the_whole_gives() -> None:
    student, objective = Small(1), DCD(Checkpoint(Small(2), Uniform()), delta=0.25)
    whole = objective(student, TEXT, step=0, generator=stream(1)).loss_BL
    parts = [
        objective(student, Rows(TEXT.tokens_BL[a:b], a, B), step=0, generator=stream(1)).loss_BL
        for a, b in ((0, 2), (2, B))
    ]
    assert torch.equal(whole, torch.cat(parts))


def test_its_views_are_the_argmax_of_one_latent_at_two_times() -> None:
    """How often a token is itself at s and at t, another at t alone, and the same other: 60,000 latents drawn whole."""
    n, window, (s, t) = 60_000, (-2.0, 1.0), (0.3, 0.7)
    generator = stream(3)
    eps_nK = torch.randn(n, K, generator=generator, dtype=torch.float64)
    z = []
    for time in (s, t):
        gamma = torch.tensor(window[0] + (window[1] - window[0]) * time)
        w_nK = torch.sigmoid(gamma).sqrt() * eps_nK
        w_nK[:, 0] += torch.sigmoid(-gamma).sqrt()
        z.append(w_nK.argmax(-1))
    process = Uniform(LogLinear(eps=0.0))
    s_1, t_1 = clock(torch.tensor([[s], [t]], dtype=torch.float64), shares(window), process, K)
    u_1n = torch.rand(1, n, generator=generator, dtype=torch.float64)
    pair = process.couple(
        torch.zeros(1, n, dtype=torch.int64), process.noise(u_1n, STATES, generator), s_1, t_1, STATES
    )

    def events_of(z_s: Tensor, z_t: Tensor) -> Tensor:
        events = [z_s == 0, z_t == 0, (z_s == 0) & (z_t != 0), (z_s != 0) & (z_s == z_t), (z_s != 0) & (z_s != z_t)]
        return torch.stack([event.double().mean() for event in events])

    drawn, ours = events_of(*z), events_of(pair.z_s[0], pair.z_t[0])
    assert bool((drawn[:4] > 0.05).all())
    assert float((drawn - ours).abs().max()) < 5 * (0.25 * 2 / n) ** 0.5
    assert drawn[4] == ours[4] == 0  # a token that is lost stays the same other one


def test_rounds_are_duos_and_a_perfect_copy_has_nothing_to_learn() -> None:
    objective = DCD(Checkpoint(Small(1), Uniform()), delta=0.0)
    assert float(objective(Small(1), TEXT, step=0, generator=stream(1)).loss_BL.detach().abs().max()) < 1e-12
    curriculum = DCD.curriculum
    assert [curriculum.delta(r) * 512 for r in range(1, 6)] == [1, 2, 4, 8, 16]
    assert {curriculum.tau(r) for r in range(1, 6)} == {1.0}
    assert shares(NOISE, 50258) == pytest.approx(WINDOW, abs=5e-5)
    assert objective.at(3, Curriculum(5), Small(2)).delta == 4 / 512


@pytest.mark.parametrize(
    ("process", "options", "says"),
    [
        (Masked(), {}, "DCD is for the uniform process, and the teacher's is masked"),
        (Uniform(), {"window": (0.1, 0.9)}, "window is two shares, falling"),
        (Uniform(), {"divergence": "kl_forward"}, "unknown divergence"),
        (Uniform(), {"delta": 1.0}, "delta is a gap in time"),
    ],
)
def test_a_mistake_is_one_line(process: object, options: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        DCD(Checkpoint(Small(1), process), **options)  # type: ignore[arg-type]
