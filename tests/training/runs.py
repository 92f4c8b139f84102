"""What the tests of training look at: weights in one row, the lines of a run's log."""

import json
from pathlib import Path
from typing import Any

import torch

from unmask.checkpoint.io import Checkpoint
from unmask.models.dit.network import DiT


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def lines(run: Path, **needed: Any) -> list[dict[str, Any]]:
    """Lines of the log, those with these values."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if all(record.get(key) == value for key, value in needed.items())]


def metrics(run: Path, key: str) -> dict[int, Any]:
    """A number by step."""
    return {record["step"]: record[key] for record in lines(run) if key in record}


def student_of(teacher: Checkpoint) -> DiT:
    """A model of its own with the teacher's weights."""
    student = DiT.from_config(teacher.model.config)
    student.load_state_dict(teacher.model.state_dict())
    return student
