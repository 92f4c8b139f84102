"""Where what is costly is kept: the folder of fetched judges, and a small database of what judges said."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from unmask.core.errors import UserError, os_errors
from unmask.core.files import check_folder

HOME = "UNMASK_CACHE"


def cache_home() -> Path:
    """The cache folder: $UNMASK_CACHE, else `unmask` in the user's cache folder."""
    if os.environ.get(HOME):
        return Path(os.environ[HOME]).expanduser()  # an environment file knows no shell that would do it
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unmask"


def check_cache(folder: Path) -> None:
    """Refuse a folder in the cache that cannot be written, and say how another cache is named."""
    try:
        check_folder(folder)
    except UserError as error:
        raise UserError(f"{error} ({HOME} names another cache folder)") from error


class Store:
    """Rows of numbers by key, in one file. `Store.open()` is the one in the user's cache."""

    def __init__(self, path: Path) -> None:
        self.path = path
        check_cache(path.parent)
        with os_errors("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with self._connected() as base:
            base.execute("CREATE TABLE IF NOT EXISTS said (key TEXT PRIMARY KEY, numbers TEXT NOT NULL)")
            base.execute("DELETE FROM said WHERE 0")  # fails now, not after a cell, where the file is read-only

    @classmethod
    def open(cls) -> Store:
        return cls(cache_home() / "judged.sqlite")

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """A transaction: kept if the block ends well."""
        try:
            base = sqlite3.connect(self.path, timeout=60)
            try:
                with base:
                    yield base
            finally:
                base.close()
        except sqlite3.Error as error:
            raise UserError(
                f"the cache {self.path} cannot be used ({error}): remove that file if it is damaged, or name another "
                f"folder in {HOME}"
            ) from error

    def find(self, keys: Sequence[str]) -> list[list[float] | None]:
        with self._connected() as base:
            rows = base.execute(
                "SELECT key, numbers FROM said WHERE key IN (SELECT value FROM json_each(?))", [json.dumps(list(keys))]
            )
            known = {key: json.loads(numbers) for key, numbers in rows}
        return [known.get(key) for key in keys]

    def keep(self, numbers_by_key: dict[str, list[float]]) -> None:
        """Remember, all or nothing."""
        rows = [(key, json.dumps(numbers)) for key, numbers in numbers_by_key.items()]
        with self._connected() as base:
            base.executemany("INSERT OR REPLACE INTO said VALUES (?, ?)", rows)
