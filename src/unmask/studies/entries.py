"""The models of an evaluation: what each is to the others, and whether they can be compared at all.

Refuses to know scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from unmask.checkpoint.identity import identity_of, weights_hash
from unmask.checkpoint.io import Checkpoint, load
from unmask.core.errors import UserError

TEACHER = "teacher"
REAL, PARROT = "real text", "parrot"
GIVEN = {REAL: "real", PARROT: "parrot"}  # cells nobody drew, and their roles
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
        return identity_of(self.checkpoint)

    def about(self) -> dict[str, Any]:
        names = {"sha256": self.sha256, "identity": self.identity}
        return {"role": self.role, **names, "provenance": dict(self.checkpoint.provenance)}


def gather(models: Mapping[str, Source]) -> tuple[list[Entry], list[str]]:
    """Entries, the teacher first, and what a reader should know about them."""
    if not models:
        raise UserError("there is no model to evaluate: give NAME=CHECKPOINT, such as teacher=pocket")
    for name in GIVEN:
        if name in models:
            raise UserError(f"{name!r} is the name of a control that every evaluation has: call the model otherwise")
    loaded = {name: load(source) if isinstance(source, (str, Path)) else source for name, source in models.items()}
    entries = [Entry(name, _role(name, checkpoint), checkpoint) for name, checkpoint in loaded.items()]
    if all(entry.role == "ar" for entry in entries):
        raise UserError("a causal model is a control, not a contender: give a masked model as well")
    if any(entry.name == TEACHER and entry.role == "ar" for entry in entries):  # a student's own would have its name
        raise UserError(f"{TEACHER!r} is the masked model that students come from, and this one is causal: call it ar")
    notes = []
    if not any(entry.role == "teacher" for entry in entries):
        found = next((e for e in (_teacher_of(entry) for entry in entries if entry.role == "student") if e), None)
        if found is None:
            notes.append("No teacher was given and no student names its own: nothing to compare with.")
        else:
            entries.append(found)
            notes.append(f"The control is the teacher in the student's provenance: {_source(found)}.")
    entries.sort(key=lambda entry: entry.role != "teacher")
    _check_comparable(entries)
    return entries, notes


def _role(name: str, checkpoint: Checkpoint) -> str:
    if getattr(getattr(checkpoint.model, "config", None), "causal", False):
        return "ar"
    if name == TEACHER:
        return "teacher"
    method = (checkpoint.provenance.get("distillation") or {}).get("method")
    return "elbo" if name == "elbo" or method == "elbo" else "student"


def _teacher_of(entry: Entry) -> Entry | None:
    """The teacher a student was distilled from, as its provenance tells; refused if it has become another."""
    facts = (entry.checkpoint.provenance.get("config") or {}).get("facts") or {}
    named = facts.get("teacher")
    if not named:
        return None
    try:
        checkpoint = load(named["source"])
    except UserError as error:
        raise UserError(f"{entry.name}'s teacher cannot be loaded ({error}): give it as teacher=PATH") from error
    teacher = Entry(
        TEACHER,
        "teacher",
        replace(checkpoint, tokenizer=checkpoint.tokenizer or entry.checkpoint.tokenizer),
    )
    if named.get("weights") and named["weights"] != teacher.sha256:
        raise UserError(
            f"{named['source']} no longer holds the weights {entry.name} was distilled from: "
            "give the right one as teacher=PATH"
        )
    return teacher


def _source(entry: Entry) -> str:
    return str(entry.sha256)[:12]


def _check_comparable(entries: list[Entry]) -> None:
    first = entries[0]
    for entry in entries:
        tokenizer = entry.checkpoint.tokenizer
        if tokenizer is None:
            raise UserError(f"{entry.name} has no tokenizer, so that its samples are no text: give a model with one")
        assert first.checkpoint.tokenizer is not None
        if tokenizer.hash != first.checkpoint.tokenizer.hash:
            raise UserError(
                f"{entry.name} and {first.name} have different tokenizers, so that entropy does not compare"
            )
        if entry.checkpoint.model.length != first.checkpoint.model.length:
            raise UserError(
                f"{entry.name} writes {entry.checkpoint.model.length} tokens, {first.name} "
                f"{first.checkpoint.model.length}: entropy does not compare between lengths"
            )
