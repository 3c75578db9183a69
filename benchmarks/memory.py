"""Training on rows that do not fit: its memory, how often their files are read, and how fast, of 1 GB and of 8 GB.

    python -m benchmarks.memory [kind …] [gigabytes …]

Writes files of that size to a temporary folder, one after the other, and trains on each in a process of its own: data
read and checked, a scikit-learn model fitted on a sample, its gradients checked, three epochs with validation, metrics.
The peak is the process's largest resident memory less that after its imports, mapped pages of files included.
Reads are bytes that were read of the files over their size. MB/s are bytes of the files by the time on the wall, and
by the processor's time of the main thread or of the others together, whichever is more, which is the wall's where two
threads have a core each (an epoch of a stream has three): of the pass that checks them, of the one that the first
sample takes, and of an epoch of batches, with nothing trained on them.
"""

from __future__ import annotations

import collections
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

FEATURES, BLOCK = 100, 1_000_000  # float32; rows that are made at a time
GIGABYTES = (1, 8)
PARQUET = {  # kind → rows of a row group (400 MB, 8 MB), compression
    "parquet": (BLOCK, "none"),
    "parquet_small": (20_000, "none"),
    "parquet_snappy": (20_000, "snappy"),
    "parquet_zstd": (20_000, "zstd"),
}
KINDS = ("parquet", "parquet_zstd", "npy", "csv")
EPOCHS = 3
SPEEDS = ("check", "sample", "epoch")


def main() -> None:
    """Write, train and print a table."""
    kinds = [argument for argument in sys.argv[1:] if argument in (*PARQUET, *KINDS)] or KINDS
    sizes = [float(argument) for argument in sys.argv[1:] if argument not in kinds] or GIGABYTES
    speeds = [f"{phase}, MB/s (of CPU)" for phase in SPEEDS]
    head = ["rows of", "GB", "rows", "MB above the imports", "MB after the imports", "seconds", "reads", *speeds]
    print(f"| {' | '.join(head)} |", "|---" * len(head) + "|", sep="\n")
    for kind in kinds:
        for size in sizes:
            with tempfile.TemporaryDirectory() as folder:
                write(kind, Path(folder), round(size * 1e9 / (4 * (FEATURES + 1))))
                command = [sys.executable, "-m", "benchmarks.memory", "--train", kind, folder]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(done.stdout)
            cells = [kind, f"{size:g}", f"{found['rows']:,}", found["peak"] - found["imports"], found["imports"]]
            cells += [f"{found['seconds']:.0f}", f"{found['reads']:.1f}"]
            cells += ["{:,.0f} ({:,.0f})".format(*found[phase]) for phase in SPEEDS]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)


def write(kind: str, folder: Path, rows: int) -> None:
    """Write y = X·w + noise, block by block."""
    if kind in PARQUET:
        _write_parquet(folder, rows, *PARQUET[kind])
    else:
        (_write_csv if kind == "csv" else _write_npy)(folder, rows)


def blocks(rows: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield the number of a block's first row, its features and its labels."""
    rng, weights = np.random.default_rng(0), np.linspace(-1, 1, FEATURES, dtype=np.float32)
    for first in range(0, rows, BLOCK):
        x = rng.standard_normal((min(BLOCK, rows - first), FEATURES), np.float32)
        yield first, x, x @ weights + rng.standard_normal(len(x), np.float32)


def _write_parquet(folder: Path, rows: int, group: int, compression: str) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema([(name, pa.float32()) for name in [*(f"x{i}" for i in range(FEATURES)), "y"]])
    with parquet.ParquetWriter(
        folder / "rows.parquet", schema, compression=compression, use_dictionary=False
    ) as writer:
        for _, x, y in blocks(rows):
            writer.write_table(pa.table([*np.ascontiguousarray(x.T), y], schema=schema), row_group_size=group)


def _write_csv(folder: Path, rows: int) -> None:
    """Write numbers with four decimals, which take about twice the bytes of float32."""
    import pyarrow as pa
    from pyarrow import csv

    names = [*(f"x{i}" for i in range(FEATURES)), "y"]
    schema = pa.schema([(name, pa.float64()) for name in names])
    with csv.CSVWriter(folder / "rows.csv", schema) as writer:
        for _, x, y in blocks(rows):
            columns = [np.round(column.astype(np.float64), 4) for column in [*x.T, y]]
            writer.write_table(pa.table(columns, schema=schema))


def _write_npy(folder: Path, rows: int) -> None:
    X = np.lib.format.open_memmap(folder / "X.npy", "w+", np.float32, (rows, FEATURES))
    Y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, (rows,))
    for first, x, y in blocks(rows):
        X[first : first + len(x)], Y[first : first + len(x)] = x, y


