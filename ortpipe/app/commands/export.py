"""ortpipe export: write a trained model as a bundle, which trains and predicts in any onnxruntime, or as C."""

import argparse
import contextlib
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ortpipe import FLOW, Artifact, DeriveConfig, TrainConfig, bundle, derive, load_artifact
from ortpipe.app.compose import Composition, Parser
from ortpipe.app.consent import change, check_consent
from ortpipe.app.local_path import local, reject_existing
from ortpipe.app.lookup import recorded, tracked
from ortpipe.app.page import REPLAY, page_inputs, page_of
from ortpipe.app.run.folder import read_example, stage_artifact
from ortpipe.app.run.record import FILE, RunRecord, read_config
from ortpipe.app.schema import build_key
from ortpipe.app.table import aligned
from ortpipe.app.tracking import origin_of
from ortpipe.bounded import MOST_BYTES, has_file, read_below
from ortpipe.bundle import DESCRIPTION, c_sources, changed_files, keep_others, read_bundle, started, write_bundle
from ortpipe.errors import ConfigError, ModelError, TrackingError, under
from ortpipe.files import atomic_folder
from ortpipe.pipeline.digest import identity, key_of, versions

ABOUT = """Write a trained model as a bundle: a folder with graphs that train and predict in any onnxruntime
from 1.19 on, in any language, without ortpipe. bundle.json describes them, and README.md shows
how to use them. By default, they train the same parameters with the same optimizer as the run.
Pairs such as derive.parameters and train.optimizer.lr change that, without a new training.
--page adds a page that trains in a browser: python -m http.server -d FOLDER serves it. It contains
rows of the run's data. --target c writes C sources instead, for a microcontroller: they train and
predict with nothing but libm."""
EXAMPLES = (
    "ortpipe export tuned --output bundle derive.parameters=[layer1*] train.optimizer.lr=0.01",
    "ortpipe export tuned --output firmware --target c train.batch_size=8",
)
CHANGES, PLACES = ("derive.", "train."), ("recorder.", "paths.")  # of the bundle; of the run
MOST_STEPS = 1_000_000  # each has numbers in the bundle
HEADER, MARK, ARTIFACT = "model.h", b"/* A model that trains.", "artifact.json"
ADJUSTMENTS = ("calibration", "threshold")  # settings of evaluate that change a trained model
# Settings of train about a run's rows and epochs, which the program that uses a bundle decides
UNUSED = {
    "accumulate",
    "checkpoint",
    "drop_last",
    "early_stop",
    "init",
    "parallel",
    "shuffle",
    "states",
    "validate_every",
}
CODE = Path(bundle.__path__[0])  # with the README and the schema of bundles
PACKAGES = ("ortpipe", "onnx", "onnx-ir", "numpy")  # whose versions may change a bundle


class Subject(NamedTuple):
    """A model to export, and the settings of its run."""

    model: Artifact  # with a loss and trained weights
    values: dict[str, Any]  # of the config; of an artifact, the defaults
    example: Mapping[str, np.ndarray]
    origin: dict[str, str]
    mlflow: str | None = None  # the id of its run
    folder: Path | None = None  # of its run


def run(arguments: Sequence[str]) -> None:
    """Write one bundle."""
    parser = Parser("export", ABOUT, EXAMPLES)
    about = "a run's folder, the id of an MLflow run, models:/NAME@ALIAS, or the folder of an artifact with a loss"
    parser.add_argument("run", metavar="RUN", help=about)
    parser.add_argument("--output", required=True, metavar="FOLDER", help="the folder of the bundle")
    parser.add_argument("--target", choices=("onnxruntime", "c"), default="onnxruntime", help="what runs it")
    parser.add_argument("--steps", type=int, help="steps of the schedule; default: until its numbers are constant")
    parser.add_argument("--float16", action="store_true", help="store numbers in half the bytes; compute in float32")
    parser.add_argument("--max-size", type=int, metavar="BYTES", help="the largest size of the bundle")
    about = f"add a page that trains in a browser, with training rows (default: {REPLAY})"
    parser.add_argument("--page", type=int, nargs="?", const=REPLAY, metavar="ROWS", help=about)
    about = "onnxruntime-web's folder for the page; default: in node_modules, else by npm pack"
    parser.add_argument("--runtime", metavar="FOLDER", help=about)
    parser.add_argument(
        "--force", action="store_true", help="write an existing bundle again; other files in its folder stay"
    )
    parser.add_argument("--trust", action="store_true", help="execute the code that the record names")
    options = parser.read(arguments)
    output = local(options.output, "--output")
    for flag, number in (("--steps", options.steps), ("--max-size", options.max_size), ("--page", options.page)):
        if number is not None and number < 1:
            raise ConfigError(f"{flag} must be positive.", got=number, fix=f"Leave {flag} out, or write 1 or more.")
    if (options.steps or 0) > MOST_STEPS:
        fix = "Write fewer, or leave it out: later steps use the last numbers of the schedule."
        raise ConfigError(f"--steps must be at most {MOST_STEPS:,}.", got=f"{options.steps:,}", fix=fix)
    if options.runtime is not None and options.page is None:
        raise ConfigError("--runtime names the runtime of a page.", got="no --page", fix="Add --page.")
    with _subject(options.run, options.composed) as subject:
        values = subject.values
        settings = {"batch_size": TrainConfig.batch_size, "accumulate": 1, **values["train"]}
        rows = settings["batch_size"] * settings["accumulate"]  # of an update; bundles accumulate no batches
        values["train"] = {**settings, "batch_size": rows, "accumulate": 1}
        change(values, _changes(options.overrides), "export")
        check_consent(values, None, trust=options.trust)
        derive_config, train_config = build_key("derive", values["derive"]), build_key("train", values["train"])
        _check_used(options.overrides, train_config, subject.model)
        write = _write_c if options.target == "c" else _write_bundle
        write(subject, derive_config, train_config, output, options)
    if options.target != "c" and subject.mlflow is not None:
        _record(output, subject.mlflow, options.composed)
    if options.page is not None:
        print(f"page    http://localhost:8000 after python -m http.server -d {output}")


