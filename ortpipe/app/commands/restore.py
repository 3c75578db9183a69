"""ortpipe restore: trained weights back into what they come from: an .onnx file, an estimator, a state_dict."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.numpy import save

from ortpipe.app.compose import Parser
from ortpipe.app.consent import executes
from ortpipe.app.lookup import HELP, FoundModel, find
from ortpipe.app.run.folder import SOURCE, kept_input
from ortpipe.app.schema import build_key
from ortpipe.artifact import Facts
from ortpipe.data.rows import Data
from ortpipe.data.split import load
from ortpipe.errors import ConfigError, OrtpipeError
from ortpipe.files import atomic_write
from ortpipe.graph.apart import put_together
from ortpipe.graph.parameters import some
from ortpipe.graph.restore import Restored, restore
from ortpipe.graph.state_dict import SUFFIXES as STATE_DICTS
from ortpipe.graph.state_dict import StateDictFile
from ortpipe.stages.convert.restore import (
    Weights,
    convert_record,
    into_estimator,
    into_state_dict,
    named_as_in_state_dict,
    verify,
    weights_of,
)
from ortpipe.stages.convert.sources.sklearn_estimator import read_estimator
from ortpipe.stages.convert.sources.stored_estimator import stored_estimator

ABOUT = """Write the trained weights of a run into what it read; everything else stays as it is there.
FILE.onnx: names, opset, metadata, operators and the layout of the weights stay, and every byte of what was not trained.
FILE.skops (with --trust .joblib, .pkl): a fitted scikit-learn estimator or Pipeline, which predicts what the trained
model does. One that the run fitted itself is written where no file is yet.
FILE.safetensors, .pt, .pth, .ckpt, .bin: a PyTorch state_dict, by its names; in a new .safetensors, all weights.
Where no file is yet, the run's own copy of what it read is written there, also of a model that came from MLflow.
The key=value pairs say where a run is recorded, as they did for the run itself."""
PICKLES = (".joblib", ".pkl", ".pickle")


def run(arguments: Sequence[str]) -> None:
    """Restore one file."""
    parser = Parser("restore", ABOUT)
    parser.add_argument("subject", metavar="RUN|FILE|DIGEST", help=HELP)
    parser.add_argument("--into", required=True, metavar="FILE", help="what the run converted, or a file to be made")
    parser.add_argument("--stage", help="of a run: the stage whose weights are written; by default the last one")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--output", metavar="NEW", help="by default FILE.trained.onnx (.skops, …), beside it")
    where.add_argument("--in-place", action="store_true", help="write over FILE itself")
    parser.add_argument("--force", action="store_true", help="write over an output that is there")
    parser.add_argument(
        "--trust", action="store_true", help="open pickles, which may run code: you know who wrote them"
    )
    given = parser.read(arguments)
    file = Path(given.into)
    beside = file.with_name(f"{file.stem}.trained{file.suffix}")
    output = Path(given.output or (file if given.in_place or not file.exists() else beside))
    same = output.exists() and file.exists() and output.samefile(file)
    if output.exists() and not same and not given.force:
        raise ConfigError("The output must not be there yet.", got=output, fix="Name another, or add --force.")
    subject = find(given.subject, given.composed, given.stage)
    if "parameters" not in subject.facts:
        fix = "Name a run, or a model.onnx that ortpipe wrote."
        raise ConfigError("The model says which of its weights were trained.", got=subject.name, fix=fix)
    weights = weights_of(subject.model, subject.arrays, subject.facts, subject.tensors)
    if not file.exists():
        file = _kept(file, subject, Path(given.subject)) or file
    if file.suffix in (".skops", *PICKLES):
        fitted = not file.exists()  # by the run itself, on columns as ortpipe reads them
        _report(*_estimator(file, output, subject, weights, trust=given.trust))
        columns = convert_record(subject.facts).get("table", {}).get("columns", {})
        if fitted and (truth := [name for name, column in columns.items() if column["of"] == "truth"]):
            print(f"reads    the words true and false, not truth values: {some(truth)}")
    elif file.suffix in STATE_DICTS:
        _report(_state_dict(file, output, weights), output)
    else:
        _report(restore(file, output, weights.trained, weights.untrained, weights.origins), output)


def _kept(file: Path, subject: FoundModel, run: Path) -> Path | None:
    """Return the run's own copy of what it read, if a new file is to be one of the same kind."""
    path = subject.config.get("convert", {}).get("source", {}).get("path")
    copy = kept_input(SOURCE, path, run) if isinstance(path, str) else None
    kinds = (".skops", *PICKLES) if file.suffix in (".skops", *PICKLES) else (file.suffix,)
    return Path(copy) if copy is not None and Path(copy).suffix in kinds else None


