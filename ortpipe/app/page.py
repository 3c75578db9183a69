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
from ortpipe.bundle import page_files, static_files
from ortpipe.errors import ConfigError, under

REPLAY = 200  # training rows in a page, which corrections train with


def page_key(count: int | None) -> dict[str, Any]:
    """Return the inputs of a page besides its run: the number of rows, and the files that all pages share."""
    if count is None:
        return {}
    return {"rows": count, **{name: hashlib.sha256(file).hexdigest() for name, file in static_files().items()}}


def page_of(
    model: Artifact, run: Path | None, values: dict[str, Any], count: int, runtime: str | None, *, trust: bool
) -> dict[str, bytes]:
    """Return the files of a page with `count` training rows of a run, whose data must not have changed since."""
    if run is None:
        rule, fix = "A page contains rows that the model was trained on.", "Name a run, or leave out --page."
        raise ConfigError(rule, got="an artifact, which has none", fix=fix)
    source = values["data"]["source"]
    title = Path(source["path"]).stem if source.get("path") else source.get("dataset") or values["name"]
    label = source["label"] if isinstance(source.get("label"), str) else "label"
    about = {"title": title, "label": label, "shuffle": values["train"]["shuffle"]}
    data = _data(run, values, trust=trust)
    return page_files(model, data, count, about, None if runtime is None else Path(runtime))


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
