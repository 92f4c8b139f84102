"""What is checked of tensors before a network is built of them."""

import math

import pytest
import torch

from unmask.checkpoint.tensors import check_finite
from unmask.core.errors import UserError


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
