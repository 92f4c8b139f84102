"""Tables on a terminal, and figures as files: what several verbs show in the same way."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.core.errors import UserError
from unmask.core.files import check_writable, write_bytes

if TYPE_CHECKING:
    from rich.table import Table

FORMATS = (".svg", ".png", ".pdf")
INK, FADED = "#2b2b2b", "#6b7075"
STYLE = {
    "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left",
    "axes.titlesize": 11, "axes.titleweight": "bold", "axes.edgecolor": FADED, "axes.labelcolor": INK,
    "text.color": INK, "xtick.color": FADED, "ytick.color": FADED, "legend.frameon": False,
    "svg.hashsalt": "unmask",
}  # fmt: skip


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table for a terminal: the first column to the left, numbers to the right."""
    from rich.table import Table

    made = Table(title=title, title_justify="left")
    for i, name in enumerate(columns):
        made.add_column(name, justify="right" if i else "left")
    for row in rows:
        made.add_row(*row)
    return made


def check_figure(path: Path | None) -> None:
    """Refuse a figure's name that cannot be written, before any work is done."""
    if path is not None and path.suffix.lower() not in FORMATS:
        raise UserError(f"a figure's name must end in {', '.join(FORMATS)}, not {str(path)!r}")
    check_writable(path)


def save_figure(figure: Any, path: Path, dpi: int = 100) -> None:
    """A matplotlib figure as a file; the same figure gives the same bytes."""
    kind, buffer = path.suffix.lower()[1:], io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else None)
    write_bytes(path, buffer.getvalue())
