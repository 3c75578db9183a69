"""Copies of the model files that a run reads, in its folder: the originals may change before it is repeated."""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ortpipe.files import atomic_folder
from ortpipe.pipeline.plan import Plan, ReadsFiles

FOLDER = "inputs"


def keep_inputs(plan: Plan, run: Path) -> None:
    """Copy what the plan's configs read as models, with external data, into `inputs/` of a run's folder."""
    groups = [files for step in plan for files in _read(step.config) if files]
    if not groups:
        return
    with atomic_folder(run / FOLDER) as folder:
        for first, *others in groups:
            for file in (first, *others):
                place = folder / (file.name if file is first else file.relative_to(first.parent.resolve()))
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place)


def _read(config: Any) -> Iterator[tuple[Path, ...]]:
    if isinstance(config, ReadsFiles):
        yield config.files()
    if not dataclasses.is_dataclass(config):
        return
    for field in dataclasses.fields(config):
        yield from _read(getattr(config, field.name))


def kept_input(path: str, run: Path) -> str | None:
    """Return the copy of a model file that a run's folder has, if it has one."""
    place = run / FOLDER / Path(path).name
    return str(place) if place.is_file() and not place.is_symlink() else None
