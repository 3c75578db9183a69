"""ortpipe show: a model by file, folder, run folder and run id."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from ortpipe.artifact_folder import load_artifact
from ortpipe.errors import ConfigError, ModelError, TrackingError


def test_a_runs_last_stage_is_shown_and_any_other_on_request(call: Callable[..., str], linear: Path) -> None:
    last = call("show", str(linear))
    assert last.splitlines()[0] == f"{linear} (6_evaluate)"
    assert "regression; opset ai.onnx 21; IR 10" in last
    assert "coefficient  float[10, 1]  10 numbers  40 bytes" in last
    assert "together                   11 numbers  44 bytes" in last
    derive = call("show", str(linear), "--stage", "derive")
    assert "coefficient_grad  float[10, 1]" in derive
    assert load_artifact(linear / "stages" / "4_derive").digest() in derive


def test_the_lineage_leads_back_to_the_source(call: Callable[..., str], linear: Path) -> None:
    text = call("show", str(linear)).partition("\nlineage\n")[2].partition("\n\n")[0]
    lines = [line.split() for line in text.splitlines()]
    assert [line[0] for line in lines] == ["convert", "add_loss", "penalty", "derive", "train", "evaluate"]
    assert "sklearn.linear_model.LinearRegression," in lines[0]
    assert load_artifact(linear / "stages" / "1_convert").digest().startswith(lines[1][-1])


def test_the_graph_is_text_without_the_facts(call: Callable[..., str], linear: Path) -> None:
    graph = call("show", str(linear)).partition("\ngraph\n")[2]
    assert 'prediction = Gemm ("forward/Div", coefficient, intercept)' in graph
    assert "metadata_props" not in graph


def test_counts_are_those_of_the_model(call: Callable[..., str], linear: Path) -> None:
    said = json.loads(call("show", str(linear / "stages" / "5_train"), "--json"))
    model = onnx.load(linear / "stages" / "5_train" / "model.onnx")
    assert said["nodes"] == len(model.graph.node) == sum(said["operators"].values())
    assert said["bytes"] == (linear / "stages" / "5_train" / "model.onnx").stat().st_size
    assert said["parameters"]["coefficient"] == {"type": "float[10, 1]", "numbers": 10, "bytes": 40}
    tensors = load_artifact(linear / "stages" / "5_train").tensors
    assert {name: t["bytes"] for name, t in said["tensors"].items()} == {k: v.nbytes for k, v in tensors.items()}


def test_a_bare_file_is_shown_with_what_it_says_of_itself(call: Callable[..., str], linear: Path) -> None:
    text = call("show", str(linear / "model.onnx"))
    assert "model     regression; " in text
    assert "\nlineage\n" not in text


def test_a_model_that_ortpipe_has_not_seen_is_shown_too(call: Callable[..., str], tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) <float[1] w = {2}> { y = Mul(x, w) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "foreign.onnx")
    shown = call("show", "foreign.onnx")
    assert "model     unknown to ortpipe; opset ai.onnx 17; IR 8" in shown
    assert "constants\n  w  float[1]  1 numbers  4 bytes" in shown


def test_a_run_is_found_by_its_id(call: Callable[..., str], tracked: str, linear: Path) -> None:
    outputs = f"paths.outputs={linear.parent}"
    by_id, by_folder = (json.loads(call("show", name, "--json", outputs)) for name in (tracked, str(linear)))
    assert by_id.pop("name") == f"{tracked} (6_evaluate)"
    assert by_folder.pop("name") == f"{linear} (6_evaluate)"
    assert by_id == by_folder


def test_a_stored_artifact_is_found_by_the_beginning_of_its_digest(call: Callable[..., str], linear: Path) -> None:
    digest = load_artifact(linear / "stages" / "4_derive").digest()
    for name in (digest, digest[:8], digest[:32]):  # the last has the form of a run's id
        shown = call("show", name, f"paths.outputs={linear.parent}")
        assert shown.splitlines()[:2] == [digest, f"digest    {digest}"]
    with pytest.raises(ConfigError, match="got: 000000"):
        call("show", "000000", f"paths.outputs={linear.parent}")


def test_a_beginning_that_two_digests_share_is_refused(call: Callable[..., str], tmp_path: Path) -> None:
    for end in ("a", "b"):
        (tmp_path / "store" / "artifacts" / "12" / f"123456{end}").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"123456: 123456a, 123456b\n  fix: Add more letters"):
        call("show", "123456", "paths.cache=store")


def test_pictures_are_of_the_same_graph(call: Callable[..., str], linear: Path) -> None:
    model = str(linear / "model.onnx")
    assert call("show", model, "--mermaid").startswith("flowchart TD")
    assert call("show", model, "--dot").startswith("digraph model {")


def test_an_svg_is_drawn(call: Callable[..., str], linear: Path, tmp_path: Path) -> None:
    assert call("show", str(linear), "--svg", "graph.svg") == "picture  graph.svg\n"
    assert b"</svg>" in (tmp_path / "graph.svg").read_bytes()


def test_names_that_stand_for_nothing_are_refused(call: Callable[..., str], linear: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "corrupt.onnx").write_bytes(b"no model")
    none = "0" * 32
    cases: list[tuple[list[str], type[Exception], str]] = [
        (["away.onnx"], ConfigError, "got: away.onnx"),
        (["empty"], ConfigError, "got: empty"),
        (["corrupt.onnx"], ModelError, "corrupt.onnx"),
        ([str(linear), "--stage", "trian"], ConfigError, "Did you mean 'train'?"),
        ([none], TrackingError, "no database"),
        ([none, f"paths.outputs={linear.parent}"], TrackingError, f"{none} in sqlite"),
        ([none, "recorder=none"], ConfigError, "recorder=none"),
        ([], ConfigError, "needs FILE|RUN|DIGEST"),
        (["a.onnx", "--json", "--dot"], ConfigError, "not allowed with"),
    ]
    for arguments, kind, words in cases:
        with pytest.raises(kind) as error:
            call("show", *arguments)
        assert words in str(error.value)
    assert not (tmp_path / "outputs").exists()


def test_a_damaged_artifact_is_refused(call: Callable[..., str], linear: Path, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    shutil.copytree(linear / "stages" / "5_train", tmp_path / "broken")
    save_file({"parameter/coefficient": np.ones((10, 1), np.float32)}, tmp_path / "broken" / "tensors.safetensors")
    with pytest.raises(ModelError, match="digest"):
        call("show", "broken")
