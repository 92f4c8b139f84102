"""Builds the static page: the bundled model, in the visitor's browser. Any host of files will do.

    python -m tools.playground [FOLDER]

The runtime comes from npm, whose registry is the one that npm is set to; its hash is checked.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import unmask
from unmask.core.errors import UserError
from unmask.core.files import fresh_folder

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "docs" / "playground" / "src"
SITE = ROOT / "docs" / "playground" / "site"
PAGE = ROOT / "src" / "unmask" / "server" / "page"
PACKAGE = "onnxruntime-web@1.22.0"
INTEGRITY = "sha512-Ud/+EBo6mhuaQWt/OjaOk0iNWjXqJoeeMFr6xQEERZdIZH2OWpGzuujz7lfuOBjUa6TEE/sc4nb7Da5dNL34fg=="
WEBASSEMBLY = "ort-wasm-simd-threaded.wasm"
RUNTIME = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", WEBASSEMBLY)
MODEL = "pocket"
MOST = 30 * 10**6  # bytes of the whole folder


def fetch_runtime(folder: Path) -> None:
    """onnxruntime-web, for WebAssembly."""
    npm = shutil.which("npm")
    if npm is None:
        raise UserError("the playground's runtime comes from npm, which is not here: install node and npm")
    with tempfile.TemporaryDirectory() as work:
        # one short attempt: a registry that does not answer is no reason to wait for minutes
        patience = ["--fetch-retries=0", "--fetch-timeout=60000"]
        command = [npm, "pack", PACKAGE, "--silent", "--pack-destination", work, *patience]
        done = subprocess.run(command, capture_output=True, text=True)
        packed = list(Path(work).glob("*.tgz"))
        if done.returncode or not packed:
            raise UserError(f"npm could not fetch {PACKAGE}: {done.stderr.strip() or 'no reason given'}")
        unpack(packed[0].read_bytes(), folder)


def unpack(archive: bytes, folder: Path) -> None:
    """The files that a browser needs, of an archive that is what it was."""
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if found != INTEGRITY:
        raise UserError(f"{PACKAGE} is not what it was: {found}, where {INTEGRITY} is expected; nothing was written")
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        for name in RUNTIME:
            inside = opened.extractfile(f"package/dist/{name}")
            assert inside is not None
            (folder / name).write_bytes(inside.read())


def write_sizes(folder: Path) -> None:
    """What the page has to load before it can write, by name and size: a host may pack what it sends."""
    model = [path for path in (folder / "model").iterdir() if path.suffix in (".onnx", ".json")]
    loaded = sorted([folder / WEBASSEMBLY, *model])
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in loaded}
    (folder / "files.json").write_text(json.dumps(sizes, indent=1), encoding="utf-8")


def build(target: Path) -> int:
    """The whole folder; its size in bytes."""
    with fresh_folder(target) as fresh:
        fetch_runtime(fresh)
        for source in (PAGE, SOURCES):  # its engine.js takes the place of the server's
            for path in source.iterdir():
                if path.is_file() and path.name != "remote.js":
                    shutil.copyfile(path, fresh / path.name)
        unmask.export(MODEL, onnx=fresh / "model", storage="fp16")
        write_sizes(fresh)
        shutil.copyfile(ROOT / "src" / "unmask" / "assets" / MODEL / "README.md", fresh / "model" / "card.txt")
        size = sum(path.stat().st_size for path in fresh.rglob("*") if path.is_file())
        if size > MOST:
            raise UserError(f"the page takes {size / 1e6:.1f} MB, more than {MOST / 1e6:.0f}: nothing was written")
    return size


def main() -> None:
    """Build, and say how to look at it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=SITE)
    folder = parser.parse_args().folder
    try:
        size = build(folder)
    except UserError as error:
        raise SystemExit(f"playground: {error}") from error
    print(f"{folder}: {size / 1e6:.1f} MB. To look at it: python3 -m http.server --bind 127.0.0.1 --directory {folder}")


if __name__ == "__main__":
    main()
