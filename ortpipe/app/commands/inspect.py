"""ortpipe inspect: the settings with which an .onnx file trains."""

from collections.abc import Sequence

from ortpipe.app.compose import Parser
from ortpipe.app.inspection import inspect
from ortpipe.app.local_path import local

ABOUT = """Print the inputs and outputs of an .onnx file with their roles, the weights that would be trained,
and errors with the setting that avoids them. No rows are needed: the config is tried for one epoch
on random numbers. The exit code is 1 if the file does not train, or if a value must be set first."""
EXAMPLES = (
    "ortpipe inspect model.onnx",
    "ortpipe inspect model.onnx --config > my/experiment/train_model.yaml",
)


def run(arguments: Sequence[str]) -> None:
    """Inspect one file."""
    parser = Parser("inspect", ABOUT, EXAMPLES, overrides=False)
    parser.add_argument("file", metavar="FILE", help="an .onnx file")
    parser.add_argument("--config", action="store_true", help="print the config of an experiment that trains the file")
    options = parser.read(arguments)
    inspection = inspect(local(options.file, "FILE"))
    print(inspection.config if options.config else inspection.text, end="")
    if inspection.loss is None:
        raise SystemExit(1)
