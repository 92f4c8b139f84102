"""`unmask prepare`: text in, a folder of packed token shards out; stopped at any moment, the same call goes on.

    inputs -> (streams set down on disk) -> survey -> division -> tokenizer -> encode and pack -> index

Every file in the result is a function of the text and the settings alone, so a run that was cut off and taken up again
ends with the same bytes as one that was not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from unmask.core.errors import UserError, os_errors
from unmask.core.files import write_text
from unmask.core.progress import Progress
from unmask.data import corpus, streams
from unmask.data.corpus import Reading, Source, whole_fingerprint
from unmask.data.folder import SPOOL, TOKENIZER, Folder
from unmask.data.pack import pack
from unmask.data.shards import SPLITS, VERSION, ShardSet, dtype_for
from unmask.data.splits import Division, SourceChanged, check_fractions, divide, survey, training_sample
from unmask.data.tokenizer import Tokenizer, check_size
from unmask.version import __version__

TRAINED_SIZE = 8192
TRAINED_ON = 1 << 25  # characters of text that a tokenizer is trained on
PER_PROCESS = 1 << 23  # bytes of text that are worth starting another process for


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


def prepare(inputs: list[str], out: Path | str, settings: Settings | None = None, *, show: bool = True) -> Prepared:
    """Turn text into a folder of shards, or go on with one; `show` draws progress bars on standard error.

    `inputs` are files, folders, "sample" (the bundled corpus), "-" (standard input) and "hf:NAME[:CONFIG[:SPLIT]]".
    """
    settings = settings or Settings()
    _check(inputs, settings)
    reading = Reading(settings.separator, settings.text_field, settings.errors)
    given = Tokenizer.load(settings.tokenizer) if settings.tokenizer else None
    written = _written_down(settings, given)
    entries = _entries(inputs, settings.format, reading)
    folder = Folder(Path(out))
    with folder.held(), Progress(shown=show, unit="bytes") as bars:
        if folder.finished(written, entries):
            shards = ShardSet.open(out)
            shards.verify()  # "nothing to do" is said of shards that are what they were, too
            return Prepared(shards, already=True)
        folder.begin(written, entries)
        try:
            _fill(folder, entries, settings, reading, given, bars)
        except SourceChanged:
            folder.start_over()  # nobody knows which text its shards hold
            raise
    return Prepared(ShardSet.open(out), already=False)


def _fill(
    folder: Folder,
    entries: list[Source | streams.Stream],
    settings: Settings,
    reading: Reading,
    given: Tokenizer | None,
    bars: Progress,
) -> None:
    """Do what is left to do in a folder that was begun."""
    sources = _set_down(entries, folder, bars)
    division = _division(entries, sources, reading, settings, folder, bars)
    tokenizer = given or _trained(division, sources, reading, folder.state["settings"]["vocab_size"], folder, bars)
    write_text(folder.path / TOKENIZER, tokenizer.to_json())

    before = sum(shard["text_bytes"] for shard in folder.state.get("shards", []))
    left = division.total("bytes") - before
    shards = pack(
        lambda first: division.items(sources, reading, first),
        folder,
        tokenizer,
        settings.shard_tokens,
        min(_cores(), 1 + left // PER_PROCESS),
        bars.stage("encoding", division.total("bytes"), before),
    )
    bars.end()
    folder.finish(_index(tokenizer, shards, division, folder))


def _check(inputs: list[str], settings: Settings) -> None:
    if not inputs:
        raise UserError("no text given: name files or folders, sample for the bundled corpus, or - for standard input")
    if settings.tokenizer and settings.vocab_size is not None:
        raise UserError("--tokenizer and --vocab_size exclude each other: take a tokenizer as it is, or train one")
    if settings.shard_tokens < 1:
        raise UserError(f"--shard_tokens {settings.shard_tokens} is too small: at least 1")
    if not settings.separator.strip() or "\n" in settings.separator:
        raise UserError(f"--separator {settings.separator!r} does not do: it must be one line with something on it")
    check_fractions(settings.validation, settings.test)
    check_size(_size(settings))
    if inputs.count("-") > 1:
        raise UserError("standard input can be read only once: give - one time")


def _size(settings: Settings) -> int:
    return TRAINED_SIZE if settings.vocab_size is None else settings.vocab_size


def _written_down(settings: Settings, given: Tokenizer | None) -> dict[str, Any]:
    """The settings as the folder remembers them: a tokenizer by what it is, not by what it is called."""
    size = None if given else _size(settings)
    return {**asdict(settings), "tokenizer": given.hash if given else None, "vocab_size": size}


def _entries(inputs: Iterable[str], kind: str, reading: Reading) -> list[Source | streams.Stream]:
    found: list[Source | streams.Stream] = []
    for name in inputs:
        if name == "-":
            found.append(streams.Stdin(reading, kind))
        elif name.startswith("hf:"):
            found.append(streams.Hub(name, reading))
        else:
            found += corpus.find(name, kind)
    return found


def _set_down(entries: list[Source | streams.Stream], folder: Folder, bars: Progress) -> list[Source]:
    """All inputs as files that can be read again."""
    sources: list[Source] = []
    for number, entry in enumerate(entries):
        if isinstance(entry, Source):
            sources.append(entry)
            continue
        sources += streams.set_down(entry, folder.path / SPOOL / str(number), bars.stage(f"reading {entry.name}", None))
        bars.end()
        recorded = folder.state["inputs"]
        recorded[number]["fingerprint"] = sources[-1].fingerprint
        folder.save(inputs=recorded)
    return sources


def _division(
    entries: list[Source | streams.Stream],
    sources: list[Source],
    reading: Reading,
    settings: Settings,
    folder: Folder,
    bars: Progress,
) -> Division:
    if "division" in folder.state:
        return Division.from_json(folder.state["division"])
    with os_errors("read", sources[0].path):
        size = sum(source.path.stat().st_size for source in sources)
    counts = survey(sources, reading, bars.stage("counting", size))
    bars.end()
    if not any(one.documents for one in counts):
        names = ", ".join(dict.fromkeys(source.name for source in sources[:3]))
        folder.start_over()
        raise UserError(f"no text in {names}: a corpus needs at least one document that is not empty")
    division = divide(counts, settings.validation, settings.test)
    hashes = {source.path: one.sha256 for source, one in zip(sources, counts, strict=True)}
    inputs = folder.state["inputs"]
    for entry, record in zip(entries, inputs, strict=True):
        if isinstance(entry, Source):
            record["fingerprint"] = whole_fingerprint(hashes[entry.path])
    folder.save(division=division.to_json(), inputs=inputs)
    return division


def _trained(
    division: Division, sources: list[Source], reading: Reading, size: int, folder: Folder, bars: Progress
) -> Tokenizer:
    path = folder.path / TOKENIZER
    if path.exists():
        return Tokenizer.read(path, f"bpe-{size}")
    advance = bars.stage("learning tokens", division.total("characters"))
    tokenizer = Tokenizer.train(training_sample(division, sources, reading, TRAINED_ON, advance), size)
    bars.end()
    return tokenizer


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _index(tokenizer: Tokenizer, shards: list[dict[str, Any]], division: Division, folder: Folder) -> dict[str, Any]:
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
        "split_by": division.split_by,
        "settings": folder.state["settings"],
        "inputs": folder.state["inputs"],
    }
