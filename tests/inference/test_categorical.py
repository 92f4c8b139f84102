"""The exact draw against full tables: its law, its log q, its tail, its dtype."""

import pytest
import torch

from unmask.core.errors import UserError
from unmask.inference.categorical import Draw, Law, draw, shape_logits

V, MASK = 700, 699


def uniforms(n: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def logits(seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    return scale * torch.randn(1, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_draw_is_the_inverse_of_the_whole_cumulative_table() -> None:
    n = 5000
    drawn = draw(logits().expand(n, V), uniforms(n), MASK, Law())
    p_V = shape_logits(logits(), MASK, Law()).softmax(-1)[0]
    assert torch.equal(drawn.token_M, torch.searchsorted(p_V.cumsum(0), uniforms(n), right=True))
    torch.testing.assert_close(drawn.log_q_M, p_V.log()[drawn.token_M], rtol=1e-12, atol=1e-12)
    assert not bool((drawn.token_M == MASK).any())


@pytest.mark.parametrize("u", [0.0, 1 - 2.0**-53])
def test_the_ends_of_the_noise_find_a_token_with_weight(u: float) -> None:
    sparse = torch.full((1, V), -torch.inf, dtype=torch.float64)
    sparse[0, 3], sparse[0, 513] = 0.0, -30.0
    drawn = draw(sparse, torch.tensor([u], dtype=torch.float64), MASK, Law())
    assert drawn.token_M.item() in (3, 513)
    assert drawn.log_q_M.isfinite().all()


def test_float64_reaches_a_tail_that_fp32_cannot() -> None:
    """A state of probability 2^-40 exists for a float64 uniform; the dtype reported is the one that made it so."""
    rare = torch.full((1, V), -torch.inf, dtype=torch.float32)
    rare[0, 0], rare[0, 1] = 0.0, -40 * torch.log(torch.tensor(2.0))
    last = torch.tensor([1 - 2.0**-45], dtype=torch.float64)
    exact, single = draw(rare, last, MASK, Law()), draw(rare, last, MASK, Law(dtype="fp32"))
    assert (exact.token_M.item(), exact.dtype) == (1, torch.float64)
    assert single.dtype == torch.float32
    in_middle = torch.tensor([1 - 2.0**-39], dtype=torch.float64)
    assert draw(rare, in_middle, MASK, Law()).token_M.item() == 0


def kept(law: Law) -> list[int]:
    return shape_logits(logits(), MASK, law)[0].isfinite().nonzero()[:, 0].tolist()


def test_top_k_and_top_p_keep_what_they_say() -> None:
    p_V = shape_logits(logits(), MASK, Law()).softmax(-1)[0]
    order = p_V.argsort(descending=True).tolist()
    assert sorted(order[:5]) == kept(Law(top_k=5))
    for top_p in (1e-9, 0.3, 0.9):
        mass, nucleus = 0.0, []
        for token in order:
            nucleus.append(token)
            mass += float(p_V[token])
            if mass >= top_p:
                break
        assert sorted(nucleus) == kept(Law(top_p=top_p))
    ties = torch.zeros(1, V)
    assert shape_logits(ties, MASK, Law(top_k=3)).isfinite().sum() == 3


def test_log_q_is_that_of_the_truncated_law() -> None:
    law = Law(temperature=0.7, top_p=0.5)
    drawn: Draw = draw(logits().expand(50, V), uniforms(50), MASK, law)
    p_V = shape_logits(logits(), MASK, law).softmax(-1)[0]
    torch.testing.assert_close(drawn.log_q_M, p_V[drawn.token_M].log())


@pytest.mark.parametrize(
    "bad",
    [{"temperature": float("nan")}, {"temperature": -1}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": 0}, {"dtype": "fp16"}],
)
def test_laws_that_make_no_sense_are_refused(bad: dict) -> None:
    with pytest.raises(UserError):
        Law(**bad)


def test_temperature_0_is_a_point_mass_on_the_likeliest_token_that_is_no_mask() -> None:
    logits_MV = torch.randn(50, 9, generator=torch.Generator().manual_seed(0))
    logits_MV[:, 4] += 10  # the mask
    drawn = draw(logits_MV, torch.rand(50, generator=torch.Generator().manual_seed(1)), 4, Law(temperature=0))
    expected_M = logits_MV.masked_fill(torch.arange(9) == 4, -torch.inf).argmax(-1)
    assert torch.equal(drawn.token_M, expected_M)
    assert not bool(drawn.log_q_M.any())