def _state_dict(file: Path, output: Path, weights: Weights) -> Restored:
    if file.suffix == ".safetensors" and not file.exists():
        arrays = named_as_in_state_dict(weights)
        atomic_write(output, save(arrays))
        return Restored(tuple(weights.trained), (), {}, (output,))
    stored = StateDictFile(file)
    source = stored.holding({str(weights.origins.get(n, {}).get("initializer", n)) for n in weights.trained})
    decided = into_state_dict(source, str(file), weights)
    for tensor, array in decided.changed.items():
        tensor.stored[...] = array
    same = output.exists() and output.samefile(file)
    if decided.changed or not same:
        stored.save(output)
    return Restored(
        decided.written, decided.unchanged, decided.rounding, (output,) if decided.changed or not same else ()
    )


def _estimator(
    file: Path, output: Path, subject: FoundModel, weights: Weights, *, trust: bool
) -> tuple[Restored, Path, str]:
    """Write the estimator of a file, or what the run fitted; return what came of it, and how that was seen."""
    if file.suffix in PICKLES and file.exists() and not trust:
        rule, fix = (
            "A pickle runs code when it is opened, so it is opened only on request.",
            "Add --trust if you made it.",
        )
        raise ConfigError(rule, got=file, fix=fix)
    if file.exists():
        before = read_estimator(file, trust)
    else:
        before = stored_estimator(convert_record(subject.facts), trust=trust)
    estimator, decided = into_estimator(before, weights)
    rows = _rows(subject, trust=trust)
    model = put_together(subject.model, subject.weights)
    count, worst = verify(estimator, model, Facts.from_json(subject.facts), rows)
    atomic_write(output, _dumped(estimator, output))
    done = Restored(decided.written, decided.unchanged, decided.rounding, (output,))
    return done, output, f"{count} {'rows of the run' if rows else 'drawn rows'}: largest difference {worst:.3g}"


def _dumped(estimator: Any, output: Path) -> bytes:
    if output.suffix == ".skops":
        import skops.io

        return bytes(skops.io.dumps(estimator))
    return pickle.dumps(estimator)  # which joblib reads too


def _rows(subject: FoundModel, *, trust: bool) -> Data | None:
    """Return the rows that a run read, if they are there, the same, and without trust read without running code."""
    if "data" not in subject.config or (not trust and executes({"data": subject.config["data"]}, None)):
        return None
    try:
        data = load(build_key("data", subject.config["data"]))
    except (OrtpipeError, OSError):
        return None
    return data if data.digest() == convert_record(subject.facts).get("data") else None


def _report(done: Restored, output: Path, verified: str | None = None) -> None:
    print(
        f"written  {len(done.written)} of {len(done.written + done.unchanged)} weights: {some(done.written) or 'none'}"
    )
    if same := [name for name in done.unchanged if name not in done.rounding]:
        print(f"kept     {some(same)}: the file has these values already")
    for name, worst in done.rounding.items():
        change = "" if name in done.written else ": as the file had it, for training moved it by less"
        print(f"rounded  {name} by at most {worst:.3g} to what the file's type holds{change}")
    if verified is not None:
        print(f"verified on {verified}")
    for file in done.files:
        print(f"file     {file}")
    if not done.files:
        print(f"file     {output}: as it was")
