"""`unmask prepare`: text to packed, memory-mapped shards of tokens."""

from __future__ import annotations

import json as json_module
from pathlib import Path

from unmask.data.prepare import Prepared, Settings


def prepare(inputs: list[str], /, *, out: Path, settings: Settings, json: bool = False) -> None:
    """Turn text into packed, memory-mapped shards of tokens.

    INPUTS are text files, .jsonl files, either of them compressed (.xz, .gz, .zst), folders of such files,
    the word sample for the bundled corpus (./sample for a file of that name), - for standard input,
    and hf:NAME[:CONFIG[:SPLIT]] for a Hugging Face dataset.

    Interrupted, the same command goes on where it stopped; finished, it only checks that text and shards are the same.

    Args:
        inputs: what to read, in this order.
        out: the folder to make.
        json: print the index instead of a table.
    """
    from unmask.data.prepare import prepare as library_prepare

    done = library_prepare(inputs, out, settings)
    if json:
        print(json_module.dumps(done.shards.index, indent=2, ensure_ascii=False))
    else:
        _show(done)


def _show(done: Prepared) -> None:
    from rich.console import Console
    from rich.table import Table

    shards = done.shards
    tokenizer = shards.index["tokenizer"]
    table = Table("split", "documents", "tokens", "text, MB", "shards")
    for column in table.columns[1:]:
        column.justify = "right"
    for split, about in shards.index["splits"].items():
        size = f"{about['text_bytes'] / 1e6:.1f}"
        table.add_row(split, f"{about['documents']:,}", f"{about['tokens']:,}", size, str(len(about["shards"])))
    console = Console()
    console.print(table)
    news = "was prepared already, nothing to do" if done.already else "is ready"
    name = f"{tokenizer['name']} ({tokenizer['size']:,} tokens)"
    console.print(
        f"{shards.folder} {news}; tokenizer {name}, split by {shards.index['split_by']}", soft_wrap=True, markup=False
    )
