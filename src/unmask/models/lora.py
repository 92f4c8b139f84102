"""LoRA adapters through peft: put on a network, taken off, merged into its weights, in peft's own names.

An adapted network is the network itself with some of its linear layers replaced by peft's, so it is still of its family
and everything asks it as before. Its base weights are frozen and shared with whatever it was made from; only the
adapter trains, is averaged and is saved. The family says which layers take one.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unmask.core.errors import UserError
from unmask.models.family import family_of, plain
from unmask.models.parameters import tensors_of

PREFIX = "base_model.model."  # peft's, before every name in its files
SAMPLED = 64  # values of each tensor that a fingerprint looks at
_OWN = re.compile(r"\.lora_\w+\.")  # in the name of an adapter's own tensor


@dataclass(frozen=True)
class Lora:
    """A LoRA adapter: a change of low rank beside the linear layers of a frozen network.

    Adapter:
        lora: train a LoRA adapter on the frozen model; the result is a small folder that names its base
        lora_rank: rank of the change
        lora_alpha: the change is multiplied by lora_alpha / lora_rank
        lora_dropout: share of features dropped on their way into the adapter
    """

    lora: bool = False
    lora_rank: int = 32
    lora_alpha: float = 64.0
    lora_dropout: float = 0.05

    def __post_init__(self) -> None:
        changed = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        if not self.lora and changed:
            raise UserError(f"{changed[0]} is a setting of a LoRA adapter: add --lora")
        if self.lora_rank < 1 or not self.lora_alpha > 0 or not 0 <= self.lora_dropout < 1:
            raise UserError("lora_rank must be at least 1, lora_alpha above 0, lora_dropout at least 0 and below 1")


@dataclass(frozen=True)
class Base:
    """The network that an adapter was made for, and what that was loaded as."""

    source: str | None
    fingerprint: str


def peft() -> Any:
    """The library, with the extra `models`."""
    try:
        import peft
    except ImportError as error:
        raise UserError("adapters need the library peft: pip install 'unmask[models]'") from error
    return peft


def base_of(model: Any) -> Base | None:
    """What the adapter of a network was made for; None: it has no adapter."""
    return getattr(plain(model), "adapter_base", None)


def with_adapter(model: Any, lora: Lora, source: str | None, seed: int) -> Any:
    """A network with a fresh adapter, which does nothing yet; its other weights are the model's own, frozen."""
    if base_of(model):
        raise UserError("this model has an adapter already, which trains on as it is: leave out --lora, or merge it "
                        "first (unmask convert --merge)")  # fmt: skip
    family = family_of(model)
    targets = list(family.lora_targets(model))
    if not targets:
        raise UserError(f"the family {family.name} names no layers that take LoRA: its lora_targets says which")
    config = peft().LoraConfig(
        r=lora.lora_rank, lora_alpha=lora.lora_alpha, lora_dropout=lora.lora_dropout, target_modules=targets,
        base_model_name_or_path=source,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return injected(model, config, source)


def injected(model: Any, config: Any, source: str | None) -> Any:
    """A network that shares this one's weights, frozen, with the adapter of a peft config in it."""
    base = Base(source, fingerprint(model))
    adapted = _sharing_weights(plain(model), trained=False)
    peft().inject_adapter_in_model(_renamed(config, adapted, back=True), adapted)
    for name, value in adapted.named_parameters():
        if _OWN.search(f".{name}"):
            value.data = value.data.to(torch.promote_types(value.dtype, torch.float32))
            value.requires_grad_(True)
    adapted.adapter_base = base
    return adapted.train(model.training)


def config_of(model: Any) -> Any:
    """peft's config of a network's adapter, in the names of its library."""
    return _renamed(plain(model).peft_config["default"], model)


def adapter_tensors(model: Any) -> dict[str, Tensor]:
    """The adapter's tensors under peft's names."""
    found = peft().get_peft_model_state_dict(plain(model), save_embedding_layers=False)
    return {f"{PREFIX}{_library(model, name)}": tensor for name, tensor in found.items()}


def in_peft_names(model: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters of an adapter by their names in the network, under peft's names."""
    own = dict(plain(model).named_parameters())
    return {
        f"{PREFIX}{_library(model, name.replace('.default.', '.'))}": tensor
        for name, tensor in tensors.items() if name in own
    }  # fmt: skip


def _library(model: Any, name: str, back: bool = False) -> str:
    """A name in the library's own class, or from there `back` to ours."""
    ours, theirs = family_of(model).library_name(plain(model))
    before, after = (theirs, ours) if back else (ours, theirs)
    return after + name.removeprefix(before) if before and name.startswith(before) else name


def _renamed(config: Any, model: Any, back: bool = False) -> Any:
    """A peft config of its own, whose targets are named as in the library's class, or as here."""
    config, targets = copy.deepcopy(config), config.target_modules
    if not isinstance(targets, str) and targets is not None:
        config.target_modules = {_library(model, name, back) for name in targets}
    return config


def fill(model: Any, tensors: Mapping[str, Tensor], where: str) -> None:
    """Put an adapter's tensors, under peft's names, into a network that has such an adapter."""
    expected = adapter_tensors(model)
    for name in sorted(expected.keys() | tensors.keys()):
        if name not in tensors or name not in expected:
            word = "lacks" if name not in tensors else "has besides"
            raise _wrong_base(where, f"for this model it {word} {name.removeprefix(PREFIX)!r}")
        if tensors[name].shape != expected[name].shape:
            found, right = tuple(tensors[name].shape), tuple(expected[name].shape)
            raise _wrong_base(where, f"{name.removeprefix(PREFIX)!r} has shape {found}, and this model wants {right}")
    with torch.no_grad():
        for name, value in expected.items():
            value.copy_(tensors[name])


def check_base(model: Any, base: Base | None, where: str) -> None:
    """Refuse an adapter that was trained on other weights."""
    if base is not None and base.fingerprint != fingerprint(model):
        raise _wrong_base(where, f"it was trained on {base.source or 'other weights'}, and these are not its weights")


def _wrong_base(where: str, why: str) -> UserError:
    return UserError(f"the adapter {where} is of another base: {why}; load it on the model that it was trained on")


def fingerprint(model: Any) -> str:
    """A name for base weights: all names, all shapes, and a few values of each tensor in bf16, so that it is quick and
    the same in any precision."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors_of(plain(model)).items()):
        if not _OWN.search(f".{name}"):
            some = tensor.detach().flatten()[:SAMPLED].to("cpu", torch.bfloat16).view(torch.uint8)
            digest.update(f"{name.replace('.base_layer.', '.')} {tuple(tensor.shape)}".encode())
            digest.update(bytes(some.tolist()))
    return digest.hexdigest()[:32]


# --- taken off, or merged --------------------------------------------------------------------------------------------


def without_adapter(model: Any) -> Any:
    """A network with its adapter taken off. Its parameters are the model's own: where those go, it goes."""
    inner = plain(model)
    return _unadapted(copy.deepcopy(inner, {id(value): value for value in inner.parameters()}), lambda layer: None)


def merged(model: Any) -> Any:
    """A network with its adapter added to the weights, in the precision they are stored in; it shares all others."""
    inner = plain(model)
    changed = {id(value) for _, layer in _layers(inner) for value in layer.get_base_layer().parameters()}
    return _unadapted(_sharing_weights(inner, trained=True, own=changed), lambda layer: layer.merge(safe_merge=True))


def does_nothing(model: Any) -> bool:
    """Whether an adapter does nothing, as a fresh one does."""
    return not any(bool(value.any()) for name, value in plain(model).named_parameters() if ".lora_B." in name)


def _unadapted(model: Any, finish: Callable[[Any], None]) -> Any:
    """The same network with peft's layers replaced by those they hold."""
    with torch.no_grad():
        for name, layer in list(_layers(model)):
            finish(layer)
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, layer.get_base_layer())
    del model.peft_config, model.adapter_base
    return model


def _layers(model: Any) -> Iterator[tuple[str, Any]]:
    from peft.tuners.tuners_utils import BaseTunerLayer

    return ((name, layer) for name, layer in model.named_modules() if isinstance(layer, BaseTunerLayer))


def _sharing_weights(model: Any, *, trained: bool, own: frozenset[int] | set[int] = frozenset()) -> Any:
    """A copy whose parameters are the model's memory but parameters of its own; those of `own` are copied too."""
    twins = {
        id(value): nn.Parameter(value.detach().clone() if id(value) in own else value.detach(), trained)
        for value in model.parameters()
    }
    return copy.deepcopy(model, twins)
