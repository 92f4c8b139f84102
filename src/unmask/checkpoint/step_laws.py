"""Which step law goes with a model: its own, one by name, or a chain's head from a folder of its own."""

from __future__ import annotations

from pathlib import Path

from unmask.checkpoint.chain import CURE, with_head
from unmask.checkpoint.io import Checkpoint, stored
from unmask.checkpoint.locate import bundled, is_hub_name
from unmask.core.errors import UserError, unknown
from unmask.inference.chain import Chain
from unmask.inference.step_law import STEP_LAWS, StepLaw, make_step_law
from unmask.models.chain import ChainHead


def chosen_step_law(checkpoint: Checkpoint, asked: str | Path | StepLaw | None) -> StepLaw:
    """What was asked for, if it belongs to the model; by default the model's own."""
    if asked is None or asked == checkpoint.step_law.name:
        return checkpoint.step_law
    if not isinstance(asked, (str, Path)):
        return asked
    name = str(asked)
    if name == Chain.name and not Path(name).exists():
        raise UserError(
            f"this model has no chain of its own: give the folder of one that was trained for it, or {CURE}"
        )
    if name in STEP_LAWS and name != Chain.name:
        return make_step_law(name)
    if not (Path(name).exists() or name in bundled() or is_hub_name(name)):
        raise unknown("step law", name, [*STEP_LAWS, "the folder of a chain"])
    found = stored(name)
    head = found.model if isinstance(found.model, ChainHead) else getattr(found.step_law, "head", None)
    if not isinstance(head, ChainHead):
        raise UserError(f"{name} is a model without a chain: give the folder of one, or {CURE}")
    made = found.provenance if isinstance(found.model, ChainHead) else found.provenance.get("chain", {})
    return with_head(checkpoint, head, dict(made), name).step_law
