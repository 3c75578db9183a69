"""The page of a bundle with rows of its run, for `ortpipe export --page`."""

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortpipe import Artifact, Data
from ortpipe.app.assemble import open_run
from ortpipe.app.consent import check_consent, completed
from ortpipe.app.run.record import RunRecord, read_environment
from ortpipe.app.schema import build_key
from ortpipe.bundle import page_files, runtime_files, static_files
from ortpipe.errors import ConfigError, under

REPLAY = 200  # training rows in a page, which corrections train with


def page_inputs(run: Path | None, values: Mapping[str, Any], count: int, runtime: str | None) -> dict[str, Any]:
    """Return all that a page depends on besides its model: rows, settings, and files that pages share."""
    if run is None:
        rule, fix = "A page contains rows that the model was trained on.", "Name a run, or leave out --page."
        raise ConfigError(rule, got="an artifact, which has none", fix=fix)
    files = {**static_files(), **({} if runtime is None else runtime_files(Path(runtime)))}  # the default is pinned
    digests = {name: hashlib.sha256(file).hexdigest() for name, file in files.items()}
    return {**_about(values), "rows": count, "data": RunRecord.read(run).data.get("digest"), "files": digests}


def page_of(
    model: Artifact, run: Path, values: dict[str, Any], count: int, runtime: str | None, *, trust: bool
) -> dict[str, bytes]:
    """Return the files of a page with `count` training rows of a run, whose data must not have changed since."""
    data = _data(run, values, trust=trust)
    return page_files(model, data, count, _about(values), None if runtime is None else Path(runtime))


def _about(values: Mapping[str, Any]) -> dict[str, Any]:
    source = values["data"]["source"]
    title = Path(source["path"]).stem if source.get("path") else source.get("dataset") or values["name"]
    label = source["label"] if isinstance(source.get("label"), str) else "label"
    return {"title": title, "label": label, "shuffle": values["train"]["shuffle"]}


def _data(run: Path, values: Mapping[str, Any], *, trust: bool) -> Data:
    place = str(read_environment(run).get("folder", "."))
    check_consent(values, place, trust=trust)
    with contextlib.chdir(place if Path(place).is_dir() else "."):
        config = build_key("data", completed({"data": values["data"]}, {})["data"])
        data: Data = open_run({"data": config}, under)["data"]
    if data.digest() != RunRecord.read(run).data.get("digest"):
        rule, fix = "A page contains rows that the model was trained on.", "Restore the data, or train again."
        raise ConfigError(rule, got="other rows than those of the run", fix=fix)
    return data
