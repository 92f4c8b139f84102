"""How many rows go through a model at once where nobody says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from unmask.inference.ready import usual_batch


@pytest.mark.parametrize(
    ("length", "hidden", "rows"),
    [
        (1024, 768, 32),  # the published size: what the benchmarks ran
        (256, 192, 512),
        (256, 448, 256),
        (128, 64, 1024),  # never more
        (4096, 1536, 32),  # never fewer
    ],
)
def test_a_gpu_takes_more_rows_of_a_smaller_model(length: int, hidden: int, rows: int) -> None:
    model = SimpleNamespace(length=length, config=SimpleNamespace(hidden=hidden))
    assert usual_batch(model, torch.device("cuda")) == rows
    assert usual_batch(model, torch.device("cpu")) == 8
