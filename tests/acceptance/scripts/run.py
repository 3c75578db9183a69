"""Run the tests and examples of an earlier library against ortpipe.compat: `python -m acceptance scripts CHECKOUT`."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from acceptance.scripts.known import DELIBERATE, GONE, reason
from acceptance.scripts.rewrites import REWRITES, rewritten
from benchmarks import report

TESTS = Path(__file__).resolve().parents[2]
ROOT = TESTS.parent
# The parts of each library that ortpipe.compat takes the place of: package → (tests, examples)
PARTS = {
    "onnxcustom": (
        (
            "_unittests/ut_training/test_*.py",
            "_unittests/ut_utils/test_onnx_*.py",
            "_unittests/ut_utils/test_onnxruntime_helper.py",
            "_unittests/ut_utils/test_orttraining_helper.py",
            "_unittests/ut_plotting/test_*.py",
        ),
        ("_doc/examples/plot_orttraining_*.py", "_doc/examples/plot_benchmark_onnx_function.py"),
    ),
    "experimental_experiment": (("_unittests/ut_gradient/test_*.py",), ()),
}
PASSED, PURPOSE, IS_GONE, FAILED = "passed", "deliberate difference", "needs what is gone", "FAILED"


@dataclass(frozen=True)
class Result:
    """One test or example: `library/file/test`, what pytest calls its outcome, what it raised, seconds."""

    name: str
    outcome: str
    said: str
    seconds: float

    def verdict(self) -> tuple[str, str]:
        """Return one of the four verdicts, and its reason."""
        for known, kind in ((DELIBERATE, PURPOSE), (GONE, IS_GONE)):
            if (listed := reason(known, self.name)) is not None:
                why, pattern = listed
                if self.outcome == "passed":
                    return FAILED, f"passes, but is listed as {kind}: {why}"
                if not re.search(pattern, self.said):
                    return FAILED, f"is listed as {kind}, but for {pattern!r}: {_short(self.said)}"
                return kind, why
        return (PASSED, "") if self.outcome == "passed" else (FAILED, _short(self.said) or self.outcome)


def copied(checkout: Path, package: str, folder: Path) -> tuple[list[Path], list[Path]]:
    """Write the library's tests and examples, rewritten, into a folder; return their paths."""
    both = []
    for kind, patterns in zip(("tests", "examples"), PARTS[package], strict=True):
        (folder / kind).mkdir(parents=True)
        paths = sorted(path for pattern in patterns for path in checkout.glob(pattern))
        for path in paths:
            (folder / kind / path.name).write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")
        both.append([folder / kind / path.name for path in paths])
    return both[0], both[1]


def may_match(expression: str, file: Path) -> bool:
    """Return whether pytest's -k may choose a test of a file, so that others need no process."""
    words = re.findall(r"\w+", expression.lower())
    text = f"{file.stem} {file.read_text(encoding='utf-8')}".lower()
    return not words or "not" in words or any(word in text for word in words if word not in ("and", "or"))


def run_tests(package: str, files: list[Path], options: argparse.Namespace) -> list[Result]:
    """Run test files in a process each, so that a crash ends only its own."""
    results: list[Result] = []
    for file in filter(lambda file: may_match(options.k, file), files):
        print(file.stem, file=sys.stderr, flush=True)
        log = file.with_suffix(".jsonl")
        command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += ["-p", "acceptance.scripts.limit", "-c", os.devnull, "--rootdir", str(file.parent), str(file)]
        command += ["-k", options.k] if options.k else []
        settings = {"EARLIER_LOG": str(log), "EARLIER_LIMIT": str(options.limit)}
        done = subprocess.run(command, cwd=file.parent, env=_environment(settings), capture_output=True, text=True)
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        for line in lines:
            name = "/".join(filter(None, (package, line["file"], line["test"])))
            results.append(Result(name, line["outcome"], line["said"], line["seconds"]))
        if done.returncode not in (0, 1, 2, 5):  # 5: -k chose none
            results.append(Result(f"{package}/{file.stem}", "crashed", (done.stdout + done.stderr)[-2000:], 0.0))
    return results


def run_examples(package: str, scripts: list[Path], pictures: Path, options: argparse.Namespace) -> list[Result]:
    """Run example scripts in a process each."""
    pictures.mkdir(parents=True, exist_ok=True)
    results = []
    for script in scripts:
        if options.k and options.k not in script.stem:
            continue
        example = Path(__file__).parent / "example.py"
        command = [sys.executable, "-W", "ignore", str(example), str(script), str(pictures)]
        started = time.perf_counter()
        try:
            done = subprocess.run(
                command,
                cwd=script.parent,
                env=_environment({}),
                capture_output=True,
                text=True,
                timeout=5 * options.limit,
            )
            script.with_suffix(".txt").write_text(done.stdout + done.stderr)
            outcome, said = ("passed", "") if done.returncode == 0 else ("failed", done.stderr)
        except subprocess.TimeoutExpired as error:
            outcome, said = "failed", str(error)
        name = f"{package}/{script.stem}"
        results.append(Result(name, outcome, said, time.perf_counter() - started))
    return results


def table(results: list[Result]) -> str:
    """Return one row per test, and how many have each verdict."""
    rows = [(result.name, *result.verdict(), f"{result.seconds:.1f}") for result in results]
    counts = Counter(verdict for _, verdict, *_ in rows)
    numbers = ", ".join(f"{counts[kind]} {kind}" for kind in (PASSED, PURPOSE, IS_GONE, FAILED))
    return f"{report.table(('test or example', 'verdict', 'reason', 's'), rows)}\n\n{numbers}"


def _environment(settings: dict[str, str]) -> dict[str, str]:
    paths = [str(ROOT), str(TESTS), os.environ.get("PYTHONPATH", "")]
    fixed = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **fixed, **settings}


def _short(said: str) -> str:
    """Return the last line of a traceback that says something, fit for a cell of a table."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    first = next((line for line in reversed(lines) if re.match(r"[\w.]*(Error|Exception|Warning|Exit)\b", line)), "")
    return (first or " ".join(lines[-1:])).replace("|", "¦")[:240]


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen scripts and print the table; return 1 if any failed."""
    parser = argparse.ArgumentParser(prog="python -m acceptance scripts", description=__doc__)
    parser.add_argument("checkout", type=Path, nargs="?", help="a checkout of onnxcustom or experimental-experiment")
    parser.add_argument("--examples", action="store_true", help="run the example scripts too")
    parser.add_argument("-k", default="", help="only the tests that pytest's -k chooses, the examples of that name")
    parser.add_argument("--limit", type=int, default=120, help="seconds for a test; an example has five times as long")
    parser.add_argument("--keep", type=Path, help="a new folder for the rewritten scripts, their output and pictures")
    parser.add_argument("--rewrites", action="store_true", help="print the rules by which scripts are rewritten")
    options = parser.parse_args(arguments)
    if options.rewrites:
        print("\n".join(f"{rule.pattern}  →  {rule.replacement}   ({rule.why})" for rule in REWRITES))
    if options.checkout is None:
        return 0
    package = next((name for name in PARTS if (options.checkout / name).is_dir()), None)
    if package is None:
        parser.error(f"{options.checkout} holds none of the packages {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary) / "copy").absolute()
        tests, examples = copied(options.checkout, package, folder)
        results = run_tests(package, tests, options)
        if options.examples:
            results += run_examples(package, examples, folder / "pictures", options)
    print(table(results))
    return int(any(result.verdict()[0] == FAILED for result in results))
