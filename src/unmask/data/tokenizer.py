"""Text to token ids and back: byte-level BPE, trained here or given as a `tokenizer.json`; GPT-2's is bundled.

`size` counts the tokens without a mask, which a tokenizer does not know.
Text is only ever text: `<|endoftext|>` inside a document is spelled out in ordinary tokens, never read as the end
of the document, and decode(encode(text)) == text for every byte-level tokenizer.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Iterable, Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import tokenizers

from unmask.core.errors import UserError, reading, suggestion
from unmask.core.files import read_json
from unmask.data.chat import FILE as CONFIG
from unmask.data.chat import Messages, Specials, as_messages, render

EOS = "<|endoftext|>"
FILE = "tokenizer.json"
PARTS = ("vocab.json", "merges.txt")  # Dream has these instead; how a text is split is that of Qwen2
_OF_PARTS = ("DreamTokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast")
BUNDLED = {"gpt2": "gpt2-tokenizer.json.xz"}
SMALLEST = 257  # every byte, and the end of a document
LARGEST = 1_000_000  # tokens: a table of logits would not fit anyway

# What tokenizers in use call the end and the start of a document, most telling first.
_EOS_NAMES = (EOS, "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
_TURN_NAMES = ("<|eot_id|>", "<|im_end|>")  # of a turn in a chat
_MASK_NAMES = ("<|mdm_mask|>", "<|mask|>", "<|MASK|>", "[MASK]", "<mask>")
_BOS_NAMES = ("<|begin_of_text|>", "<s>", "<bos>", "[CLS]")


def _inside(path: Path) -> Path:
    """The file in a folder: a checkpoint, a prepared corpus, or a run, whose checkpoint has a folder of its own."""
    if not path.is_dir():
        return path
    own = path / FILE
    return path / "checkpoint" / FILE if not own.exists() and (path / "checkpoint").is_dir() else own


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder of the hub holds a tokenizer that is read: a tokenizer.json, or the parts of Qwen2's."""
    if (folder / FILE).is_file() or not all((folder / name).is_file() for name in (*PARTS, CONFIG)):
        return (folder / FILE).is_file()
    return read_json(folder / CONFIG, "tokenizer config").get("tokenizer_class") in _OF_PARTS


def check_size(size: int) -> None:
    """Refuse to train a tokenizer that could not spell every text."""
    if size < SMALLEST:
        raise UserError(f"a tokenizer of {size} tokens is too small: 256 bytes and {EOS} make at least {SMALLEST}")
    if size > LARGEST:
        raise UserError(f"a tokenizer of {size:,} tokens is too large: at most {LARGEST:,}")


