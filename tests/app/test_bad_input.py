"""A careless user gets the rule, what was found and the way out; exit code 1; nothing half-written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from sklearn.datasets import load_diabetes, load_digits

DIABETES = "experiment=linear_regression"
LINEAR = "convert.source.path=linear.onnx"
OWN = ["~experiment", "convert=onnx", "add_loss=l2"]
FINETUNE = "experiment=finetune_onnx"
QUICK = ("convert.source.params.max_iter=2", "train.epochs=1")

# overrides → words of the message
CASES = {
    "a misspelt key suggests the nearest": (
        ["train.epoch=3"],
        ["train.epoch is not a key", "Did you mean 'train.epochs'?"],
    ),
    "a misspelt group suggests the nearest": (["dat=digits"], ["dat is not a key", "Did you mean 'data'?"]),
    "a forced unknown key is refused": (["+train.epoch=3"], ["train.epoch is not a key", "Did you mean 'epochs'?"]),
    "a misspelt experiment suggests the nearest": (["experiment=digit"], ["Did you mean 'digits'?"]),
    "a misspelt choice suggests the nearest": (["add_loss=cross_entropie"], ["Did you mean 'cross_entropy'?"]),
    "a wrong type names its key": (
        ["train.epochs=many"],
        ["train.epochs must be a whole number", "'many'"],
    ),
    "a value out of range states its range": (
        ["train.batch_size=0"],
        ["train.batch_size must be a whole number, at least 1", "got: 0"],
    ),
    "an unknown option of a stage is refused": (
        ["train.init=zeros"],
        ["train.init", "'keep' or 'random'", "got: 'zeros'"],
    ),
    "an unknown optimizer lists the catalogue": (
        ["train.optimizer.name=adagard"],
        ["train.optimizer.name", "Did you mean 'adagrad'?", "nesterov, rmsprop, sgd."],
    ),
    "a negative learning rate is refused": (["train.optimizer.lr=-1"], ["train.optimizer.lr must be", "got: -1"]),
    "a missing onnx file is named": ([FINETUNE, "convert.source.path=away.onnx"], ["must exist", "away.onnx"]),
    "a corrupt onnx file is named": ([FINETUNE, "convert.source.path=corrupt.onnx"], ["readable", "corrupt.onnx"]),
    "a model with nothing to train is refused": (
        [FINETUNE, "convert.source.path=constant.onnx", "data=diabetes", "add_loss=l2"],
        ["at least one float initializer"],
    ),
    "a glob that matches nothing is refused": (
        ["derive.frozen=[layer9.*]"],
        ["derive.frozen", "'layer9.*'", "layer0.bias"],
    ),
    "a new key without a plus is told of it": (
        [DIABETES, "penalty.terms.coefficient.l2=1"],
        ["must be added with a plus", "+penalty.terms.coefficient"],
    ),
    "a path that the grammar cannot hold is quoted": (
        ["data.source.path=a=1/rows.csv"],
        ["cannot parse the override", "'data.source.path=\"a=1/rows.csv\"'"],
    ),
    "a name that the grammar cannot hold is sent to a file": (
        [DIABETES, "+penalty.terms.coef[a-f]*.l2=1"],
        ["cannot parse the override", "experiment file"],
    ),
    "a penalty on an unknown parameter is refused": (
        [DIABETES, "+penalty.terms.coeficient.l2=1"],
        ["penalty.terms", "Did you mean 'coefficient'?"],
    ),
    "an output name that does not exist suggests the nearest": (
        [FINETUNE, "convert.source.prediction=output_probabilities"],
        ["must be an output", "Did you mean 'output_probability'?"],
    ),
    "an output index that does not exist lists the outputs": (
        [FINETUNE, "convert.source.prediction=5"],
        ["output's index", "output_label, output_probability"],
    ),
    "a file that is no archive is named": (
        [*OWN, "data=npz", "data.source.path=corrupt.npz", LINEAR],
        ["File is not a zip file"],
    ),
    "labels of another width are refused": (
        [*OWN, "data=npz", "data.source.path=wide_label.npz", "convert.source.path=linear.onnx"],
        ["Labels must have the width", "2 per row"],
    ),
    "features of another width are refused": (
        [*OWN, "data=npz", "data.source.path=narrow.npz", "convert.source.path=linear.onnx"],
        ["Features must have the width", "3 per row", "10 per row"],
    ),
    "nan in the data names row and column": (
        [DIABETES, "data=npz", "data.source.path=nan.npz"],
        ["Data must be finite", "row 7, column 2"],
    ),
    "labels that are no class are named": (
        [FINETUNE, "data=npz", "data.source.path=words.npz"],
        ["class that the model knows", "'2'"],
    ),
    "an operator without a rule is named with its node": (
        [*OWN, "data=diabetes", "convert.source.path=image.onnx"],
        ["needs a gradient", "MaxRoiPool at node 'image'", "derive.frozen=[W]", "autodiff/rules"],
    ),
    "an estimator that is not supported says why": (
        ["convert.source.estimator=sklearn.tree.DecisionTreeClassifier"],
        ["sklearn.tree.DecisionTreeClassifier", "has no gradient"],
    ),
    "a loss that does not fit the task names those that fit": (
        ["add_loss=l2"],
        ["multiclass", "Choose add_loss=auto or cross_entropy"],
    ),
    "a metric that does not fit the task names those that fit": (["evaluate.metrics=[r2]"], ["r2", "accuracy"]),
    "a metric that does not exist suggests the nearest": (["evaluate.metrics=[acuracy]"], ["Did you mean 'accuracy'?"]),
    "a metric to watch that does not exist suggests the nearest": (
        ["train.early_stop.monitor=acuracy"],
        ["train.early_stop.monitor", "Did you mean 'accuracy'?"],
    ),
    "a metric to watch needs validation rows": (
        ["train.early_stop.monitor=accuracy", "data.split.validation=0", *QUICK],
        ["validation rows", "data.split.validation=0.1"],
    ),
    "no test rows are refused": (["data.split.test=0", *QUICK], ["evaluate needs test rows"]),
    "a split that leaves nothing is refused": (
        ["data.split.test=0.9", "data.split.validation=0.2"],
        ["must leave rows to train on"],
    ),
    "a folder that cannot be written is named": (["paths.outputs=/proc/nowhere"], ["/proc/nowhere", "paths.outputs"]),
    "a tracking server that is away is named": (
        ["recorder=mlflow", "recorder.tracking_uri=http://127.0.0.1:9"],
        ["must be reachable", "http://127.0.0.1:9", "recorder=none"],
    ),
    "a pickle is opened only on request": (
        ["convert.source.estimator=null", "convert.source.path=corrupt.pkl"],
        ["runs code when it is opened", "convert.source.trust=true"],
    ),
    "weights that the loss ignores are refused": (
        [DIABETES, "data.source.sample_weight=age", "+data.source.params.scaled=false"],
        ["weights", "add_loss.sample_weight=true"],
    ),
}


def _onnx(text: str, path: Path) -> None:
    onnx.save(onnx.parser.parse_model(text), path)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the files that the cases name."""
    folder = tmp_path_factory.mktemp("files")
    X, y = load_diabetes(return_X_y=True)
    (folder / "corrupt.onnx").write_bytes(b"this is no model")
    (folder / "corrupt.npz").write_bytes(b"these are no arrays")
    (folder / "corrupt.pkl").write_bytes(b"this is no pickle")
    np.savez(folder / "wide_label.npz", X=X, y=np.stack([y, y], axis=1))
    np.savez(folder / "narrow.npz", X=X[:, :3], y=y)
    pixels, digit = load_digits(return_X_y=True)
    np.savez(folder / "words.npz", X=pixels, y=np.where(digit == 1, "one", digit.astype(str)))
    holed = X.copy()
    holed[7, 2] = np.nan
    np.savez(folder / "nan.npz", X=holed, y=y)
    head = '<ir_version: 8, opset_import: ["" : 17]>\n'
    weights = "<float[10,1] W = {1,2,3,4,5,6,7,8,9,10}>"
    _onnx(f"{head} g (float[N,10] X) => (float[N,1] y) {weights} {{ y = MatMul(X, W) }}", folder / "linear.onnx")
    _onnx(f"{head} g (float[N,10] X) => (float[N,10] y) {{ y = Abs(X) }}", folder / "constant.onnx")
    _onnx(
        f"{head} g (float[N,10] X) => (float[N,1] y) <float[10,4] W = {{{','.join(['1'] * 40)}}},"
        " float[1,5] region = {0,0,0,1,1}, int64[4] blocks = {-1,1,2,2}, int64[2] one = {1,1}, int64[1] last = {1}>"
        " { h = MatMul(X, W) b = Reshape(h, blocks) [image] i = MaxRoiPool<pooled_shape=[1,1]>(b, region)"
        " r = Reshape(i, one) s = ReduceSum(h, last) y = Add(s, r) }",
        folder / "image.onnx",
    )
    _onnx(
        f"{head} g (float[N,10] X) => (float[N,1] y) {weights} {{ h = MatMul(X, W) [activation] y = Atan(h) }}",
        folder / "atan.onnx",
    )
    _onnx(
        f"{head} g (float[N,10] X) => (float[N,1] y) {weights} {{ h = MatMul(X, W)"
        ' pads = Constant<value_ints=[0,1,0,0]>() [fill] f = Pad<mode="edge">(h, pads)'
        " axis = Constant<value_ints=[1]>() y = ReduceSum(f, axis) }",
        folder / "pad.onnx",
    )
    return folder


