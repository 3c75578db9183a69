"""A model as C: strict compilers accept it, and its losses and predictions equal those of onnxruntime."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from runtime.c.epochs import needs_engine

from ortpipe import (
    LOSSES,
    OPTIMIZERS,
    AddLossConfig,
    Artifact,
    ConvertConfig,
    Data,
    Given,
    Rows,
    RuntimeConfig,
    TrainConfig,
    add_loss,
    convert,
    derive,
    train,
)
from ortpipe.bundle import c_sources
from ortpipe.bundle.c_files import CFiles
from ortpipe.bundle.draws import drawn_steps
from ortpipe.data.raw_columns import RawColumn
from ortpipe.errors import TrainError
from ortpipe.stages.convert.sources.networks.mlp import MLP
from ortpipe.stages.train.config import ClipConfig

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "microcontroller.md"
STRICT = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
SAFE = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
PROGRAM = ["train.c", "predict.c", "test.c"]
RNG = np.random.default_rng(0)
X, CLASSES = RNG.normal(size=(64, 5)).astype(np.float32), RNG.integers(0, 3, 64)
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def gradient(dropout: float = 0.0, name: str = "X", labels: np.ndarray = CLASSES) -> Artifact:
    """A small network with its gradients, of a classifier or for numbers."""
    data = Data(Rows({name: X}, labels))
    classes = labels.dtype.kind != "f"
    network = MLP(hidden=(4,), dropout=dropout, task="multiclass" if classes else "regression")
    loss = LOSSES["cross_entropy" if classes else "l2"]()
    return derive(add_loss(convert(None, ConvertConfig(network), data=data), AddLossConfig(loss)))


def written(folder: Path, files: CFiles) -> Path:
    """Return the folder with the files in it."""
    for name, content in files.files.items():
        (folder / name).write_text(content)
    return folder


def printed(folder: Path, *options: str) -> str:
    """Compile the test program as strictly as possible, and return what it prints."""
    subprocess.run(["cc", *STRICT, *options, *PROGRAM, "-o", "model_test", "-lm"], cwd=folder, check=True)
    return subprocess.run([folder / "model_test"], capture_output=True, text=True, check=True).stdout


CASES = {
    "adam": (gradient(), TrainConfig(OPTIMIZERS["adam"](), batch_size=8)),
    "numbers": (gradient(labels=X[:, 0] - X[:, 1]), TrainConfig(OPTIMIZERS["sgd"](0.05), batch_size=7)),
    "average": (gradient(), TrainConfig(OPTIMIZERS["momentum"](0.05), average=0.9, clip=ClipConfig(norm=1.0))),
    **{
        f"an input named {name}": (gradient(name=name, labels=labels), TrainConfig(OPTIMIZERS["sgd"](), batch_size=8))
        for name, labels in {"losses": CLASSES, "y1": np.array(["a/*", "*/", '"\n'])[CLASSES], "true": CLASSES}.items()
    },
}


@needs_cc
@pytest.mark.parametrize("case", CASES)
def test_losses_and_predictions_are_those_of_onnxruntime(case: str, tmp_path: Path) -> None:
    artifact, config = CASES[case]
    files = c_sources(artifact, config, steps=5, example={"X": X})
    lines = printed(written(tmp_path, files), "-O1", *SAFE).splitlines()
    assert lines[-1] == "equal"
    losses = [re.findall(r"[\d.]+", line)[1:] for line in lines if line.startswith("loss")]
    assert len(losses) == 3
    for one, other in losses:
        assert float(one) == pytest.approx(float(other), rel=1e-5)


@needs_cc
def test_the_last_rate_counts_for_all_later_steps(tmp_path: Path) -> None:
    files = c_sources(gradient(), CASES["adam"][1], steps=2, example={"X": X})
    assert printed(written(tmp_path, files)).splitlines()[-1] == "equal"


@needs_cc
def test_a_wrong_number_fails_the_test_program(tmp_path: Path) -> None:
    artifact, config = CASES["numbers"]
    files = c_sources(artifact, config)
    train = files.files["train.c"]
    wrong = re.sub(r"rate\[1\] = \{\n  \(-0.05f\)", "rate[1] = {\n  (-0.06f)", train)
    assert wrong != train
    folder = written(tmp_path, CFiles({**files.files, "train.c": wrong}, {}, {}))
    with pytest.raises(subprocess.CalledProcessError):
        printed(folder)


@needs_cc
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("loss", ["cox", "l2"])
def test_a_gradient_of_rounding_alone_differs_in_no_comparison(loss: str, dropout: float, tmp_path: Path) -> None:
    """Adam moves Cox's last bias, and one before batch normalization, by its rate in a direction of chance."""
    times = np.stack([RNG.exponential(size=64), CLASSES > 0], axis=1).astype(np.float32)
    data = Data(Rows({"X": X}, times if loss == "cox" else X[:, 0]))
    settings = LOSSES["cox"]().network if loss == "cox" else {"norm": "batch", "task": "regression"}
    network = convert(None, ConvertConfig(MLP(hidden=(4,), dropout=dropout, **settings)), data=data)
    artifact = derive(add_loss(network, AddLossConfig(LOSSES[loss]()), data=data))
    files = c_sources(artifact, TrainConfig(OPTIMIZERS["adam"](), batch_size=8), steps=5, example={"X": X})
    assert printed(written(tmp_path, files)).splitlines()[-1] == "equal"


