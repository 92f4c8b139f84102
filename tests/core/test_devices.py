"""Tensors on their way to a device."""

import pytest
import torch

from unmask.core.devices import to_device


@pytest.mark.cuda
def test_a_copy_to_the_gpu_is_only_queued():
    values = torch.arange(1000)
    torch.cuda.set_sync_debug_mode("error")
    try:
        there = to_device(values, "cuda")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(there.cpu(), values)
