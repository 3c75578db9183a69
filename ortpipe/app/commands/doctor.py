"""ortpipe doctor: whether this machine, this environment and these folders can train and record; how to fix them."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from packaging.requirements import Requirement

from ortpipe.app.compose import Parser
from ortpipe.app.tracking.client import client_at, reached
from ortpipe.app.tracking.sqlite import database_of
from ortpipe.errors import OrtpipeError
from ortpipe.pipeline.digest import versions

if TYPE_CHECKING:
    from ortpipe.app.schema import RunConfig

ABOUT = """Check the runtime, the packages' versions, the folders that runs write to, the disk, the tracking server or
database, and train a tiny problem whose losses are known. Every problem is printed with its fix; the exit code is
1 where there is one. Takes a run's key=value pairs, such as paths.outputs=… or recorder=none."""
LEAST = 2**30  # bytes that should be free
AGAIN = "In a fresh environment: pip install ortpipe."


class Finding(NamedTuple):
    """What one check says; `fix` is what to do where it is a problem."""

    name: str
    said: str
    fix: str | None = None


def run(arguments: Sequence[str]) -> None:
    """Print what every check finds; exit with 1 where one is a problem."""
    config, problems = Parser("doctor", ABOUT).read(arguments).composed.config, 0
    for check in (_runtime, _packages, _folders, _disk, _tracking, _training):
        for name, said, fix in _examined(check, config):
            print(f"{'ok' if fix is None else 'PROBLEM':<8} {name:<9} {said}", flush=True)
            if fix is not None:
                problems += 1
                print(f"         fix       {fix}", flush=True)
    print("no problems found" if not problems else "1 problem" if problems == 1 else f"{problems} problems")
    if problems:
        sys.exit(1)


def _examined(check: Callable[[RunConfig], Iterator[Finding]], config: RunConfig) -> Iterator[Finding]:
    name = check.__name__.removeprefix("_")
    try:
        yield from check(config)
    except OrtpipeError as error:
        said = error.rule if error.got is None else f"{error.rule} got: {error.got}"
        yield Finding(name, " ".join(said.split()), error.fix or AGAIN)
    except Exception as error:  # noqa: BLE001 - whatever a broken installation raises is what this is there to say
        yield Finding(name, f"{type(error).__name__}: {error}".splitlines()[0], AGAIN)


def _runtime(config: RunConfig) -> Iterator[Finding]:
    from ortpipe.runtime.distributions import DISTRIBUTIONS
    from ortpipe.runtime.library import about

    found = about()
    name = next(iter(versions(DISTRIBUTIONS)))
    engines = "engines native and ort" if found.builds_gradients else "engine native (ort needs onnxruntime-training)"
    yield Finding("runtime", f"{name} {found.version}; {engines}; {', '.join(found.providers)}")
    from ortpipe.runtime.session import check_provider

    check_provider(config.runtime)
    yield Finding("provider", f"{config.runtime.provider}, threads: {config.runtime.threads} of {os.cpu_count()} cores")


def _packages(config: RunConfig) -> Iterator[Finding]:
    wrong = False
    required = [one for one in requirements() if one.marker is None or one.marker.evaluate({"extra": ""})]
    for needed in required:
        version = versions((needed.name,)).get(needed.name)
        if version is None or not needed.specifier.contains(version, prereleases=True):
            wrong = True
            said = f"{needed.name} {version or 'is not installed'}, and ortpipe needs {needed.specifier}"
            yield Finding("packages", said, f"pip install '{needed.name}{needed.specifier}'")
    if not wrong:
        said = f"Python {platform.python_version()}; all {len(required)} in the versions that ortpipe needs"
        yield Finding("packages", said)


def requirements() -> list[Requirement]:
    """Return what ortpipe needs: from pyproject.toml in a checkout, else from the installed metadata."""
    project = Path(__file__).resolve().parents[3] / "pyproject.toml"
    if project.is_file():
        lines = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
    else:
        lines = metadata.requires("ortpipe") or []
    return [Requirement(line) for line in lines]


def _folders(config: RunConfig) -> Iterator[Finding]:
    for key in ("outputs", "cache"):
        folder = getattr(config.paths, key)
        if folder is None:
            continue
        existing = _existing(Path(folder))
        new = "" if existing == Path(folder).absolute() else f", which will be made in {existing}"
        said = f"paths.{key} {folder}{new}"
        try:
            with tempfile.TemporaryFile(dir=existing) as file:
                file.write(b"x")
            yield Finding("folders", said)
        except OSError as error:
            fix = f"Set paths.{key} to a folder of yours, or change its rights."
            yield Finding("folders", f"{said}: {error.strerror}", fix)


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that is there."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def _disk(config: RunConfig) -> Iterator[Finding]:
    place = _existing(Path(config.paths.outputs))
    free = shutil.disk_usage(place).free
    fix = f"Free some, or set paths.outputs to another disk; ortpipe cache gc frees the cache in {config.paths.cache}."
    yield Finding("disk", f"{free / 2**30:,.1f} GiB free at {place}", None if free >= LEAST else fix)


def _tracking(config: RunConfig) -> Iterator[Finding]:
    uri = getattr(config.recorder, "tracking_uri", None)
    if uri is None:
        yield Finding("tracking", f"recorder {type(config.recorder).__name__.lower()} reaches for nothing")
        return
    if (database := database_of(uri)) is not None and not database.exists():
        yield Finding("tracking", f"{uri} is not there yet: the first run makes it")
        return
    begun = time.perf_counter()
    with reached(uri):
        client_at(uri).search_experiments(max_results=1)
    yield Finding("tracking", f"{uri} answers in {time.perf_counter() - begun:.1f} s")


def _training(config: RunConfig) -> Iterator[Finding]:
    from ortpipe.app.self_test import self_test
    from ortpipe.runtime.library import about

    for engine in ("native", "ort") if about().builds_gradients else ("native",):
        begun = time.perf_counter()
        said = self_test(engine, config.runtime)
        yield Finding("training", f"{said}; {time.perf_counter() - begun:.1f} s")
