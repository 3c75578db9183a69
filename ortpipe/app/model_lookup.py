"""What a command is about, as a user names it: a file, an artifact's or a run's folder, an MLflow run, a digest."""

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ortpipe.app.compose import Composition
from ortpipe.app.redact import hidden
from ortpipe.app.run.record import read_config
from ortpipe.app.run_lookup import RUN_ID, download, tracked
from ortpipe.artifact import load_artifact, read_metadata
from ortpipe.errors import ConfigError, nearest
from ortpipe.graph.serial import read
from ortpipe.pipeline.store import Store

DIGEST = re.compile(r"[0-9a-f]{6,64}")  # or its beginning
HELP = "an .onnx file, the folder of an artifact or a run, the id of an MLflow run, or a stored digest's beginning"


@dataclass(frozen=True)
class FoundModel:
    """A model with all that is known about it; a bare file has neither tensors nor lineage.

    Attributes:
        name: as the user gave it, and the stage where that was chosen.
        facts: see `ortpipe.artifact.Facts`, as JSON; empty for a model that ortpipe has not seen.
        digest: of the artifact.
        config: of its run, resolved.
    """

    name: str
    model: onnx.ModelProto
    facts: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
    digest: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


def find(name: str, composed: Composition, stage: str | None = None) -> FoundModel:
    """Return what a name stands for; of a run, the last stage or the one that is named."""
    path = Path(name)
    if path.is_file():
        return _file(path)
    if (path / "artifact.json").is_file():
        return _artifact(path, name, path.parents[1] if path.parent.name == "stages" else path)
    if (path / "stages").is_dir():
        chosen = _stage([p.name for p in (path / "stages").iterdir() if "_" in p.name[1:]], name, stage)
        return _artifact(path / "stages" / chosen, f"{name} ({chosen})", path)
    if path.is_dir():
        fix = "Name a run's folder, as its last line says it, or a folder with artifact.json."
        raise ConfigError("A folder is that of an artifact or of a run.", got=name, fix=fix)
    stored = _stored(name, composed.cache) if DIGEST.fullmatch(name) else None
    if stored is not None:
        return stored
    if RUN_ID.fullmatch(name):
        return _tracked(name, composed.tracking_uri, stage)
    raise ConfigError(f"The name of a model is {HELP}.", got=name, fix="Check the path, the id or the digest.")


def _stored(digest: str, cache: Path | None) -> FoundModel | None:
    """Return the only stored artifact whose digest begins so."""
    if cache is None:
        return None
    place = Store(cache).artifact_folder(digest)
    found = sorted(path.name for path in place.parent.glob(f"{digest}*"))
    if len(found) > 1:
        fix = "Give more of it."
        raise ConfigError("A digest's beginning is that of one artifact.", got=f"{digest}: {', '.join(found)}", fix=fix)
    return _artifact(place.with_name(found[0]), found[0], place) if found else None


def _file(path: Path) -> FoundModel:
    model = read(path)
    return FoundModel(str(path), model, read_metadata(model))


def _artifact(folder: Path, name: str, run: Path) -> FoundModel:
    artifact = load_artifact(folder)
    values = read_config(run) if (run / "config.yaml").is_file() else {}
    return FoundModel(
        name, artifact.model, artifact.facts.as_json(), artifact.tensors, artifact.digest(), hidden(values)
    )


def _stage(folders: list[str], run: str, stage: str | None) -> str:
    """Return the folder of a run's stage, such as 5_train: the last one, or the one that is named."""
    numbered = sorted((f for f in folders if f.partition("_")[0].isdigit()), key=lambda f: int(f.partition("_")[0]))
    if not numbered:
        raise ConfigError("A run has at least one stage that finished.", got=f"{run}: none", fix="Run it again.")
    if stage is None:
        return numbered[-1]
    names = {folder.partition("_")[2]: folder for folder in numbered}
    if stage not in names:
        raise ConfigError("--stage is one that the run finished.", got=stage, fix=nearest(stage, names))
    return names[stage]


def _tracked(run_id: str, uri: str, stage: str | None) -> FoundModel:
    with tracked(run_id, uri) as client, tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        names = [Path(entry.path).name for entry in client.list_artifacts(run_id, "stages")]
        chosen = _stage(names, run_id, stage)
        for needed in (f"stages/{chosen}", "config.yaml"):
            download(client, run_id, needed, folder)
        return _artifact(folder / "stages" / chosen, f"{run_id} ({chosen})", folder)
