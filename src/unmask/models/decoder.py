"""The network that LLaDA, Dream and SDAR share: a language model of transformers, in which no position is hidden.

The layers are transformers' own; here are what surrounds them: positions, who sees whom, and the two calls of a
Denoiser. transformers is imported when a network is built.

Shapes: B sequences, L positions, K positions that are seen (those of a cache too), D features, E of a head, V states.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.core.errors import UserError
from unmask.models.denoiser import Network, check_whole_numbers
from unmask.models.family import Family

ATTENTION = "unmask_all_visible"
Product = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """The shape of a language model. `vocab_size` is V, all states; `mask` is the state that hides a token."""

    vocab_size: int
    length: int
    hidden: int
    blocks: int
    heads: int
    kv_heads: int
    mlp: int
    mask: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    head_size: int | None = None  # None: hidden / heads
    tied: bool = False

    def __post_init__(self) -> None:
        check_whole_numbers(self, "vocab_size", "length", "hidden", "blocks", "heads", "kv_heads", "mlp")
        if self.heads % self.kv_heads or (self.head_size is None and self.hidden % (2 * self.heads)):
            raise UserError(f"hidden = {self.hidden} must be a multiple of 2 x heads = {2 * self.heads}, and heads "
                            f"of kv_heads = {self.kv_heads}")  # fmt: skip
        if not 0 <= self.mask < self.vocab_size:
            raise UserError(f"the mask must be one of the {self.vocab_size} states, not {self.mask}")


class Decoder(Network):
    """A Denoiser made of transformers' layers; a family says which, and what else is its own."""

    model: Any  # of transformers
    library: ClassVar[str]  # what transformers calls it
    shifted: ClassVar[bool] = False  # whether the output at i - 1 predicts token i

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = self.body(config)
        del self.model.rotary_emb  # its table is cast with the weights; positions are turned here
        self.lm_head = nn.Linear(config.hidden, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        elif self.lm_head.weight.device.type != "meta":
            nn.init.normal_(self.lm_head.weight, std=0.02)

    def body(self, config: DecoderConfig) -> nn.Module:
        """A model of transformers with `embed_tokens`, `layers` and `norm`."""
        import transformers

        model, shape = (getattr(transformers, f"{self.library}{kind}") for kind in ("Model", "Config"))
        body: nn.Module = model(shape(**shape_of(config)))
        return body

    def embed(self, z: Tensor) -> Tensor:
        """Token ids z_BL, or laws over the states p_BLV, as vectors: (B, L, D)."""
        if z.is_floating_point():
            return z @ self.model.embed_tokens.weight
        embedded: Tensor = self.model.embed_tokens(z)
        return embedded

    def features(
        self, z: Tensor, *, visible: Tensor | None = None, at: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        """The body: token ids z_BL, or what `embed` made of them, -> h_BLD, the last norm included.

        Args:
            z: the tokens, or their vectors
            visible: who is seen: (B, K) bool, false where there is padding; or, for each reader, (B or 1, 1, L, K)
            at: the places of the tokens in the text, (L,) or (B, L); default: 0 to L - 1
            cache: an object with transformers' `update(keys, values, layer) -> keys, values`; keys come rotated, in
                float32
        """
        return self.shift(self.outputs(z, visible=visible, at=at, cache=cache))

    def outputs(
        self, z: Tensor, *, visible: Tensor | None = None, at: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        """What the network says at each position, before a family's shift. Arguments as for `features`."""
        h_BLD, turn, seen = self.layer_inputs(z, visible, at)
        for layer in self.model.layers:
            h_BLD = layer(h_BLD, attention_mask=seen, position_embeddings=turn, past_key_values=cache)
        out_BLD: Tensor = self.model.norm(h_BLD)
        return out_BLD.to(z.device)

    def sees(self, at: Tensor, length: int) -> Tensor | None:
        """Whom readers at (L,) or (B, L) see of so many places: (1 or B, 1, L, K); None: all of them."""
        return None

    def layer_inputs(
        self, z: Tensor, visible: Tensor | None, at: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor | None]:
        """What the layers take: vectors, cos and sin of the positions, and who is seen."""
        if at is None:
            self.check_length(z.shape[1])
        h_BLD = z if z.is_floating_point() else self.embed(z)
        at = torch.arange(z.shape[1], device=z.device) if at is None else at
        if visible is not None and visible.ndim == 2:  # keys alone: for every reader
            visible = visible[:, None, None, :]
        return h_BLD, self._rotation(at), visible

    def shift(self, h_BLD: Tensor) -> Tensor:
        """Features where their tokens are: moved right by one where a family's outputs predict the next token."""
        return torch.cat([h_BLD[:, :1], h_BLD[:, :-1]], dim=1) if self.shifted else h_BLD

    def logits(self, h: Tensor, product: Product | None = None) -> Tensor:
        """The head, at any selection of positions: h_...D -> logits_...V.

        `product` takes the place of the last matrix product (objectives/head_loss.py).
        """
        if product is not None:
            weight_VD = self.lm_head.weight
            return product(h, weight_VD, weight_VD.new_zeros(len(weight_VD)))
        logits: Tensor = self.lm_head(h)
        return logits.to(h.device)

    def forward(self, z: Tensor) -> Tensor:
        """logits_BLV of z_BL."""
        return self.logits(self.features(z))

    def _rotation(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of every position, (1 or B, L, E), float32 whatever the weights are in.

        LLaDA's own code does so. In bf16 Dream's rounds them first, which takes its logits further from float32.
        """
        size = self.config.head_size or self.config.hidden // self.config.heads
        power = torch.arange(0, size, 2, dtype=torch.int64, device=at.device).float() / size
        angle = at.float()[..., None] * (1.0 / (self.config.rope_theta**power))
        angle_BLE = torch.cat([angle, angle], dim=-1).view(-1, at.shape[-1], size)
        return angle_BLE.cos(), angle_BLE.sin()


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    dropout: float = 0.0, scaling: float | None = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention as transformers' layers call it: everybody sees all that the mask leaves, whoever comes first.

    Queries and keys come wider than values in bf16, from the rotation in float32.
    """
    query, key = query.to(value.dtype), key.to(value.dtype)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    mixed = F.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
    )
    return mixed.transpose(1, 2).contiguous(), None


def shape_of(config: DecoderConfig) -> dict[str, Any]:
    """A shape in the words of transformers' configs, whose layers then call `attend`."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, attend)
    return {
        "vocab_size": config.vocab_size, "max_position_embeddings": config.length, "hidden_size": config.hidden,
        "num_hidden_layers": config.blocks, "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads, "intermediate_size": config.mlp, "rms_norm_eps": config.norm_eps,
        "head_dim": config.head_size or config.hidden // config.heads, "attn_implementation": ATTENTION,
        "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip


@contextmanager
def naming_missing_keys(where: str, family: str) -> Iterator[None]:
    """A published config is read inside: what it lacks is said by name."""
    try:
        yield
    except KeyError as error:
        raise UserError(f"{where} is no whole checkpoint of the family {family}: config.json lacks {error}") from error


def check_mask_id(config: Mapping[str, Any], where: str) -> int:
    """The state that a published config.json, or the tokenizer beside it, calls the mask."""
    if type(mask := config.get("mask_token_id")) is not int:
        raise UserError(f"{where} does not say which token is the mask: neither config.json (mask_token_id) nor "
                        "the tokenizer (mask_token) names it")  # fmt: skip
    return mask


class DecoderFamily(Family):
    """What the families of such networks share."""

    network: ClassVar[type[Decoder]]
    config = DecoderConfig
    spreads = True
    required: ClassVar[Mapping[str, Any]] = {}  # what a published config.json must say, if it says anything

    def check(self, config: Mapping[str, Any], where: str) -> None:
        """Refuse a variant that computes something else."""
        for name, right in self.required.items():
            if config.get(name, right) not in (right, None):
                raise UserError(f"{where} asks for {name} = {config[name]!r}, and the family {self.name} knows "
                                f"{right!r} only: no published model of it differs")  # fmt: skip
        check_mask_id(config, where)

    def read(
        self, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str
    ) -> tuple[DecoderConfig, dict[str, Tensor]]:
        """By default the tensors have the library's names, as ours do."""
        return self.shape_from(config, where), dict(tensors)

    def shape_from(self, config: Mapping[str, Any], where: str) -> DecoderConfig:
        """The shape that a config.json in the words of Qwen and Llama tells."""
        self.check(config, where)
        rope = config.get("rope_parameters") or {}  # where transformers 5 writes it
        with naming_missing_keys(where, self.name):
            return DecoderConfig(
                vocab_size=config["vocab_size"],
                length=config["max_position_embeddings"],
                hidden=config["hidden_size"],
                blocks=config["num_hidden_layers"],
                heads=config["num_attention_heads"],
                kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
                mlp=config["intermediate_size"],
                mask=config["mask_token_id"],
                rope_theta=float(config.get("rope_theta") or rope.get("rope_theta", 10_000.0)),
                norm_eps=float(config.get("rms_norm_eps", 1e-6)),
                head_size=config.get("head_dim"),
                tied=bool(config.get("tie_word_embeddings", False)),
            )

    def blocks(self, model: Decoder) -> Iterable[nn.Module]:
        layers: Iterable[nn.Module] = model.model.layers
        return layers

    def head(self, model: Decoder) -> Callable[[Tensor, Product], Tensor]:
        return model.logits

    def quick(self, model: Decoder, fused: bool) -> Any | None:
        from unmask.models.quick import quick  # which builds on this file

        return quick(model, fused)

    def flops(self, model: Decoder, length: int) -> tuple[float, float]:
        """Two for each weight of the layers, and attention over all positions; V D weights of the head."""
        shape = model.config
        weights = sum(value.numel() for value in model.model.layers.parameters())
        wide = shape.heads * (shape.head_size or shape.hidden // shape.heads)
        return 2.0 * (weights + shape.blocks * 2 * length * wide), 2.0 * shape.hidden * shape.vocab_size
