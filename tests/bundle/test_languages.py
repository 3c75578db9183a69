"""The programs in docs/examples/bundle train as Python does.

ORT_HOME is a folder with onnxruntime's `include` and `lib`; CLASSPATH has the jars of onnxruntime and Jackson.
"""

import csv
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

from ortpipe import OPTIMIZERS, TrainConfig, load_artifact, run
from ortpipe.bundle import read_bundle, read_state, write_bundle
from ortpipe.runtime import Session

PROGRAMS = Path(__file__).resolve().parents[2] / "docs" / "examples" / "bundle"
HOME, CLASSPATH = os.environ.get("ORT_HOME", ""), os.environ.get("CLASSPATH", "")
LIBRARIES = [*Path(HOME, "lib").glob("libonnxruntime.so*")] if HOME else []
EPOCHS, SIZE, COUNT = 3, 16, 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a table with words, dates, truths and a gap, and its rows as a CSV file."""
    folder = tmp_path_factory.mktemp("table")
    dates = [f"2026-01-{1 + i % 31:02}" for i in range(COUNT)]
    rows = [
        f"{('red', 'blue', 'green')[i % 3]},{('no', 'yes')[i % 2]},{('true', 'false', '')[i % 5 % 3]},{date},"
        f"{'' if i == 3 else i % 7}"
        for i, date in enumerate(dates)
    ]
    (folder / "rows.csv").write_text("\n".join(["b,y,c,d,a", *rows]) + "\n")
    data = ("data=csv", "data.source.path=rows.csv", "data.source.label=y")
    network = ("convert=mlp", "convert.source.hidden=[8]", "convert.source.dropout=0", "train.epochs=1")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run("~experiment", *data, *network, "recorder=none", "figures=false", "hydra.run.dir=run")
    gradient = load_artifact(folder / "run" / "stages" / "4_derive")
    write_bundle(gradient, TrainConfig(OPTIMIZERS["adam"](lr=0.01), batch_size=SIZE), folder / "bundle", steps=50)
    return folder


def losses(folder: Path) -> list[float]:
    """Return the losses of three epochs in Python: full batches, then the remaining rows."""
    bundle = read_bundle(folder)
    arrays, train = read_state(folder, bundle), Session(onnx.load(folder / "train.onnx"))
    with (folder.parent / "rows.csv").open() as file:
        table = list(csv.DictReader(file))
    data = {"a": np.array([row["a"] or "nan" for row in table], np.float32)}
    data |= {name: np.array([row[name] for row in table], object) for name in "bcd"}
    data[bundle["rows"][-1]] = np.array([[("no", "yes").index(row["y"])] for row in table])
    state, done, values = {name: arrays[name] for name in bundle["carried"]}, 0, list[float]()
    full = COUNT - COUNT % SIZE
    for places in [np.arange(full).reshape(-1, SIZE), np.arange(full, COUNT)[None]] * EPOCHS:
        steps = np.arange(done, done + len(places))
        scalars = {n: arrays[f"scalars/{n}"] for n in bundle["scalars"]}
        scalars = {n: a[np.minimum(steps, len(a) - 1)] for n, a in scalars.items()}
        *after, part = train.run({**state, **{n: a[places] for n, a in data.items()}, **scalars})
        state, done = dict(zip(state, after, strict=True)), done + len(places)
        values += part.tolist()
    return values


def check(command: list[str | Path], folder: Path) -> None:
    arguments = [folder / "bundle", folder / "rows.csv"]
    done = subprocess.run([*command, *arguments, "y", str(EPOCHS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = losses(folder / "bundle")
    assert len(expected) == EPOCHS * 3
    np.testing.assert_allclose([float(line) for line in done.stdout.splitlines()], expected, rtol=2e-6)
    rows = (folder / "rows.csv").read_text()
    wrong, file = [("z", rows), ("b", rows)], folder / "wrong.csv"  # no such column; no classes
    wrong += [
        ("y", rows.replace(*words)) for words in ((",true,", ",yes,"), ("2026-01-31", "31.1.2026"), (",5\n", ",5x\n"))
    ]
    for label, text in wrong:
        file.write_text(text)
        arguments = [folder / "bundle", file, label, "1"]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, ""), text
        assert label != "y" or "Write" in done.stderr or "5x" in done.stderr


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.skipif(not LIBRARIES, reason="needs onnxruntime for C++: set ORT_HOME")
@pytest.mark.skipif(not Path("/usr/include/nlohmann/json.hpp").exists(), reason="needs nlohmann-json3-dev")
def test_the_cpp_program_has_the_losses_of_python(folder: Path, tmp_path: Path) -> None:
    linked = [f"-I{HOME}/include", LIBRARIES[0], f"-Wl,-rpath,{HOME}/lib", "-o", tmp_path / "train"]
    subprocess.run(["g++", "-std=c++17", "-Wall", "-Werror", PROGRAMS / "train.cpp", *linked], check=True)
    check([tmp_path / "train"], folder)


@pytest.mark.skipif(shutil.which("java") is None, reason="needs Java")
@pytest.mark.skipif("onnxruntime" not in CLASSPATH, reason="needs onnxruntime for Java: add it to CLASSPATH")
def test_the_java_program_has_the_losses_of_python(folder: Path) -> None:
    check(["java", PROGRAMS / "Train.java"], folder)
