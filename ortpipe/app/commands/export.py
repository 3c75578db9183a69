"""ortpipe export: write a trained model as a bundle, which trains and predicts in any onnxruntime."""

from collections.abc import Sequence
from pathlib import Path

from ortpipe import Artifact, derive
from ortpipe.app.changes import change
from ortpipe.app.compose import Parser
from ortpipe.app.consent import check_consent
from ortpipe.app.local_path import local
from ortpipe.app.lookup import recorded
from ortpipe.app.run.example import read_example
from ortpipe.app.run.folder import stage_artifact
from ortpipe.app.run.record import RunRecord, read_config
from ortpipe.app.schema import build_key
from ortpipe.app.table import aligned
from ortpipe.app.tracking import origin_of
from ortpipe.bounded import has_file
from ortpipe.bundle import write_bundle
from ortpipe.errors import ConfigError, under
from ortpipe.graph import set_initializers

ABOUT = """Write a trained model as a bundle: a folder with graphs that train and predict in any onnxruntime
from 1.17 on, in any language, without ortpipe. bundle.json describes them, and README.md shows
how to use them. By default, they train the same parameters with the same optimizer as the run.
Pairs such as derive.parameters and train.optimizer.lr change that, without a new training."""
EXAMPLES = (
    "ortpipe export tuned --output bundle",
    "ortpipe export tuned --output bundle derive.parameters=[layer1*] train.optimizer.lr=0.01",
)
CHANGES, PLACES = ("derive.", "train."), ("recorder.", "paths.")  # of the bundle; of the run
BUNDLE = "bundle.json"
ADJUSTMENTS = ("calibration", "threshold")  # settings of evaluate that change a trained model


def run(arguments: Sequence[str]) -> None:
    """Write one bundle."""
    parser = Parser("export", ABOUT, EXAMPLES)
    about = "a run's folder, the id of an MLflow run, or models:/NAME@ALIAS"
    parser.add_argument("run", metavar="RUN", help=about)
    parser.add_argument("--output", required=True, metavar="FOLDER", help="the folder of the bundle")
    parser.add_argument("--steps", type=int, help="steps of the schedule; default: until its numbers are constant")
    parser.add_argument("--max-size", type=int, metavar="BYTES", help="the largest size of the bundle")
    parser.add_argument("--force", action="store_true", help="replace an existing bundle")
    parser.add_argument("--trust", action="store_true", help="execute the code that the record names")
    options = parser.read(arguments)
    output = _output(options.output, force=options.force)
    for flag, number in (("--steps", options.steps), ("--max-size", options.max_size)):
        if number is not None and number < 1:
            raise ConfigError(f"{flag} must be positive.", got=number, fix=f"Leave {flag} out, or write {flag} 1000.")
    with under("RUN"):
        origin = origin_of(options.run, options.composed.values["recorder"])
    if origin.run is None:
        fix = "Train it by a run with start=MODEL first."
        raise ConfigError("Only a model that ortpipe trained can be exported.", got=origin.name, fix=fix)
    with recorded(origin.run, options.composed) as folder:
        values = read_config(folder)
        change(values, _changes(options.overrides), "export")
        check_consent(values, None, trust=options.trust)
        derive_config, train_config = build_key("derive", values["derive"]), build_key("train", values["train"])
        artifact = derive(_trained(folder), derive_config)
        description = write_bundle(
            artifact,
            train_config,
            output,
            steps=options.steps,
            most_bytes=options.max_size,
            example=read_example(folder),
            origin={"run": RunRecord.read(folder).id},
        )
    sizes = [[name, f"{(output / name).stat().st_size:,} bytes"] for name in (*description["files"], BUNDLE)]
    print("\n".join(aligned([*sizes, ["runs in", f"onnxruntime {description['onnxruntime']}"]])))
    if adjusted := [key for key in ADJUSTMENTS if values["evaluate"].get(key) is not None]:
        print(f"left out: {' and '.join(adjusted)}, which fit the weights of the run alone")
    print(f"bundle  {output}")


def _changes(overrides: Sequence[str]) -> list[str]:
    """Return the pairs that change the recorded config; the others must say where the run is recorded."""
    pairs = [pair.lstrip("+") for pair in overrides if not pair.startswith(PLACES)]
    if others := [pair for pair in pairs if not pair.replace("/", ".").startswith(CHANGES)]:
        rule, fix = "export changes keys of derive and train.", "Write a pair such as train.optimizer.lr=0.01."
        raise ConfigError(rule, got=", ".join(others), fix=fix)
    return pairs


def _output(name: str, *, force: bool) -> Path:
    """Return the folder to write, which must be new, or with --force a bundle."""
    output = local(name, "--output")
    if output.exists() and not (force and has_file(output, BUNDLE)):
        fix = "Name another, or remove it." if force else "Name another, or add --force to replace a bundle."
        raise ConfigError("The output must not exist yet.", got=output, fix=fix)
    return output


def _trained(folder: Path) -> Artifact:
    """Return the model with its loss and penalty, and with the trained weights of a run."""
    penalized, trained = (stage_artifact(folder, stage) for stage in ("3_penalty", "5_train"))
    model = penalized.ir_model()
    set_initializers(model, {n: a for n, a in trained.initializers.items() if n in penalized.initializers})
    return Artifact(model, penalized.facts, penalized.tensors)