def _write_bundle(
    subject: Subject, derive_config: DeriveConfig, config: TrainConfig, output: Path, options: argparse.Namespace
) -> None:
    """Write a bundle, with its page, unless the folder has it already."""
    settings = {"steps": options.steps, "float16": options.float16, "most_bytes": options.max_size}
    inputs, page = {}, {}
    if options.page is not None:
        inputs = page_inputs(subject.folder, subject.values, options.page, options.runtime)
    key = _key(subject.model, derive_config, config, {**settings, "page": inputs})
    if not options.force and _is_unchanged(output, key):
        print(f"bundle  {output} (cached: the model and the options are unchanged)")
        return
    _check_output(output, DESCRIPTION, force=options.force)
    model = _gradient(subject.model, derive_config)
    if options.page is not None and subject.folder is not None:
        page = page_of(model, subject.folder, subject.values, options.page, options.runtime, trust=options.trust)
    origin = {**subject.origin, "key": key}
    description = write_bundle(model, config, output, example=subject.example, origin=origin, page=page, **settings)
    _print(description, output, subject.values)
    print(f"bundle  {output}")


def _gradient(model: Artifact, config: DeriveConfig) -> Artifact:
    return model if model.facts.gradients else derive(model, config)


def _write_c(
    subject: Subject, derive_config: DeriveConfig, config: TrainConfig, output: Path, options: argparse.Namespace
) -> None:
    """Print the memory that a model takes, then write its C sources."""
    for flag, is_set in (("--float16", options.float16), ("--page", options.page is not None)):
        if is_set:
            raise ConfigError(f"{flag} is an option of bundles.", got="--target c", fix=f"Leave {flag} out.")
    _check_output(output, HEADER, force=options.force, begins=MARK)
    model = _gradient(subject.model, derive_config)
    sources = c_sources(model, config, steps=options.steps, example=subject.example)
    for name, parts, rest in (
        ("flash", sources.flash, "the code adds"),
        ("RAM", sources.ram, "the stack, rows and, if used, CMSIS-DSP add"),
    ):
        listed = ", ".join(f"{what} {size:,}" for what, size in parts.items() if size)
        print(f"{name:5}  {sum(parts.values()):,} bytes: {listed}; {rest} to it")
    if options.max_size is not None and (size := sum(sources.flash.values())) > options.max_size:
        fix = "Allow more, shorten the schedule with --steps, or train fewer parameters, with a simpler optimizer."
        raise ConfigError(
            f"The numbers in flash must have at most {options.max_size:,} bytes.", got=f"{size:,}", fix=fix
        )
    with atomic_folder(output) as partial:
        if output.exists():
            keep_others(output, partial, {*sources.files})
        for name, content in sources.files.items():
            (partial / name).write_text(content, encoding="utf-8")
    print(f"C sources  {output}")


def _key(model: Artifact, derive_config: DeriveConfig, train_config: TrainConfig, settings: dict[str, Any]) -> str:
    """Return the hash of everything that a bundle depends on."""
    configs = {"derive": identity(derive_config), "train": identity(train_config), "settings": settings}
    stages = {stage.name: stage.version for stage in FLOW}
    code = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in CODE.iterdir() if file.is_file()}
    parts = {"model": model.digest(), **configs, "stages": stages, "packages": versions(PACKAGES), "code": code}
    return key_of(parts)


