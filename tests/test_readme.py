"""Every command and example of the README and of docs/ runs as it stands, and every link leads somewhere."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import tomllib
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from command import ROOT, Popen, ortpipe, run, shell
from documents import PAGES, README, RECIPES, TEXT
from servers import free_port

from ortpipe import LOSSES, OPTIMIZERS, SCHEDULES
from ortpipe.app.schema import keys

BLOCKS = re.findall(r"```bash\n(.*?)```", TEXT, re.S)
LINES = list(dict.fromkeys(line for block in BLOCKS for line in block.splitlines() if line.strip()))
INSTALLS = [line for line in LINES if " pip " in f" {line} " or "bin/pip" in line]
SHELL = [line for line in LINES if line not in INSTALLS and not line.startswith(("source ", "mlflow ui"))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader")
    (folder / "mine.py").write_text(_example("class Tilted"))
    (folder / "nets.py").write_text(_example("class Net("))
    (folder / "feathers.py").write_text(_example("class Feather"))
    [experiment] = re.findall(r"```yaml\n(# @package _global_\n# my/experiment/patients.yaml\n.*?)```", TEXT, re.S)
    for script in ("to_onnx(", 'savez("digits.npz"'):
        _printed(_example(script), folder)
    (folder / "my" / "experiment").mkdir(parents=True)
    (folder / "my" / "experiment" / "patients.yaml").write_text(experiment)
    return folder


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"}


NUMBER = r"\d+(?:\.\d+)?"
SHOWN = {  # a command → how the block begins that a page shows of what it prints
    "ortpipe recorder=none paths.outputs=elsewhere": "metric             before  trained  baseline  s",
    "ortpipe --config-dir my experiment=patients evaluate.importance=5": "  stopped after epoch 22 of 200",
    "ortpipe experiment=linear_regression                  #": "metric                   before    trained   baseline",
    "ortpipe experiment=finetune_onnx                      #": "[4/6] derive\n  trains 4 of 8",
    "ortpipe inspect digits.onnx                           #": "inputs\n  X  float[?, 64]  data",
    "ortpipe experiment=finetune_onnx 'derive.frozen=[]'": "[4/6] derive\n  trains adapters",
    "ortpipe experiment=logistic_regression data.split.validation=0.2 evaluate.cal": "  calibration: temperature",
    "ortpipe fit patients.csv --label target epochs=20": "ortpipe experiment=networks/auto data=csv data.source.path",
    "ortpipe fit patients.csv --label target teacher=boosting": "data: teacher HistGradient",
    "ortpipe validate experiment=networks/mlp data=csv data.source.path=sales.csv": "data: 4 columns",
    "ortpipe fit orders.csv": "error: The config has 4 errors.",
    "ortpipe export ready --target c --output firmware": "flash  ",
    "ortpipe restore tuned": "written  4 of 4 weights: coefficient1",
    "ortpipe '~experiment' data=npz data.source.path=mirrored.npz": "metric             before  trained  baseline  o",
    "ortpipe restore scans": "written  4 of 4 weights: coefficient,",
    "ortpipe '~experiment' data=npz data.source.path=digits.npz": "metric             before  trained  baseline  n",
}


WITH_TORCH = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
OF_TORCH = ("ortpipe '~experiment' data=npz data.source.path=digits.npz", "ortpipe restore net ")


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=[WITH_TORCH] if line.startswith(OF_TORCH) else []) for line in SHELL]
)
def test_every_command_of_the_readme_runs(line: str, folder: Path) -> None:
    done = shell(line, folder)
    assert done.returncode == 0, done.stderr
    for begin in (begin for command, begin in SHOWN.items() if line.startswith(command)):
        [shown] = re.findall(rf"```text\n({re.escape(begin)}.*?)```", TEXT, re.S)
        missing = [row for row in shown.splitlines() if not _is_among(row, (done.stdout + done.stderr).splitlines())]
        assert missing == [], done.stdout + done.stderr


# experiment → the metric to look at, and by how much training may fall short of the source
GOALS = {
    "digits": ("accuracy", 0.005),
    "elastic_loss": ("r2", 0.01),
    "finetune_onnx": ("accuracy", 0.0),
    "int8_digits": ("accuracy", 0.0),
    "linear_regression": ("r2", 0.01),
    "logistic_regression": ("accuracy", 0.01),
    "mlp_regression": ("r2", 0.0),
}


@pytest.mark.parametrize("experiment", sorted(p.stem for p in (ROOT / "conf" / "experiment").glob("*.yaml")))
def test_every_experiment_reaches_what_its_source_reaches(experiment: str, folder: Path) -> None:
    """The README's commands have left the results in the store."""
    done = ortpipe(f"experiment={experiment}", "recorder=none", f"hydra.run.dir=goals/{experiment}", cwd=folder)
    assert done.returncode == 0, done.stderr
    run = folder / "goals" / experiment
    metric, slack = GOALS[experiment]
    values = json.loads((run / "run.json").read_text())["metrics"][metric]
    assert values["trained"] >= values.get("source", 0) - slack
    is_int8 = experiment.startswith("int8")
    assert ((run / "model.int8.onnx").exists(), "int8" in values) == (is_int8, is_int8)
    assert values.get("int8", values["trained"]) == pytest.approx(values["trained"], abs=0.01)
    assert values["trained"] > values["before"]
    assert values["trained"] >= (0.97 if experiment == "digits" else 0)