def train_on(kind: str, folder: Path) -> None:
    """Train and print the peak as JSON."""
    from pyarrow import compute, csv, parquet  # noqa: F401  (else imported later)
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
    from ortpipe.data.batches import Batches
    from ortpipe.data.load import DataConfig, load
    from ortpipe.data.sources.csv import Csv
    from ortpipe.data.sources.npy import Npy
    from ortpipe.data.sources.parquet import Parquet

    size = sum(file.stat().st_size for file in folder.iterdir())
    found: dict[str, Any] = {"imports": resident("VmRSS")}
    mapped = _count_mapped(arrays.MappedArray)

    def bytes_read() -> int:
        return read_by_calls() + sum(mapped)

    def measured(phase: str, make: Callable[[], T]) -> T:
        wall, both, own = time.perf_counter(), time.process_time(), time.thread_time()
        result = make()
        wall, both, own = time.perf_counter() - wall, time.process_time() - both, time.thread_time() - own
        found[phase] = [size / 1e6 / seconds for seconds in (wall, max(own, both - own))]
        return result

    first, start = bytes_read(), time.perf_counter()
    if kind in PARQUET:
        source: Any = Parquet(path=str(folder / "rows.parquet"), label="y", inputs={"X": None})
    else:
        table = Csv(path=str(folder / "rows.csv"), label="y", inputs={"X": None})
        source = table if kind == "csv" else Npy(str(folder / "X.npy"))
    data = measured("check", lambda: load(DataConfig(source, SplitConfig(test=0.2, validation=0.1))))
    measured("sample", data.train.sample)
    forward = convert(LinearRegression(), data=data)
    gradients = derive(add_loss(forward, AddLossConfig(LOSSES["l2"]())), DeriveConfig(check=True), data=data)
    config = TrainConfig(epochs=EPOCHS, batch_size=256, init="random")
    trained = evaluate(train(gradients, config, data=data), data=data)
    assert trained.facts.metrics["r2"]["trained"] > 0.9
    found["seconds"], found["reads"] = time.perf_counter() - start, (bytes_read() - first) / size
    found["rows"] = len(data.train) + len(data.validation or ()) + len(data.test or ())
    found["peak"] = resident("VmHWM")
    batches = Batches(data.train, lambda rows: {"X": rows.inputs["X"], "y": rows.label}, 256)
    measured("epoch", lambda: collections.deque(batches.epoch(1), 0))
    print(json.dumps(found))


def _count_mapped(stored: Any) -> list[int]:
    """Return a list that records each copy of a mapped array."""
    counts, copy = list[int](), stored.__getitem__

    def counted(self: Any, cut: slice) -> np.ndarray:
        array: np.ndarray = copy(self, cut)
        counts.append(array.nbytes)
        return array

    stored.__getitem__ = counted
    return counts


def read_by_calls() -> int:
    """Return how many bytes the process has read so far, mapped ones not counted."""
    [line] = [line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar")]
    return int(line.split()[1])


def resident(key: str) -> int:
    """Return the process's resident memory (VmRSS) or the largest it ever had (VmHWM), in MB."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)]
    return int(line.split()[1]) * 1024 // 10**6


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train_on(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
