"""Change one place of the core at a time, and print which changes no test notices.

    pip install cosmic-ray pytest-cov
    PYTHONPATH=.:tests python -m faults.mutants 200 [--seed 0] [--jobs 2] [--record mutants.jsonl]

Cosmic Ray makes the mutants. The places are drawn with a seed, and one mutant at each place. Coverage finds the tests
that run each line, among those that run in one process. It measures once, into `.coverage`; delete that file after a
change. Each mutant lives in a copy of the checkout, where the tests of its line run until one fails; a line that runs
at import has all tests of its file. A survivor is a missing test, or a mutant that behaves like the original.
With `--record`, a run that was interrupted continues with the next mutant.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

from command import ROOT
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from coverage import CoverageData

FOLDERS = ("autodiff", "data", "graph", "metrics", "pipeline", "runtime", "stages")
CORE = (*FOLDERS, "artifact.py", "facts.py", "hashing.py")
COPIED = ("ortpipe", "hydra_plugins", "conf", "tests", "docs", "benchmarks", "pyproject.toml", "README.md")
IN_PROCESS = ("ortpipe", *(f"tests/{name}" for name in (*FOLDERS, "compat", "sklearn", "test_artifact.py")))
SECONDS = 900  # for the tests of one mutant: it may loop without end
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
Place = tuple[str, tuple[int, int]]  # a file below ortpipe/, and line and column


@dataclass(frozen=True)
class Mutant:
    """The n-th change that an operator of Cosmic Ray makes in a file."""

    file: str
    line: int
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
                        by_place[name, start].append(Mutant(name, start[0], operator, counts[operator]))
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


def compiles(source: str) -> bool:
    """Return whether Python can read a changed source; Cosmic Ray turns `{**a}` into `{-a}`, for example."""
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def measure(root: Path) -> CoverageData:
    """Return which tests run which lines of a checkout, measured now unless `.coverage` is there."""
    if not (root / ".coverage").exists():
        environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'tests'}"}
        options = ("--cov=ortpipe", "--cov-context=test", "--cov-report=")
        subprocess.run([*PYTEST, *options, *IN_PROCESS], cwd=root, env=environment, check=False)
    data = CoverageData(str(root / ".coverage"))
    data.read()
    return data


def tests(data: CoverageData, root: Path, mutant: Mutant, most: int) -> list[str]:
    """Return the tests that run a mutant's line or, where it runs at import, its file: those named after it first."""
    by_line = data.contexts_by_lineno(str(root / mutant.file))
    lines = {
        number: {name.split("|run")[0] for name in names if name.endswith("|run")} for number, names in by_line.items()
    }
    statement = enclosing((root / mutant.file).read_text(), mutant.line)
    found = set().union(*(lines.get(line, set()) for line in statement)) or set().union(*lines.values())
    folder, stem = f"tests/{'/'.join(Path(mutant.file).parts[1:-1])}/", Path(mutant.file).stem
    near = (lambda name: not name.startswith((mutant.file, f"{folder}test_{stem}")), lambda name: folder not in name)
    return sorted(found, key=lambda name: (*(far(name) for far in near), name))[:most]


def enclosing(source: str, line: int) -> range:
    """Return the lines of the smallest statement around a line; of one with a body, the line itself."""
    around = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    around = [node for node in around if node.lineno <= line <= (node.end_lineno or line)]
    smallest = min(around, key=lambda node: (node.end_lineno or line) - node.lineno, default=None)
    if smallest is None or hasattr(smallest, "body"):  # None: a decorator is above its statement
        return range(line, line + 1)
    return range(smallest.lineno, (smallest.end_lineno or line) + 1)


def killer(root: Path, nodes: list[str]) -> str | None:
    """Return the first test that fails, or None."""
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'tests'}", "PYTHONDONTWRITEBYTECODE": "1"}
    chosen = root / "nodes.txt"
    chosen.write_text("\n".join(nodes))
    command = [*PYTEST, "-n", "0", "-x", f"@{chosen}"]
    try:
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"no end within {SECONDS} s"
    if done.returncode == 0:
        return None
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (failed or [done.stdout[-200:] + done.stderr[-200:]])[0]


def copy(folder: Path) -> Path:
    """Return a copy of the checkout."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def main() -> None:
    """Draw mutants, test each, and print the survivors and the share that was killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--most", type=int, default=300, help="tests of a line, the nearest first")
    parser.add_argument("--record", type=Path, help="a file of JSON lines to continue from")
    options = parser.parse_args()
    lines = options.record.read_text().splitlines() if options.record and options.record.exists() else []
    results: dict[int, dict[str, Any]] = {record["number"]: record for record in map(json.loads, lines)}
    data = measure(ROOT)
    by_place = mutants(ROOT)
    random.seed(options.seed)
    drawn = [random.choice(by_place[place]) for place in random.sample(sorted(by_place), options.count)]
    drawn = [mutant for mutant in drawn if compiles(mutant.apply((ROOT / mutant.file).read_text()))]
    with ExitStack() as stack, ThreadPoolExecutor(options.jobs) as threads:
        free: queue.Queue[Path] = queue.Queue()
        for _ in range(options.jobs):
            free.put(copy(Path(stack.enter_context(tempfile.TemporaryDirectory()))))

        def test(number: int) -> dict[str, Any]:
            mutant, root = drawn[number], free.get()
            path = root / mutant.file
            before = path.read_text()
            path.write_text(after := mutant.apply(before))
            nodes = tests(data, ROOT, mutant, options.most)
            killed_by = killer(root, nodes) if nodes else None
            path.write_text(before)
            free.put(root)
            change = [
                *unified_diff(before.splitlines(), after.splitlines(), mutant.file, mutant.file, lineterm="", n=1)
            ]
            return {"number": number, "file": mutant.file, "tests": len(nodes), "killed_by": killed_by, "diff": change}

        left = [number for number in range(len(drawn)) if number not in results]
        for future in as_completed([threads.submit(test, number) for number in left]):
            record = future.result()
            results[record["number"]] = record
            print(f"{len(results)}/{len(drawn)} {record['file']}: {record['killed_by'] or 'SURVIVED'}", flush=True)
            if record["killed_by"] is None:
                print("\n".join(record["diff"]), flush=True)
            if options.record:
                with options.record.open("a") as file:
                    file.write(json.dumps(record) + "\n")
    killed = sum(record["killed_by"] is not None for record in results.values())
    print(f"{killed} of {len(results)} killed ({killed / len(results):.1%}) among {len(by_place)} places")


if __name__ == "__main__":
    main()
