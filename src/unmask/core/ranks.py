"""Which process this is, on which device, and how processes add up numbers or tell each other things.

With one process everything here is a no-op, so that callers have no second path. Messages travel as JSON.
"""

from __future__ import annotations

import atexit
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from unmask.core.errors import UserError, check_name

PATIENCE = timedelta(minutes=30)  # how long a process waits for the others before it gives up


@dataclass(frozen=True)
class Ranks:
    """This process among `world` others; `grouped` says that a torch process group stands behind it."""

    rank: int
    world: int
    device: torch.device
    grouped: bool = False

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all processes, in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def broadcast(self, tensor: Tensor) -> Tensor:
        """The first process's tensor on every process, in place."""
        if self.world > 1:
            dist.broadcast(tensor, src=0)
        return tensor

    def gather(self, value: Any) -> list[Any]:
        """What each process said (JSON values), by rank. Also a barrier: nobody leaves before all came."""
        if self.world == 1:
            return [value]
        raw = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(self.device)
        sizes = torch.zeros(self.world, dtype=torch.int64, device=self.device)
        sizes[self.rank] = raw.numel()
        self.sum(sizes)
        padded = torch.zeros(int(sizes.max()), dtype=torch.uint8, device=self.device)
        padded[: raw.numel()] = raw
        heard = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(heard, padded)
        said = zip(torch.stack(heard).cpu().numpy(), sizes.tolist(), strict=True)  # texts and features: many megabytes
        return [json.loads(part[:size].tobytes()) for part, size in said]

    def together(self, work: Callable[[], Any]) -> list[Any]:
        """Do `work` on every process and gather its JSON results; a user's error on one is raised on all of them."""
        try:
            said = {"value": work()}
        except UserError as error:
            said = {"error": str(error)}
        heard = self.gather(said)
        for answer in heard:
            if "error" in answer:
                raise UserError(answer["error"])
        return [answer["value"] for answer in heard]

    def on_first(self, work: Callable[[], Any]) -> Any:
        """Do `work` on the first process only; everybody gets its JSON result, or its error."""
        return self.together(lambda: work() if self.first else None)[0]


def interleaved(shares: Sequence[Sequence[Any]]) -> list[Any]:
    """What was dealt out as `items[rank::world]`, in its order again."""
    items: list[Any] = [None] * sum(map(len, shares))
    for rank, share in enumerate(shares):
        items[rank :: len(shares)] = share
    return items


def is_first() -> bool:
    """Whether this is the process that speaks, known before and after the processes are joined."""
    return os.environ.get("RANK", "0") == "0"


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    """A device by name; "auto" takes CUDA, then MPS, then the CPU. On CUDA each local process has its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name == "cuda":
        if not torch.cuda.is_available():
            raise UserError("device cuda: torch sees no CUDA device here; use --device cpu")
        count = torch.cuda.device_count()
        if local_rank >= count:
            raise UserError(
                f"process {local_rank} of this machine has no GPU of its own, there are {count}: "
                f"start torchrun with --nproc_per_node {count}"
            )
        return torch.device("cuda", local_rank)
    if name == "mps" and not torch.backends.mps.is_available():
        raise UserError("device mps: torch sees no Apple GPU here; use --device cpu")
    check_name("device", name, ("auto", "cpu", "cuda", "mps"))
    return torch.device(name)


@contextmanager
def joined(device: str = "auto") -> Iterator[Ranks]:
    """Join the processes that torchrun started, or stand alone.

    Who has joined stays in the group until the process ends. To leave and join again is a race, which `connection
    refused` ends: torchrun's store still tells the addresses of the group before.
    """
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if not (dist.is_available() and dist.is_initialized()):
        if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
            yield Ranks(0, 1, pick_device(device))
            return
        _join(pick_device(device, local))
    yield Ranks(dist.get_rank(), dist.get_world_size(), pick_device(device, local), grouped=True)


def _join(place: torch.device) -> None:
    if place.type == "mps":
        raise UserError("several processes need CUDA or the CPU: use --device cpu")
    if place.type == "cuda":
        torch.cuda.set_device(place)
    dist.init_process_group(
        "nccl" if place.type == "cuda" else "gloo", timeout=PATIENCE, device_id=place if place.type == "cuda" else None
    )
    atexit.register(part)


def part() -> None:
    """Leave the group, at the end of the process.

    First gloo's threads let go of what they hold, for which they need Python's lock. The group's destructor waits for
    them with the lock in its hand: right after the last word, one run in four of torch 2.6 would never end.
    """
    if dist.is_available() and dist.is_initialized():
        time.sleep(0.05)
        dist.destroy_process_group()
