"""The JavaScript package of `web/` trains a bundle as Python does, in Node with each of its runtimes."""

import contextlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import chromium
from command import ortpipe
from safetensors.numpy import save_file
from sklearn.datasets import load_digits

from ortpipe import (
    LOSSES,
    OPTIMIZERS,
    AddLossConfig,
    ConvertConfig,
    Data,
    PenaltyConfig,
    Rows,
    TrainConfig,
    add_loss,
    convert,
    derive,
    load_artifact,
    penalty,
    train,
)
from ortpipe.bundle import restored, write_bundle
from ortpipe.data.raw_columns import RawColumn
from ortpipe.errors import ModelError
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.sources import SOURCES

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "web"
NODE = shutil.which("node")
rng = np.random.default_rng(0)
WORDS = np.array(["Oslo", "Lima", "Rome", ""])[rng.integers(0, 4, 50)]
AGES = np.where(rng.random(50) < 0.1, np.nan, rng.normal(40, 9, 50)).astype(np.float32)
VIP = np.array(["true", "false"], object)[rng.integers(0, 2, 50)]
DAYS = np.array([f"2026-{1 + n % 12:02}-{1 + n % 28:02}" for n in range(50)], object)
KEPT = {"city": RawColumn("word"), "age": RawColumn("number"), "vip": RawColumn("word", of="truth")}
KEPT |= {"day": RawColumn("date")}
TABLE = Rows(
    {"city": WORDS, "age": AGES, "vip": VIP, "day": DAYS}, np.where(WORDS == "Oslo", "buy", "leave"), kept=KEPT
)
DIGITS = Rows({"X": rng.normal(size=(50, 6)).astype(np.float32)}, rng.integers(0, 3, 50))
COUNTS = Rows({"X": DIGITS.inputs["X"]}, rng.poisson(2, 50).astype(np.float32))
SEVERAL = Rows({"X": DIGITS.inputs["X"]}, rng.integers(0, 2, (50, 3)))
MANY = rng.normal(size=(1100, 6)).astype(np.float32)  # evaluate has two parts
SUMMED = Rows({"X": MANY}, 2 * MANY[:, :1] + 1)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of bundles, each with its rows and the results of ortpipe."""
    folder = tmp_path_factory.mktemp("bundles")
    mlp, tabular = (
        SOURCES["mlp"](hidden=(5,), dropout=0.0),
        SOURCES["tabular"](members=2, width=4, blocks=1, dropout=0.0),
    )
    plain = SOURCES["mlp"](hidden=(5,), dropout=0.0, scale_target=False)
    cases = (
        ("numbers", mlp, DIGITS, "adam", "cross_entropy"),
        ("table", tabular, TABLE, "momentum", "log"),
        ("counts", plain, COUNTS, "sgd", "poisson"),
        ("several", mlp, SEVERAL, "sgd", "log"),
        ("summed", plain, SUMMED, "sgd", "l2"),
    )
    for name, source, rows, optimizer, loss in cases:
        is_sum = name == "summed"
        model = convert(None, ConvertConfig(source), data=Data(rows))
        with_loss = add_loss(model, AddLossConfig(LOSSES[loss](), reduction="sum" if is_sum else "mean"))
        gradient = derive(penalty(with_loss, PenaltyConfig(terms={"*": {"l2": 5.0}})) if is_sum else with_loss)
        rate = 1e-5 if is_sum else 0.01
        config = TrainConfig(OPTIMIZERS[optimizer](lr=rate), epochs=3, batch_size=16, seed=7)
        write_bundle(gradient, config, folder / name)
        trained = train(gradient, config, data=Data(rows, rows))
        session = Session(trained.model)
        expected = {
            "rows": {key: array.tolist() for key, array in rows.inputs.items()},
            "labels": rows.label.tolist(),
            "steps": trained.tensors["losses/step"].tolist(),
            "epochs": trained.tensors["losses/train"].tolist(),
            "loss": float(trained.tensors["losses/validation"][-1]),
            "outputs": session.run(dict(rows.inputs), [trained.facts.prediction])[0].tolist(),
        }
        if model.facts.classes:
            expected["accuracy"] = float(np.mean(session.run(dict(rows.inputs), ["label"])[0] == rows.label))
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


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the run, the bundle and the rows of docs/howto/javascript.md, and with its npm packages."""
    folder = tmp_path_factory.mktemp("exported")
    for command in (
        ["penalty=none", "train.epochs=2", "recorder=none", "hydra.run.dir=ready", "figures=false"],
        ["export", "ready", "--output", "bundle"],
    ):
        assert ortpipe(*command, cwd=folder).returncode == 0
    x, y = load_digits(return_X_y=True)
    (folder / "digits.json").write_text(json.dumps({"rows": x.tolist(), "labels": y.tolist()}))
    (folder / "node_modules").mkdir()
    (folder / "node_modules" / "ortpipe").symlink_to(WEB)
    for package in ("onnxruntime-node", "onnxruntime-common"):
        (folder / "node_modules" / package).symlink_to(WEB / "node_modules" / package)
    return folder


