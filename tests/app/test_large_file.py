"""A real file above 2 GB by the command line: opt-in, for it takes 5 GB of disk and a minute or more.

A whole run takes 20 GB more, and some minutes.

ORTPIPE_LARGE=/a/folder/with/room pytest -n 0 tests/app/test_large_file.py
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from command import ortpipe

from ortpipe.app.commands import gradient, show
from ortpipe.artifact_folder import load_artifact
from ortpipe.graph.files.serial import read_apart

WORDS, SIZE, BLOCK = 550_000, 1_000, 50_000  # float32: 2.2 GB
ROOM, ROOM_OF_RUN = 6 * 10**9, 20 * 10**9  # bytes of disk
FOLDER = os.environ.get("ORTPIPE_LARGE")
TEXT = """<ir_version: 8, opset_import: ["": 18]> g (int64[N] ids) => (float[N, 3] scores)
  { e = Gather(words, ids) scores = MatMul(e, weight) }"""
pytestmark = pytest.mark.skipif(FOLDER is None, reason="writes files of 2.2 GB: set ORTPIPE_LARGE to a folder for them")


@pytest.fixture(scope="module")
def big() -> Iterator[Path]:
    """A model whose embedding stands in a file of 2.2 GB beside it."""
    folder = Path(str(FOLDER), "ortpipe_large")
    folder.mkdir(parents=True)
    try:
        if shutil.disk_usage(folder).free < ROOM:
            pytest.skip(f"{folder} has no {ROOM:,} bytes free")
        row = np.random.default_rng(0).standard_normal((BLOCK, SIZE), np.float32)
        with (folder / "big.onnx.data").open("wb") as file:
            for _ in range(WORDS // BLOCK):
                file.write(row.data)
        model = onnx.parser.parse_model(TEXT)
        weight = np.full((SIZE, 3), 0.5, np.float32)
        words = model.graph.initializer.add(name="words", data_type=1, dims=[WORDS, SIZE], data_location=1)
        for key, value in (("location", "big.onnx.data"), ("length", 4 * WORDS * SIZE)):
            words.external_data.add(key=key, value=str(value))
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
        (folder / "big.onnx").write_bytes(model.SerializeToString())
        yield folder / "big.onnx"
    finally:
        shutil.rmtree(folder)


def test_show_says_what_it_is(big: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show.run([str(big)])
    assert f"float[{WORDS}, {SIZE}]" in capsys.readouterr().out


def test_gradient_writes_one_without_the_rest(big: Path) -> None:
    output = big.with_name("gradient.onnx")
    gradient.run([str(big), "--of", "scores", "--wrt", "weight", "--ones", "--output", str(output)])
    model, weights = read_apart(output)
    assert [value.name for value in model.graph.output] == ["weight_grad"]
    assert weights["words"].shape == (WORDS, SIZE)


def test_a_whole_run_trains_what_stands_beside_it(big: Path) -> None:
    folder = big.parent
    if shutil.disk_usage(folder).free < ROOM_OF_RUN:
        pytest.skip(f"{folder} has no {ROOM_OF_RUN:,} bytes free")
    rng = np.random.default_rng(1)
    np.savez(folder / "rows.npz", X=rng.integers(0, WORDS, 200), y=rng.integers(0, 3, 200))
    ended = ortpipe(
        "~experiment",
        *("data=npz", f"data.source.path={folder / 'rows.npz'}", "convert=onnx", f"convert.source.path={big}"),
        *("convert.source.scores=logits", "add_loss=cross_entropy", "derive.parameters=[weight]", "train.epochs=2"),
        *("recorder=none", "paths.cache=null", f"hydra.run.dir={folder / 'run'}"),
        cwd=folder,
        process=True,
    )
    assert ended.returncode == 0, ended.stderr
    session = onnxruntime.InferenceSession(folder / "run" / "model.onnx", providers=["CPUExecutionProvider"])
    assert session.run(None, {session.get_inputs()[0].name: np.arange(5)})[0].shape == (5, 3)
    back = load_artifact(folder / "run" / "stages" / "6_evaluate")
    assert np.shares_memory(back.tensors["source/words"], back.initializers["words"])
