"""ortpipe init: create a small project that runs without changes."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from ortpipe.app.compose import Parser
from ortpipe.app.local_path import local
from ortpipe.errors import ConfigError
from ortpipe.files import atomic_write

ABOUT = """Create a small project: an experiment, a table of rows to replace with your own, and a README with
the commands that run it. Existing files are not overwritten."""
EXAMPLES = (
    "ortpipe init my_project",
    "ortpipe init .",
)
FILES = ("conf/experiment/mine.yaml", "rows.csv", ".gitignore", "README.md")
TEMPLATES = Path(__file__).resolve().parents[1] / "project"


def run(arguments: Sequence[str]) -> None:
    """Write the project's files into a new or empty folder."""
    parser = Parser("init", ABOUT, EXAMPLES, overrides=False)
    parser.add_argument("folder", metavar="DIR", help="the project's folder, new or empty")
    folder = local(parser.read(arguments).folder, "DIR")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError("The folder of a new project must be new or empty.", got=folder, fix="Name another folder.")
    for name in FILES:
        atomic_write(folder / name, (TEMPLATES / name.replace(".gitignore", "gitignore")).read_bytes())
    print(f"made    {folder}: {', '.join(FILES)}")
    enter = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    print(f"run it  {enter}ortpipe --config-dir conf experiment=mine")
