"""ortpipe sync: record finished runs in MLflow from their folders."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ortpipe.app.compose import Composition, Parser, parsed
from ortpipe.app.redact import MASK, redacted
from ortpipe.app.run.record import RunRecord, read_config
from ortpipe.app.schema import build_key
from ortpipe.app.sweep import best_job
from ortpipe.app.tracking import Mlflow, database_of, name_best, record_run, run_folders, uri_of
from ortpipe.errors import ConfigError

ABOUT = """Record runs in MLflow from their folders: those that ran without tracking, or whose record is not
complete. Complete records are left unchanged. Folders are read as data: no code in them is
executed, no ${…} is resolved, and no link is followed. A server, a folder of artifacts or a
registered model that only the run names is used with --trust, or if an argument names it too."""
EXAMPLES = (
    "ortpipe sync outputs/runs",
    "ortpipe sync outputs/runs recorder.tracking_uri=http://127.0.0.1:5000",
)
GROUP = "recorder."


def run(arguments: Sequence[str]) -> None:
    """Record every run of the folders in the MLflow of its config, or in the one that the arguments name."""
    parser = Parser("sync", ABOUT, EXAMPLES, overrides=False)
    about = "the folder of a run or a sweep, or a parent of several; recorder.key=value overrides the run's config"
    parser.add_argument("folders", nargs="+", metavar="FOLDER|recorder.key=value", help=about)
    parser.add_argument(
        "--trust", action="store_true", help="use the server, artifacts folder and registered model that the runs name"
    )
    options = parser.read(arguments)
    settings = [argument for argument in options.folders if argument.startswith(GROUP) and "=" in argument]
    folders = [Path(argument) for argument in options.folders if argument not in settings]
    if not folders:
        raise ConfigError("ortpipe sync needs a run's folder.", fix="See outputs/runs and outputs/multiruns.")
    run_dirs = list(itertools.chain.from_iterable(map(run_folders, folders)))
    mlflow_config = Composition(["recorder=mlflow"]).values["recorder"]
    targets = {folder: _target(folder, settings, mlflow_config, trust=options.trust) for folder in run_dirs}
    for uri in dict.fromkeys(target.tracking_uri for target in targets.values()):
        print(f"recording in {redacted(uri)}", flush=True)
    run_ids: dict[Path, str] = {}
    for folder in run_dirs:
        result = record_run(targets[folder], folder)
        run_ids[folder] = result.run_id
        print(f"{run_ids[folder]}  {folder}", flush=True)
        if result.registered is not None:
            print(f"registered     {result.registered}", flush=True)
    for folder, record in run_ids.items():
        best = best_job(folder)
        if best in run_ids:
            name_best(targets[folder], record, run_ids[best], RunRecord.read(best))


def _target(folder: Path, settings: Sequence[str], mlflow_config: dict[str, Any], *, trust: bool) -> Mlflow:
    """Return the MLflow recorder of a run's config, else the default one, with the overrides of the command line."""
    config = read_config(folder)
    record = config.get("recorder", {})
    record = record if record.get("name") == "mlflow" else _default_recorder(config, folder, mlflow_config)
    overrides: dict[str, Any] = {key.removeprefix(GROUP): setting.value() for key, setting in parsed(settings).items()}
    values = {**record, **overrides}
    uri = str(values.get("tracking_uri"))
    if "tracking_uri" not in overrides:
        if uri in (redacted(mlflow_config["tracking_uri"]), "${oc.env:MLFLOW_TRACKING_URI}"):
            values["tracking_uri"] = mlflow_config["tracking_uri"]
        elif MASK in uri or "${" in uri:
            fix = "Give recorder.tracking_uri=…, or set MLFLOW_TRACKING_URI."
            raise ConfigError("Records hold no passwords.", got=f"recorder.tracking_uri={uri}", fix=fix)
        elif not trust and not _is_in_outputs(database_of(uri), folder, mlflow_config):
            fix = f"If you want that, give recorder.tracking_uri={uri}, or --trust."
            rule = "A run's folder alone does not decide where the run is recorded."
            raise ConfigError(rule, got=uri, fix=fix)
    artifacts = values.get("artifacts")
    is_chosen = trust or "artifacts" in overrides or str(values["tracking_uri"]).startswith("http")
    if artifacts is not None and not is_chosen and not _is_in_outputs(Path(artifacts), folder, mlflow_config):
        fix = f"Give recorder.artifacts={artifacts}, another folder, or --trust."
        rule = "A run's folder alone does not decide where its artifacts are written."
        raise ConfigError(rule, got=f"recorder.artifacts={artifacts} in {folder}", fix=fix)
    if values.get("register") is not None and "register" not in overrides and not trust:
        fix = f"Give recorder.register={values['register']}, recorder.register=null, or --trust."
        rule = "A run's folder alone does not decide which registered model the run becomes."
        raise ConfigError(rule, got=f"recorder.register={values['register']} in {folder}", fix=fix)
    return build_key("recorder", values)


def _default_recorder(config: dict[str, Any], folder: Path, mlflow_config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of the MLflow recorder for a run that used another recorder."""
    outputs = config.get("paths", {}).get("outputs")
    uri = os.environ.get("MLFLOW_TRACKING_URI") or uri_of(f"{outputs}/mlflow.db")
    recorded = Path(f"{outputs}/mlflow")  # of another machine if the folder was copied
    artifacts = str(recorded) if _is_in_outputs(recorded, folder, mlflow_config) else mlflow_config["artifacts"]
    return {**mlflow_config, "tracking_uri": redacted(uri), "artifacts": artifacts}


def _is_in_outputs(path: Path | None, folder: Path, mlflow_config: dict[str, Any]) -> bool:
    """Return whether a path is in the outputs folder of this run, or is the artifacts folder of the current config."""
    outputs = [parent.parent for parent in folder.absolute().parents if parent.name in ("runs", "multiruns")]
    return path is not None and (path == Path(mlflow_config["artifacts"] or "-") or path.parent in outputs)
