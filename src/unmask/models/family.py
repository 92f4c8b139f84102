"""A model family: a network with everything that is particular to it. Every other part of the package asks the family.

A new family is a subclass that names its network and its config, and changes what its network does otherwise. The
network is a Denoiser and a torch module with a `config`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unmask.core.errors import UserError, named
from unmask.models.parameters import filled, tensors_of
from unmask.processes import Masked, Process

Graph = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]  # of work on fixed tensors: what does it quickly
LARGEST = 2**20  # of a number in a config that no tensor bears out, such as the length: a table of so many is small


class Family:
    """One kind of network. `config` is a frozen dataclass that JSON can hold."""

    name: ClassVar[str]
    network: ClassVar[type[nn.Module]]
    config: ClassVar[type[Any]]
    presets: ClassVar[Mapping[str, Any]] = {}
    adapter: ClassVar[bool] = False  # no model by itself: it works beside the one that its config names
    model_types: ClassVar[tuple[str, ...]] = ()  # those of published config.json files that are of this family

    spreads: ClassVar[bool] = False  # whether it goes over several devices: each weight is used by its own module

    # -- making one ----------------------------------------------------------------------------------------------

    def build(self, config: Any) -> nn.Module:
        """A network of this shape with fresh weights; also under `torch.device("meta")`."""
        return self.network(config)

    def for_tokens(self, config: Any, tokens: int) -> Any:
        """The same shape for a tokenizer of so many tokens: `vocab_size` states, the mask after the tokens."""
        return dataclasses.replace(config, vocab_size=tokens + 1, **{"mask": tokens} if "mask" in vars(config) else {})

    def for_process(self, config: Any, process: Process) -> Any:
        """The same shape for a process: with or without a mask, told the time or not."""
        return config

    def process(self, config: Any) -> Process:
        """What published files of this shape were trained on."""
        return Masked()

    def settle(self, model: Any) -> None:
        """After weights were put into a network born on `meta`: make what no checkpoint holds, such as tables."""

    def reads(self, config: Mapping[str, Any]) -> bool:
        """Whether a published checkpoint's config.json is of this family."""
        return str(config.get("model_type")).lower() in self.model_types

    def read(
        self, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str
    ) -> tuple[Any, dict[str, Tensor]]:
        """Of a published checkpoint: our config, and its tensors under our names."""
        raise UserError(f"{where}: the family {self.name} reads no published files")

    def publish(self, model: Any, dtype: torch.dtype | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """(config.json, tensors in `dtype`) in the published layout of this family, the reverse of `read`."""
        raise UserError(f"the family {self.name} has no published layout to write: keep this model in our own format")

    def smaller(self, model: Any) -> Any:
        """A network of this family that computes the same with fewer numbers, to give away."""
        raise UserError(f"a model of the family {self.name} cannot be folded: leave out --fold")

    # -- training ------------------------------------------------------------------------------------------------

    def trainable(self, model: Any) -> dict[str, nn.Parameter]:
        """What training moves: all parameters, or only those of adapters."""
        return {name: value for name, value in model.named_parameters() if value.requires_grad}

    def blocks(self, model: Any) -> Iterable[nn.Module]:
        """Parts that are compiled, and spread over processes, one by one."""
        return ()

    def library_name(self, model: Any) -> tuple[str, str]:
        """(a beginning of names here, what it is called in the library's own class), where a network wraps one and its
        adapters are to be read there."""
        return "", ""

    def lora_targets(self, model: Any) -> Iterable[str]:
        """The linear layers that take LoRA, by their whole names; all those of the blocks."""
        inside = {id(layer) for block in self.blocks(model) for layer in block.modules()}
        named = model.named_modules()
        return [name for name, layer in named if isinstance(layer, nn.Linear) and id(layer) in inside]

    def matrices(self, model: Any) -> dict[str, int]:
        """The parameters that Muon may take, by name, and how many matrices lie in each, one below the other."""
        inside = {id(value) for block in self.blocks(model) for value in block.parameters()}
        return {name: 1 for name, value in model.named_parameters() if value.ndim == 2 and id(value) in inside}

    def recompute(self, model: Any) -> None:
        """Keep only what goes into each block; in the backward pass the block runs again."""
        if not (blocks := list(self.blocks(model))):
            raise UserError(f"the family {self.name} names no blocks to compute again: leave out recompute")
        for block in blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)

    def compile(self, model: Any) -> None:
        """Compile for training, where it is next called."""
        for block in self.blocks(model):
            block.compile()

    def head(self, model: Any) -> Callable[[Tensor, Callable[[Tensor, Tensor, Tensor], Tensor]], Tensor] | None:
        """The head as a function of features and of what takes the place of its last product x W' + b; None: it does
        not end in one. With it a loss need never hold all logits at once (objectives/head_loss.py)."""
        return None

    def flops(self, model: Any, length: int) -> tuple[float, float]:
        """Of one forward pass: operations per token of the body, and per token that the head runs on."""
        return 2.0 * sum(value.numel() for value in model.parameters()), 0.0

    def attention(self, model: Any, z_BL: Tensor) -> list[tuple[float, float]] | None:
        """(median entropy over heads in nats, largest logit) of each block's attention; None: not exposed."""
        return None

    # -- inference -----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def inference(self, model: Any, dtype: torch.dtype, device: torch.device) -> nn.Module:
        """The same function for inference, there and with its matrices in `dtype`, perhaps folded.

        The model itself if it is that already, else a copy: the caller's stays as it is. Frozen weights that need no
        change, such as those below an adapter, are shared.
        """
        weights = list(model.parameters())
        if hasattr(model, "hf_device_map"):  # spread over devices, where it stays
            return model
        ready = {id(w) for w in weights if (w.dtype, w.device) == (dtype, device)}
        if not model.training and len(ready) == len(weights):
            return model

        def moved(w: nn.Parameter) -> nn.Parameter:
            if id(w) in ready and not w.requires_grad:
                return nn.Parameter(w.detach(), False)
            kind = dtype if w.is_floating_point() else w.dtype
            return nn.Parameter(w.detach().to(device, kind, copy=True), w.requires_grad)  # not by way of a host copy

        return copy.deepcopy(model, {id(w): moved(w) for w in weights}).to(device, dtype).eval()

    def onnx(self, model: Any) -> tuple[nn.Module, nn.Module]:
        """Body, token ids (R, L) -> features (R, L, D), and head, (M, D) -> logits, in float32 for torch's exporter."""
        raise UserError(f"a model of the family {self.name} cannot be exported to ONNX")

    def quick(self, model: Any, fused: bool) -> Any | None:
        """Its body's calls for inference, in fewer kernels, some of them compiled where `fused`; None: as it is."""
        return None

    def causal_copy(self, model: Any, dtype: torch.dtype, device: torch.device) -> nn.Module:
        """A copy of a causal network to write with."""
        raise UserError(f"a causal model of the family {self.name} cannot be sampled")

    def reader(self, model: Any, rows: int, graph: Graph | None = None) -> Reader:
        """What takes the next token of each of so many texts and gives logits_BV of what follows.

        `graph` makes work on fixed tensors quick, where the device can (inference.ready.replayed).
        """
        raise UserError(f"a causal model of the family {self.name} cannot be sampled")


