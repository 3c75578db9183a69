"""ortpipe sync: record run folders in MLflow, afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ortpipe.app.compose import Parser, packaged_conf
from ortpipe.errors import ConfigError

if TYPE_CHECKING:
    from ortpipe.app.recorders.mlflow import Mlflow

ABOUT = """Record runs in MLflow from their folders: those that ran without tracking, or whose record is not complete.
A record that is complete stays as it is."""
GROUP = "recorder."


def run(arguments: Sequence[str]) -> None:
    """Record every run of the folders where its own config says, or where the arguments say.

    Raises:
        ConfigError: no folder is given, or the recorder's settings have errors.
        TrackingError: a folder holds no run, a run still goes on, or the database or server cannot be reached.
    """
    parser = Parser("sync", ABOUT, overrides=False)
    about = "a run's or a sweep's, or one above them; and where to, if not where the run says"
    parser.add_argument("folders", nargs="+", metavar="FOLDER|recorder.key=value", help=about)
    given = parser.read(arguments).folders
    settings = [argument for argument in given if argument.startswith(GROUP) and "=" in argument]
    folders = [Path(argument) for argument in given if argument not in settings]
    if not folders:
        raise ConfigError("ortpipe sync takes a run's folder.", fix="They lie in outputs/runs and outputs/multiruns.")
    from ortpipe.app.tracking.parent import best_job, name_best
    from ortpipe.app.tracking.sync import run_folders, sync

    recorded: dict[Path, str] = {}
    for folder in itertools.chain.from_iterable(map(run_folders, folders)):
        target = _target(folder, settings)
        recorded[folder] = sync(target, folder).run_id
        print(f"{recorded[folder]}  {folder}", flush=True)
    for folder, record in recorded.items():
        best = best_job(folder)
        if best in recorded:
            name_best(_target(folder, settings), record, recorded[best])
    print(f"recorded in {target.tracking_uri}")


def _target(folder: Path, settings: Sequence[str]) -> Mlflow:
    """Return the recorder that a run was configured with, MLflow's own config if it was another, and what is given."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    from ortpipe.app.schema import build_key

    config = OmegaConf.load(folder / "config.yaml")
    if config.recorder.name != "mlflow":
        config.recorder = OmegaConf.load(packaged_conf() / "recorder" / "mlflow.yaml")
    for setting in OverridesParser.create().parse_overrides([*settings]):
        config.recorder[setting.key_or_group.removeprefix(GROUP)] = setting.value()
    target: Mlflow = build_key("recorder", OmegaConf.to_container(config, resolve=True)["recorder"])  # type: ignore
    return target
