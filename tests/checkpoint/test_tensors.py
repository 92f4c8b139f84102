"""What is checked of tensors before a network is built of them."""

import math
import time

import pytest
import torch

from unmask.checkpoint.tensors import at_most_these, check_finite
from unmask.core.errors import UserError
from unmask.models.dit.network import DiT, DiTConfig


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
@pytest.mark.parametrize(("value", "said"), [(math.nan, "NaN in 'b'"), (math.inf, "infinite"), (-math.inf, "infinite")])
def test_one_bad_weight_is_refused(dtype: torch.dtype, value: float, said: str) -> None:
    weights = {"a": torch.arange(5), "none": torch.empty(0), "b": torch.ones(30, 7, dtype=dtype)}
    check_finite(weights, "here")
    if dtype == torch.float8_e4m3fn and math.isinf(value):
        return  # has no infinity
    weights["b"][17, 3] = value
    with pytest.raises(UserError, match=f"here holds .*{said}"):
        check_finite(weights, "here")


def test_a_config_of_a_billion_blocks_is_stopped_at_once() -> None:
    small = DiTConfig(vocab_size=5, length=8, hidden=16, blocks=2, heads=2, cond=4)
    with torch.device("meta"):
        weights = DiT.from_config(small).state_dict()
        with at_most_these(weights, "here"):
            assert DiT.from_config(small).state_dict().keys() == weights.keys()
        start = time.monotonic()
        with pytest.raises(UserError, match="here does not fit its config"), at_most_these(weights, "here"):
            DiT.from_config(DiTConfig(**{**vars(small), "blocks": 10**9}))
        assert time.monotonic() - start < 60
        DiT.from_config(small)  # nothing is counted outside
