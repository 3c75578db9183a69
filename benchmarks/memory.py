"""Peak memory of training on rows that do not fit: the same for 1 GB and 8 GB, from Parquet and from .npy files.

    python -m benchmarks.memory [gigabytes …]

Writes files of that size to a temporary folder, one after the other, and trains on each in a process of its own: data
read and checked, a scikit-learn model fitted on a sample, its gradients checked, one epoch with validation, metrics.
The peak is the process's largest resident memory less what it has after its imports, mapped pages of files included.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

FEATURES, BLOCK = 100, 1_000_000  # float32; rows of a Parquet row group: 400 MB
GIGABYTES = (1, 8)
KINDS = ("parquet", "npy")


def main() -> None:
    """Write, train and print a table."""
    sizes = [float(argument) for argument in sys.argv[1:]] or GIGABYTES
    print("| rows of | GB | rows | MB above the imports | MB after the imports | seconds |", "|---" * 6 + "|", sep="\n")
    for kind in KINDS:
        for size in sizes:
            with tempfile.TemporaryDirectory() as folder:
                write(kind, Path(folder), round(size * 1e9 / (4 * (FEATURES + 1))))
                command = [sys.executable, "-m", "benchmarks.memory", "--train", kind, folder]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(done.stdout)
            rows, above, seconds = found["rows"], found["peak"] - found["imports"], found["seconds"]
            print(f"| {kind} | {size:g} | {rows:,} | {above} | {found['imports']} | {seconds:.0f} |", flush=True)


def write(kind: str, folder: Path, rows: int) -> None:
    """Write y = X·w + noise, block by block."""
    (_write_parquet if kind == "parquet" else _write_npy)(folder, rows)


def blocks(rows: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield the number of a block's first row, its features and its labels."""
    rng, weights = np.random.default_rng(0), np.linspace(-1, 1, FEATURES, dtype=np.float32)
    for first in range(0, rows, BLOCK):
        x = rng.standard_normal((min(BLOCK, rows - first), FEATURES), np.float32)
        yield first, x, x @ weights + rng.standard_normal(len(x), np.float32)


def _write_parquet(folder: Path, rows: int) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema([(name, pa.float32()) for name in [*(f"x{i}" for i in range(FEATURES)), "y"]])
    with parquet.ParquetWriter(folder / "rows.parquet", schema, compression="none", use_dictionary=False) as writer:
        for _, x, y in blocks(rows):
            writer.write_table(pa.table([*np.ascontiguousarray(x.T), y], schema=schema), row_group_size=BLOCK)


def _write_npy(folder: Path, rows: int) -> None:
    X = np.lib.format.open_memmap(folder / "X.npy", "w+", np.float32, (rows, FEATURES))
    Y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, (rows,))
    for first, x, y in blocks(rows):
        X[first : first + len(x)], Y[first : first + len(x)] = x, y


def train_on(kind: str, folder: Path) -> None:
    """Train and print the peak as JSON."""
    from pyarrow import compute, parquet  # noqa: F401  (what is imported late otherwise)
    from sklearn import metrics, model_selection  # noqa: F401
    from sklearn.linear_model import LinearRegression

    from ortpipe import (
        LOSSES,
        AddLossConfig,
        DeriveConfig,
        SplitConfig,
        TrainConfig,
        add_loss,
        convert,
        derive,
        evaluate,
        train,
    )
    from ortpipe.data import arrays, table_reader  # noqa: F401
    from ortpipe.data.sources.npy import Npy
    from ortpipe.data.sources.parquet import Parquet
    from ortpipe.data.split import DataConfig, load
    from ortpipe.data.stream import Stream

    imports, start = resident("VmRSS"), time.perf_counter()
    source = Parquet(path=str(folder / "rows.parquet"), label="y") if kind == "parquet" else Npy(str(folder / "X.npy"))
    data = load(DataConfig(source, SplitConfig(test=0.2, validation=0.1)))
    assert isinstance(data.train, Stream)
    forward = convert(LinearRegression(), data=data)
    gradients = derive(add_loss(forward, AddLossConfig(LOSSES["l2"]())), DeriveConfig(check=True), data=data)
    trained = evaluate(train(gradients, TrainConfig(epochs=1, batch_size=256, init="random"), data=data), data=data)
    assert trained.facts.metrics["r2"]["trained"] > 0.9
    rows = len(data.train) + len(data.validation or ()) + len(data.test or ())
    seconds = time.perf_counter() - start
    print(json.dumps({"imports": imports, "peak": resident("VmHWM"), "rows": rows, "seconds": seconds}))


def resident(key: str) -> int:
    """Return the process's resident memory (VmRSS) or the largest it ever had (VmHWM), in MB."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)]
    return int(line.split()[1]) * 1024 // 10**6


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train_on(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
