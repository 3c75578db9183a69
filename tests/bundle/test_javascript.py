"""The JavaScript package of `web/` trains a bundle as Python does, in Node with each of its runtimes."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ortpipe import (
    LOSSES,
    OPTIMIZERS,
    AddLossConfig,
    ConvertConfig,
    Data,
    Rows,
    TrainConfig,
    add_loss,
    convert,
    derive,
    train,
)
from ortpipe.bundle import write_bundle
from ortpipe.data.raw_columns import RawColumn
from ortpipe.stages.convert.sources import SOURCES

WEB = Path(__file__).resolve().parents[2] / "web"
NODE = shutil.which("node")
rng = np.random.default_rng(0)
WORDS = np.array(["Oslo", "Lima", "Rome", ""])[rng.integers(0, 4, 50)]
AGES = np.where(rng.random(50) < 0.1, np.nan, rng.normal(40, 9, 50)).astype(np.float32)
KEPT = {"city": RawColumn("word"), "age": RawColumn("number")}
TABLE = Rows({"city": WORDS, "age": AGES}, np.where(WORDS == "Oslo", "buy", "leave"), kept=KEPT)
DIGITS = Rows({"X": rng.normal(size=(50, 6)).astype(np.float32)}, rng.integers(0, 3, 50))


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of bundles, each with its rows and the results of ortpipe."""
    folder = tmp_path_factory.mktemp("bundles")
    mlp, tabular = (
        SOURCES["mlp"](hidden=(5,), dropout=0.0),
        SOURCES["tabular"](members=2, width=4, blocks=1, dropout=0.0),
    )
    cases = (("numbers", mlp, DIGITS, "adam", "cross_entropy"), ("table", tabular, TABLE, "momentum", "log"))
    for name, source, rows, optimizer, loss in cases:
        model = convert(None, ConvertConfig(source), data=Data(rows))
        gradient = derive(add_loss(model, AddLossConfig(LOSSES[loss]())))
        config = TrainConfig(OPTIMIZERS[optimizer](lr=0.01), epochs=3, batch_size=16, seed=7)
        write_bundle(gradient, config, folder / name)
        trained = train(gradient, config, data=Data(rows))
        expected = {
            "rows": {key: array.tolist() for key, array in rows.inputs.items()},
            "labels": rows.label.tolist(),
            "steps": trained.tensors["losses/step"].tolist(),
            "epochs": trained.tensors["losses/train"].tolist(),
        }
        (folder / f"{name}.json").write_text(json.dumps(expected).replace("NaN", "null"))
    return folder


def need(package: str) -> None:
    if not (WEB / "node_modules" / package).exists():
        pytest.skip(f"needs {package}: npm install --ignore-scripts in web/")


@pytest.mark.skipif(NODE is None, reason="needs Node")
@pytest.mark.parametrize("runtime", ["onnxruntime-node", "onnxruntime-web"])
def test_a_bundle_trains_in_node_as_in_python(runtime: str, bundles: Path) -> None:
    need(runtime)
    environment = {**os.environ, "BUNDLES": str(bundles), "RUNTIME": runtime}
    command = [str(NODE), "--test", "--expose-gc", *map(str, sorted(WEB.glob("test/*.test.js")))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(NODE is None, reason="needs Node")
def test_rows_are_in_the_order_of_numpy() -> None:
    code = """import { order } from "./src/order.js";
        console.log(JSON.stringify(CASES.map(([count, seed, epoch]) => [...order(count, seed, epoch)])));"""
    cases = [[1, 0, 1], [2, 0, 2], [50, 7, 3], [1797, 2**40 + 3, 2**33], [70_000, 0, 1]]
    command = [str(NODE), "--input-type=module", "-e", code.replace("CASES", str(cases))]
    orders = json.loads(subprocess.run(command, cwd=WEB, capture_output=True, text=True, check=True).stdout)
    for (count, *seed), rows in zip(cases, orders, strict=True):
        assert rows == np.random.default_rng(seed).permutation(count).tolist()


@pytest.mark.skipif(NODE is None, reason="needs Node")
def test_the_types_hold() -> None:
    need("typescript")
    options = ["--noEmit", "--strict", "--module", "nodenext", "--target", "es2022", "--lib", "es2022,dom,dom.iterable"]
    command = [str(NODE), "node_modules/typescript/bin/tsc", *options, "test/types.ts"]
    done = subprocess.run(command, cwd=WEB, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(NODE is None, reason="needs Node")
def test_the_package_has_at_most_30_kb() -> None:
    need("esbuild")
    options = ["--bundle", "--minify", "--format=esm", "--platform=neutral", "--external:onnxruntime-web"]
    command = [str(NODE), "node_modules/esbuild/bin/esbuild", "src/index.js", *options]
    done = subprocess.run(command, cwd=WEB, capture_output=True, check=True)
    assert len(done.stdout) <= 30_000
