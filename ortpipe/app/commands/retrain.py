"""ortpipe retrain: train a champion's config on new rows, and replace the champion only with a better model."""

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import read_write

from ortpipe import Data
from ortpipe.app.claim import claimed, output_folder
from ortpipe.app.compose import Composition, Parser
from ortpipe.app.consent import change, check_consent, completed
from ortpipe.app.drift import PROFILE, RejectedRowsError, drift_of, in_words, raise_rejected, read_profile
from ortpipe.app.execute import execute
from ortpipe.app.gates import GateError
from ortpipe.app.lookup import download, tracked
from ortpipe.app.model_uri import URI
from ortpipe.app.redact import hidden, know_config
from ortpipe.app.run.environment import command_line
from ortpipe.app.run.record import RunRecord, read_config
from ortpipe.app.schema import build
from ortpipe.app.tracking import Origin, origin_of
from ortpipe.bounded import has_file
from ortpipe.errors import ConfigError, DataError, under

ABOUT = """Train with the recorded config of MODEL on new rows, from its trained weights; with --from-scratch,
from new ones. First the rows are compared with the profile of the rows that trained MODEL; limits
are in data.check. The retrained model becomes the champion if it is better on the validation rows
(recorder.only_if_better). Exit codes: 0 promoted, 3 kept the champion, 4 rejected the rows, 1
error. --json prints one line of JSON, and everything else to standard error. key=value pairs
change the config; code that the record names is executed only with --trust."""
EXAMPLES = (
    "ortpipe retrain models:/churn@champion data.source.path=new.parquet",
    "ortpipe retrain models:/churn@champion data.source.path=new.parquet --from-scratch --json",
)
PLACES = ("hydra.", "paths.", "recorder.tracking_uri=")  # of results and models, not of the config that is recorded
OUTCOMES = {0: "promoted", 3: "kept", 4: "rejected"}


def run(arguments: Sequence[str]) -> None:
    """Retrain a model."""
    parser = Parser("retrain", ABOUT, EXAMPLES)
    about = "models:/NAME@ALIAS, the id of an MLflow run, or a run's folder"
    parser.add_argument("model", metavar="MODEL", help=about)
    parser.add_argument("--from-scratch", action="store_true", help="begin with new weights and encodings")
    parser.add_argument("--json", action="store_true", help="print the outcome as one line of JSON")
    parser.add_argument("--trust", action="store_true", help="execute the code that the record names")
    options = parser.read(arguments)
    outcome: dict[str, Any] = {"outcome": "promoted", "code": 0, "model": options.model}
    try:
        with contextlib.redirect_stdout(sys.stderr) if options.json else contextlib.nullcontext():
            _retrain(options, arguments, outcome)
    except Exception as error:
        code = getattr(error, "code", 1)
        outcome |= {"outcome": OUTCOMES.get(code, "error"), "code": code, "error": str(error)}
        raise
    finally:
        if options.json:
            print(json.dumps(outcome, ensure_ascii=False))