@needs_cc
@needs_engine
def test_dropout_draws_as_in_python(tmp_path: Path) -> None:
    artifact = gradient(dropout=0.5)
    config = TrainConfig(OPTIMIZERS["adam"](), batch_size=8, epochs=1, shuffle=False, seed=3)
    rows = Rows({"X": X[:24]}, CLASSES[:24])
    files = c_sources(artifact, config, example={"X": X, str(artifact.facts.label): CLASSES[:, None]})
    lines = printed(written(tmp_path, files), "-O1", *SAFE).splitlines()
    assert lines[-1] == "equal"
    trained = train(artifact, config, data=Data(rows), runtime=RuntimeConfig(engine="c"))
    losses = [float(line.split()[2]) for line in lines if line.startswith("loss")]
    assert losses == pytest.approx(trained.tensors["losses/step"].tolist(), rel=1e-5)


def test_predictions_do_not_write_the_weights() -> None:
    predict = c_sources(*CASES["adam"], steps=5).files["predict.c"]
    [weights] = re.findall(r"state->(s_\w+)", predict)
    assert not re.search(rf"\b{weights}\[[^]]*\] = ", predict)


def test_flash_and_ram_are_the_bytes_of_the_arrays() -> None:
    adam, sgd = (
        c_sources(gradient(), TrainConfig(OPTIMIZERS[name](), batch_size=8), steps=5) for name in ("adam", "sgd")
    )
    parameters = 4 * (5 * 4 + 4 + 4 * 3 + 3)
    assert (sgd.flash["weights"], sgd.ram["state"], sgd.flash["rates"]) == (parameters, parameters, 4)
    assert (adam.flash["weights"], adam.ram["state"], adam.flash["rates"]) == (parameters, 3 * parameters, 2 * 5 * 4)
    assert f"double work[{sgd.ram['work'] // 8}];" in sgd.files["model.h"]
    assert not re.search(r"\b(malloc|calloc|free)\b", "".join(sgd.files.values()))


def test_a_convolution_is_rejected_by_name() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> g (float[N,1,4,4] X) => (float[N,16] y)
        <float[1,1,3,3] w = {1,2,3,4,5,6,7,8,9}> { c = Conv<pads=[1,1,1,1]>(X, w) y = Flatten(c) }"""
    )
    data = Data(Rows({"X": RNG.random((8, 1, 4, 4), np.float32)}, RNG.random((8, 16), np.float32)))
    artifact = derive(add_loss(convert(model, data=data), AddLossConfig(LOSSES["l2"]())))
    with pytest.raises(TrainError, match=r"dense networks(.|\n)*Conv(.|\n)*for onnxruntime"):
        c_sources(artifact, TrainConfig(OPTIMIZERS["sgd"]()))


@pytest.mark.parametrize("operator", ["RandomUniformLike", "Bernoulli"])
def test_predictions_that_draw_are_rejected_by_the_name_of_their_operator(operator: str) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]> g (float[N,5] X) => (float[N,1] y)
        <float[5,1] w = {{1, 2, 3, 4, 5}}>
        {{ s = Sigmoid(X) r = {operator}<seed=1.0>(s) z = Mul(X, r) y = MatMul(z, w) }}"""
    )
    config = ConvertConfig(Given(), tolerance=1e6)  # two runs of the source differ
    artifact = derive(
        add_loss(convert(model, config, data=Data(Rows({"X": X}, X[:, 0]))), AddLossConfig(LOSSES["l2"]()))
    )
    with pytest.raises(TrainError, match=rf"without random numbers(.|\n)*{operator}(.|\n)*for onnxruntime"):
        c_sources(artifact, TrainConfig(OPTIMIZERS["sgd"](), batch_size=8))