def _print(description: Mapping[str, Any], output: Path, values: Mapping[str, Any]) -> None:
    files = [name for name in description["files"] if name.endswith((".onnx", ".bin"))]
    sizes = [[name, f"{(output / name).stat().st_size:,} bytes"] for name in (*files, DESCRIPTION)]
    print("\n".join(aligned([*sizes, ["runs in", f"onnxruntime {description['onnxruntime']}"]])))
    if (storage := description.get("storage")) is not None:
        before, after = storage["float32_loss"], storage["loss"]
        print(f"float16: the loss of the example rows is {after:.7g}; {before:.7g} in float32")
    if adjusted := [key for key in ADJUSTMENTS if values.get("evaluate", {}).get(key) is not None]:
        print(f"left out: {' and '.join(adjusted)}, which fit the weights of the run alone")


@contextlib.contextmanager
def _subject(name: str, composed: Composition) -> Iterator[Subject]:
    """Yield the model of a run, or an artifact with a loss; an artifact of a later stage counts as its run."""
    path, of_run = Path(name), None
    if has_file(path, ARTIFACT):
        artifact = load_artifact(path)
        of_run = path.parents[1] if path.parent.name == "stages" and has_file(path.parents[1], FILE) else None
        if artifact.facts.loss is not None:
            defaults = {"derive": {}, "train": {"optimizer": {"name": "sgd"}}}
            values, example = (defaults, {}) if of_run is None else (read_config(of_run), read_example(of_run))
            yield Subject(artifact, values, example, {"artifact": artifact.digest()})
            return
        if of_run is None or path.name.endswith("_convert"):
            rule, fix = "An artifact needs a loss to be exported.", "Name one of add_loss, penalty or derive, or a run."
            raise ConfigError(rule, got=name, fix=fix)
    with under("RUN"):
        origin = origin_of(name if of_run is None else str(of_run), composed.values["recorder"])
    if origin.run is None:
        fix = "Check the name and recorder.tracking_uri; train a model of another tool by a run with start=MODEL first."
        raise ConfigError("Only a model that ortpipe trained can be exported.", got=origin.name, fix=fix)
    with recorded(origin.run, composed) as folder:
        record = RunRecord.read(folder)
        mlflow = record.mlflow if has_file(Path(origin.run), FILE) else origin.run
        model = started(stage_artifact(folder, "3_penalty"), stage_artifact(folder, "5_train"))
        yield Subject(model, read_config(folder), read_example(folder), {"run": record.id}, mlflow, folder)


def _check_used(overrides: Sequence[str], config: TrainConfig, model: Artifact) -> None:
    """Raise if a bundle does not depend on a key that the command changes."""
    keys = [pair.lstrip("+~").partition("=")[0].replace("/", ".") for pair in overrides]
    unused = {f"train.{name}" for name in UNUSED | (set() if config.schedule_per == "epoch" else {"epochs"})}
    if rejected := [key for key in keys if ".".join(key.split(".")[:2]) in unused]:
        fix = "Leave them out: the program that uses the bundle chooses its rows and epochs; --steps sets a schedule."
        raise ConfigError("export changes only settings that a bundle uses.", got=", ".join(rejected), fix=fix)
    if model.facts.gradients and (rejected := [key for key in keys if key.startswith("derive.")]):
        fix = "Leave them out, or export an artifact of add_loss or penalty."
        raise ConfigError("A model with gradients takes no settings of derive.", got=", ".join(rejected), fix=fix)


def _is_unchanged(output: Path, key: str) -> bool:
    """Return whether a folder holds the complete bundle of the same model and options."""
    try:
        description = read_bundle(output)
    except ModelError:
        return False
    return description["origin"].get("key") == key and not changed_files(output, description)


def _record(output: Path, run_id: str, composed: Composition) -> None:
    """Add a bundle to the artifacts of its MLflow run; a failure is only reported."""
    place = f"bundles/{output.name}"
    try:
        with tracked(run_id, composed.tracking_uri) as client:
            client.log_artifacts(run_id, str(output), place)
    except (ConfigError, TrackingError) as error:
        print(f"warning: the bundle is not recorded in MLflow: {error.got}", file=sys.stderr)
    else:
        print(f"MLflow run  {run_id}, artifact {place}")


def _changes(overrides: Sequence[str]) -> list[str]:
    """Return the pairs that change the recorded config; the others must say where the run is recorded."""
    pairs = [pair.lstrip("+") for pair in overrides if not pair.startswith(PLACES)]
    if others := [pair for pair in pairs if not pair.replace("/", ".").startswith(CHANGES)]:
        rule, fix = "export changes keys of derive and train.", "Write a pair such as train.optimizer.lr=0.01."
        raise ConfigError(rule, got=", ".join(others), fix=fix)
    return pairs


def _check_output(output: Path, file: str, *, force: bool, begins: bytes = b"") -> None:
    """Raise if the folder exists, unless `force` replaces it and it has a file of the same kind of export."""
    replaced = has_file(output, file) and read_below(output, file, MOST_BYTES).startswith(begins)
    fix = "Name another, or add --force to replace it." if replaced else "Name another, or remove it."
    reject_existing(output, force=force and replaced, fix=fix)
