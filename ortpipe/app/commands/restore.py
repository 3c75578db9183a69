"""ortpipe restore: write trained weights back into their source: an .onnx file, an estimator or a state_dict."""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.numpy import save

from ortpipe import Data, OrtpipeError
from ortpipe.app.compose import Parser
from ortpipe.app.consent import executes
from ortpipe.app.local_path import local, reject_existing
from ortpipe.app.lookup import HELP, FoundModel, find
from ortpipe.app.run.folder import SOURCE, kept_input
from ortpipe.app.schema import build_key
from ortpipe.data.load import load
from ortpipe.errors import ConfigError
from ortpipe.facts_json import read_facts
from ortpipe.files import atomic_write
from ortpipe.graph import SUFFIXES as STATE_DICTS
from ortpipe.graph import StateDictFile, put_together, some
from ortpipe.stages.convert.restore import (
    Decision,
    Weights,
    convert_record,
    into_estimator,
    into_onnx,
    into_state_dict,
    named_as_in_state_dict,
    verify,
    weights_of,
)
from ortpipe.stages.convert.sources import estimator_of, read_estimator

ABOUT = """Write the trained weights of a run into the model that it read; everything else in that file stays
unchanged.
FILE.onnx: names, opset, metadata, operators, the layout of the weights and every value that was not
trained stay.
FILE.skops (with --trust .joblib, .pkl): a fitted scikit-learn estimator or Pipeline, which then
predicts what the trained model does. An estimator that the run fitted itself is written to a new
file.
FILE.safetensors, and with PyTorch installed .pt, .pth, .ckpt, .bin: a state_dict, by its names; a
new .safetensors gets all weights.
If FILE does not exist, the run's copy of the model that it read is used, also of a model that came
from MLflow.
The key=value pairs say where a run is recorded, as they did for the run itself."""
EXAMPLES = (
    "ortpipe restore tuned --into model.onnx --output tuned.onnx",
    "ortpipe restore tuned --into pipeline.skops --output tuned.skops",
)
PICKLES = (".joblib", ".pkl", ".pickle")


def run(arguments: Sequence[str]) -> None:
    """Restore one file."""
    parser = Parser("restore", ABOUT, EXAMPLES)
    parser.add_argument("subject", metavar="RUN|FILE|DIGEST", help=HELP)
    parser.add_argument("--into", required=True, metavar="FILE", help="the file that the run converted, or a new one")
    parser.add_argument("--stage", help="of a run: the stage whose weights are written; by default the last one")
    destination = parser.add_mutually_exclusive_group()
    destination.add_argument("--output", metavar="NEW", help="by default FILE.trained.onnx (.skops, …), beside it")
    destination.add_argument("--in-place", action="store_true", help="overwrite FILE itself")
    parser.add_argument("--force", action="store_true", help="overwrite an existing output")
    parser.add_argument(
        "--trust", action="store_true", help="open pickles, which may run code: you know who wrote them"
    )
    options = parser.read(arguments)
    if not options.into:
        raise ConfigError(
            "--into must name a file.", got=repr(options.into), fix="Give the file that the run converted."
        )
    file = local(options.into, "--into")
    default_output = file.with_name(f"{file.stem}.trained{file.suffix}")
    output = local(options.output, "--output") if options.output else default_output
    output = file if not options.output and (options.in_place or not file.exists()) else output
    is_same_file = output.exists() and file.exists() and output.samefile(file)
    reject_existing(output, force=is_same_file or options.force)
    subject = find(options.subject, options.composed, options.stage)
    if "parameters" not in subject.facts:
        fix = "Name a run, or a model.onnx that ortpipe wrote."
        raise ConfigError("The model must record which of its weights were trained.", got=subject.name, fix=fix)
    if adjustments := [
        f"{name} {subject.facts[name]}" for name in ("calibration", "threshold") if name in subject.facts
    ]:
        rule, fix = "restore writes weights alone.", "Name the run, and add --stage train: FILE predicts without them."
        raise ConfigError(rule, got=f"{subject.name} with {', '.join(adjustments)}", fix=fix)
    weights = weights_of(subject.model, subject.arrays, subject.facts, subject.tensors)
    if not file.exists():
        file = _source_copy(file, subject, Path(options.subject)) or file
    if file.suffix in (".skops", *PICKLES):
        _report(*_estimator(file, output, subject, weights, trust=options.trust))
    elif file.suffix in STATE_DICTS:
        _report(_state_dict(file, output, weights), output)
    else:
        _report(into_onnx(file, output, weights.trained, weights.untrained, weights.origins), output)