class Reader(Protocol):
    """Reads texts token after token."""

    def __call__(self, token_B: Tensor) -> Tensor: ...

    def restart(self) -> None:
        """The next token is the first of other texts."""


FAMILIES: dict[str, Family] = {}


def register_family(family: type[Family]) -> type[Family]:
    """Make a family known by its name; usable as a decorator."""
    FAMILIES[family.name] = family()
    return family


def family_named(name: str) -> Family:
    """A family by its name."""
    return named("model family", name, FAMILIES)


def plain(model: Any) -> Any:
    """A network out of torch.compile's wrapping."""
    return getattr(model, "_orig_mod", model)


def family_of(model: Any) -> Family:
    """The family of a network; one that nobody registered can be sampled, but not saved."""
    model = plain(model)
    for family in FAMILIES.values():
        if isinstance(model, family.network):
            return family
    return _Unnamed()


class _Unnamed(Family):
    """A network of no registered family: everything by default."""

    name = "unnamed"


def config_to_json(model: Any) -> dict[str, Any]:
    """A network's config as JSON can hold it."""
    return dataclasses.asdict(plain(model).config)


def changed_preset(presets: Mapping[str, Any], name: str, **overrides: Any) -> Any:
    """A named shape, some of it changed."""
    preset = named("model preset", name, presets)
    for key in overrides:
        named("model option", key, vars(preset))
    return dataclasses.replace(preset, **overrides)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes, averages and saves, by name: those that the family calls trainable."""
    return family_of(model).trainable(model)


def as_student(model: Any) -> Any:
    """A copy to train: what is trained is its own, what is frozen is the model's own."""
    inner = plain(model)
    trained = {id(value) for value in trainable(inner).values()}
    return copy.deepcopy(inner, {id(value): value for value in inner.parameters() if id(value) not in trained})


def assemble(family: Family, config: Any, weights: Mapping[str, Tensor], where: str) -> nn.Module:
    """A network that holds these tensors as they are: same precision, no copy. `where` names them in errors."""
    most = max(LARGEST, sum(tensor.numel() for tensor in weights.values()))
    for name, value in dataclasses.asdict(config).items():
        if isinstance(value, int) and value > most:
            raise UserError(f"{where} does not fit its config: {name} = {value}, and there are {most} numbers in all")
    with torch.device("meta"):
        model = family.build(config)
    expected = tensors_of(model)
    for name in sorted(expected.keys() | weights.keys()):
        if name not in weights:
            raise UserError(f"{where} is incomplete: the tensor {name!r} is missing")
        if name not in expected:
            raise UserError(f"{where} does not fit its config: unknown tensor {name!r}")
        if weights[name].shape != expected[name].shape:
            found, right = tuple(weights[name].shape), tuple(expected[name].shape)
            raise UserError(f"{where} does not fit its config: {name!r} has shape {found}, not {right}")
    model = filled(model, weights)  # Module.to_empty would import sympy: 0.7 s of a cold start
    family.settle(model)
    return model
