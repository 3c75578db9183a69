"""ortpipe adapter: the adapters of a run as a file of onnxruntime's, and the model that takes them."""

from collections.abc import Sequence
from pathlib import Path

from ortpipe.app.compose import Parser
from ortpipe.app.lookup import HELP, find
from ortpipe.errors import ConfigError
from ortpipe.facts import without_metadata
from ortpipe.files import atomic_write
from ortpipe.graph.adapter_file import apart, to_bytes
from ortpipe.graph.adapters import Adapter
from ortpipe.graph.apart import attach
from ortpipe.graph.check import finish_apart, parsed
from ortpipe.graph.parameters import some
from ortpipe.graph.serial import write_atomically

ABOUT = """Write what a run with derive.adapters trained apart from what it began with:
NEW.onnx_adapter, the adapters, and what was trained beside them, in onnxruntime's own format (LoraAdapter,
RunOptions.add_active_adapter; from 1.20 on),
and NEW.onnx beside it, the model before training, to which they are optional inputs: one model for many.
The run's own model.onnx has them merged.
The key=value pairs say where a run is recorded, as they did for the run itself."""


def run(arguments: Sequence[str]) -> None:
    """Write one adapter and its model."""
    parser = Parser("adapter", ABOUT)
    parser.add_argument("subject", metavar="RUN|DIGEST", help=HELP)
    parser.add_argument("--output", required=True, metavar="NEW.onnx_adapter", help="what is written, NEW.onnx beside")
    parser.add_argument("--force", action="store_true", help="write over files that are there")
    given = parser.read(arguments)
    output = Path(given.output)
    beside = output.with_suffix(".onnx")
    if output.suffix != ".onnx_adapter":
        raise ConfigError("An adapter's file is a NEW.onnx_adapter.", got=output, fix="Name it so.")
    if there := [file for file in (output, beside) if file.exists() and not given.force]:
        raise ConfigError("The output must not be there yet.", got=some(list(map(str, there))), fix="Add --force.")
    subject = find(given.subject, given.composed)
    adapters = {name: Adapter.of(fact) for name, fact in subject.facts.get("adapters", {}).items()}
    if not adapters or any(f"parameter/{name}" not in subject.tensors for name in adapters):
        rule, fix = "Adapters are those of a run with derive.adapters that has trained.", "Name such a run's folder."
        raise ConfigError(rule, got=subject.name, fix=fix)
    base = parsed(without_metadata(subject.model))
    attach(base, subject.weights)
    arrays = apart(base, adapters, subject.tensors)
    model, weights = finish_apart(base)
    write_atomically(model, beside.parent, beside.name, weights)
    atomic_write(output, to_bytes(arrays))
    print(f"adapters  {sum(array.size for array in arrays.values()):,} numbers beside {some(list(adapters))}")
    print(f"file      {output}\nmodel     {beside}")
