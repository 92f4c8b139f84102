"""Pages filled in: what stands between `<!-- begin NAME -->` and `<!-- end NAME -->` comes from the studies.

NAME is a study (all of it), STUDY/BLOCK (one part, where prose is to stand between the parts) or `summary` (a few rows
of several studies). Text outside the marks is never touched. Refuses to know where numbers come from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tools.results.figures import figures
from tools.results.headline import headline, scale
from tools.results.names import plan_name
from tools.results.studies import STATUS, Json, Slim, Study
from tools.results.summary import summary
from tools.results.tables import Blocks, ablation, grids, matched, plans, rounds

from unmask.core.errors import UserError, os_errors, unknown
from unmask.core.files import write_bytes, write_text

_MARK = re.compile(r"<!-- begin (?P<name>[\w/-]+) -->\n(?P<old>.*?)<!-- end (?P=name) -->", re.DOTALL)
_BEGIN = re.compile(r"<!-- begin ([\w/-]+) -->")
SECTIONS: dict[str, Callable[[Study], Blocks]] = {
    "plans": plans,
    "grids": grids,
    "matched": matched,
    "rounds": rounds,
    "ablation": ablation,
    "scale": scale,
    "scale-again": scale,
    "headline": headline,
}
ALT = {
    "nelbo": "N-step NELBO of the teacher against steps, a line for each plan",
    "mauve": "Path gap R and MAUVE of the teacher against steps, a line for each plan",
    "frontier": "Gen PPL against entropy along the temperatures of each plan",
    "students": "Students from round to round: Gen PPL and entropy, beside the teacher along its temperatures",
    "headline": "Each score against forwards a text; lower and further left is better",
    "scale": "Each score against forwards a text at L = 1024; lower and further left is better",
}


def fill(page: Path, studies: Sequence[Study], pictures: Mapping[str, Sequence[Path]], results: Path) -> bool:
    """Write a page's marked parts anew; whether anything changed. `pictures` are the figures of each study."""
    with os_errors("read", page):
        text = page.read_text(encoding="utf-8")
    unclosed = set(_BEGIN.findall(text)) - {found["name"] for found in _MARK.finditer(text)}
    if unclosed:
        raise UserError(
            f"{page} has `<!-- begin {min(unclosed)} -->` without its end: write `<!-- end {min(unclosed)} -->`"
        )
    shown = [study for study in studies if study.name in SECTIONS]  # `models` only makes what the others need
    parts = {name: part for study in shown for name, part in _parts(study, page.parent, pictures, results).items()}
    brief = summary(shown)
    parts["summary"] = brief.markdown() if brief else f"*{STATUS['planned']}.*"

    def new(found: re.Match[str]) -> str:
        name = found["name"]
        if name not in parts:
            raise unknown(f"mark in {page}", name, parts)
        return f"<!-- begin {name} -->\n{parts[name]}\n<!-- end {name} -->"

    filled = _MARK.sub(new, text)
    if filled != text:
        write_text(page, filled)
    return filled != text


def draw(studies: Sequence[Study], folder: Path) -> dict[str, list[Path]]:
    """Write the figures of all studies, where they changed; returns them by study."""
    made: dict[str, list[Path]] = {}
    for study in studies:
        drawn = {folder / f"{name}.svg": picture for name, picture in figures(study).items()}
        made[study.name] = list(drawn)
        for path, picture in drawn.items():
            if not path.is_file() or path.read_bytes() != picture:
                write_bytes(path, picture)
    return made


def _parts(study: Study, here: Path, pictures: Mapping[str, Sequence[Path]], results: Path) -> dict[str, str]:
    """Every block of a study by its name, the whole under the study's own. A brief block is not part of the whole."""
    made = SECTIONS[study.name](study)
    brief = made.pop("brief", [])
    blocks = {name: "\n\n".join(table.markdown() for table in found) for name, found in made.items()}
    shown = [f"![{ALT[path.stem.split('-')[0]]}]({_link(path, here)})" for path in pictures[study.name]]
    parts = {"status": status(study), "about": study.about.strip(), "figures": "\n\n".join(shown), **blocks}
    parts |= {"samples": _samples(study), "facts": _facts(study, here, results)}
    whole = "\n\n".join(part for part in parts.values() if part)
    more = _link(results.parent / "studies" / f"{study.name}.md", here)
    ending = f"{STATUS[study.state]}: [what is missing, all of it, and the commands]({more})."
    parts["brief"] = "\n\n".join([*shown[:1], *(table.markdown() for table in brief), ending])
    empty = f"*{STATUS[study.state]}.*"
    return {study.name: whole, **{f"{study.name}/{name}": part or empty for name, part in parts.items()}}


