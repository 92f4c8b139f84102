"""A model spread over processes: plain, copied (DDP) or sharded (FSDP2). The model file knows nothing of it.

Objectives call `student.features` and `student.logits`, not `student(...)`. DDP acts when a module's forward runs, so
the copied model sits inside a module whose forward calls the objective; FSDP2 must know which methods are forwards.

Gradients are *averaged* over processes by both; a caller that wants their sum multiplies by `world`. Weights and
gradients stay float32 everywhere, so that all three kinds compute the same numbers up to the order of sums.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unmask.core.ranks import Ranks

Kind = Literal["auto", "ddp", "fsdp"]


class _Calls(nn.Module):
    """A module whose forward is any function of the student."""

    def __init__(self, student: nn.Module) -> None:
        super().__init__()
        self.student = student

    def forward(self, function: Callable[[nn.Module], Any]) -> Any:
        return function(self.student)


class Wrapped:
    """A student on one or many processes. `student` has the parameters (DTensors if sharded) under their own names."""

    def __init__(self, student: nn.Module) -> None:
        self.student = student

    def call(self, function: Callable[[nn.Module], Any]) -> Any:
        """function(student), as part of a training step. What it returns must hold its tensors in tuples or dicts."""
        return function(self.student)

    def accumulating(self, last: bool) -> AbstractContextManager[None]:
        """Around one micro-batch's forward and backward: gradients are exchanged after the last one only."""
        return nullcontext()

    def reshard(self) -> None:
        """Let go of weights gathered for a forward pass without a backward: call before changing weights by hand."""


class _Copied(Wrapped):
    def __init__(self, student: nn.Module) -> None:
        super().__init__(student)
        with warnings.catch_warnings():  # newer torch has another word for this switch, older torch only this one
            warnings.simplefilter("ignore", FutureWarning)
            # device_ids stays None: inputs are already where they belong
            self._ddp = nn.parallel.DistributedDataParallel(_Calls(student), broadcast_buffers=False)

    def call(self, function: Callable[[nn.Module], Any]) -> Any:
        return self._ddp(function)

    def accumulating(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self._ddp.no_sync()


class _Sharded(Wrapped):
    def __init__(self, student: nn.Module, ranks: Ranks, blocks: Iterable[nn.Module]) -> None:
        super().__init__(student)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        for parameter in student.parameters():  # each process keeps a part of its own copy: let all copies be one
            ranks.broadcast(parameter.data)
        mesh = init_device_mesh(ranks.device.type, (ranks.world,))
        for block in blocks:
            fully_shard(block, mesh=mesh)
        self._root: Any = fully_shard(student, mesh=mesh)
        for method in {"features", "logits", "embed"} & set(dir(student)):  # besides `forward`
            register_fsdp_forward_method(student, method)

    @contextmanager
    def accumulating(self, last: bool) -> Iterator[None]:
        self._root.set_requires_gradient_sync(last)
        yield

    def reshard(self) -> None:
        self._root.reshard()


def wrap(student: nn.Module, ranks: Ranks, kind: Kind = "auto", blocks: Iterable[nn.Module] = ()) -> Wrapped:
    """Spread a student over the processes: auto is DDP, or nothing for one alone; FSDP2 gathers `blocks` one at a
    time."""
    if kind == "fsdp":
        return _Sharded(student, ranks, blocks)
    return _Copied(student) if ranks.world > 1 else Wrapped(student)


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor (asked this way because importing DTensor costs a second)."""
    return hasattr(tensor, "placements")


def whole(tensor: Any) -> Tensor:
    """A plain tensor with all the values of one that may be sharded; every process must ask for it."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """The 2-norm of all values of all tensors, shards on other processes included."""
    return whole(torch.nn.utils.get_total_norm(tensors))
