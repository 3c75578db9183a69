"""ortpipe adapter: write the adapters of a run as an onnxruntime adapter file, with their base model."""

from collections.abc import Sequence

from ortpipe.app.compose import Parser
from ortpipe.app.local_path import output_file, reject_existing
from ortpipe.app.lookup import HELP, find
from ortpipe.errors import ConfigError
from ortpipe.files import atomic_write
from ortpipe.graph import (
    Adapter,
    apart,
    attach,
    finish_apart,
    parsed,
    some,
    to_bytes,
    without_metadata,
    write_atomically,
)

ABOUT = """Write the adapters of a run with derive.adapters, and the model without them, as two files:
NEW.onnx_adapter: the adapters and any other trained weights, in onnxruntime's adapter format
(LoraAdapter, RunOptions.add_active_adapter; onnxruntime 1.20 or later).
NEW.onnx: the model before training, with the adapters as optional inputs: one model serves many
adapters.
The run's own model.onnx has the adapters merged.
The key=value pairs say where a run is recorded, as they did for the run itself."""
EXAMPLES = (
    "ortpipe adapter outputs/runs/DATE/TIME --output mine.onnx_adapter",
    "ortpipe adapter tuned --output mine.onnx_adapter --force",
)


def run(arguments: Sequence[str]) -> None:
    """Write the adapter file and its model."""
    parser = Parser("adapter", ABOUT, EXAMPLES)
    parser.add_argument("subject", metavar="RUN|DIGEST", help=HELP)
    parser.add_argument(
        "--output", required=True, metavar="NEW.onnx_adapter", help="the adapter file; NEW.onnx is written beside it"
    )
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    options = parser.read(arguments)
    output = output_file(options.output, "--output", ".onnx_adapter")
    model_file = output.with_suffix(".onnx")
    reject_existing(output, model_file, force=options.force, fix="Add --force.")
    subject = find(options.subject, options.composed)
    adapters = {name: Adapter(**fact) for name, fact in subject.facts.get("adapters", {}).items()}
    if not adapters or any(f"parameter/{name}" not in subject.tensors for name in adapters):
        rule, fix = "ortpipe adapter needs a run with derive.adapters that has trained.", "Name such a run's folder."
        raise ConfigError(rule, got=subject.name, fix=fix)
    base = parsed(without_metadata(subject.model))
    attach(base, subject.weights)
    arrays = apart(base, adapters, subject.tensors)
    model, weights = finish_apart(base)
    write_atomically(model, model_file.parent, model_file.name, weights)
    atomic_write(output, to_bytes(arrays))
    print(f"adapters  {sum(array.size for array in arrays.values()):,} numbers beside {some(list(adapters))}")
    print(f"file      {output}\nmodel     {model_file}")
