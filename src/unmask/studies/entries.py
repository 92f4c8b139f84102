"""What is evaluated: models by name with what each is to the others, and files of texts that anybody wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from unmask.checkpoint.identity import identity_of, weights_hash
from unmask.checkpoint.io import Checkpoint, load
from unmask.core.errors import UserError
from unmask.metrics.unmodelled import UNMODELLED
from unmask.models.denoiser import is_causal

TEACHER = "teacher"
REAL = "real text"
GIVEN = {REAL: "real", **dict.fromkeys(UNMODELLED, "control")}  # cells of every evaluation with held-out text
TEXTS = "texts"  # the role of a file of texts
ENDINGS = (".jsonl", ".txt")  # of such a file
Source = Checkpoint | str | Path


@dataclass(frozen=True, eq=False)
class Entry:
    """A model with its name and role: teacher, student, elbo (the teacher trained on) or ar."""

    name: str
    role: str
    checkpoint: Checkpoint

    @cached_property
    def sha256(self) -> str | None:
        return weights_hash(self.checkpoint.model)

    @cached_property
    def identity(self) -> str:
        """By what it is; an oracle, which has no weights, by its name as well."""
        return identity_of(self.checkpoint) if self.sha256 else f"{self.name} {identity_of(self.checkpoint)}"

    def about(self) -> dict[str, Any]:
        names = {"sha256": self.sha256, "identity": identity_of(self.checkpoint)}
        return {"role": self.role, **names, "provenance": dict(self.checkpoint.provenance)}


def gather(
    models: Mapping[str, Source], files: Mapping[str, str | Path], compared: bool = True
) -> tuple[list[Entry], dict[str, Path], list[str]]:
    """Models, the teacher first; files of texts by name; and what a reader should know about them.

    Where no texts are `compared`, models need not have one tokenizer and length, nor a teacher.
    """
    if both := models.keys() & files.keys():
        raise UserError(f"{min(both)!r} is a model and a file of texts: give each a name of its own")
    for name, path in files.items():
        if Path(path).suffix not in ENDINGS:
            raise UserError(f"--texts takes NAME=FILE with a .jsonl or .txt file, not {name}={path}")
    loaded, texts = _sorted_out({**models, **files})
    if not loaded:
        return [], texts, []
    entries = [Entry(name, _role(name, checkpoint), checkpoint) for name, checkpoint in loaded.items()]
    if all(entry.role == "ar" for entry in entries):
        raise UserError("a causal model is a control, not a contender: give a masked model as well")
    if any(entry.name == TEACHER and entry.role == "ar" for entry in entries):  # a student's own would have its name
        raise UserError(f"{TEACHER!r} is the masked model that students come from, and this one is causal: call it ar")
    notes: list[str] = []
    for entry in entries:
        if entry.checkpoint.tokenizer is None:
            raise UserError(f"{entry.name} has no tokenizer, so that its samples are no text: give a model with one")
    if not compared:
        return entries, texts, notes
    if not any(entry.role == "teacher" for entry in entries):
        teacher = next((e for e in (_teacher_of(entry) for entry in entries if entry.role == "student") if e), None)
        if teacher is None:
            notes.append("No teacher was given and no student names its own: nothing to compare with.")
        else:
            entries.append(teacher)
            notes.append(f"The control is the teacher in the student's provenance: {str(teacher.sha256)[:12]}.")
    entries.sort(key=lambda entry: entry.role != "teacher")
    _check_comparable(entries)
    return entries, texts, notes


def _sorted_out(models: Mapping[str, Any]) -> tuple[dict[str, Checkpoint], dict[str, Path]]:
    """Loaded models, and files of texts."""
    if not models:
        raise UserError("there is nothing to evaluate: give NAME=CHECKPOINT, such as teacher=pocket, or texts")
    loaded: dict[str, Checkpoint] = {}
    texts: dict[str, Path] = {}
    for name, source in models.items():
        if name in GIVEN:
            raise UserError(f"{name!r} is the name of a control that every evaluation has: choose another name")
        if isinstance(source, Checkpoint):
            loaded[name] = source
        elif isinstance(source, (str, Path)) and Path(source).suffix in ENDINGS:
            texts[name] = Path(source)
        elif isinstance(source, (str, Path)):
            loaded[name] = load(source)
        else:
            what = "bare network" if isinstance(source, nn.Module) else type(source).__name__
            raise UserError(f"{name} is a {what}: give unmask.Checkpoint(model, tokenizer=...) or where one is")
    return loaded, texts


def _role(name: str, checkpoint: Checkpoint) -> str:
    if is_causal(checkpoint.model):
        return "ar"
    if name == TEACHER:
        return "teacher"
    method = (checkpoint.provenance.get("distillation") or {}).get("method")
    return "elbo" if name == "elbo" or method == "elbo" else "student"


def _teacher_of(entry: Entry) -> Entry | None:
    """The teacher a student was distilled from, as its provenance tells; an error if it has become another."""
    named = ((entry.checkpoint.provenance.get("config") or {}).get("facts") or {}).get("teacher")
    if not named:
        return None
    try:
        checkpoint = load(named["source"])
    except UserError as error:
        raise UserError(f"{entry.name}'s teacher cannot be loaded ({error}): give it as teacher=PATH") from error
    tokenizer = checkpoint.tokenizer or entry.checkpoint.tokenizer
    teacher = Entry(TEACHER, "teacher", replace(checkpoint, tokenizer=tokenizer))
    if named.get("weights") and named["weights"] != teacher.sha256:
        lost = f"{named['source']} no longer holds the weights {entry.name} was distilled from"
        raise UserError(f"{lost}: give the right one as teacher=PATH")
    return teacher


def _check_comparable(entries: list[Entry]) -> None:
    first = entries[0]
    for entry in entries:
        tokenizer, other = entry.checkpoint.tokenizer, first.checkpoint.tokenizer
        if tokenizer and other and tokenizer.hash != other.hash:
            raise UserError(f"{entry.name} and {first.name} have different tokenizers: entropy does not compare")
        own, others = entry.checkpoint.model.length, first.checkpoint.model.length
        if own != others:
            raise UserError(f"{entry.name} writes {own} tokens, {first.name} {others}: entropy does not compare")
