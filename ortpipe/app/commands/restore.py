"""ortpipe restore: trained weights back into the .onnx file that they come from."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.app.compose import Parser
from ortpipe.app.lookup import HELP, FoundModel, find
from ortpipe.errors import ConfigError
from ortpipe.graph import query
from ortpipe.graph.check import parsed
from ortpipe.graph.modes import is_statistic
from ortpipe.graph.parameters import some
from ortpipe.graph.restore import Restored, restore

ABOUT = """Write the trained weights of a run into the .onnx file that it read: names, opset, metadata, operators and
the layout of the weights stay as they are in the file, and every byte of what was not trained. The key=value pairs
say where a run is recorded, as they did for the run itself."""


def run(arguments: Sequence[str]) -> None:
    """Restore one file."""
    parser = Parser("restore", ABOUT)
    parser.add_argument("subject", metavar="RUN|FILE|DIGEST", help=HELP)
    parser.add_argument("--into", required=True, metavar="FILE.onnx", help="the file that the run converted")
    parser.add_argument("--stage", help="of a run: the stage whose weights are written; by default the last one")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--output", metavar="NEW.onnx", help="by default FILE.trained.onnx, beside it")
    where.add_argument("--in-place", action="store_true", help="write over FILE itself")
    parser.add_argument("--force", action="store_true", help="write over an output that is there")
    given = parser.read(arguments)
    file = Path(given.into)
    output = file if given.in_place else Path(given.output or file.with_name(f"{file.stem}.trained.onnx"))
    same = output.exists() and file.exists() and output.samefile(file)
    if output.exists() and not same and not given.force:
        raise ConfigError("The output must not be there yet.", got=output, fix="Name another, or add --force.")
    subject = find(given.subject, given.composed, given.stage)
    trained, untrained = _weights(subject)
    origins = _convert_record(subject).get("origins", {})
    _report(restore(file, output, trained, untrained, origins), output)


def _weights(subject: FoundModel) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return what goes back, parameters and running statistics that training moved, and the other weights."""
    if "parameters" not in subject.facts:
        fix = "Name a run, or a model.onnx that ortpipe wrote."
        raise ConfigError("The model says which of its weights were trained.", got=subject.name, fix=fix)
    graph = parsed(subject.model).graph
    moved = {name.removeprefix("parameter/") for name in subject.tensors if name.startswith("parameter/")}
    chosen = {*subject.facts["parameters"], *moved, *_convert_record(subject).get("init", {}).get("weights", ())}
    chosen |= {name for name, value in graph.initializers.items() if not subject.tensors and is_statistic(value)}
    weights = {t.name: t for t in subject.model.graph.initializer if ir.DataType(t.data_type) in query.FLOATS}
    arrays = {name: onnx.numpy_helper.to_array(tensor) for name, tensor in weights.items()}
    return {n: a for n, a in arrays.items() if n in chosen}, {n: a for n, a in arrays.items() if n not in chosen}


def _convert_record(subject: FoundModel) -> Mapping[str, Any]:
    return next((one for one in subject.facts.get("lineage", ()) if one["stage"] == "convert"), {})


def _report(done: Restored, output: Path) -> None:
    print(
        f"written  {len(done.written)} of {len(done.written) + len(done.kept)} weights: {some(done.written) or 'none'}"
    )
    if same := [name for name in done.kept if name not in done.rounding]:
        print(f"kept     {some(same)}: the file has these values already")
    for name, worst in done.rounding.items():
        change = "" if name in done.written else ": as the file had it, for training moved it by less"
        print(f"rounded  {name} by at most {worst:.3g} to what the file's type holds{change}")
    for file in done.files:
        print(f"file     {file}")
    if not done.files:
        print(f"file     {output}: as it was")
