"""The verb `push`: a checkpoint or an adapter to a hub repository, with a model card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from unmask.checkpoint.card import portable, write_card
from unmask.checkpoint.io import WRITTEN, Checkpoint, load, save
from unmask.checkpoint.locate import is_hub_name
from unmask.core.errors import UserError
from unmask.core.verbs import verb
from unmask.models.family import plain
from unmask.models.lora import Base, base_of


@verb
def push(
    source: str | Path,
    repository: str,
    *,
    about: str,
    licence: str | None = None,
    base: str | None = None,
    private: bool = False,
    revision: str | None = None,
) -> str:
    """Upload a checkpoint, or a LoRA adapter, to a hub repository, with a model card; says where it is.

    The repository is made if it is not there. The averaged weights are sent, with a provenance without the paths of
    this machine. Log in first (`hf auth login`), or set HF_TOKEN; HF_ENDPOINT names another hub.

    Args:
        source: a folder, a run's too, or anything else that `load` reads
        repository: OWNER/NAME
        about: what the model is and what it read, in a few sentences, for the card
        licence: of the weights, for the card
        base: of an adapter whose base is a folder here: the hub name of that base
        private: make the repository for yourself alone
        revision: the branch to write (default: main)
    """
    if not is_hub_name(repository):
        raise UserError(f"{repository!r} is no hub name: give OWNER/NAME")
    checkpoint = load(source)
    if base is not None and not base_of(checkpoint.model):
        raise UserError(f"{source} is no adapter and has no base: leave out --base")
    with TemporaryDirectory() as kept:
        folder = Path(kept) / repository.split("/")[1]
        checkpoint = _for_others(checkpoint, base)
        save(checkpoint, folder)
        write_card(checkpoint, folder, about=about, licence=licence, name=repository)
        return _upload(folder, repository, private, revision)


def _for_others(checkpoint: Checkpoint, base: str | None) -> Checkpoint:
    """The same without the paths of this machine; an adapter's base must be one that others can find."""
    checkpoint = replace(checkpoint, provenance=portable(checkpoint.provenance))
    if (known := base_of(checkpoint.model)) is None:
        return checkpoint
    source = base or known.source
    if source is None or not is_hub_name(source) or Path(source).exists():
        raise UserError(f"the adapter's base is {source}, which others cannot find: give its hub name with --base, or "
                        "merge the adapter first (unmask convert --merge)")  # fmt: skip
    plain(checkpoint.model).adapter_base = Base(source, known.fingerprint)
    return checkpoint


def _upload(folder: Path, repository: str, private: bool, revision: str | None) -> str:
    try:
        from httpx import HTTPError
        from huggingface_hub import HfApi
    except ImportError as error:
        raise UserError("pushing needs the library huggingface-hub: pip install 'unmask[hub]'") from error
    api: Any = HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(repository, branch=revision, exist_ok=True)
        done = api.upload_folder(
            repo_id=repository, folder_path=folder, revision=revision, commit_message="unmask push",
            allow_patterns=sorted(WRITTEN),
        )  # fmt: skip
    except (HTTPError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"the hub did not take {repository} ({type(error).__name__}: {reason}): log in "
                        "(hf auth login), check the name and the network") from error  # fmt: skip
    return str(done.commit_url)