def _is_among(shown: str, printed: list[str]) -> bool:
    """Return whether a line of a page is printed, with the same words and, on any CPU, nearly the same numbers."""
    twins = [line for line in printed if _words(line) == _words(shown)]
    return any(np.allclose(_numbers(line), _numbers(shown), rtol=0.05, atol=0.01) for line in twins)


def _words(line: str) -> str:
    return re.sub(NUMBER, "#", " ".join(line.split()))


def _numbers(line: str) -> list[float]:
    return [float(number) for number in re.findall(NUMBER, line)]


def test_the_readme_stays_short() -> None:
    assert len(README.read_text().splitlines()) <= 150


def test_every_output_that_a_page_shows_is_one_of_a_command_here() -> None:
    assert [command for command in SHOWN if not any(line.startswith(command) for line in SHELL)] == []


def test_the_readme_counts_what_there_is_to_choose() -> None:
    counts = {"losses": len({*LOSSES} - {"auto"}), "optimizers": len(OPTIMIZERS), "schedules": len(SCHEDULES)}
    assert [f"{count} {what}" for what, count in counts.items() if f"{count} {what}" not in README.read_text()] == []


def test_every_page_is_read_here() -> None:
    written = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "generated"]
    assert sorted(written) == sorted([*PAGES[1:], *RECIPES, ROOT / "docs" / "index.md"])