class Tokenizer:
    """A tokenizer with an end-of-document token, of the text of a tokenizer.json; also made by `load` and `train`."""

    def __init__(self, text: str, name: str = "custom", specials: Specials | None = None) -> None:
        self.name, self.specials = name, specials or Specials()
        # one spelling for equal JSON, so that the hash does not depend on layout or on the library's version
        self._json = json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        self._inner = tokenizers.Tokenizer.from_str(self._json)
        self._inner.no_truncation()
        self._inner.no_padding()
        self._inner.encode_special_tokens = True
        self.size: int = max(self._inner.get_vocab(with_added_tokens=True).values()) + 1
        said = self.specials
        eos_id = self._first(*_EOS_NAMES, said.eos_token)
        if eos_id is None:
            raise UserError(f"tokenizer {name!r} has no end-of-document token: it needs one of {', '.join(_EOS_NAMES)}")
        self.eos_id = eos_id
        bos_id = self._first(said.bos_token, *_BOS_NAMES)
        self.bos_id: int = eos_id if bos_id is None else bos_id  # GPT-2 ends and starts with one token
        self.mask_id = self._first(said.mask_token) if said.mask_token else self._first(*_MASK_NAMES)
        ends = {eos_id, *said.stop_ids, *map(self._inner.token_to_id, (*_TURN_NAMES, said.eos_token or ""))}
        self.stop_ids: frozenset[int] = frozenset(one for one in ends if one is not None)  # what ends an answer

    def _first(self, *names: str | None) -> int | None:
        """The id of the first of these tokens that there is."""
        found = (self._inner.token_to_id(name) for name in names if name)
        return next((one for one in found if one is not None), None)

    @classmethod
    def read(cls, path: Path, name: str) -> Tokenizer:
        """A tokenizer from a tokenizer.json."""
        specials = Specials.beside(path) if path.name == FILE else None
        with reading(path, "tokenizer", "give a valid tokenizer.json"):
            return cls(path.read_text(encoding="utf-8"), name, specials)

    @classmethod
    def of_parts(cls, folder: Path) -> Tokenizer:
        """A tokenizer from a vocab.json and a merges.txt, put together by transformers; no code of the folder runs."""
        try:
            from transformers import Qwen2Tokenizer
        except ImportError as error:
            raise UserError(f"{folder} has its tokenizer in parts; to read it: pip install 'unmask[models]'") from error
        with reading(folder / PARTS[0], "tokenizer", "download it again"):
            whole = Qwen2Tokenizer.from_pretrained(folder, local_files_only=True)
        return cls(whole.backend_tokenizer.to_str(), folder.name, Specials.beside(folder / FILE))

    @classmethod
    def load(cls, name_or_path: str | Path) -> Tokenizer:
        """A bundled tokenizer or model by name ("gpt2", "pocket"), a tokenizer.json, or a folder that holds one."""
        name = str(name_or_path)
        assets = Path(str(resources.files("unmask"))) / "assets"
        if name in BUNDLED:
            return cls(lzma.decompress((assets / BUNDLED[name]).read_bytes()).decode("utf-8"), name)
        models = {path.parent.name: path for path in sorted(assets.glob(f"*/{FILE}"))}
        path = _inside(Path(name_or_path))
        if not path.is_file() and has_tokenizer(path.parent):
            return cls.of_parts(path.parent)
        if not path.is_file():
            if name not in models:
                known = [*BUNDLED, *models]
                raise UserError(
                    f"no tokenizer {name!r}: {suggestion(name, known)}bundled: {', '.join(known)}; "
                    "or give a tokenizer.json or a folder that holds one"
                )
            path = models[name]
        return cls.read(path, path.parent.name if path.name == FILE else path.stem)

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> Tokenizer:
        """Learn a byte-level BPE of at most `size` tokens; fewer if the text has no more pairs that repeat."""
        check_size(size)
        inner = tokenizers.Tokenizer(tokenizers.models.BPE())
        inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=2,
            special_tokens=[EOS],
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator(iter(texts), trainer=trainer)
        return cls(inner.to_str(), f"bpe-{size}")

    def encode(self, text: str) -> list[int]:
        return self._inner.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Several texts at once, on all cores."""
        return [found.ids for found in self._inner.encode_batch_fast(list(texts), add_special_tokens=False)]

    def chat(self, chat: str | Messages) -> list[int]:
        """The tokens of a message, or of a conversation, in the model's chat format, up to where its answer begins."""
        return self.encode_special(self.spell(as_messages(chat), open_answer=True))

    def exchange(self, chat: Messages) -> tuple[list[int], list[int]]:
        """A conversation that ends with an answer: the tokens up to where that begins, and those from there on."""
        messages = as_messages(chat)
        prompt = self.spell(messages[:-1], open_answer=True)
        whole = self.spell(messages, open_answer=False)
        if not whole.startswith(prompt):
            raise UserError("the chat template changes what precedes an answer once it is given: write prompt and "
                            "answer as they are to be read")  # fmt: skip
        answer = self.encode_special(whole[len(prompt) :])
        if prompt == self.spell(messages[:-1], open_answer=False):  # LLaDA's opens a next answer whatever one says
            answer = answer[: next((i for i, one in enumerate(answer, 1) if one in self.stop_ids), None)]
        return self.encode_special(prompt), answer

    def spell(self, messages: Messages, *, open_answer: bool) -> str:
        """A conversation in the model's chat format, up to where its next answer begins (`open_answer`)."""
        text = render(self.specials, messages, f"the tokenizer {self.name!r}", open_answer=open_answer)
        names = [token.content for token in self._inner.get_added_tokens_decoder().values() if token.special]
        for message in messages:  # it would be read as an end of turn, say, and a mask as a blank
            if found := next((name for name in names if name in message["content"]), None):
                raise UserError(f"a message holds {found!r}, a special token of this model: leave it out of the text")
        return text

    def encode_special(self, text: str) -> list[int]:
        """The tokens of a text that `spell` wrote: special ones are read as such."""
        return self._reading_specials.encode(text, add_special_tokens=False).ids

    @cached_property
    def _reading_specials(self) -> tokenizers.Tokenizer:
        """The same tokenizer, to which special tokens in a text are what they say: for templates only."""
        inner = tokenizers.Tokenizer.from_str(self._json)
        inner.no_truncation()
        inner.no_padding()
        return inner

    def is_special(self, token: int) -> bool:
        """Whether an id stands for no text."""
        added = self._inner.get_added_tokens_decoder()
        return token in added and added[token].special

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some tokens; ids the tokenizer does not know, such as the mask, leave nothing."""
        return self._inner.decode([int(i) for i in ids], skip_special_tokens=False)

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return self._inner.decode_batch(rows, skip_special_tokens=False)

    def to_json(self) -> str:
        """The `tokenizer.json`, in the one spelling whose sha256 is `hash`."""
        return self._json

    @cached_property
    def hash(self) -> str:
        return hashlib.sha256(self._json.encode("utf-8")).hexdigest()

    def describe(self) -> dict[str, Any]:
        """What an index says of a tokenizer."""
        return {"name": self.name, "size": self.size, "hash": self.hash}

    def __repr__(self) -> str:
        return f"Tokenizer({self.name!r}, size={self.size}, hash={self.hash[:12]})"
