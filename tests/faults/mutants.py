"""Change one place of the core at a time, and print which changes no test notices.

    pip install cosmic-ray
    PYTHONPATH=.:tests python -m faults.mutants 200 [--seed 0] [--all] [--record mutants.jsonl]

Cosmic Ray makes the mutants. The places are drawn with a seed, and one mutant at each place. The tests run on a copy of
the checkout: first the doctests and tests named after the file, then those of its folder, then all that run in one
process, and with `--all` the whole suite. A survivor is a missing test, or a mutant that behaves like the original:
read each. With `--record`, a run that was interrupted continues with the next mutant.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from command import ROOT
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

FOLDERS = ("autodiff", "data", "graph", "metrics", "pipeline", "runtime", "stages")
CORE = (*FOLDERS, "artifact.py", "facts.py", "hashing.py")
COPIED = ("ortpipe", "conf", "tests", "docs", "benchmarks", "pyproject.toml", "README.md")
IN_PROCESS = (*(f"tests/{name}" for name in FOLDERS), "tests/test_artifact.py", "tests/compat", "tests/sklearn")
SECONDS = 900  # for each step of tests: a mutant may loop without end
Place = tuple[str, tuple[int, int]]  # a file below ortpipe/, and line and column


@dataclass(frozen=True)
class Mutant:
    """The n-th change that an operator of Cosmic Ray makes in a file."""

    file: str
    operator: str
    occurrence: int

    def apply(self, source: str) -> str:
        """Return the changed source."""
        return mutate_code(source, get_operator(self.operator)(), self.occurrence)


def mutants(root: Path) -> dict[Place, list[Mutant]]:
    """Return every mutant of the core by its place, without those that cannot matter: see `idle`."""
    operators = {name: get_operator(name) for name in operator_names()}
    operators = {name: kind() for name, kind in operators.items() if not kind.arguments() and "NoOp" not in name}
    by_place: dict[Place, list[Mutant]] = collections.defaultdict(list)
    paths = [root / "ortpipe" / name for name in CORE]
    for path in (file for p in paths for file in (sorted(p.rglob("*.py")) if p.is_dir() else [p])):
        source, name = path.read_text(), str(path.relative_to(root))
        skipped = set(idle(source))
        counts: collections.Counter[str] = collections.Counter()
        for node in ast_nodes(get_ast(source)):
            for operator, maker in operators.items():
                for start, _ in maker.mutation_positions(node):
                    if start not in skipped:
                        by_place[name, start].append(Mutant(name, operator, counts[operator]))
                    counts[operator] += 1
    return by_place


def idle(source: str) -> Iterator[tuple[int, int]]:
    """Yield the places that correct code never depends on: `|` between types, `strict=True` and `frozen=True`."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            for part in ast.walk(annotation) if isinstance(annotation, ast.AST) else ():
                if isinstance(part, ast.BinOp):
                    left = part.left
                    yield left.end_lineno, lines[left.end_lineno - 1].index("|", left.end_col_offset)
        if isinstance(node, ast.keyword) and node.arg in ("strict", "frozen"):
            yield node.value.lineno, node.value.col_offset


def steps(file: str, everything: bool) -> list[list[str]]:
    """Return the arguments of pytest for a file's tests, from the nearest to the rest."""
    folder = Path("tests", *Path(file).parts[1:-1])
    while not (ROOT / folder).is_dir():
        folder = folder.parent
    near = sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).glob(f"test_{Path(file).stem}*.py"))
    own = [[str(folder)]] if folder != Path("tests") else []
    return [[file, *near], *own, list(IN_PROCESS), *([["tests"]] if everything else [])]


def killer(root: Path, file: str, everything: bool) -> str | None:
    """Return the first test that fails, or None."""
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'tests'}", "PYTHONDONTWRITEBYTECODE": "1"}
    for arguments in steps(file, everything):
        command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "no:cacheprovider", *arguments]
        try:
            done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return f"no end within {SECONDS} s of {' '.join(arguments)}"
        if done.returncode not in (0, 5):  # 5: no tests there
            failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            return (failed or [done.stdout[-200:] + done.stderr[-200:]])[0]
    return None


def main() -> None:
    """Draw mutants, test each, and print the survivors and the share that was killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all", action="store_true", help="run the whole suite on survivors")
    parser.add_argument("--record", type=Path, help="a file of JSON lines to continue from")
    options = parser.parse_args()
    recorded = options.record.read_text().splitlines() if options.record and options.record.exists() else []
    killed_by: list[str | None] = [json.loads(line)["killed_by"] for line in recorded]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "checkout")
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, root / name)
        by_place = mutants(root)
        random.seed(options.seed)
        drawn = [random.choice(by_place[place]) for place in random.sample(sorted(by_place), options.count)]
        for number, mutant in enumerate(drawn[len(killed_by) :], len(killed_by) + 1):
            path = root / mutant.file
            before = path.read_text()
            path.write_text(after := mutant.apply(before))
            killed_by.append(killer(root, mutant.file, options.all))
            path.write_text(before)
            print(f"{number}/{options.count} {mutant.file}: {killed_by[-1] or 'SURVIVED'}", flush=True)
            lines = [*unified_diff(before.splitlines(), after.splitlines(), mutant.file, mutant.file, lineterm="", n=1)]
            if killed_by[-1] is None:
                print("\n".join(lines), flush=True)
            if options.record:
                with options.record.open("a") as file:
                    file.write(json.dumps({"file": mutant.file, "killed_by": killed_by[-1], "diff": lines}) + "\n")
    killed = sum(test is not None for test in killed_by)
    print(f"{killed} of {len(killed_by)} killed ({killed / len(killed_by):.1%}) among {len(by_place)} places")


if __name__ == "__main__":
    main()
