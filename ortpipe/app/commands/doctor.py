"""ortpipe doctor: check that this machine, environment and folders can train and record; print how to fix them."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import hydra
from packaging.requirements import Requirement

from ortpipe import OrtpipeError
from ortpipe.app.compose import Parser
from ortpipe.app.local_path import cache_folder
from ortpipe.app.tracking import client_at, database_of, reached
from ortpipe.errors import under
from ortpipe.pipeline.digest import versions

if TYPE_CHECKING:
    from ortpipe.app.schema import RunConfig

ABOUT = """Check the runtime, the packages' versions, the folders that runs write to, the disk, the tracking
server or database, and train a tiny problem whose losses are known. Every problem is printed with
its fix; the exit code is 1 if there is one. Takes a run's key=value pairs, such as paths.outputs=…
or recorder=none."""
EXAMPLES = (
    "ortpipe doctor",
    "ortpipe doctor recorder.tracking_uri=http://127.0.0.1:5000",
)
MIN_FREE = 2**30  # bytes of disk
REINSTALL = "In a fresh environment: pip install ortpipe."


class Finding(NamedTuple):
    """The result of a check; a problem has a fix."""

    name: str
    message: str
    fix: str | None = None


def run(arguments: Sequence[str]) -> None:
    """Print the findings of every check; exit with 1 if one is a problem."""
    config, problems = Parser("doctor", ABOUT, EXAMPLES).read(arguments).composed.config, 0
    for check in (_runtime, _packages, _folders, _disk, _tracking, _training):
        for name, message, fix in _findings(check, config):
            print(f"{'ok' if fix is None else 'PROBLEM':<8} {name:<9} {message}", flush=True)
            if fix is not None:
                problems += 1
                print(f"         fix       {fix}", flush=True)
    print("no problems found" if not problems else "1 problem" if problems == 1 else f"{problems} problems")
    if problems:
        sys.exit(1)


def _findings(check: Callable[[RunConfig], Iterator[Finding]], config: RunConfig) -> Iterator[Finding]:
    name = check.__name__.removeprefix("_")
    try:
        yield from check(config)
    except OrtpipeError as error:
        message = error.rule if error.got is None else f"{error.rule} got: {error.got}"
        yield Finding(name, " ".join(message.split()), error.fix or REINSTALL)
    except Exception as error:  # noqa: BLE001 - a broken installation may raise anything
        yield Finding(name, f"{type(error).__name__}: {error}".splitlines()[0], REINSTALL)


def _runtime(config: RunConfig) -> Iterator[Finding]:
    from ortpipe.runtime import DISTRIBUTIONS, about, check_provider

    runtime = about()
    name = next(iter(versions(DISTRIBUTIONS)))
    engines = "engines native and ort" if runtime.builds_gradients else "engine native (ort needs onnxruntime-training)"
    yield Finding("runtime", f"{name} {runtime.version}; {engines}; built with {', '.join(runtime.providers)}")
    with under("runtime"):
        check_provider(config.runtime)
    yield Finding("provider", f"{config.runtime.provider}, threads: {config.runtime.threads} of {os.cpu_count()} cores")


def _packages(config: RunConfig) -> Iterator[Finding]:
    has_problem = False
    dependencies = requirements()
    for requirement in dependencies:
        version = versions((requirement.name,)).get(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            has_problem = True
            message = f"{requirement.name} {version or 'is not installed'}, and ortpipe needs {requirement.specifier}"
            yield Finding("packages", message, f"pip install '{requirement.name}{requirement.specifier}'")
    if not has_problem:
        message = f"Python {platform.python_version()}; all {len(dependencies)} in the versions that ortpipe needs"
        yield Finding("packages", message)
    if not Path(cache_from_source(str(hydra.__file__))).is_file():
        folder = Path(str(hydra.__file__)).parents[1]
        cause = "Every start compiles them again, which doubles its time: unset PYTHONDONTWRITEBYTECODE, or run once"
        yield Finding("packages", f"{cause} python -m compileall -q {shlex.quote(str(folder))}")


def requirements() -> list[Requirement]:
    """Return ortpipe's dependencies on this platform, without its extras."""
    parsed = map(Requirement, metadata.requires("ortpipe") or [])
    return [needed for needed in parsed if needed.marker is None or needed.marker.evaluate({"extra": ""})]


def _folders(config: RunConfig) -> Iterator[Finding]:
    for key in ("outputs", "cache"):
        folder = getattr(config.paths, key)
        if folder is None:
            continue
        if key == "cache":
            folder = cache_folder(folder, config.paths.outputs)
        existing = _nearest_existing(Path(folder))
        new = "" if existing == Path(folder).absolute() else f", which will be created in {existing}"
        status = f"paths.{key} {folder}{new}"
        try:
            with tempfile.TemporaryFile(dir=existing) as file:
                file.write(b"x")
            yield Finding("folders", status)
        except OSError as error:
            fix = f"Set paths.{key} to a folder that you may write to, or change its permissions."
            yield Finding("folders", f"{status}: {error.strerror}", fix)


def _nearest_existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def _disk(config: RunConfig) -> Iterator[Finding]:
    place = _nearest_existing(Path(config.paths.outputs))
    free = shutil.disk_usage(place).free
    fix = (
        f"Free some space, or set paths.outputs to another disk; ortpipe cache gc frees the cache in "
        f"{config.paths.cache}."
    )
    yield Finding("disk", f"{free / 2**30:,.1f} GiB free at {place}", None if free >= MIN_FREE else fix)


def _tracking(config: RunConfig) -> Iterator[Finding]:
    uri = getattr(config.recorder, "tracking_uri", None)
    if uri is None:
        yield Finding("tracking", f"recorder {type(config.recorder).__name__.lower()} needs no server")
        return
    if (database := database_of(uri)) is not None and not database.exists():
        yield Finding("tracking", f"{uri} does not exist yet: the first run creates it")
        return
    started = time.perf_counter()
    with reached(uri):
        client_at(uri).search_experiments(max_results=1)
    yield Finding("tracking", f"{uri} answers in {time.perf_counter() - started:.1f} s")


def _training(config: RunConfig) -> Iterator[Finding]:
    from ortpipe.app.self_test import self_test
    from ortpipe.runtime import about

    for engine in ("native", "ort") if about().builds_gradients else ("native",):
        started = time.perf_counter()
        result = self_test(engine, config.runtime)
        yield Finding("training", f"{result}; {time.perf_counter() - started:.1f} s")
