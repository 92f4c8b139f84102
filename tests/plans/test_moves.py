"""What is known before the first step is on the device before it, and what a device lacks is not asked of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from unmask.checkpoint.io import Checkpoint
from unmask.core.streams import stream
from unmask.inference import categorical
from unmask.inference.categorical import Draw, Law
from unmask.inference.ready import make_ready
from unmask.plans.confidence import TIE
from unmask.plans.grids import make_grid
from unmask.plans.moves import keep_most_confident, locked_moves
from unmask.plans.plan import Blocks, Confidence, make_plan
from unmask.processes.schedule import LogLinear
from unmask.sampling.teacher_forcing import teacher_force
from unmask.sampling.verbs import sample
from unmask.theory.exact import _most_confident
from unmask.theory.oracle import Enumerated, sticky

B, L, STEPS = 5, 12, 9


class Transfers(TorchDispatchMode):
    """Counts tensors that go to another device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func is torch.ops.aten._to_copy.default and (kwargs or {}).get("device") is not None
        return func(*args, **(kwargs or {}))


def test_locked_moves_are_on_the_device_before_the_first_step() -> None:
    generators = [stream(0, "reveal", i) for i in range(B)]
    blank_BL = torch.ones(B, L, dtype=torch.bool)
    assigned = make_plan("iid").assign(blank_BL, make_grid("uniform", STEPS), LogLinear(), generators)
    with Transfers() as transfers:
        moves = locked_moves(assigned, torch.device("meta"))
        first = next(moves)
        before = transfers.count
        rest = list(moves)
    assert before == transfers.count > 0
    for move in (first, *rest):
        assert {tensor.device.type for tensor in (move.reveal_M, move.rows_R, move.local_M)} == {"meta"}
    rows = [move.rows_R.tolist() for move in locked_moves(assigned, torch.device("cpu"))]
    assert rows == [[b for b in range(B) if (assigned.step_BL[b] == k).any()] for k in range(STEPS)]
    assert any(len(some) < B for some in rows), "in some step a row rests"


def test_the_lowest_number_wins_a_tie_whatever_rounding_says() -> None:
    """Two rows of four: the third of the first row stands out, everything else ties but for a rounding error."""
    error_M = TIE / 10 * torch.tensor([0, 1, 0, 2, -1, 0, 1, -1])
    surety_M = torch.tensor([0.5, 0.5, 0.9, 0.5, 0.1, 0.1, 0.1, 0.1], dtype=torch.float64) + error_M
    row_M = torch.arange(8) // 4
    tie_M = torch.tensor([0.7, 0.2, 0.9, 0.4, 0.3, 0.8, 0.1, 0.6])
    keep_M = keep_most_confident(surety_M, row_M, torch.tensor([2, 3]), tie_M, None)
    assert keep_M.view(2, 4).tolist() == [[False, True, True, False], [True, False, True, True]]
    apart_M = surety_M.clone()
    apart_M[3] += 2 * TIE  # no tie any more
    assert keep_most_confident(apart_M, row_M, torch.tensor([2, 0]), tie_M, None).nonzero()[:, 0].tolist() == [2, 3]


@dataclass(frozen=True)
class Margin(Confidence):
    """An adaptive plan as docs/extending.md says to write one."""

    name: ClassVar[str] = "margin"

    def confidence(self, log_p_MV: Tensor) -> Tensor:
        top_M2 = log_p_MV.exp().topk(2).values
        return top_M2[..., 0] - top_M2[..., 1]


@pytest.mark.parametrize("plan", [Margin(), Margin(threshold=0.3), Blocks(3, Margin())])
def test_an_adaptive_plan_of_ones_own_is_a_name_and_a_confidence(plan: Margin | Blocks) -> None:
    source, free = Checkpoint(Enumerated(sticky(length=6, tokens=3))), plan == Margin(threshold=0.3)
    drawn = sample(source, 4, None if free else 6, plan=plan)
    rule = drawn.record["plan"].get("inner", drawn.record["plan"])
    assert (rule["name"], rule["threshold"]) == ("margin", 0.3 if free else None)
    body = make_ready(source.model, torch.device("cpu"))
    forced = teacher_force(body, drawn.tokens, plan, make_grid("rank", 6), LogLinear())
    assert bool(forced.log_q_TL.isfinite().all())


class Narrow(Tensor):
    """Numbers on a device without float64, such as MPS: they are widened only after they have left it."""

    def double(self) -> Tensor:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64")

    def to(self, device: torch.device) -> Tensor:
        return self.as_subclass(Tensor).to(device)

    def cpu(self) -> Tensor:
        return self.as_subclass(Tensor)


def test_log_q_is_widened_where_the_state_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn in fp32 on the model's device, kept in float64 on the draw's."""
    source, draw, shape = Checkpoint(Enumerated(sticky(length=6, tokens=3))), categorical.draw, categorical.shape_logits
    expected = sample(source, 4, 3, draw="fp32")

    def there(*given: Any) -> Draw:
        drawn = draw(*given)
        return Draw(drawn.token_M, drawn.log_q_M.as_subclass(Narrow), drawn.dtype)

    monkeypatch.setattr(categorical, "draw", there)
    found = sample(source, 4, 3, draw="fp32")
    assert found.log_q.dtype == torch.float64
    assert torch.equal(found.log_q, expected.log_q)

    monkeypatch.setattr(categorical, "shape_logits", lambda *given: shape(*given).as_subclass(Narrow))
    body = make_ready(source.model, torch.device("cpu"))
    law, grid = Law(dtype="fp32"), make_grid("rank", 3)
    forced = teacher_force(body, found.tokens, make_plan("comb"), grid, LogLinear(), law=law)
    torch.testing.assert_close(forced.log_q_TL, found.log_q, atol=1e-5, rtol=1e-5)


def test_near_ties_are_one_rule_in_the_sampler_and_in_its_exact_law():
    """Whoever is within TIE of the last one that fits ties with it, and no chain of near ties reaches further."""
    values = torch.tensor([0.5, 0.5 - 8e-6, 0.5 - 16e-6, 0.3, 0.9], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for quota, sure, tied in ((1, {4}, set()), (2, {4}, {0, 1}), (3, {4}, {0, 1, 2}), (4, {4, 0}, {1, 2})):
        choice = _most_confident(values[None], quota)
        law = {i for i in range(5) if choice.sure_NL[0, i]}, {i for i in range(5) if choice.tied_NL[0, i]}
        count = torch.zeros(5)
        for _ in range(400):
            tie_M = torch.rand(5, generator=generator)
            kept = keep_most_confident(values, torch.zeros(5, dtype=torch.int64), torch.tensor([quota]), tie_M, None)
            assert int(kept.sum()) == quota
            count += kept
        ever, always = ({i for i in range(5) if count[i] >= least} for least in (1, 400))
        assert (law[0] | law[1]) == (sure | tied) == ever
        assert law[0] <= always
        share = (quota - len(law[0])) / max(1, len(law[1]))
        for i in law[1]:
            assert abs(float(count[i]) / 400 - share) < 4 * (0.25 / 400) ** 0.5