def _source_copy(file: Path, subject: FoundModel, run: Path) -> Path | None:
    """Return the run's copy of the model that it read, if the new file has the same format."""
    path = subject.config.get("convert", {}).get("source", {}).get("path")
    copy = kept_input(SOURCE, path, run) if isinstance(path, str) else None
    kinds = (".skops", *PICKLES) if file.suffix in (".skops", *PICKLES) else (file.suffix,)
    return Path(copy) if copy is not None and Path(copy).suffix in kinds else None


def _state_dict(file: Path, output: Path, weights: Weights) -> Decision[Any]:
    if file.suffix == ".safetensors" and not file.exists():
        arrays = named_as_in_state_dict(weights)
        atomic_write(output, save(arrays))
        return Decision({}, tuple(weights.trained), (), {}, (output,))
    state_dict = StateDictFile(file)
    source = state_dict.holding({str(weights.origins.get(n, {}).get("initializer", n)) for n in weights.trained})
    update = into_state_dict(source, str(file), weights)
    for tensor, array in update.changed.items():
        tensor.array[...] = array
    if not update.changed and output.exists() and output.samefile(file):
        return update
    state_dict.save(output)
    return replace(update, files=(output,))


def _estimator(
    file: Path, output: Path, subject: FoundModel, weights: Weights, *, trust: bool
) -> tuple[Decision[Any], Path, str]:
    """Write the estimator of a file, or the run's own; return which weights were written, where, and the check."""
    if file.suffix in PICKLES and file.exists() and not trust:
        rule = "A pickle runs code when it is opened, so it is opened only on request."
        raise ConfigError(rule, got=file, fix="Add --trust if you made it.")
    if file.exists():
        original = read_estimator(file, trust)
    else:
        original = estimator_of(convert_record(subject.facts), trust=trust)
    estimator, update = into_estimator(original, weights)
    rows = _rows(subject, trust=trust)
    model = put_together(subject.model, subject.weights)
    count, worst = verify(estimator, model, read_facts(subject.facts), rows)
    atomic_write(output, _to_bytes(estimator, output))
    verified = f"{count} {'rows of the run' if rows else 'random rows'}: largest difference {worst:.3g}"
    return replace(update, files=(output,)), output, verified


def _to_bytes(estimator: Any, output: Path) -> bytes:
    if output.suffix == ".skops":
        import skops.io

        return bytes(skops.io.dumps(estimator))
    return pickle.dumps(estimator)  # which joblib reads too


def _rows(subject: FoundModel, *, trust: bool) -> Data | None:
    """Return the rows that a run read; None if they are missing or changed, or need code that is not trusted."""
    if "data" not in subject.config or (not trust and executes({"data": subject.config["data"]}, None)):
        return None
    try:
        data = load(build_key("data", subject.config["data"]))
    except (OrtpipeError, OSError):
        return None
    return data if data.digest() == convert_record(subject.facts).get("data") else None


def _report(result: Decision[Any], output: Path, verified: str | None = None) -> None:
    print(
        f"written  {len(result.written)} of {len(result.written) + len(result.unchanged)} weights: "
        f"{some(result.written) or 'none'}"
    )
    if unchanged := [name for name in result.unchanged if name not in result.rounding]:
        print(f"kept     {some(unchanged)}: the file has these values already")
    for name, worst in result.rounding.items():
        change = "" if name in result.written else ": unchanged in the file, for training changed it by less"
        print(f"rounded  {name} by at most {worst:.3g} to the file's type{change}")
    if verified is not None:
        print(f"verified on {verified}")
    for file in result.files:
        print(f"file     {file}")
    if not result.files:
        print(f"file     {output}: unchanged")
