"""Tensors on their way to a device."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A CPU tensor on `device`, without waiting for the device's queue.

    A copy from pageable memory makes the host wait until all earlier work on a CUDA device is done; one from pinned
    memory is only queued. Torch keeps the pinned block until the copy has been made.
    """
    if torch.device(device).type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