@pytest.mark.parametrize("page", [*PAGES, *RECIPES], ids=lambda page: page.relative_to(ROOT).with_suffix("").as_posix())
def test_every_link_leads_to_a_file(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.S)  # code has brackets too
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    links = [link for link in links if "://" not in link and "generated/" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_page_on_a_package_index_has_no_relative_link() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    text = README.read_text(encoding="utf-8")
    for rule in project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    assert re.findall(r"\]\((?!https?:)[^)]*\)|(?:src|srcset)=", text) == []
    assert "picture" not in text
    assert "More: run an experiment, available choices,\ntrack runs in MLflow" in text


def test_the_reference_names_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    page = importlib.import_module("generate").settings()
    names = set(re.findall(r"^\| `([^`]+)` \|", page, re.M))
    assert [key for key in keys() if key not in names and f"`{key}` is one of these" not in page] == []


def test_the_reference_says_what_every_setting_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    page = importlib.import_module("generate").settings()
    assert _empty_cells(page) == []


def test_no_table_of_a_page_has_an_empty_cell() -> None:
    assert _empty_cells(TEXT) == []


def _empty_cells(text: str) -> list[str]:
    lines = re.findall(r"^\|.*\|$", text, re.M)
    return [line for line in lines if not all(map(str.strip, re.split(r"(?<!\\)\|", line)[1:-1]))]


def test_the_install_commands_are_the_ones_that_ci_runs() -> None:
    main, test = INSTALLS
    assert main == "python3.11 -m venv .venv && .venv/bin/pip install -e . && .venv/bin/ortpipe"
    assert test.replace("install -e", "install --quiet -e") in (ROOT / ".ci" / "run").read_text()


def test_the_page_opens_with_the_command_of_the_readme(folder: Path) -> None:
    [command] = [line for line in LINES if line.startswith("mlflow ui")]
    if not (folder / "outputs" / "mlflow.db").exists():
        assert ortpipe("train.epochs=1", cwd=folder).returncode == 0
    port = str(free_port())
    server = Popen(
        [sys.executable, "-m", *command.split(), "--port", port, "--workers", "1"],
        cwd=folder,
        env={**_environment(), "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert _answers(f"http://127.0.0.1:{port}/")
    finally:
        os.killpg(server.pid, 9)
        server.wait()


def _answers(url: str) -> bool:
    for _ in range(120):
        try:
            with urllib.request.urlopen(url, timeout=2) as page:
                return b"MLflow" in page.read()
        except OSError:
            time.sleep(0.5)
    return False


EXAMPLES = list(dict.fromkeys(re.findall(r"```python\n(.*?)```", TEXT, re.S)))


def _printed(example: str, folder: Path | None = None) -> list[str]:
    done = run([sys.executable, "-c", example], env=_environment(), cwd=folder, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def _example(word: str) -> str:
    [found] = [example for example in EXAMPLES if word in example]
    return found


def test_every_example_is_run_below() -> None:
    words = (
        'run = ortpipe.fit("patients.csv"',
        "classifier.score(",
        "to_onnx(",
        'InferenceSession("scans',
        "class Net(",
        'savez("digits.npz"',
        "load_state_dict(",
        "slope × ink",
        "positions",
        "log_p",
        "write_bundle(",
        "mine.safetensors",  # by tests/bundle/test_javascript.py
        "BundleClient(",
        "epsilon(",
        "run.save(",
        "teacher=forest",
        "evaluate(train(",
        "Given(task=",
        "ortpipe.Run(a folder",
        "step.backward(",
        "GridSearchCV(",
        "trainer.fit(",
        "class Tilted",
        "class Feather",
        "class SignedMean",
        "def softsign(",
        "with_loss = add_loss(",
        "emit(finish(epoch)",
    )
    assert [_example(word) for word in words] == EXAMPLES


def test_the_file_with_new_weights_of_the_tutorial_predicts(folder: Path) -> None:
    if not (folder / "scans.trained.onnx").exists():
        pytest.skip("the commands of the tutorial write the file")
    assert float(_printed(_example('InferenceSession("scans'), folder)[0]) > 0.9


def test_the_example_of_a_bundle_writes_it(folder: Path) -> None:
    if not (folder / "ready").exists():
        pytest.skip("a command of the page trains it")
    _printed(_example("write_bundle("), folder)
    assert (folder / "from_python" / "train.onnx").exists()


def test_the_examples_of_federated_averaging_train_and_print_epsilon(folder: Path) -> None:
    if not (folder / "untrained").exists():
        pytest.skip("the commands of the page write the bundle")
    loss, _, rejected = _printed(_example("BundleClient("), folder)[0].partition(" ")
    assert (float(loss) < 0.2, rejected) == (True, "{}")
    shown = re.findall(r"# ([\d.]+):", _example("epsilon("))
    assert [f"{float(line):.3g}" for line in _printed(_example("epsilon("))] == shown


@WITH_TORCH
def test_the_module_of_the_tutorial_predicts(folder: Path) -> None:
    if not (folder / "net.safetensors").exists():
        pytest.skip("the commands of the tutorial write the file")
    assert float(_printed(_example("load_state_dict("), folder)[0]) > 0.9


def test_the_page_of_the_c_engine_shows_the_code_of_a_linear_regression() -> None:
    page = (ROOT / "docs" / "howto" / "c.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"```c\n(.*?)```", page, re.S)
    assert [line for line in _printed(_example("emit(finish(epoch)")) if line] == shown.splitlines()


def test_the_graphs_of_the_flow_are_those_of_its_stages() -> None:
    printed = _printed(_example("with_loss = add_loss("))
    page = (ROOT / "docs" / "explanation" / "flow.md").read_text(encoding="utf-8")
    shown = "".join(re.findall(r"```text\n(.*?)```", page, re.S)).splitlines()
    assert [line for line in shown if line not in printed] == []


def test_the_sensitivity_map_shows_what_counts_for_a_digit() -> None:
    added = [float(word) for word in re.findall(r"-?[\d.]+", " ".join(_printed(_example("slope × ink"))))]
    assert len(added) == 64
    assert not any(added[::8])  # the left edge of the picture is empty
    assert sum(added) > 1


def test_particles_that_follow_the_force_of_the_readme_lose_energy() -> None:
    energies = [float(line) for line in _printed(_example("positions"))]
    assert energies == sorted(energies, reverse=True)
    assert 5 < energies[-1] < 5.2 < energies[0]  # each particle is near itself


def test_the_sampler_of_the_readme_finds_the_distribution() -> None:
    numbers = np.array([float(word) for word in re.findall(r"-?\d+\.\d+", " ".join(_printed(_example("log_p"))))])
    assert np.abs(numbers - [1, -1, 0.5, 0.5, 0.5, 1]).max() < 0.08


def test_the_example_of_the_stages_trains() -> None:
    [line] = _printed(_example("evaluate(train("))
    r2 = eval(line)
    assert r2["trained"] > r2["before"]
    assert r2["trained"] > r2["source"] - 0.02


def test_the_example_of_a_run_from_python_reads_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = _printed(_example("ortpipe.Run(a folder"))
    assert printed[-1].endswith(" loss")
    assert any(line.endswith(" 5") for line in printed)


def test_the_example_of_a_given_model_has_a_loss_of_classes() -> None:
    assert _printed(_example("Given(task=")) == ["loss"]


@pytest.mark.parametrize("word", ['run = ortpipe.fit("patients.csv"', "run.save(", "teacher=forest"])
def test_the_examples_of_one_call_train_and_predict(word: str, folder: Path) -> None:
    if not (folder / "patients.csv").exists():
        pytest.skip("the commands of the README write the file")
    printed = _printed(_example(word), folder)
    [r2] = [float(line.split()[0]) for line in printed if re.match(r"0\.\d+ ", line)]
    assert r2 > 0.3
    assert any(line.rstrip().endswith("prediction") for line in printed)


def test_the_estimator_of_the_readme_fits() -> None:
    [line] = _printed(_example("classifier.score("))
    assert float(line.split()[0]) > 0.9


def test_the_example_of_the_estimators_finds_a_model_of_named_columns() -> None:
    [line] = _printed(_example("GridSearchCV("))
    score, name = line.split()
    assert float(score) > 0.95
    assert name == "X"


def test_the_example_of_forward_and_backward_finds_the_fit() -> None:
    outputs, distance = _printed(_example("step.backward("))
    assert eval(outputs)[:3] == ["loss", "coefficient_grad", "intercept_grad"]
    assert float(distance) < 1e-3


def test_the_example_of_the_earlier_libraries_trains_to_nothing_left() -> None:
    [loss] = _printed(_example("trainer.fit("))
    assert float(loss) < 1e-6


STEPPED = """
import numpy as np
from ortpipe import LOSSES, AddLossConfig, Data, Rows, TrainConfig, add_loss, convert, derive, train
from sklearn.linear_model import LinearRegression

X = np.eye(3, dtype=np.float32)
model = add_loss(convert(LinearRegression().fit(X, [1, 2, 3])), AddLossConfig(LOSSES["l2"]()))
config = TrainConfig(SignedMean(lr=0.125), epochs=2, batch_size=3)
trained = train(derive(model), config, data=Data(Rows({"X": X}, np.array([9, 9, -9.0]))))
print((trained.initializers["coefficient"] - model.initializers["coefficient"]).ravel().tolist())
"""


def test_the_optimizer_of_the_readme_goes_by_the_sign() -> None:
    assert _printed(_example("class SignedMean") + STEPPED) == ["[0.25, 0.25, -0.25]"]


USED = """
import numpy as np
import onnx
import onnx_ir as ir
from ortpipe.graph.core.check import finish
from ortpipe.runtime.session import Session
from ortpipe.stages.derive.engines.native import Native

graph = "g (float[3] x) => (float s) <float[3] y> { y = Softsign(x) s = ReduceSum<keepdims=0>(y) }"
model = ir.from_proto(onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 18]> ' + graph))
model, names = Native()(model, "s", [], ["x"])
x = np.array([-2, 0.5, 3], np.float32)
[slope] = Session(finish(model)).run({"x": x}, [names["x"]])
print(softsign is RULES["Softsign"], np.abs(slope - (1 + abs(x)) ** -2.0).max() < 1e-6)
"""


def test_the_rule_of_the_readme_gives_the_gradient() -> None:
    assert _printed(_example("def softsign(") + USED) == ["True True"]
