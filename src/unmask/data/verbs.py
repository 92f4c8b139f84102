"""The verb `prepare`, in Python and on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unmask.core.verbs import verb
from unmask.data import prepare as inner
from unmask.data.prepare import Prepared, Settings


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
    several = [inputs] if isinstance(inputs, (str, Path)) else inputs
    return inner.prepare([str(one) for one in several], out, settings, show=progress)
