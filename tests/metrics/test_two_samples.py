"""Energy distance and gradient moments against closed forms, loops and autograd."""

import math

import pytest
import torch

from unmask.core.streams import stream
from unmask.metrics.score import Unavailable
from unmask.metrics.texts import Texts
from unmask.metrics.two_samples import energy_distance, gradients, mean_distance, moments


def normal(n: int, shift: float, key: str, width: int = 1) -> torch.Tensor:
    return shift + torch.randn(n, width, generator=stream(0, key), dtype=torch.float64)


def test_the_energy_distance_of_two_normal_laws() -> None:
    """E|X - Y| of N(0, 1) and N(m, 1) is 2 phi(m / s) s / 2 ..., s^2 = 2: a folded normal's mean."""

    def folded(m: float) -> float:
        s = math.sqrt(2)
        return s * math.sqrt(2 / math.pi) * math.exp(-(m**2) / (2 * s**2)) + m * math.erf(m / (s * math.sqrt(2)))

    found = energy_distance(normal(1500, 0.0, "x"), normal(1500, 1.0, "y"))
    assert found.low < 2 * (folded(1.0) - folded(0.0)) < found.high
    assert found.value == pytest.approx(2 * (folded(1.0) - folded(0.0)), abs=0.06)


@pytest.mark.parametrize("distance", [energy_distance, mean_distance])
def test_equal_laws_are_at_0_in_the_mean(distance) -> None:
    """Without bias, though few texts: with a text's distance to itself counted, the mean would be 1 / n too large."""
    found = [distance(normal(6, 0.0, f"x{i}", 3), normal(6, 0.0, f"y{i}", 3)).value for i in range(300)]
    error = torch.tensor(found).std() / math.sqrt(len(found))
    assert abs(sum(found) / len(found)) < 3 * float(error)
    assert min(found) < 0 < max(found)


def test_both_are_what_loops_over_pairs_give() -> None:
    x, y = normal(5, 0.0, "x", 2), normal(4, 1.0, "y", 2)

    def mean(kernel, a, b, same: bool) -> float:
        pairs = [(i, j) for i in range(len(a)) for j in range(len(b)) if not (same and i == j)]
        return sum(float(kernel(a[i], b[j])) for i, j in pairs) / len(pairs)

    def distance(kernel) -> float:
        return mean(kernel, x, x, True) + mean(kernel, y, y, True) - 2 * mean(kernel, x, y, False)

    assert energy_distance(x, y).value == pytest.approx(distance(lambda a, b: -(a - b).norm()))
    assert mean_distance(x, y).value == pytest.approx(distance(lambda a, b: a @ b))
    with pytest.raises(Unavailable, match="at least 2"):
        energy_distance(x[:1], y)


def test_the_intervals_hold_what_they_should() -> None:
    """|E X - E Y|^2 of laws one apart in each of 2 dimensions is 2; 95 of 100 intervals hold it."""
    hits = 0
    for trial in range(100):
        found = mean_distance(normal(60, 1.0, f"a{trial}", 2), normal(60, 0.0, f"b{trial}", 2))
        hits += found.low <= 2 <= found.high
    assert hits >= 88


def test_moments_are_those_of_the_gradient_of_an_output_bias() -> None:
    logits_TV = torch.randn(7, 5, generator=stream(0, "logits"), dtype=torch.float64)
    next_T = torch.tensor([0, 4, 4, 1, 2, 0, 3])
    first_V, second = moments(logits_TV, next_T)
    rows = []
    for t in range(7):
        bias_V = torch.zeros(5, dtype=torch.float64, requires_grad=True)
        loss = -(logits_TV[t] + bias_V).log_softmax(-1)[next_T[t]]
        rows.append(torch.autograd.grad(loss, bias_V)[0])
    g_TV = torch.stack(rows)
    torch.testing.assert_close(first_V, g_TV.mean(0))
    assert float(second) == pytest.approx(float(g_TV.square().sum(1).mean()))


def test_a_judge_that_is_right_has_a_first_moment_of_0(letters, hand_made) -> None:
    """Texts of the judge's own law, all of them, each with its probability; and a judge is read from its start."""
    tokenizer = letters(4)
    judge, made = hand_made(tokenizer)
    every = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    first_NV, _ = gradients(judge, Texts(every, tokenizer))
    expected = torch.zeros(4, dtype=torch.float64)
    whole = 0.0
    for (a, b), first_V in zip(every.tolist(), first_NV, strict=True):
        p = float((made.after([judge.start_id])[a] + made.after([judge.start_id, a])[b]).exp())
        expected += p * first_V
        whole += p
    # texts with an end of a document are left out, and what the judge gives them is missing
    start_V = made.after([judge.start_id]).exp()
    missing = torch.zeros(4, dtype=torch.float64)
    for a in range(4):
        after_V = made.after([judge.start_id, a]).exp()
        for b in range(4):
            if 3 in (a, b):
                g_V = (start_V + after_V).clone()
                g_V[a] -= 1
                g_V[b] -= 1
                missing += float(start_V[a] * after_V[b]) * g_V / 2
    assert 0 < whole < 1
    torch.testing.assert_close(expected + missing, torch.zeros(4, dtype=torch.float64), atol=1e-9, rtol=0)