def _retrain(options: argparse.Namespace, arguments: Sequence[str], outcome: dict[str, Any]) -> None:
    pairs = options.overrides
    composed = Composition([pair for pair in pairs if pair.startswith(PLACES)], options.config_dir)
    recorder, hydra = composed.values["recorder"], HydraConfig.get()
    with tempfile.TemporaryDirectory(prefix="ortpipe-") as temporary:
        with under("MODEL"):
            origin = origin_of(options.model, recorder)
        folder = _record(origin, composed, Path(temporary), PROFILE)
        profile, values = read_profile(folder), read_config(folder)
        convert = {**values["convert"], "init": None, "head": None}  # the trained model has both
        if options.from_scratch:
            convert = _first(values, composed, Path(temporary))["convert"]
    start = None if options.from_scratch else origin.name
    values |= {"convert": convert, "start": start, "resume": None, "paths": composed.values["paths"]}
    values["recorder"] = _recorder(options.model, values["recorder"], recorder)
    check_consent(values, None, trust=options.trust)
    change(values, [pair for pair in pairs if not pair.startswith(PLACES)], "retrain")
    _check_gate(values["recorder"])
    record, values = hidden(values), completed(values, {})
    know_config(values)
    config = build(values)
    outcome["model"] = origin.name

    def inspect(data: Data, record: RunRecord) -> None:
        drift = {"against": origin.name, **drift_of(profile, data, config.data.check)}
        outcome["drift"] = {name: drift[name] for name in ("reported", "rejected")}
        outcome["drift"]["psi"] = {name: column["psi"] for name, column in drift["columns"].items()}
        raise_rejected(drift)
        record.drift, sentences = drift, in_words(drift)
        record.notes["data"] = (*record.notes.get("data", ()), *sentences)
        record.tags["ortpipe.drift"] = "; ".join(sentences)

    place = output_folder(values["paths"], hydra.run.dir, "hydra.run.dir")
    with read_write(hydra):  # type: ignore[arg-type]
        hydra.runtime.output_dir = str(place)
    command = command_line(["retrain", *arguments])
    with claimed(place, "hydra.run.dir"):
        try:
            execute(config, record, hydra, command=command, inspect=inspect)
            outcome["promoted"] = _promoted(values["recorder"], RunRecord.read(place))
        except DataError as error:
            if isinstance(error, RejectedRowsError):
                raise
            raise RejectedRowsError(error.rule, got=error.got, fix=error.fix) from error
        finally:
            outcome |= {"run": str(place), **_result(place)}


def _record(origin: Origin, composed: Composition, temporary: Path, *more: str) -> Path:
    """Return a folder with the config of the run that trained a model, and with more of its files."""
    if origin.run is None:
        actual = f"{origin.name}, which is not registered at {composed.tracking_uri}, or is of another tool"
        fix = "Check the name and recorder.tracking_uri; train a model of another tool by a run with start=MODEL first."
        raise ConfigError("Only a model of ortpipe can be retrained.", got=actual, fix=fix)
    if has_file(Path(origin.run), "config.yaml"):
        return Path(origin.run)
    folder = temporary / origin.run
    folder.mkdir()
    with tracked(origin.run, composed.tracking_uri) as client:
        for file in ("config.yaml", *more):
            download(client, origin.run, file, folder)
    return folder


def _first(values: dict[str, Any], composed: Composition, temporary: Path) -> dict[str, Any]:
    """Return the config of the first run in a chain of runs that start from each other's weights."""
    seen = set[str]()
    while (start := values.get("start")) is not None:
        if start in seen:
            raise ConfigError("A run must not start from itself.", got=start, fix="Choose another run.")
        seen.add(start)
        values = read_config(_record(origin_of(str(start), composed.values["recorder"]), composed, temporary))
    return values


def _recorder(model: str, recorded: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded recorder at the current address; a registered model and its alias are those of MODEL."""
    recorder = {**(recorded if recorded["name"] == current["name"] else current)}
    recorder["tracking_uri"] = current["tracking_uri"]
    if (parts := URI.fullmatch(model)) is not None and model.startswith("models:"):
        recorder |= {"register": parts["name"], **({} if parts["alias"] is None else {"alias": parts["alias"]})}
    return recorder


def _check_gate(recorder: Mapping[str, Any]) -> None:
    """Reject a config that does not decide whether the retrained model replaces the champion."""
    for name, example in (("register", "churn"), ("only_if_better", "roc_auc or r2")):
        if recorder.get(name) is None:
            rule, fix = "{key} decides whether a retrained model is promoted.", f"Set {{key}}, such as {example}."
            raise ConfigError(rule, key=f"recorder.{name}", got="null", fix=fix)


def _promoted(recorder: Mapping[str, Any], record: RunRecord) -> str:
    """Return the version that has the alias; raise if it is not that of the run."""
    champion = origin_of(f"models:/{recorder['register']}@{recorder['alias']}", recorder)
    if champion.run != record.mlflow:
        rule, fix = "A retrained model must be compared with the present champion.", "Retrain again."
        raise GateError(rule, got=f"{champion.name} became the champion in the meantime", fix=fix)
    return champion.name


def _result(folder: Path) -> dict[str, Any]:
    """Return the results of a run, if it has begun."""
    if not has_file(folder, "run.json"):
        return {"run": None}
    record = RunRecord.read(folder)
    return {"mlflow": record.mlflow, "comparison": record.champion, "gates": record.gates}
