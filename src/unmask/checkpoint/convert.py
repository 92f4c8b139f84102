"""From one format to another: load, then write; with a card, in a form to give away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from unmask.checkpoint.card import portable, write_card
from unmask.checkpoint.io import FILES, Checkpoint, load, refuse_to_replace, save
from unmask.checkpoint.locate import bundled
from unmask.checkpoint.tensors import write_tensors
from unmask.core.errors import UserError
from unmask.core.files import fresh_folder, write_json, write_text
from unmask.core.verbs import verb
from unmask.models.family import family_of, plain
from unmask.models.lora import base_of, merged
from unmask.processes import Masked, Process, Uniform
from unmask.processes.process import process_to_json


@verb
def convert(
    source: str | Path,
    target: str | Path,
    *,
    format: Literal["unmask", "mdlm", "duo"] = "unmask",
    weights: Literal["ema", "raw"] = "ema",
    revision: str | None = None,
    dtype: Literal["fp32", "bf16"] | None = None,
    adapter: str | Path | None = None,
    merge: bool = False,
    fold: bool = False,
    card: str | None = None,
    licence: str | None = None,
    overwrite: bool = False,
) -> Checkpoint:
    """Read a checkpoint of any layout we know and write one set of its weights to a folder.

    Args:
        source: our folder, an MDLM, SDTT or Duo folder, a Lightning .ckpt file, a bundled or a hub name (owner/name)
        target: the folder to write
        format: our own format, or the hub folder of MDLM, or of Duo for a uniform model
        weights: the averaged weights or the raw ones, where the source has both
        revision: of a hub repository
        dtype: store the weights in this type; otherwise they stay as stored
        adapter: a LoRA adapter to put on the source: a folder or a hub name
        merge: add the adapter to the weights: the result needs neither the adapter nor peft
        fold: leave out the conditioning on time, where it is off: the same function in fewer numbers
        card: what the model is and what it read, in a few sentences: writes a model card (README.md), and a provenance
            without the paths of this machine
        licence: of the weights, for the card
        overwrite: replace a checkpoint that is already there
    """
    stored = {None: None, "fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    target = Path(target)
    if licence is not None and card is None:
        raise UserError("a licence is said in the model card: give --card, what the model is and what it read")
    _refuse_overlap(source, target)
    refuse_to_replace(target)
    if target.exists() and not overwrite:
        raise UserError(f"{target} exists: name another folder, or allow its replacement (--overwrite)")
    checkpoint = load(source, adapter=adapter, weights=weights, revision=revision)
    if merge and not base_of(checkpoint.model):
        raise UserError(f"{source} has no adapter to merge: leave out --merge, or name one with --adapter")
    if merge:
        checkpoint = replace(checkpoint, model=merged(checkpoint.model))
    elif base_of(checkpoint.model) and (fold or format != "unmask"):
        raise UserError("an adapter has a format of its own: add --merge to write one network")
    if fold:
        checkpoint = replace(checkpoint, model=family_of(checkpoint.model).smaller(plain(checkpoint.model)))
    if card is not None:
        checkpoint = replace(checkpoint, provenance=portable(checkpoint.provenance))
    if format == "unmask":
        save(checkpoint, target, dtype=stored)
    else:
        _save_published(checkpoint, target, stored, format)
    if card is not None:
        write_card(checkpoint, target, about=card, licence=licence, dtype=stored, weights=weights)
    return checkpoint


def _refuse_overlap(source: str | Path, target: Path) -> None:
    """One set of weights in place of the source would lose the other one, and with it a run's way to go on."""
    here = Path(source) if Path(source).exists() else bundled().get(str(source))
    if here is None:  # a hub's name
        return
    mine, theirs = target.resolve(), here.resolve()
    if mine == theirs or theirs in mine.parents or mine in theirs.parents:
        raise UserError(f"{target} is {source} itself, or lies in it or around it: name a folder beside it")


def _save_published(checkpoint: Checkpoint, target: Path, dtype: torch.dtype | None, format: str) -> None:
    known: dict[str, Process] = {"mdlm": Masked(), "duo": Uniform()}
    if checkpoint.process != known[format]:
        other = next((name for name, process in known.items() if checkpoint.process == process), None)
        raise UserError(
            f"{'MDLM' if format == 'mdlm' else 'Duo'}'s layout knows the {known[format].name} process with the "
            f"log-linear schedule only, not {process_to_json(checkpoint.process)}: "
            + (f"take --format {other}" if other else "keep this checkpoint in our own format")
        )
    model = plain(checkpoint.model)
    config, tensors = family_of(model).publish(model, dtype)
    with fresh_folder(target) as fresh:
        write_tensors(fresh / FILES["ema"], tensors)
        write_json(fresh / "config.json", config)
        if checkpoint.tokenizer is not None:
            write_text(fresh / "tokenizer.json", checkpoint.tokenizer.to_json())