def _link(path: Path, here: Path) -> str:
    return Path(os.path.relpath(path, here)).as_posix()


def status(study: Study) -> str:
    """Whether it is all there, and what is not."""
    said = [f"**{STATUS[study.state]}.**"]
    missing = study.missing.strip().rstrip(".") if study.state != "complete" else ""
    if missing:
        said.append(f"{missing[0].upper()}{missing[1:]}.")
    elif study.state == "partial" and not study.absent:
        said.append("Every run is there, but nobody has called it complete.")
    if study.slims and study.absent:
        said.append(f"Not run: {', '.join(f'`{run.name}`' for run in study.absent)}.")
    cells = [r for r in study.cells() if r["steps"] and r["role"] not in ("real", "parrot")]
    few = [r for r in cells if r["n"] < study.samples]
    if few:
        least = min(r["n"] for r in few)
        said.append(f"{len(few)} of {len(cells)} cells have fewer than {study.samples:,} texts (the fewest {least:,}).")
    return " ".join(said)


def _samples(study: Study) -> str:
    """The texts that a run keeps, which is the first one drawn of each cell: nobody chose them."""
    said: list[Json] = next((slim.said["samples"] for slim in study.slims if slim.said.get("samples")), [])
    parts = [
        f"{one['model']}, {plan_name(one['plan'])}, {one['steps']} steps, T = {one['temperature']:g}:\n"
        f"```text\n{one['text'].replace('```', chr(39) * 3)}\n```"
        for one in said
    ]
    summary = "<details><summary>How it reads: the first text of a few cells, cut</summary>"
    return "\n\n".join([summary, *parts, "</details>"]) if parts else ""


# --- facts -----------------------------------------------------------------------------------------------------------


def _facts(study: Study, here: Path, results: Path) -> str:
    """Commands, and for each run its judge, settings, machine and models: closed until asked for."""
    commands = ["```", *study.commands, "```"] if study.commands else []
    runs = [_run_facts(slim, _link(results / f"{slim.run.name}.json", here)) for slim in study.slims]
    inner = "\n\n".join(part for part in ("\n".join(commands), "\n".join(runs)) if part)
    return (
        f"<details><summary>How: commands, judges, machine, models</summary>\n\n{inner}\n\n</details>" if inner else ""
    )


def _run_facts(slim: Slim, link: str) -> str:
    said = slim.said
    machines = [f"{m['device']}, torch {m['torch']}, {m['time'][:10]}, {_revision(m)}" for m in said["machine"]]
    lines = [f"- [{slim.run.name}]({link}): {'; '.join(dict.fromkeys(machines))}."]
    if judge := said.get("judge"):
        facts = ", ".join(str(judge[key]) for key in ("kind", "dtype") if judge.get(key))
        protocol = said["settings"]["protocol"]
        lines.append(
            f"  - Judge {slim.judge.split(' ')[0]} ({facts}; id `{str(judge['id'])[:12]}`), protocol {protocol}."
        )
    if settings := said.get("settings"):
        lines.append(
            f"  - n = {settings['n']:,}, seed {settings['seed']}, L = {settings['length']}, split {settings['split']}."
        )
    lines += [f"  - `{name}`: {_model(about)}." for name, about in said.get("models", {}).items() if about["sha256"]]
    return "\n".join(lines)


def _revision(machine: Json) -> str:
    return f"revision {machine['revision'][:10]}" if machine.get("revision") else f"unmask {machine.get('unmask')}"


def _model(about: Json) -> str:
    said = [f"{about['role']}, weights `{str(about['sha256'])[:12]}`"]
    if trainer := about.get("trainer"):
        said.append(f"{_steps(about):,} steps of {trainer.get('batch')} at {trainer.get('lr'):g}")
    if about.get("seed") is not None:
        said.append(f"seed {about['seed']}")
    if held_out := about.get("held_out"):
        said.append(f"{held_out['kind']} {held_out['nats']:.4f} nats in training")
    return ", ".join(said)


def _steps(about: Json) -> int:
    """Optimiser steps behind these weights; those of a round are fewer than the run was to have."""
    if (rounds := about.get("distillation")) and "step" not in about:  # files of the first runs
        return int(rounds["round"] * rounds["round_steps"])
    return int(about.get("step", about["trainer"]["steps"]))