def blocks(page: Path, language: str) -> str:
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S))


def node(code: str, folder: Path) -> str:
    (folder / "script.mjs").write_text(code)
    done = subprocess.run([str(NODE), "script.mjs"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(NODE is None, reason="needs Node")
def test_the_page_trains_in_node_and_opens_the_results_in_python(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("onnxruntime-node")
    page = ROOT / "docs" / "howto" / "javascript.md"
    printed = node(blocks(page, "js") + "console.log(accuracy, digits.length, probabilities.length);", exported)
    assert [line.split()[0] for line in printed.splitlines()[:5]] == ["1", "2", "3", "4", "5"]
    monkeypatch.chdir(exported)
    namespace: dict[str, Any] = {}
    exec(blocks(page, "python"), namespace)
    labels = json.loads((exported / "digits.json").read_text())["labels"]
    assert (np.array(namespace["digits"]) == labels).mean() > 0.97
    session = Session(load_artifact(exported / "mine").model)
    assert (session.run({"X": namespace["rows"]}, ["label"])[0] == namespace["digits"]).all()


@pytest.mark.skipif(NODE is None, reason="needs Node")
def test_the_readme_of_a_bundle_trains_it_in_node(exported: Path) -> None:
    need("onnxruntime-node")
    folder = exported / "bundle"
    code = (
        blocks(folder / "README.md", "js")
        + """
        const { rows, labels } = JSON.parse(await readFile("../digits.json", "utf8"));
        const x = new ort.Tensor("float32", Float32Array.from(rows.slice(0, 96).flat()), [3, 32, 64]);
        const y = new ort.Tensor("int64", BigInt64Array.from(labels.slice(0, 96), BigInt), [3, 32, 1]);
        console.log(JSON.stringify([...await fit(x, y), ...await fit(x, y), ...state.parameters.data]));"""
    )
    printed = np.array(json.loads(node(code, folder)))
    namespace: dict[str, Any] = {}
    python = blocks(folder / "README.md", "python")
    with contextlib.chdir(folder):
        exec(python, namespace)
    given = json.loads((exported / "digits.json").read_text())
    x = np.array(given["rows"][:96], np.float32).reshape(3, 32, 64)
    y = np.array(given["labels"][:96]).reshape(3, 32, 1)
    losses = [*namespace["fit"](x, y), *namespace["fit"](x, y)]
    np.testing.assert_allclose(printed[:6], losses, rtol=1e-5)
    np.testing.assert_allclose(printed[6:], namespace["state"]["parameters"], rtol=1e-4, atol=1e-6)


PLACES = '<p id="result"></p><p id="problem" hidden></p>'
BROWSER = """
  const { rows, labels, steps } = await (await fetch("numbers.json")).json();
  const found = [];
  await trainer.fit(rows.X, labels, { epochs: 3, onEpoch: ({ stepLosses }) => found.push(...stepLosses) });
  const [before, saved] = [await trainer.weights(), await trainer.save("mine")];
  await trainer.reset();
  const back = await trainer.restore("mine");
  const same = (await trainer.weights()).every((weight, place) => weight === before[place]);
  await trainer.forget("mine");
  const problem = await trainer.predict([[1]]).catch(({ name, got }) => `${name}: ${got}`);
  const result = { found, back, same, again: await trainer.restore("mine"), problem };
  document.querySelector("#result").textContent = JSON.stringify(result);
  document.body.dataset.ready = "true";
</script>"""


def test_the_page_of_the_docs_trains_and_saves_in_a_browser(bundles: Path, tmp_path: Path) -> None:
    need("onnxruntime-web")
    html = blocks(ROOT / "docs" / "howto" / "javascript.md", "html").rstrip().removesuffix("</script>")
    (tmp_path / "index.html").write_text(f'<!doctype html><link rel="icon" href="data:,">{PLACES}{html}{BROWSER}')
    (tmp_path / "bundle").symlink_to(bundles / "numbers")
    (tmp_path / "numbers.json").symlink_to(bundles / "numbers.json")
    (tmp_path / "web").symlink_to(WEB)
    (tmp_path / "node_modules").symlink_to(WEB / "node_modules")
    with chromium() as opened:
        page = opened(tmp_path)
        result = json.loads(page.locator("#result").text_content())
        assert page.logged == []
    steps = json.loads((bundles / "numbers.json").read_text())["steps"]
    np.testing.assert_allclose(result.pop("found"), steps, rtol=1e-5)
    problem = "TrainerError: 1 values in row 0"
    assert result == {"back": True, "same": True, "again": False, "problem": problem}


def test_a_saved_state_goes_back_into_the_model_that_was_exported(bundles: Path, tmp_path: Path) -> None:
    model = convert(None, ConvertConfig(SOURCES["mlp"](hidden=(5,), dropout=0.0)), data=Data(DIGITS))
    folder = bundles / "numbers"
    description = json.loads((folder / "bundle.json").read_text())
    [part] = [part for part in description["parameters"] if part["name"] == "layers.0.weight"]
    first = np.frombuffer((folder / "state.bin").read_bytes(), np.float32, 30, part["offset"] * 4)
    np.testing.assert_array_equal(restored(model, folder).initializers["layers.0.weight"].ravel(), first)
    file, bundle = tmp_path / "state.safetensors", {"bundle": description["files"]["train.onnx"]}
    save_file({"parameters": np.arange(53, dtype=np.float32)}, file, bundle)
    weights = restored(model, str(folder), str(file)).initializers
    np.testing.assert_array_equal(weights["layers.0.weight"].ravel(), np.arange(30))
    with pytest.raises(ModelError, match=r"must be one of this bundle(.|\n)*missing"):
        restored(model, folder, tmp_path / "missing.safetensors")
    (tmp_path / "text.safetensors").write_text("none")
    with pytest.raises(ModelError, match=r"must be one of this bundle(.|\n)*text"):
        restored(model, folder, tmp_path / "text.safetensors")
    for vector, metadata, got in (
        (np.arange(53), {"bundle": "of another"}, "SHA-256 of another"),
        (np.arange(53), {}, "SHA-256 None"),
        (np.arange(62), bundle, "another parameters"),
        (np.full(53, np.nan), bundle, "not finite"),
    ):
        save_file({"parameters": vector.astype(np.float32)}, file, metadata)
        with pytest.raises(ModelError, match=rf"must be one of this bundle(.|\n)*{got}"):
            restored(model, folder, file)
    with pytest.raises(ModelError, match="must have the parameters"):
        restored(convert(None, ConvertConfig(SOURCES["mlp"](hidden=(4,))), data=Data(DIGITS)), folder)