@pytest.mark.parametrize("operator", ["RandomUniformLike", "Bernoulli", "Dropout"])
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_drawn_numbers_have_the_type_of_their_input(operator: str, dtype: str) -> None:
    rest = ", ratio, training" if operator == "Dropout" else ""
    step = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]> g ({dtype}[3] w, {dtype}[3] X) => ({dtype}[3] end, {dtype} loss)
        <float ratio = {{0.5}}, bool training = {{1}}>
        {{ r = {operator}(X{rest}) end = Add(w, r) loss = ReduceSum<keepdims=0>(end) }}"""
    )
    x = np.full(3, 0.5, np.float32 if dtype == "float" else np.float64)
    end, losses = drawn_steps(step, {"w": x}, [{"X": x}, {"X": x}], key=7)
    assert (end.dtype, losses.dtype) == (x.dtype, x.dtype)


def test_text_is_rejected_by_the_names_of_its_columns() -> None:
    rows = {"age": np.arange(8, dtype=np.float32), "city": np.resize(["Bern", "Rome"], 8)}
    kinds = {"age": RawColumn("number"), "city": RawColumn("word")}
    table = Data(Rows(rows, np.arange(8) % 2, kept=kinds))
    model = convert(None, ConvertConfig(MLP(hidden=(4,), dropout=0.0)), data=table)
    artifact = derive(add_loss(model, AddLossConfig(LOSSES["log"]())))
    with pytest.raises(TrainError, match=r"read numbers(.|\n)*columns city(.|\n)*inputs=\[age\]"):
        c_sources(artifact, TrainConfig(OPTIMIZERS["sgd"]()))


ARM_MATH = """
#include <stdint.h>
#include <stdio.h>
typedef struct { uint16_t numRows, numCols; float *pData; } arm_matrix_instance_f32;
typedef enum { ARM_MATH_SUCCESS } arm_status;
static inline arm_status arm_mat_mult_f32(const arm_matrix_instance_f32 *a, const arm_matrix_instance_f32 *b,
                                          arm_matrix_instance_f32 *c) {
  fprintf(stderr, a->numCols == b->numRows && c->numCols == b->numCols ? "product\\n" : "wrong sizes\\n");
  for (int i = 0; i < a->numRows * b->numCols; i++) {
    c->pData[i] = 0;
    for (int p = 0; p < a->numCols; p++)
      c->pData[i] += a->pData[i / b->numCols * a->numCols + p] * b->pData[p * b->numCols + i % b->numCols];
  }
  return ARM_MATH_SUCCESS;
}
static inline void arm_mat_vec_mult_f32(const arm_matrix_instance_f32 *a, const float *x, float *y) {
  for (int i = 0; i < a->numRows; i++) {
    y[i] = 0;
    for (int p = 0; p < a->numCols; p++) y[i] += a->pData[i * a->numCols + p] * x[p];
  }
}
"""  # the documented signatures of CMSIS-DSP 1.10


@needs_cc
@pytest.mark.parametrize("case", ["adam", "numbers"])
def test_products_by_the_functions_of_cmsis_dsp_are_the_same(case: str, tmp_path: Path) -> None:
    artifact, config = CASES[case]
    folder = written(tmp_path, c_sources(artifact, config, steps=5, example={"X": X}))
    (folder / "arm_math.h").write_text(ARM_MATH)
    assert printed(folder, *SAFE, "-DMODEL_CMSIS_DSP", "-I.").splitlines()[-1] == "equal"
    done = subprocess.run([folder / "model_test"], capture_output=True, text=True, check=True)
    assert {*done.stderr.split("\n")} == {"product", ""}
    widest = max(5, 4, 3, config.batch_size)  # of the network's layers, and of the products of gradients
    assert f"add {2 * 4 * widest} bytes to the RAM" in (folder / "cmsis.h").read_text()
    assert f"left[{widest}], row[{widest}];" in (folder / "cmsis.h").read_text()


@pytest.mark.skipif(shutil.which("arm-none-eabi-gcc") is None, reason="needs gcc-arm-none-eabi")
@pytest.mark.skipif(shutil.which("qemu-system-arm") is None, reason="needs qemu-system-arm")
def test_the_commands_of_the_page_train_on_its_processors(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    boards = re.findall(r"^\| Cortex.*? \| `(.*)` \| `(.*)` \|$", page, re.M)
    assert len(boards) == 3
    [startup] = re.findall(r"```c\n(/\* startup\.c.*?)```", page, re.S)
    [commands] = re.findall(r"```sh\n(arm-none-eabi-gcc.*?)```", page, re.S)
    artifact, config = CASES["adam"]
    (tmp_path / "firmware").mkdir()
    written(tmp_path / "firmware", c_sources(artifact, config, steps=5, example={"X": X}))
    (tmp_path / "startup.c").write_text(startup)
    strict = commands.replace("arm-none-eabi-gcc", "arm-none-eabi-gcc -Wall -Wextra -Werror", 1)
    for options, board in boards:
        command = strict.replace("-mcpu=cortex-m3", options).replace("mps2-an385", board)
        done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines()[-1] == "equal"
        assert len(re.findall(r"^loss \d", done.stdout, re.M)) == 3
