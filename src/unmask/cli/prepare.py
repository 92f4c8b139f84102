"""What `unmask prepare` prints: the splits it made."""

from __future__ import annotations

import json as json_module

from rich.console import Console

from unmask.cli.parser import Call
from unmask.core.show import table


def present(call: Call, *, json: bool = False) -> None:
    """Prepare, then show the splits.

    Args:
        json: print the index instead of a table
    """
    done = call()
    shards, tokenizer, rows = done.shards, done.shards.index["tokenizer"], []
    if json:
        print(json_module.dumps(shards.index, indent=2, ensure_ascii=False))
        return
    for split, about in shards.index["splits"].items():
        size = f"{about['text_bytes'] / 1e6:.1f}"
        rows.append([split, f"{about['documents']:,}", f"{about['tokens']:,}", size, str(len(about["shards"]))])
    console = Console()
    console.print(table("", ["split", "documents", "tokens", "text, MB", "shards"], rows))
    news = "was prepared already, nothing to do" if done.already else "is ready"
    name = f"{tokenizer['name']} ({tokenizer['size']:,} tokens)"
    ready = f"{shards.folder} {news}; tokenizer {name}, split by {shards.index['split_by']}"
    console.print(ready, soft_wrap=True, markup=False)
