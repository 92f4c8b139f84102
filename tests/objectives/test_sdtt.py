"""SDTT against a rollout written plainly, and the law of its targets against enumeration on a toy."""

import math

import pytest
import torch
from tests.objectives.subs import carry_over
from torch import Tensor

from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.objectives.distil.curriculum import Curriculum
from unmask.objectives.distil.sdtt import SDTT
from unmask.plans.plan import draw_u
from unmask.processes import Masked
from unmask.processes.schedule import LogLinear, stratified
from unmask.theory.oracle import Enumerated, sticky

MASK, LENGTH, ROWS = 11, 9, 6


def reverse_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def plain_loss(student, teacher, objective, text):
    """k ancestral steps of the teacher, position by position, with the noise the objective draws: t, u, then tokens."""
    noise = stream(1, "noise")
    t_B = stratified(ROWS, noise, low=objective.delta)
    u_BL = draw_u((ROWS, LENGTH), objective.plan, generator=noise)
    toss_BL = torch.rand(ROWS, LENGTH, generator=noise, dtype=torch.float64)
    gamma = objective.process.schedule.gamma
    masked = u_BL >= gamma(t_B)[:, None]
    z_t = torch.where(masked, MASK, text.tokens_BL)
    z, target = z_t.clone(), torch.zeros(ROWS, LENGTH, MASK + 1, dtype=torch.float64)
    for j in range(1, objective.k + 1):
        still = u_BL >= gamma(t_B - j * objective.delta / objective.k)[:, None]
        logits = teacher(z).detach()
        drawn = carry_over(logits, z, MASK).exp().cumsum(-1)
        sharp = carry_over(logits / objective.tau, z, MASK)
        for b, i in (z == MASK).nonzero().tolist():
            target[b, i] = sharp[b, i]  # the last step to touch a position has the last word
            if not still[b, i]:
                z[b, i] = int((drawn[b, i] <= toss_BL[b, i]).sum())
    return reverse_kl(carry_over(student(z_t), z_t, MASK), target)[masked].mean()


@pytest.mark.parametrize("options", [{}, {"tau": 0.8}, {"k": 1}, {"k": 3, "plan": "golden"}, {"delta": 0.9}], ids=str)
def test_loss_and_gradient_are_those_of_a_plain_rollout(random_dit, text, step_of, direct, options):
    student, teacher = random_dit(1), random_dit(2)
    objective = SDTT(teacher, **{"delta": 0.4, **options})
    expected = direct(student, plain_loss(student, teacher, objective, text))
    found = step_of(student, objective(student, text, step=0, generator=stream(1, "noise")))
    assert torch.allclose(found.loss, expected.loss, rtol=1e-10)
    assert torch.allclose(found.gradient, expected.gradient, atol=1e-10)
    assert objective.forwards == 3 + objective.k


class Bent:
    """The exact posterior, less sure: a student that is not its teacher."""

    def __init__(self, oracle: Enumerated) -> None:
        self.oracle, self.vocab_size, self.mask_id, self.length = oracle, 3, 2, oracle.length

    def features(self, z: Tensor) -> Tensor:
        return self.oracle.features(z).clamp(min=-50) * 0.5

    def logits(self, h: Tensor) -> Tensor:
        return h


def expected_loss(oracle: Enumerated, log_p_LV: Tensor, z: list[int], step: int, k: int) -> Tensor:
    """The mean loss of every position over all paths of the teacher's steps from view z, by enumeration.

    In the last k steps of the way to clean, a masked position is revealed in step j with probability 1/(k - j + 1).
    """
    log_q_LV = carry_over(oracle.features(torch.tensor([z])), torch.tensor([z]), 2)[0]
    settled_L = reverse_kl(log_p_LV, log_q_LV)
    masked = [i for i, token in enumerate(z) if token == 2]
    if step == k or not masked:
        return torch.where(torch.tensor(z) == 2, settled_L, 0.0)
    chance = 1 / (k - step + 1)
    total_L = torch.zeros(len(z), dtype=torch.float64)
    outcomes: list[tuple[float, list[int]]] = [(1.0, list(z))]
    for i in masked:  # each stays masked, or shows one of the two tokens
        q = log_q_LV[i].exp().tolist()
        outcomes = [
            (weight * share, [*view[:i], token, *view[i + 1 :]])
            for weight, view in outcomes
            for token, share in ((2, 1 - chance), (0, chance * q[0]), (1, chance * q[1]))
        ]
    for weight, view in outcomes:
        later_L = expected_loss(oracle, log_p_LV, view, step + 1, k)
        revealed_L = torch.tensor([i in masked and view[i] != 2 for i in range(len(z))])
        total_L += weight * torch.where(revealed_L, settled_L, later_L)
    return total_L


@pytest.mark.parametrize("k", [2, 3])
def test_the_targets_have_the_law_of_ancestral_steps(k):
    """From all masked to clean in one jump of the student, k steps of the teacher: 4 standard errors."""
    n, oracle = 30_000, Enumerated(sticky(3, 2))
    student = Bent(oracle)
    blank = torch.full((1, 3), 2)
    log_p_LV = carry_over(student.features(blank), blank, 2)[0]
    expected_L = expected_loss(oracle, log_p_LV, [2, 2, 2], 1, k)
    text = oracle.draw(n, stream(0))
    objective = SDTT(oracle, delta=1 - 1e-9, k=k, process=Masked(LogLinear(eps=0.0)))
    batch = type("Rows", (), {"tokens_BL": text, "start": 0, "total": n})
    loss_nL = objective(student, batch, step=0, generator=stream(2)).loss_BL
    error_L = (loss_nL.mean(0) - expected_L).abs()
    bound_L = 4 * loss_nL.std(0) / math.sqrt(n)
    assert bool((error_L < bound_L).all())
    assert bool((bound_L < 0.05 * expected_L).all())


def test_parts_of_a_batch_give_what_the_whole_gives(random_dit, text):
    student, objective = random_dit(1), SDTT(random_dit(2), delta=0.5)
    whole = objective(student, text, step=0, generator=stream(1))
    parts = [objective(student, text.part(a, b), step=0, generator=stream(1)) for a, b in ((0, 2), (2, ROWS))]
    assert torch.allclose(torch.cat([part.loss_BL for part in parts]), whole.loss_BL, atol=1e-13)
    assert torch.equal(torch.cat([part.weight_BL for part in parts]), whole.weight_BL)


def test_its_own_curriculum_ends_at_eight_student_steps(random_dit):
    """delta from 1/512 over seven rounds, no sharpening; in a race it takes the gaps and tau of another."""
    first = SDTT(random_dit(1), k=4)
    last = first.at(SDTT.curriculum.rounds, SDTT.curriculum, random_dit(2))
    assert (last.delta, last.tau, last.k) == (1 / 8, 1.0, 4)
    assert first.at(2, Curriculum(), random_dit(2)).tau == pytest.approx(0.93)


def test_mistakes_are_told_in_one_line(random_dit):
    with pytest.raises(UserError, match="at least k = 1 steps, not 0"):
        SDTT(random_dit(1), k=0)
    with pytest.raises(UserError, match="did you mean 'reverse'"):
        SDTT(random_dit(1), divergence="kl_reverse")
