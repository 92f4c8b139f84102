"""A chain's head and the model that it belongs to: put together, or refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from unmask.checkpoint.identity import weights_hash
from unmask.checkpoint.tensors import check_finite
from unmask.core.errors import UserError
from unmask.inference.chain import Chain
from unmask.models.chain import ChainConfig, ChainHead
from unmask.models.family import assemble, family_named

if TYPE_CHECKING:
    from unmask.checkpoint.io import Checkpoint

CURE = "train one for this model with `unmask train --objective chain --from MODEL`"


def with_its_model(adapter: Checkpoint, where: str, load: Callable[[str], Checkpoint]) -> Checkpoint:
    """The model that a head names, with the head as its step law."""
    assert isinstance(adapter.model, ChainHead)
    if not adapter.model.config.base:
        raise UserError(f"{where} is a chain beside a model that had no name: put it on that model, with step_law")
    try:
        base = load(adapter.model.config.base)
    except UserError as error:
        raise UserError(f"{where} is a chain, and the model beside which it works cannot be loaded: {error}") from error
    return with_head(base, adapter.model, dict(adapter.provenance), where)


def with_head(checkpoint: Checkpoint, head: Any, made: Mapping[str, Any], where: str) -> Checkpoint:
    """A model with a head as its step law, if it is the head's own."""
    if not isinstance(head, ChainHead):
        raise UserError(f"{where} is no chain: {CURE}")
    model, config = checkpoint.model, head.config
    _check_vocabulary(model, head, where)
    found = weights_hash(model)
    if config.base_weights != found:
        wanted, found = (str(digest)[:12] for digest in (config.base_weights, found))
        raise UserError(f"{where} is a chain of another model: of {config.base or 'one without a name'} with weights "
                        f"{wanted}, and these are {found}: {CURE}")  # fmt: skip
    return _with_law(checkpoint, head, made)


def _check_vocabulary(model: Any, head: ChainHead, where: str) -> None:
    theirs, mine = (f"{one.vocab_size:,} states, mask {one.mask_id}" for one in (head, model))
    if theirs != mine:
        raise UserError(f"{where} is a chain for another vocabulary ({theirs}) than the model's ({mine}): {CURE}")


def _with_law(checkpoint: Checkpoint, head: ChainHead, made: Mapping[str, Any]) -> Checkpoint:
    law = Chain(head.eval().requires_grad_(False), dict(made.get("chain", {})))
    provenance = {**checkpoint.provenance, "chain": dict(made)}
    return dataclasses.replace(checkpoint, step_law=law, provenance=provenance)


def with_own_head(checkpoint: Checkpoint, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> Any:
    """A model with the head that lies beside it in its folder, whatever precision the two were written in."""
    shape = {field.name: config[field.name] for field in dataclasses.fields(ChainConfig) if field.name in config}
    check_finite(tensors, where)
    head = assemble(family_named("chain"), ChainConfig(**shape), tensors, where)
    assert isinstance(head, ChainHead)
    made = dict(checkpoint.provenance).get("chain", {})
    _check_vocabulary(checkpoint.model, head, where)
    return _with_law(checkpoint, head, made)
