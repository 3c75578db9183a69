"""ortpipe fit: train a model on a table in one command."""

import sys
from collections.abc import Sequence

from ortpipe.app.compose import Parser
from ortpipe.app.fit import arguments_of
from ortpipe.app.run.environment import command_line
from ortpipe.app.runs import run as start
from ortpipe.errors import ConfigError

ABOUT = """Train a model on rows, and print the command of the run that does the same. A setting is the last
part of its key (epochs=50 for train.epochs) or the whole key, with values as in that command."""
EXAMPLES = (
    "ortpipe fit patients.csv --label target",
    "ortpipe fit patients.csv --label target --model mlp epochs=50 optimizer=adamw lr=0.002",
)


def run(arguments: Sequence[str]) -> None:
    """Train on one table."""
    parser = Parser("fit", ABOUT, EXAMPLES)
    parser.add_argument("rows", metavar="ROWS", help="a file or a folder of rows, or a data set such as iris")
    parser.add_argument("--label", metavar="COLUMNS", help="the column of labels, or several: x,y")
    about = "a network (mlp, tabular …; default auto), an .onnx file, or a class such as sklearn.linear_model.Ridge"
    parser.add_argument("--model", help=about)
    options = parser.read(arguments)
    if options.overrides and (unset := [pair for pair in options.overrides if pair[:1] in "~+"]):
        fix = "Add it to the command of the run, which fit prints."
        raise ConfigError("fit takes settings as name=value.", got=unset[0], fix=fix)
    settings = dict(pair.split("=", 1) for pair in options.overrides)
    teacher = settings.pop("teacher", None)
    names = options.label.split(",") if options.label else []
    label = names or None if len(names) != 1 else names[0]
    words = arguments_of(options.rows, label, options.model, settings, options.config_dir, teacher)
    folder = [] if options.config_dir is None else ["--config-dir", options.config_dir]
    print(command_line([*folder, *words]), file=sys.stderr, flush=True)
    start(*words, config_dir=options.config_dir)
