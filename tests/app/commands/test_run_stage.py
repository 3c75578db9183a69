"""ortpipe run-stage: one stage on one file gives what the same stage of a run gives."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from command import ROOT

from ortpipe.artifact_folder import load_artifact
from ortpipe.errors import ConfigError, DataError, ModelError, OrtpipeError
from ortpipe.facts_json import read_metadata

SETTINGS = ["experiment=linear_regression", "train.epochs=2"]
STAGES = ["convert", "add_loss", "penalty", "derive", "train", "evaluate"]


@pytest.mark.parametrize(("number", "stage"), list(enumerate(STAGES, start=1)))
def test_a_stage_on_an_artifact_gives_the_artifact_of_a_run(
    number: int, stage: str, call: Callable[..., str], linear: Path
) -> None:
    given = [] if number == 1 else ["--input", str(linear / "stages" / f"{number - 1}_{STAGES[number - 2]}")]
    said = call("run-stage", stage, *given, "--output", "result", *SETTINGS)
    digest = load_artifact(linear / "stages" / f"{number}_{stage}").digest()
    assert load_artifact("result").digest() == digest
    assert f"digest {digest}" in said


def test_bare_files_are_enough_for_the_whole_flow(call: Callable[..., str], linear: Path) -> None:
    call("run-stage", "convert", "--output", "convert.onnx", *SETTINGS)
    for before, stage in itertools.pairwise(STAGES[:5]):
        call("run-stage", stage, "--input", f"{before}.onnx", "--output", f"{stage}.onnx", *SETTINGS)
        [number] = [i for i, name in enumerate(STAGES, start=1) if name == stage]
        assert Path(f"{stage}.onnx").read_bytes() == (linear / "stages" / f"{number}_{stage}/model.onnx").read_bytes()
    said = call("run-stage", "evaluate", "--input", "train.onnx", "--output", "evaluated.onnx", *SETTINGS)
    assert said.split()[:2] == ["metric", "trained"]  # what was before is not in the file
    of_the_run = load_artifact(linear / "stages" / "6_evaluate").facts.metrics
    measured = read_metadata(onnx.load("evaluated.onnx"))["metrics"]
    kept = ("trained", "baseline")
    assert measured == {name: {state: values[state] for state in kept} for name, values in of_the_run.items()}


def test_of_a_run_the_stage_before_is_the_input(call: Callable[..., str], linear: Path) -> None:
    call("run-stage", "derive", "--input", str(linear), "--output", "result", *SETTINGS)
    assert load_artifact("result").digest() == load_artifact(linear / "stages" / "4_derive").digest()


def test_a_file_from_elsewhere_is_converted(call: Callable[..., str]) -> None:
    model = str(ROOT / "conf" / "models" / "digits.onnx")
    call("run-stage", "convert", "--input", model, "--output", "forward.onnx")  # the config's source is scikit-learn
    assert read_metadata(onnx.load("forward.onnx"))["task"] == "multiclass"
    told = ["~experiment", "convert=onnx", "convert.source.prediction=output_probability"]
    call("run-stage", "convert", "--input", model, "--output", "told.onnx", *told)
    assert Path("told.onnx").read_bytes() == Path("forward.onnx").read_bytes()
    with pytest.raises(OrtpipeError, match="must be an output"):
        call("run-stage", "convert", "--input", model, "--output", "wrong.onnx", *told[:2], f"{told[2]}_")
    call("run-stage", "convert", "--input", model, "--output", "plain.onnx", "~experiment")


def test_errors_of_other_parts_do_not_matter(call: Callable[..., str], linear: Path) -> None:
    loss = str(linear / "stages" / "3_penalty" / "model.onnx")
    elsewhere = ["train.epochs=0", "data=npz", "data.source.path=away.npz"]
    call("run-stage", "derive", "--input", loss, "--output", "gradient.onnx", *elsewhere)
    with pytest.raises(DataError, match=r"away\.npz"):
        call("run-stage", "derive", "--input", loss, "--output", "checked.onnx", *elsewhere, "derive.check=true")
    with pytest.raises(ConfigError, match=r"(?s)train\.epochs must.*set: train\.epochs=0 on the command line"):
        call("run-stage", "train", "--input", "gradient.onnx", "--output", "trained", *elsewhere)
    assert not Path("trained").exists()


def test_an_output_is_an_onnx_file_or_a_folder(call: Callable[..., str]) -> None:
    with pytest.raises(ConfigError, match=r"(?s)an \.onnx file or a folder.*g\.txt.*--output g\.onnx"):
        call("run-stage", "convert", "--output", "g.txt", *SETTINGS)


def test_an_output_that_is_there_stays_without_force(call: Callable[..., str], linear: Path) -> None:
    Path("kept.onnx").write_bytes(b"mine")
    command = ["run-stage", "derive", "--input", str(linear), "--output", "kept.onnx", *SETTINGS]
    with pytest.raises(ConfigError, match="--force"):
        call(*command)
    assert Path("kept.onnx").read_bytes() == b"mine"
    call(*command, "--force")
    assert Path("kept.onnx").read_bytes() == (linear / "stages" / "4_derive" / "model.onnx").read_bytes()


def test_force_replaces_an_artifact_and_no_other_folder(call: Callable[..., str], linear: Path) -> None:
    shutil.copytree(linear / "stages" / "1_convert", "old")
    command = ["run-stage", "add_loss", "--input", str(linear), *SETTINGS, "--force", "--output"]
    call(*command, "old")
    assert load_artifact("old").digest() == load_artifact(linear / "stages" / "2_add_loss").digest()
    Path("photos").mkdir()
    with pytest.raises(ConfigError, match="overwrites only"):
        call(*command, "photos")
    assert list(Path("photos").iterdir()) == []


def test_what_cannot_be_run_is_refused(call: Callable[..., str], linear: Path, tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) <float[1] w = {2}> { y = Mul(x, w) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "foreign.onnx")
    convert, loss = (str(linear / "stages" / name) for name in ("1_convert", "3_penalty"))
    cases: list[tuple[list[str], type[Exception], str]] = [
        (["tran", "--input", convert], ConfigError, "Did you mean 'train'?"),
        (["train"], ConfigError, "Give the result of derive"),
        (["train", "--input", "away.onnx"], ConfigError, "away.onnx"),
        (["derive", "--input", "foreign.onnx"], ConfigError, "run-stage convert --input foreign.onnx"),
        (["train", "--input", convert], OrtpipeError, "not set: gradients"),
        (["penalty", "--input", convert], OrtpipeError, "not set: loss"),
        (["derive", "--input", loss, "derive.frozen=[coef]"], OrtpipeError, "Did you mean 'coefficient'?"),
        (["convert", "--input", "foreign.txt"], ModelError, "foreign.txt"),
        (["evaluate", "--input", convert, "evaluate.metrics=[accuracy]"], OrtpipeError, "accuracy"),
    ]
    for arguments, kind, words in cases:
        with pytest.raises(kind) as error:
            call("run-stage", *arguments, "--output", "out.onnx", *SETTINGS)
        assert words in str(error.value)
    with pytest.raises(ConfigError, match="--output"):
        call("run-stage", "train", "--input", convert)
    assert not Path("out.onnx").exists()
