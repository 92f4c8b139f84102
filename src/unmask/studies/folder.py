"""The folder that results and a report go into: whose it is, and so whether it may be written over.

A results.json of ours is the sign of ownership; it is the first file that is written. Refuses to know what is written.
"""

from __future__ import annotations

from pathlib import Path

from unmask.core.errors import UserError, os_errors
from unmask.core.files import read_json
from unmask.studies.results import FORMAT, Json

RESULTS = "results.json"
NAMES = (RESULTS, "report.html", "report.md", "figures")  # what is replaced
MERGED = "merged"  # in the provenance of what `unmask report` wrote: that of each of its inputs
OTHERS = {  # folders of other verbs, by a file that each of them has
    "index.json": "a prepared corpus",
    "unfinished.json": "a corpus that is being prepared",
    "run.json": "a run",
    "config.json": "a checkpoint",
}


def check_results_folder(folder: Path) -> None:
    """Refuse a folder in which a report would replace, or mix with, what is not an evaluation's or a report's."""
    names = _names(folder)
    if RESULTS in names and _results(folder) is not None:
        return
    if found := [name for name in NAMES if name in names]:
        raise UserError(
            f"{folder} holds a {found[0]} that is not of `unmask evaluate`, and would lose it: name another --out, or "
            "move it away"
        )
    refuse_other_folders(folder)


def check_report_folder(folder: Path, inputs: list[Path]) -> None:
    """A report may replace a report, which can be made again, and what it was made of; no other results."""
    check_results_folder(folder)
    said = _results(folder)
    places = {(path / RESULTS if path.is_dir() else path).resolve() for path in inputs}
    if said is not None and MERGED not in said.get("provenance", {}) and (folder / RESULTS).resolve() not in places:
        raise UserError(
            f"{folder} holds the results of an evaluation that is not among those given, and would lose them: name "
            "another --out"
        )


def refuse_other_folders(folder: Path, option: str = "--out") -> None:
    """A corpus, a run or a checkpoint stays what it is."""
    names = _names(folder)
    if found := [what for name, what in OTHERS.items() if name in names]:
        raise UserError(f"{folder} is {found[0]}: name another {option}")


def _names(folder: Path) -> set[str]:
    with os_errors("write", folder):
        return {path.name for path in folder.iterdir()} if folder.exists() else set()


def _results(folder: Path) -> Json | None:
    """What a results.json of ours says, whatever its version; None for another's, and for none."""
    try:
        said = read_json(folder / RESULTS, "results")
    except UserError:
        return None
    return said if said.get("format") == FORMAT else None
