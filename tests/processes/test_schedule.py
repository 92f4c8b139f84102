"""Schedules against numerical differentiation, their inverses, and the ELBO weight they promise."""

import pytest
import torch

from unmask.core.errors import UserError
from unmask.processes.schedule import Cosine, LogLinear, schedule_named

SCHEDULES = [LogLinear(), LogLinear(0.0), Cosine(), Cosine(0.01)]
T = torch.linspace(0.001, 0.999, 201, dtype=torch.float64)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_inverse_derivative_and_weight_agree_with_gamma(schedule: LogLinear | Cosine) -> None:
    h = 1e-6
    slope = (schedule.gamma(T + h) - schedule.gamma(T - h)) / (2 * h)
    torch.testing.assert_close(schedule.inverse(schedule.gamma(T)), T, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(schedule.derivative(T), slope, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(schedule.elbo_weight(T), -slope / (1 - schedule.gamma(T)), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_gamma_falls_from_one_to_eps(schedule: LogLinear | Cosine) -> None:
    ends = schedule.gamma(torch.tensor([0.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(ends, torch.tensor([1.0, schedule.eps], dtype=torch.float64))
    assert (schedule.gamma(T).diff() < 0).all()


def test_unknown_schedules_and_bad_eps_are_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'cosine'"):
        schedule_named("cosin")
    with pytest.raises(UserError, match="eps"):
        LogLinear(1.0)
