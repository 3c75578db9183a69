"""Run recipes and write their results into index.md: `python docs/recipes/recipe.py [--short] [NAME ...]`.

A recipe is NAME.md, whose commands this script runs, conf/experiment/recipes/NAME.yaml, and NAME.py, which defines:

    PACKAGE    the distribution whose model is trained
    NEEDS      the modules that `rows` and `dropin` import
    METRIC     the metric of run.json in the table
    CHECK      the result of `dropin`, in words
    rows(folder, short)      write the files that the config reads; before.onnx is the package's model
    dropin(model, folder)    return the result of the package's own API with a model file
    picture(folder)          return the picture of the page, a figure of matplotlib

Full runs write their row of the table and their picture; `--short` only checks that all commands of the page work.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).parent
OUTPUTS = Path("outputs", "recipes")
SHORT = {"python": "--short", "ortpipe": "train.epochs=1 recorder=none figures=false"}  # added to commands by --short
FILES = ("before.onnx", "trained.onnx")


def names() -> list[str]:
    """Return the names of all recipes."""
    return sorted(page.stem for page in HERE.glob("*.md") if page.stem != "index")


def load(name: str) -> ModuleType:
    """Return a recipe's module."""
    sys.path.insert(0, str(HERE))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(HERE))


def commands(name: str, short: bool = False) -> list[str]:
    """Return the commands of a recipe's page, in order, without those that install packages."""
    page = (HERE / f"{name}.md").read_text(encoding="utf-8")
    lines = "\n".join(re.findall(r"```bash\n(.*?)```", page, re.S)).splitlines()
    lines = [line.partition("  #")[0].rstrip() for line in lines if line and not line.startswith("pip install")]
    return [_short(line) if short else line for line in lines]


def _short(line: str) -> str:
    trains_or_makes = line.startswith("ortpipe experiment=") or line.endswith(" rows")
    return f"{line} {SHORT[line.split()[0]]}" if trains_or_makes else line


def main(recipe: ModuleType, arguments: Iterable[str]) -> None:
    """Run `rows [--short]` or `dropin` of a recipe."""
    parser = argparse.ArgumentParser(description=recipe.__doc__)
    parser.add_argument("step", choices=["rows", "dropin"], help="write the rows, or try the files in the package")
    parser.add_argument("--short", action="store_true", help="few rows, for a test")
    given = parser.parse_args([*arguments])
    folder = OUTPUTS / Path(recipe.__file__ or "").stem
    folder.mkdir(parents=True, exist_ok=True)
    if given.step == "rows":
        recipe.rows(folder, given.short)
        print(f"wrote {', '.join(sorted(path.name for path in folder.iterdir()))} in {folder}")
        return
    if not any((folder / file).exists() for file in FILES):
        parser.error(f"there is no model in {folder}: run the commands of the page before this one, in the same folder")
    results = {file: recipe.dropin(folder / file, folder) for file in FILES if (folder / file).exists()}
    (folder / "dropin.json").write_text(json.dumps(results))
    for file, result in results.items():
        print(f"{file}: {recipe.CHECK} {result:.3f}")


def measure(name: str, place: Path, short: bool) -> list[str]:
    """Run the commands of a page below a folder, and return the cells of its row."""
    (place / "docs").exists() or (place / "docs").symlink_to(HERE.parent)
    seconds, peak, recipe, folder = 0.0, 0, load(name), place / OUTPUTS / name
    for line in commands(name, short):
        print(line, flush=True)
        start = time.perf_counter()
        process = subprocess.Popen(line, shell=True, cwd=place)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{line}: exit code {process.returncode}")
        if line.startswith("ortpipe experiment="):
            seconds, peak = time.perf_counter() - start, usage.ru_maxrss
    run = json.loads((folder / "run" / "run.json").read_text())
    values, results = run["metrics"][recipe.METRIC], json.loads((folder / "dropin.json").read_text())
    title = (HERE / f"{name}.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    return [
        f"[{title}]({name}.md)",
        f"{recipe.PACKAGE}, {(folder / 'trained.onnx').stat().st_size / 1e6:.1f} MB",
        f"{run['data']['rows']['train']:,}",
        f"{recipe.METRIC} {values['before']:.3f} → {values['trained']:.3f}",
        f"{seconds / 60:.1f}",
        f"{peak / 1024:,.0f}",
        f"{recipe.CHECK} {' → '.join(f'{result:.3f}' for result in results.values())}",
    ]


def write(cells: list[str]) -> None:
    """Write a row into the table of index.md, in place of the one of the same recipe."""
    page = HERE / "index.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("| --- |")) + 1
    last = next(place for place in range(first, len(lines)) if not lines[place])
    rows = {line.split(" | ")[0]: line for line in [*lines[first:last], f"| {' | '.join(cells)} |"]}
    lines[first:last] = [rows[key] for key in sorted(rows)]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def draw(name: str, place: Path) -> None:
    """Write a recipe's picture, with few colours, which halves it."""
    from PIL import Image

    file = HERE.parent / "static" / "recipes" / f"{name}.png"
    load(name).picture(place / OUTPUTS / name).savefig(file, dpi=110, bbox_inches="tight")
    Image.open(file).convert("RGB").quantize(256, Image.Quantize.FASTOCTREE).save(file, optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="recipes to run; all if none is named")
    parser.add_argument("--short", action="store_true", help="few rows and one epoch; write nothing into docs/")
    parser.add_argument("--folder", type=Path, default=Path(), help="where outputs/ is written; here if not given")
    given = parser.parse_args()
    for name in given.names or names():
        cells = measure(name, given.folder.resolve(), given.short)
        print(" | ".join(cells))
        if not given.short:
            write(cells)
            draw(name, given.folder.resolve())
