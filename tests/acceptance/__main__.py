"""Other people's models and scripts through ortpipe, on demand.

    PYTHONPATH=.:tests python -m acceptance [PART [ARGUMENTS …]]

    files        .onnx files of PyPI packages: convert, 20 steps, gradients, a stock onnxruntime
    estimators   every estimator of scikit-learn; writes docs/reference/estimators.md
    scripts      a checkout of an earlier library: its tests and examples against ortpipe.compat
    tables       networks beside HistGradientBoosting on real tables
    retraining   ten weeks of `ortpipe retrain` on dated rows
    workers      one training by several processes or cluster nodes, some of which are killed

`python -m acceptance PART --help` lists a part's arguments. Without a part, `files`, `estimators` and `tables` run.
Exit status 1 if any of them fails.
"""

from __future__ import annotations

import importlib
import sys

PARTS = {"files": "files.run", "estimators": "estimators", "scripts": "scripts.run", "tables": "tables.run"}
PARTS |= {"retraining": "retraining", "workers": "workers"}
UNATTENDED = ("files", "estimators", "tables")  # others need a checkout, a folder or a quiet machine


def main(arguments: list[str]) -> int:
    """Run one part with its arguments, or all parts that need none."""
    if not arguments:
        return max(_part(name, []) for name in UNATTENDED)
    name, *rest = arguments
    if name not in PARTS:
        print(__doc__)
        return int(name not in ("-h", "--help"))
    return _part(name, rest)


def _part(name: str, arguments: list[str]) -> int:
    return int(importlib.import_module(f"acceptance.{PARTS[name]}").main(arguments) or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