@pytest.mark.parametrize("case", CASES)
def test_bad_input(case: str, files: Path, tmp_path: Path, cli: Callable) -> None:
    overrides, words = CASES[case]
    for source in files.iterdir():
        (tmp_path / source.name).symlink_to(source)
    done = cli(*overrides)
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stderr
    assert "Error executing job" not in done.stderr
    for word in words:
        assert word in done.stderr
    assert list(tmp_path.glob("outputs/runs/*/*/model.onnx")) == []


def test_a_group_left_out_the_wrong_way_is_explained(cli: Callable) -> None:
    done = cli("experiment=null")
    assert done.returncode == 1
    assert "~experiment" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("training_build")
@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("atan.onnx", ["Atan at node 'activation'", "gradient is missing or wrong", "derive=native"]),
        ("pad.onnx", ["Pad at node 'fill'", "right only for mode=constant"]),
    ],
)
def test_what_the_ort_engine_cannot_do_is_named_with_its_node(
    file: str, words: list[str], files: Path, tmp_path: Path, cli: Callable
) -> None:
    (tmp_path / file).symlink_to(files / file)
    done = cli(*OWN, "derive=ort", "data=diabetes", f"convert.source.path={file}")
    assert done.returncode == 1
    assert [word for word in words if word not in done.stderr] == []


