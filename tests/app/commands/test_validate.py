"""ortpipe validate: what is wrong with a run, all of it, and where it was set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command import ROOT, ortpipe
from sample import ALL
from sklearn.exceptions import NotFittedError

from ortpipe.app.compose import unresolved
from ortpipe.app.hydra_errors import REFUSALS, explained
from ortpipe.errors import ConfigError, ConvertError, OrtpipeError

EXPERIMENT = """# @package _global_
defaults:
  - override /data: npz
  - override /add_loss: l2
data:
  source: {path: rows.npz}
convert:
  source:
    estimator: sklearn.linear_model.Rige
train:
  epochs: many
  seed: ${seed}
seed: -3
"""
LINEAR = "experiment=linear_regression"


def refused(call: Callable[..., str], *arguments: str) -> str:
    with pytest.raises(ConfigError) as error:
        call("validate", *arguments)
    return str(error.value)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "my" / "experiment" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(EXPERIMENT)
    return file


@pytest.mark.parametrize("experiment", ["digits", "linear_regression", "finetune_onnx", "tutorial/lbfgs"])
def test_a_config_that_runs_is_well_and_nothing_is_written(
    experiment: str, call: Callable[..., str], tmp_path: Path
) -> None:
    *notes, line = call("validate", f"experiment={experiment}").splitlines()
    assert any(note.startswith("convert: trains ") for note in notes)
    assert line.startswith("no problems found: rows: ")
    assert "nothing was trained" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["validate", "plan"])
def test_a_penalty_that_workers_cannot_split_is_rejected_before_any_stage(
    command: str, call: Callable[..., str], tmp_path: Path
) -> None:
    given = (LINEAR, "train/parallel=processes", "add_loss.reduction=sum", "penalty=l2")
    with pytest.raises(ConfigError, match=r"every=step, workers cannot split a summed loss"):
        call(command, *given)
    assert list(tmp_path.iterdir()) == []
    call(command, *given, "train.parallel.every=epoch")


def test_the_line_counts_rows_and_trained_numbers(call: Callable[..., str]) -> None:
    line = call("validate", LINEAR, "derive.frozen=[intercept]")
    assert "332 to train, 110 to test; regression model: 10 numbers in 1 parameters" in line


def test_every_override_that_does_not_compose_is_listed_with_the_nearest(call: Callable[..., str]) -> None:
    said = refused(call, "train.epoch=3", "dat=digits", "add_loss=cross_entropie", "train.init=zeros")
    assert said.startswith("The config has 4 errors.")
    for words in ("'train.epochs'?", "'data'?", "'cross_entropy'?", "'keep' or 'random'"):
        assert words in said
    for override in ("train.epoch=3", "dat=digits", "add_loss=cross_entropie", "train.init=zeros"):
        assert f"set: {override} on the command line" in said


def test_of_overrides_that_share_a_group_only_the_one_that_the_reason_names_is_blamed(call: Callable[..., str]) -> None:
    said = refused(call, "data=csv", "data.source.path=rows.csv", "data.source.label=y", "data.sourc.token=1")
    assert said.count("set: data.sourc.token=1 on the command line") == 1
    assert "set: data=csv" not in said


def test_every_broken_rule_of_one_group_is_listed(call: Callable[..., str]) -> None:
    wrong = ["train.epochs=many", "train.batch_size=0", "train.warmup=-1", "train.optimizer.lr=-1", "data.split.test=2"]
    said = refused(call, *wrong, "data.split.seed=-1")
    assert said.startswith("The config has 6 errors.")
    assert all(f"set: {override} on the command line" in said for override in wrong)


@pytest.mark.parametrize(
    "wrong",
    ["data.source.path=.", "data.source={name: csv, path: ., label: y}", "data.source={name: csv, path: '', label: 1}"],
)
def test_what_the_command_line_sets_is_not_looked_for_in_packaged_files(wrong: str, call: Callable[..., str]) -> None:
    said = refused(call, "data=csv", "data.source.label=y", wrong)
    assert f"set: {wrong} on the command line" in said
    assert "conf/data/csv.yaml" not in said


def test_a_default_that_stands_in_is_not_blamed(call: Callable[..., str]) -> None:
    said = refused(call, "convert.source.estimator=[a]", "train.clip.norm=-1")
    assert said.startswith("The config has 2 errors.")
    assert "either a class path" not in said


def test_one_rule_that_two_keys_break_is_told_once(call: Callable[..., str]) -> None:
    said = refused(call, "train/optimizer=lbfgs", "~train.optimizer.lr", "train/schedule=cosine", "train.warmup=3")
    assert said.startswith("The config has 1 error.")
    assert "schedule, warmup" in said


def test_an_error_in_a_users_file_is_found_by_file_and_line(call: Callable[..., str], mine: Path) -> None:
    said = refused(call, "--config-dir", "my", "experiment=mine")
    assert said.startswith("The config has 4 errors.")
    assert "train.epochs in my/experiment/mine.yaml, line 11" in said
    lines = (ROOT / "conf/data/npz.yaml").read_text().splitlines()
    line = 1 + lines.index("  seed: ${seed}")
    assert f"conf/data/npz.yaml, line {line}, from seed in my/experiment/mine.yaml, line 13" in said
    said = refused(call, "--config-dir", "my", "experiment=mine", "seed=1", "train.epochs=2")
    assert "convert.source.estimator in my/experiment/mine.yaml, line 9" in said


def test_the_last_of_two_settings_is_the_one_that_is_named(call: Callable[..., str], mine: Path) -> None:
    said = refused(call, "--config-dir", "my", "experiment=mine", "train.epochs=few")
    assert "set: train.epochs=few on the command line" in said
    assert "train.epochs in" not in said


def test_data_model_and_stages_are_refused_together(call: Callable[..., str]) -> None:
    said = refused(call, "add_loss=l2", "evaluate.metrics=[r2]", "derive.frozen=[layer9.*]", "runtime.threads=2")
    assert said.startswith("The config has 3 errors.")
    for words in ("set: add_loss=l2 on", "set: evaluate.metrics=[r2] on", "set: derive.frozen=[layer9.*] on"):
        assert words in said


def test_a_missing_model_is_told_beside_missing_data(call: Callable[..., str]) -> None:
    missing = ["convert.source.path=away.onnx", "data=npz", "data.source.path=no.npz"]
    said = refused(call, "experiment=finetune_onnx", *missing)
    assert said.startswith("The config has 2 errors.")
    assert "set: convert.source.path=away.onnx on" in said
    assert "set: data.source.path=no.npz on" in said


def test_a_run_to_continue_must_be_there(call: Callable[..., str]) -> None:
    assert "set: resume=nowhere on the command line" in refused(call, LINEAR, "resume=nowhere")


def test_missing_data_are_not_blamed_on_the_estimator(call: Callable[..., str]) -> None:
    said = refused(call, LINEAR, "data=npz", "data.source.path=no.npz")
    assert said.startswith("The config has 1 error.")


def test_an_operator_without_a_gradient_is_found_before_training(call: Callable[..., str], tmp_path: Path) -> None:
    import onnx

    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 10] X) => (float[N, 1] y)
      <float[10, 4] w, float[1, 5] region = {0, 0, 0, 1, 1}, int64[4] blocks = {-1, 1, 2, 2}, int64[2] one = {1, 1}>
      { h = MatMul(X, w) image = Reshape(h, blocks) part = MaxRoiPool<pooled_shape=[1, 1]>(image, region)
        p = Reshape(part, one) m = ReduceMean<axes=[1]>(h) y = Add(m, p) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((10, 4), np.float32), "w"))
    onnx.save(model, tmp_path / "i.onnx")
    said = refused(call, "~experiment", "data=diabetes", "add_loss=l2", "convert=onnx", "convert.source.path=i.onnx")
    assert "needs a gradient" in said
    assert "MaxRoiPool" in said


def test_rare_classes_are_not_missed_by_the_few_rows(call: Callable[..., str], tmp_path: Path) -> None:
    label = np.zeros(3000, int)
    label[[1, 2, 5, 2998, 2999]] = 1
    rows = np.random.default_rng(0).normal(size=(3000, 64))
    part = np.array(["train", "validation", "test"])[np.maximum(np.arange(3000) % 10 - 7, 0)]
    np.savez(tmp_path / "rare.npz", X=rows, y=label, part=part)
    source = ["data=npz", "data.source.path=rare.npz", "data.split.column=part"]
    model = ["add_loss=log", "convert.source.estimator=sklearn.linear_model.LogisticRegression"]
    assert "binary model" in call("validate", "~experiment", *source, *model)


def test_a_run_says_where_too_and_the_exit_code_is_1(mine: Path, tmp_path: Path) -> None:
    done = ortpipe("--config-dir", "my", "experiment=mine", cwd=tmp_path)
    assert done.returncode == 1
    assert "set: train.epochs in my/experiment/mine.yaml, line 11" in done.stderr


HEADER = "# @package _global_\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train:\n  epochs: 3\n   bad: x\n", ["mine.yaml, line 4: mapping values", "Correct that line"]),
        ("name: ${nope.x}\n", ["in name must exist", "'nope.x' not found"]),
        ("defaults:\n  - override /dta: iris\n", ["experiment/mine.yaml must override groups", "Did you mean 'data'?"]),
        (
            f"# mine\n{HEADER}defaults:\n  - override /data: iris\n",
            ["mine.yaml must override groups", f"Begin the file with {HEADER.strip()}:"],
        ),
        ("defaults:\n  - override /data: irs\n", ["data=irs is not a choice", "Did you mean 'iris'?"]),
    ],
)
def test_a_file_that_cannot_be_read_is_told_by_its_fault(
    text: str, words: list[str], call: Callable[..., str], mine: Path, tmp_path: Path
) -> None:
    mine.write_text(text if HEADER in text else f"{HEADER}{text}")
    said = refused(call, "--config-dir", "my", "experiment=mine")
    assert [word for word in words if word not in said] == []
    if ALL or text.startswith("train"):  # a run prints the same error for each
        done = ortpipe("--config-dir", "my", "experiment=mine", cwd=tmp_path)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert [word for word in words if word not in done.stderr] == []


def test_an_objective_that_is_no_metric_or_does_not_fit_is_refused(call: Callable[..., str]) -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'accuracy'"):
        call("validate", "experiment=logistic_regression", "objective=acuracy")
    with pytest.raises(ConfigError, match=r"r2"):
        call("validate", "experiment=logistic_regression", "objective=r2")


@pytest.mark.parametrize("split", [["data.split.validation=0"], ["data.split.column=part"]])
def test_a_metric_as_objective_without_validation_rows_is_rejected_with_the_setting(
    split: list[str], call: Callable[..., str], tmp_path: Path
) -> None:
    rows = "".join(f"{i},{i % 3},{'test' if i % 4 == 0 else 'train'}\n" for i in range(40))
    (tmp_path / "rows.csv").write_text(f"a,y,part\n{rows}")
    table = ["~experiment", "name=mine", "data=csv", "data.source.path=rows.csv", "data.source.label=y"]
    linear = ["convert.source.estimator=sklearn.linear_model.LinearRegression", "add_loss=l2", "data.source.inputs=[a]"]
    said = refused(call, *table, *linear, *split, "objective=r2")
    assert "Set data.split.validation=0.15, or objective=loss." in said
    assert said.count("An objective metric") == 1


def test_an_estimator_that_is_not_named_is_told_beside_the_rest(call: Callable[..., str]) -> None:
    with pytest.raises(ConfigError, match=r"2 errors(.|\n)*estimator=None(.|\n)*train.epochs"):
        call("validate", "~experiment", "name=mine", "data=iris", "train.epochs=0")


@pytest.mark.parametrize(
    "model",
    [["convert=mlp"], ["convert=cnn"], ["convert.source.estimator=sklearn.linear_model.Ridge"]],
)
def test_of_rows_that_cannot_be_read_only_the_cause_is_said(
    model: list[str], call: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("a,y\n1,2\n3,\n")
    own = ["~experiment", "name=mine", "data=csv", "data.source.path=rows.csv", "data.source.label=y", "add_loss=l2"]
    said = refused(call, *own, *model)
    assert said.startswith("The config has 1 error.\nColumns that are read must have a value in every row")
    assert "line 3 of rows.csv" in said


def test_an_estimator_that_names_itself_unfitted_after_its_fit_is_told(
    call: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ConvertError("The estimator has a form.") from NotFittedError("its inner one")

    monkeypatch.setattr("ortpipe.stages.convert.sources.sklearn_estimator.build", refuse)
    source = ["data=iris", "convert=sklearn", "convert.source.estimator=sklearn.linear_model.LogisticRegression"]
    assert "The estimator has a form." in refused(call, "~experiment", *source, "add_loss=log")


def test_two_runtimes_in_one_environment_are_found_where_the_runtime_group_itself_is_wrong(
    call: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OrtpipeError("One onnxruntime is installed.", got="two")

    monkeypatch.setattr("ortpipe.app.assemble.check_one_runtime", refuse)
    said = refused(call, LINEAR, "runtime.threads=-1")
    assert "has 2 errors" in said
    assert "One onnxruntime is installed." in said
    assert "set: runtime.threads=-1 on the command line" in said


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "experiment=networks/mpl",
            "Did you mean 'networks/mlp'? Valid: networks/auto, networks/cnn, networks/mlp, networks/",
        ),
        ("experiment=netwerks/cnn", "Did you mean 'networks/cnn'?"),
        (
            "convert.source.estimater=x",
            "Did you mean 'convert.source.estimator'? Valid: convert.source.estimator, conv",
        ),
        ("train.optimizer.momentum=1", "Choose train/optimizer=momentum or train/optimizer=nesterov, or add"),
        ("optimizer=adam", "Did you mean train/optimizer=…? Valid: add_loss, "),
        ("train.early_stop.patienc=1", "Did you mean 'train.early_stop.patience'?"),
    ],
)
def test_a_misspelt_choice_or_key_is_told_those_beside_it(override: str, words: str) -> None:
    with pytest.raises(REFUSALS) as caught:
        unresolved([override])
    assert words in str(explained(caught.value))
    assert "convert.source.hidden" not in str(explained(caught.value))
