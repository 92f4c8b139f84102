"""The verb `prepare`: text in, a folder of packed token shards out; stopped at any moment, the same call goes on.

    inputs -> (streams written to disk) -> survey -> division -> tokenizer -> encode and pack -> index

Every file in the result is a function of the text and the settings alone, so a run that was cut off and taken up again
ends with the same bytes as one that was not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from unmask.core.errors import UserError, os_errors
from unmask.core.errors import reading as damage
from unmask.core.files import write_text
from unmask.core.progress import Progress
from unmask.core.verbs import verb
from unmask.data import corpus, streams
from unmask.data.corpus import Reading, Source
from unmask.data.folder import SPOOL, TOKENIZER, Folder
from unmask.data.pack import pack
from unmask.data.shards import SPLITS, UNFINISHED, VERSION, ShardSet, dtype_for
from unmask.data.splits import Division, SourceChanged, check_fractions, divide, survey, training_sample
from unmask.data.tokenizer import Tokenizer, check_size
from unmask.version import __version__

TRAINED_SIZE = 8192
TRAINED_ON = 1 << 25  # characters of text that a tokenizer is trained on


@dataclass(frozen=True)
class Settings:
    """How text becomes shards.

    Args:
        tokenizer: gpt2, a bundled model's (pocket), a tokenizer.json, or a folder that holds one, such as a run's;
            without it, one is trained on the text.
        vocab_size: tokens of the tokenizer to train, the end-of-document token included (8192 if not given).
        separator: the line between two documents of a text file; a file without it is one document.
        text_field: the field of a JSON line or a dataset's row that holds the text.
        format: how to read the inputs; auto goes by the file name, and takes standard input as txt.
        errors: what to do with bytes that are not UTF-8: stop (strict) or put U+FFFD in their place (replace).
        validation: share of the documents, at the end of the text, to hold out for validation.
        test: share of the documents, before those of validation, to hold out for the test.
        shard_tokens: tokens in one shard file.
    """

    tokenizer: str | None = None
    vocab_size: int | None = None
    separator: str = "<|endoftext|>"
    text_field: str = "text"
    format: Literal["auto", "txt", "jsonl"] = "auto"
    errors: Literal["strict", "replace"] = "strict"
    validation: float = 0.05
    test: float = 0.05
    shard_tokens: int = 1 << 24


@dataclass(frozen=True)
class Prepared:
    """The corpus, and whether it was there already."""

    shards: ShardSet
    already: bool


Entries = list[Source | streams.Stream]


@verb
def prepare(
    inputs: str | Path | Sequence[str | Path], out: str | Path, *, settings: Settings, progress: bool = True
) -> Prepared:
    """Turn text into packed, memory-mapped shards of tokens.

    INPUTS are text files, .jsonl files, either of them compressed (.xz, .gz, .zst), folders of such files, the word
    sample for the bundled corpus (./sample for a file of that name), - for standard input, and
    hf:NAME[:CONFIG[:SPLIT]] for a Hugging Face dataset.

    Interrupted, the same command goes on where it stopped; finished, it only checks that text and shards are the same.

    Args:
        inputs: what to read, in this order
        out: the folder to make
        progress: show progress on stderr
    """
    names = [str(name) for name in ([inputs] if isinstance(inputs, (str, Path)) else inputs)]
    _check(names, settings)
    given = Tokenizer.load(settings.tokenizer) if settings.tokenizer else None
    job = _Job(Folder(Path(out)), settings, given, _entries(names, settings))
    with job.folder.held():
        if job.folder.finished(job.written, job.entries):
            shards = ShardSet.open(out)
            shards.verify()  # "nothing to do" is said of shards that are what they were, too
            return Prepared(shards, already=True)
        job.folder.begin(job.written, job.entries)
        try:
            with Progress(shown=progress, unit="bytes") as bars:
                job.fill(bars)
        except SourceChanged:
            job.folder.start_over()  # nobody knows which text its shards hold
            raise
    return Prepared(ShardSet.open(out), already=False)


class _Job:
    """One preparation: the folder it fills, and from what."""

    def __init__(self, folder: Folder, settings: Settings, given: Tokenizer | None, entries: Entries) -> None:
        self.folder, self.settings, self.given, self.entries = folder, settings, given, entries
        self.reading = _reading(settings)
        # the settings as the folder remembers them: a tokenizer by what it is, not by what it is called
        mine = {"tokenizer": given.hash if given else None, "vocab_size": None if given else _size(settings)}
        self.written = {**asdict(settings), **mine}

    def fill(self, bars: Progress) -> None:
        """Do what is left to do in a folder that was begun."""
        folder = self.folder
        sources = self._sources(bars)
        division = self._division(sources, bars)
        tokenizer = self.given or self._trained(division, sources, bars)
        write_text(folder.path / TOKENIZER, tokenizer.to_json())

        with damage(folder.path / UNFINISHED):
            before = sum(int(shard["text_bytes"]) for shard in folder.state.get("shards", []))
        shards = pack(
            lambda first: division.items(sources, self.reading, first),
            folder,
            tokenizer,
            self.settings.shard_tokens,
            bars.stage("encoding", division.total("bytes"), before),
        )
        bars.end()
        folder.finish(_index(tokenizer, shards, division.split_by, folder.state))

    def _sources(self, bars: Progress) -> list[Source]:
        """All inputs as files that can be read again."""
        sources: list[Source] = []
        for number, entry in enumerate(self.entries):
            if isinstance(entry, Source):
                sources.append(entry)
                continue
            spool = self.folder.path / SPOOL / str(number)
            sources += streams.write_parts(entry, spool, bars.stage(f"reading {entry.name}", None))
            bars.end()
            self._remember({number: sources[-1].fingerprint})
        return sources

    def _remember(self, fingerprints: dict[int, str | None], **facts: Any) -> None:
        inputs = self.folder.state["inputs"]
        for number, fingerprint in fingerprints.items():
            inputs[number]["fingerprint"] = fingerprint
        self.folder.save(inputs=inputs, **facts)

    def _division(self, sources: list[Source], bars: Progress) -> Division:
        if "division" in self.folder.state:
            with damage(self.folder.path / UNFINISHED):
                return Division.from_json(self.folder.state["division"])
        with os_errors("read", sources[0].path):
            size = sum(source.path.stat().st_size for source in sources)
        counts = survey(sources, self.reading, bars.stage("counting", size))
        bars.end()
        if not any(one.documents for one in counts):
            names = ", ".join(dict.fromkeys(source.name for source in sources[:3]))
            self.folder.start_over()
            raise UserError(f"no text in {names}: a corpus needs at least one document that is not empty")
        division = divide(counts, self.settings.validation, self.settings.test)
        hashes = {source.path: one.fingerprint for source, one in zip(sources, counts, strict=True)}
        files = {number: hashes[one.path] for number, one in enumerate(self.entries) if isinstance(one, Source)}
        self._remember(dict(files), division=division.to_json())
        return division

    def _trained(self, division: Division, sources: list[Source], bars: Progress) -> Tokenizer:
        path, size = self.folder.path / TOKENIZER, _size(self.settings)
        if path.exists():
            return Tokenizer.read(path, f"bpe-{size}")
        advance = bars.stage("learning tokens", division.total("characters"))
        tokenizer = Tokenizer.train(training_sample(division, sources, self.reading, TRAINED_ON, advance), size)
        bars.end()
        return tokenizer


def _check(inputs: list[str], settings: Settings) -> None:
    if not inputs:
        raise UserError("no text given: name files or folders, sample for the bundled corpus, or - for standard input")
    if settings.tokenizer and settings.vocab_size is not None:
        raise UserError("--tokenizer and --vocab_size exclude each other: take a tokenizer as it is, or train one")
    if settings.shard_tokens < 1:
        raise UserError(f"--shard_tokens {settings.shard_tokens} is too small: at least 1")
    check_fractions(settings.validation, settings.test)
    check_size(_size(settings))


def _size(settings: Settings) -> int:
    return TRAINED_SIZE if settings.vocab_size is None else settings.vocab_size


def _reading(settings: Settings) -> Reading:
    return Reading(settings.separator, settings.text_field, settings.errors)


def _entries(inputs: list[str], settings: Settings) -> Entries:
    found: Entries = []
    for name in inputs:
        if name == "-":
            found.append(streams.Stdin(_reading(settings), settings.format))
        elif name.startswith("hf:"):
            found.append(streams.Hub(name, _reading(settings)))
        else:
            found += corpus.find(name, settings.format)
    return found


def _index(tokenizer: Tokenizer, shards: list[dict[str, Any]], split_by: str, state: dict[str, Any]) -> dict[str, Any]:
    splits: dict[str, Any] = {}
    for split in SPLITS:
        own = [shard for shard in shards if shard["split"] == split]
        splits[split] = {what: sum(shard[what] for shard in own) for what in ("tokens", "documents", "text_bytes")}
        splits[split]["shards"] = [{k: v for k, v in shard.items() if k not in ("split", "next")} for shard in own]
    return {
        "version": VERSION,
        "unmask": __version__,
        "tokenizer": {**tokenizer.describe(), "file": TOKENIZER},
        "dtype": dtype_for(tokenizer),
        "splits": splits,
        "split_by": split_by,
        "settings": state["settings"],
        "inputs": state["inputs"],
    }
