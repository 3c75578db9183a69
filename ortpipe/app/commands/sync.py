"""ortpipe sync: record run folders in MLflow, afterwards."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from ortpipe.app.compose import Composition, Parser
from ortpipe.app.redact import MASK, redacted
from ortpipe.app.run.record import read_config
from ortpipe.app.schema import build_key
from ortpipe.app.sweep.summary import best_job
from ortpipe.app.tracking.model import name_best
from ortpipe.app.tracking.recorders.mlflow import Mlflow
from ortpipe.app.tracking.sqlite import database_of, uri_of
from ortpipe.app.tracking.sync import run_folders, sync
from ortpipe.errors import ConfigError

ABOUT = """Record runs in MLflow from their folders: those that ran without tracking, or whose record is not complete.
A record that is complete stays as it is. Folders are read as data: nothing in them is run or resolved, and no link in
them is followed. Where a folder alone says to which server it goes, or which registered model it becomes, --trust or an
argument must say so too."""
GROUP = "recorder."


def run(arguments: Sequence[str]) -> None:
    """Record every run of the folders where its own config says, or where the arguments say."""
    parser = Parser("sync", ABOUT, overrides=False)
    about = "a run's or a sweep's, or one above them; and where to, if not where the run says"
    parser.add_argument("folders", nargs="+", metavar="FOLDER|recorder.key=value", help=about)
    parser.add_argument("--trust", action="store_true", help="record where the folders themselves say")
    given = parser.read(arguments)
    settings = [argument for argument in given.folders if argument.startswith(GROUP) and "=" in argument]
    folders = [Path(argument) for argument in given.folders if argument not in settings]
    if not folders:
        raise ConfigError("ortpipe sync takes a run's folder.", fix="They lie in outputs/runs and outputs/multiruns.")
    found = list(itertools.chain.from_iterable(map(run_folders, folders)))
    own = Composition(["recorder=mlflow"]).values["recorder"]
    targets = {folder: _target(folder, settings, own, trust=given.trust) for folder in found}
    for uri in dict.fromkeys(target.tracking_uri for target in targets.values()):
        print(f"recording in {redacted(uri)}", flush=True)
    recorded: dict[Path, str] = {}
    for folder in found:
        done = sync(targets[folder], folder)
        recorded[folder] = done.run_id
        print(f"{recorded[folder]}  {folder}", flush=True)
        if done.registered is not None:
            print(f"registered     {done.registered}", flush=True)
    for folder, record in recorded.items():
        best = best_job(folder)
        if best in recorded:
            name_best(targets[folder], record, recorded[best])


def _target(folder: Path, settings: Sequence[str], own: dict[str, Any], *, trust: bool) -> Mlflow:
    """Return the recorder that a run was configured with, MLflow's own config if it was another, and what is given."""
    config = read_config(folder)
    record = config.get("recorder", {})
    record = record if record.get("name") == "mlflow" else _beside(config, own)
    parsed = OverridesParser.create().parse_overrides([*settings])
    given: dict[str, Any] = {s.key_or_group.removeprefix(GROUP): s.value() for s in parsed}
    values = {**record, **given}
    uri = str(values.get("tracking_uri"))
    if "tracking_uri" not in given:
        if uri in (redacted(own["tracking_uri"]), "${oc.env:MLFLOW_TRACKING_URI}"):
            values["tracking_uri"] = own["tracking_uri"]
        elif MASK in uri or "${" in uri:
            fix = "Give recorder.tracking_uri=…, or set MLFLOW_TRACKING_URI."
            raise ConfigError("A record holds no password.", got=f"recorder.tracking_uri={uri}", fix=fix)
        elif not trust and not _beside_run(database_of(uri), folder, own):
            fix = f"If you want that, give recorder.tracking_uri={uri}, or --trust."
            raise ConfigError("Where a run is recorded is your word, not its folder's.", got=uri, fix=fix)
    place = values.get("artifacts")
    if "artifacts" not in given and not trust and not _beside_run(place and Path(place), folder, own):
        values["artifacts"] = own["artifacts"]
    if values.get("register") is not None and "register" not in given and not trust:
        fix = f"Give recorder.register={values['register']}, recorder.register=null, or --trust."
        rule = "What becomes a registered model is your word, not its folder's."
        raise ConfigError(rule, got=f"recorder.register={values['register']} in {folder}", fix=fix)
    return build_key("recorder", values)


def _beside(config: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return MLflow's config as it would have been that of a run that was recorded otherwise."""
    outputs = config.get("paths", {}).get("outputs")
    uri = os.environ.get("MLFLOW_TRACKING_URI") or uri_of(f"{outputs}/mlflow.db")
    return {**own, "tracking_uri": redacted(uri), "artifacts": f"{outputs}/mlflow"}


def _beside_run(path: Path | None, folder: Path, own: dict[str, Any]) -> bool:
    """Return whether a path is where results of a folder like this lie, or of the present one: nobody else's."""
    outputs = [parent.parent for parent in folder.absolute().parents if parent.name in ("runs", "multiruns")]
    return path is not None and (path == Path(own["artifacts"] or "-") or path.parent in outputs)
