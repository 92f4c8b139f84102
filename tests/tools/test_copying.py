"""What steps alone say of a copy is what a sampler with an exact denoiser does."""

import pytest
import torch
from tools.results.copying import DIGITS, pairs, right, run

from unmask.checkpoint.io import Checkpoint
from unmask.plans.grids import make_grid
from unmask.plans.plan import make_plan
from unmask.processes.schedule import LogLinear
from unmask.sampling.verbs import sample

N, LENGTH = 3000, 9


class Exact:
    """Digits, of which those in one of `copies` are equal: it knows a digit as soon as it sees one of its copies."""

    vocab_size, mask_id, length = DIGITS + 1, DIGITS, LENGTH

    def __init__(self, copies):
        self.copies = copies

    def features(self, z_BL):
        logits_BLV = torch.zeros(*z_BL.shape, DIGITS + 1, dtype=torch.float64)
        for digit in self.copies:
            seen_BC = z_BL[:, list(digit)]
            known_B1 = seen_BC.masked_fill(seen_BC == DIGITS, -1).amax(1, keepdim=True)
            surely_BV = torch.where(known_B1 < 0, 0.0, -torch.inf).double().expand(-1, DIGITS + 1).clone()
            surely_BV.scatter_(1, known_B1.clamp(min=0), 0.0)
            logits_BLV[:, list(digit)] = surely_BV[:, None]
        return logits_BLV

    def logits(self, h):
        return h


@pytest.mark.parametrize("kind", [pairs, run])
@pytest.mark.parametrize(("plan", "lag"), [("iid", 2), ("comb", 3), ("stride", 3), ("golden", 1)])
def test_the_chance_of_a_right_copy_is_that_of_the_sampler(plan, lag, kind):
    copies, generators = kind(lag, 2), [torch.Generator().manual_seed(i) for i in range(N)]
    places = max(place for digit in copies for place in digit) + 1
    blank_NL = torch.ones(N, LENGTH, dtype=torch.bool)
    step_NL = make_plan(plan).assign(blank_NL, make_grid("uniform", 3), LogLinear(), generators).step_BL
    found_N = right(step_NL[:, :places], copies)  # one place alone
    drawn_NL = sample(Checkpoint(Exact(copies)), N, 3, plan=plan, grid="uniform", batch=N, device="cpu").tokens
    same_N = torch.stack([(drawn_NL[:, list(d)] == drawn_NL[:, d[0], None]).all(1) for d in copies]).all(0).double()
    error = (found_N.var() + same_N.var()).div(N).sqrt()
    assert abs(float(found_N.mean() - same_N.mean())) < 4 * float(error) + 1e-9


def test_copies_stand_as_they_are_said_to():
    assert pairs(2, 3) == [range(0, 3, 2), range(1, 4, 2), range(4, 7, 2)]  # ab ab c. c
    assert [list(digit) for digit in run(2, 3)] == [[0, 2, 4], [1, 3]]
