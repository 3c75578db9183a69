"""The page of a bundle: how it takes a row, and the rows that it contains."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortpipe import LOSSES, AddLossConfig, Artifact, ConvertConfig, Data, Rows, add_loss, convert, derive
from ortpipe.bundle import page_files
from ortpipe.data.raw_columns import RawColumn
from ortpipe.errors import TrainError
from ortpipe.stages.convert.sources import SOURCES

SOUND = {"source": "audio", "rate": 8000, "samples": 3}
ABOUT = {"title": "t", "label": "y", "shuffle": True}
rng = np.random.default_rng(0)


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    """A folder with the files of onnxruntime-web that a page needs."""
    (tmp_path / "dist").mkdir()
    (tmp_path / "package.json").write_text('{"version": "1.30.0"}')
    for name in ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"):
        (tmp_path / "dist" / name).write_bytes(b"x")
    return tmp_path


def model(rows: Rows, source: str = "mlp", loss: Any = None, **settings: Any) -> Artifact:
    forward = convert(None, ConvertConfig(SOURCES[source](**settings)), data=Data(rows))
    return derive(add_loss(forward, AddLossConfig(loss or LOSSES["auto"]())))


def written(rows: Rows, runtime: Path, source: str = "mlp", **about: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return page.json and rows.json."""
    files = page_files(model(rows, source), Data(rows, rows.head(4)), 10, {**ABOUT, **about}, runtime)
    assert {"index.html", "style.css", "page.js", "trainer/index.js", "trainer/worker.js"} <= files.keys()
    assert files["onnxruntime/ort-wasm-simd-threaded.wasm"] == b"x"
    return json.loads(files["page.json"]), json.loads(files["rows.json"])


def test_columns_of_a_grid_are_a_picture_with_paper_and_ink(runtime: Path) -> None:
    pixels = np.zeros((30, 5, 4), np.float32)
    pixels[:, 1:4, 1] = 9  # a stroke of three pixels
    names = tuple(f"pixel_{row}_{column}" for row in range(5) for column in range(4))
    labels = np.arange(30) % 3
    page, rows = written(Rows({"X": 9 - pixels.reshape(30, 20)}, labels, columns={"X": names}), runtime)
    size = {"kind": "picture", "height": 5, "width": 4, "channels": 1, "paper": 9, "ink": 0, "box": [3, 1]}
    assert {name: page[name] for name in size} == size
    assert rows["replay"]["labels"] == labels[np.linspace(0, 29, 10).round().astype(int)].tolist()
    assert len(rows["check"]["labels"]) == 4
    page, _ = written(Rows({"X": pixels.reshape(30, 20)}, labels, columns={"X": names[::-1]}), runtime)
    assert page["kind"] == "table"


def test_pixels_of_uint8_stay_as_they_are_and_the_size_of_files_is_kept(runtime: Path) -> None:
    colours = rng.integers(0, 200, (20, 3, 4, 4))
    levels, _ = written(Rows({"X": colours.astype(np.uint8)}, np.arange(20) % 2), runtime)
    assert levels["pixels"] == {"scale": 1}
    recorded = {"source": "images", "resize": 5, "crop": 4, "color": "rgb", "scale": 255.0}
    floats, _ = written(Rows({"X": (colours / 255).astype(np.float32)}, np.arange(20) % 2, prepared=recorded), runtime)
    assert floats["pixels"] == {name: recorded[name] for name in list(recorded)[1:]}
    assert floats["whole"] is False  # the model's input


def test_columns_of_a_table_have_their_words_and_range(runtime: Path) -> None:
    count = 300
    numbers = np.where(np.arange(count) % 5, np.arange(count), np.nan).astype(np.float32)
    inputs = {
        "n": numbers,
        "w": np.resize(["b", "a", ""], count),
        "t": np.resize(["true", "false"], count),
        "d": np.resize(["2026-01-31", "2026-02-01"], count),
        "free": np.array([f"w{row}" for row in range(count)]),
    }
    kinds = {"n": RawColumn("number"), "w": RawColumn("word"), "t": RawColumn("word", of="truth")}
    kinds |= {"d": RawColumn("date"), "free": RawColumn("word")}
    page, rows = written(Rows(inputs, np.arange(count) % 2, kept=kinds), runtime, "tabular")
    columns = {column.pop("name"): column for column in page["columns"]}
    assert [column["kind"] for column in columns.values()] == ["number", "word", "truth", "date", "text"]
    assert (columns["n"]["range"], columns["w"]["words"]) == ([1, 299], ["a", "b"])
    assert rows["replay"]["inputs"]["n"][0] is None
    assert rows["replay"]["inputs"]["w"][:2] == ["b", "b"]


def test_rows_in_order_stay_together(runtime: Path) -> None:
    _, rows = written(
        Rows({"X": np.eye(40, 3)}, np.arange(40) % 4, columns={"X": tuple("abc")}), runtime, shuffle=False
    )
    assert rows["replay"]["labels"] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (np.arange(8) % 2 == 1, [0, 1, 0, 1]),
        ((np.arange(8) % 2)[:, None], [0, 1, 0, 1]),
        (np.array(["a", "b"] * 4)[:, None], ["a", "b", "a", "b"]),
        (np.arange(8.0)[:, None], [0.0, 1.0, 2.0, 3.0]),
    ],
)
def test_labels_are_those_of_predictions(label: np.ndarray, expected: list[Any], runtime: Path) -> None:
    _, rows = written(Rows({"X": np.eye(8, 3)}, label, columns={"X": tuple("abc")}), runtime, shuffle=False)
    assert str(rows["check"]["labels"]) == str(expected)  # True is not 1


@pytest.mark.parametrize(
    ("rows", "words", "loss"),
    [
        (Rows({"X": rng.random((20, 3))}, rng.random((20, 2))), "several labels per row", LOSSES["auto"]()),
        (Rows({"X": rng.random((20, 3))}, np.arange(20.0)), "rows of X", LOSSES["auto"]()),
        (Rows({"X": rng.random((20, 3))}, np.arange(20.0)), "prediction of quantiles", LOSSES["quantile"]((0.1, 0.9))),
        (Rows({"X": rng.random((20, 3))}, np.arange(20.0), prepared=SOUND), "sounds with a number", LOSSES["auto"]()),
    ],
)
def test_other_models_are_rejected(rows: Rows, words: str, loss: Any, runtime: Path) -> None:
    gradient = model(rows, loss=loss, outputs=len(getattr(loss, "levels", ())) or None)
    with pytest.raises(TrainError, match=f"A page (.|\n)*{words}(.|\n)*Leave out --page"):
        page_files(gradient, Data(rows), 10, ABOUT, runtime)