def test_all_errors_of_a_config_come_at_once(cli: Callable) -> None:
    done = cli("train.epochs=many", "train.init=zeros", "data.split.test=2")
    assert "3 errors" in done.stderr
    for key in ("train.epochs", "train.init", "split.test"):
        assert key in done.stderr


def test_a_value_that_must_be_given_is_asked_for(cli: Callable) -> None:
    done = cli("~experiment", "convert=onnx")
    assert done.returncode == 1
    assert "convert.source.path must be set" in done.stderr


def test_a_file_of_settings_is_chosen_with_a_slash_and_its_keys_are_set_one_by_one(cli: Callable) -> None:
    done = cli("train.schedule=cosine", "train.optimizer=adma", "train.early_stop=null")
    for said in (
        "train.schedule is a group of keys: choose its file with a slash.",
        "Write train/schedule=cosine.",
        "Write train/optimizer=NAME. Did you mean 'adam'?",
        "Set some of its keys: train.early_stop.patience, train.early_stop.min_delta, train.early_stop.mon",
    ):
        assert said in done.stderr


def test_diverging_training_publishes_nothing_and_says_where(cli: Callable, tmp_path: Path) -> None:
    done = cli("experiment=linear_regression", "train.optimizer.lr=10")
    assert done.returncode == 1
    for word in ("finite", "learning rate 10", "last finite losses", "train.optimizer.lr=1"):
        assert word in done.stderr
    assert list(tmp_path.glob("outputs/runs/*/*/model.onnx")) == []
    assert list(tmp_path.glob("outputs/runs/*/*/stages/5_train")) == []


def test_the_traceback_is_there_on_request(cli: Callable) -> None:
    done = cli("train.epochs=0", HYDRA_FULL_ERROR="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_labels_that_numpy_reads_as_float_still_match_classes(cli: Callable, tmp_path: Path) -> None:
    X, y = load_digits(return_X_y=True)
    np.savez(tmp_path / "digits.npz", X=X, y=y.astype(float))
    done = cli("data=npz", "data.source.path=digits.npz", *QUICK, "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "run" / "run.json").read_text())["metrics"]
    assert metrics["accuracy"]["trained"] > 0.5  # chance is 0.1
