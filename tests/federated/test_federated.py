"""Federated averaging: rounds on the server, their privacy, clients over a bundle, and the examples of the page."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from servers import free_port

from ortpipe import (
    LOSSES,
    OPTIMIZERS,
    AddLossConfig,
    Artifact,
    Data,
    Rows,
    TrainConfig,
    add_loss,
    convert,
    derive,
    train,
)
from ortpipe.bundle import write_bundle
from ortpipe.errors import ConfigError, ModelError, TrainError
from ortpipe.federated import BundleClient, Update, aggregate, epsilon
from ortpipe.runtime import Session

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
rng = np.random.default_rng(0)
X, CLASSES = rng.normal(size=(24, 3)).astype(np.float32), rng.integers(0, 4, 24)
ROWS = {"X": X, "label": CLASSES[:, None]}
NETWORK = """<ir_version: 10, opset_import: ["" : 21]> g (float[N,3] X) => (float[N,4] p) {
  a = MatMul(X, w) n, mean1, variance1 = BatchNormalization<training_mode = 1>(a, scale, bias, mean, variance)
  r = Relu(n) z = MatMul(r, v) p = Softmax(z) }"""
LINEAR = """<ir_version: 10, opset_import: ["" : 21]> g (float[N,64] X) => (int64[N] label, float[N,10] p) {
  z = MatMul(X, w) p = Softmax(z) label = ArgMax<axis = 1, keepdims = 0>(z) }"""
ARRAYS = {"w": (3, 8), "v": (8, 4), "scale": (8,), "bias": (8,), "mean": (8,), "variance": (8,)}


@pytest.fixture(scope="module")
def gradient() -> Artifact:
    model = onnx.parser.parse_model(NETWORK)
    arrays = {name: np.abs(np.random.default_rng(1).normal(size=shape)) for name, shape in ARRAYS.items()}
    held = [onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    model.graph.initializer.extend(held)
    return derive(
        add_loss(convert(model, data=Data(Rows({"X": X}, CLASSES))), AddLossConfig(LOSSES["cross_entropy"]()))
    )


@pytest.fixture(scope="module")
def bundle(gradient: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "bundle"
    write_bundle(gradient, TrainConfig(OPTIMIZERS["momentum"](lr=0.05)), folder)
    return folder


def test_a_round_is_the_mean_of_the_changes_weighted_by_rows() -> None:
    start = rng.normal(size=5).astype(np.float32)
    values = rng.normal(size=(3, 5)).astype(np.float32)
    updates = [Update(name, array, weight) for name, array, weight in zip("abc", values, (10, 20, 5), strict=True)]
    result = aggregate(start, updates)
    np.testing.assert_allclose(result.weights, np.average(values, axis=0, weights=(10, 20, 5)), rtol=1e-6)
    assert result.weights.dtype == np.float32
    changes = [Update(update.client, update.values - start, update.weight) for update in updates]
    np.testing.assert_allclose(aggregate(start, changes, of="changes").weights, result.weights, rtol=1e-5)
    assert aggregate(start, updates[::-1]).weights.tobytes() == result.weights.tobytes()


def test_changes_are_clipped_to_a_norm() -> None:
    changes = [Update("large", np.array([3.0, 4.0])), Update("small", np.array([0.0, 0.5]))]
    result = aggregate(np.zeros(2), changes, of="changes", clip=1.0)
    np.testing.assert_allclose(result.weights, [0.3, (0.8 + 0.5) / 2])
    assert dict(result.norms) == {"large": 5.0, "small": 0.5}
    heavy = [Update("large", np.array([3.0, 4.0]), 1e300), changes[1]]  # a client states its weight itself
    assert aggregate(np.zeros(2), heavy, of="changes", clip=1.0).weights.tolist() == result.weights.tolist()


def test_the_expected_number_of_clients_divides_the_sum_with_noise_and_without() -> None:
    updates = [Update(name, np.ones(1), weight=9) for name in "ab"]
    assert aggregate(np.zeros(1), updates, clip=10, expected=4).weights.tolist() == [0.5]
    with pytest.raises(ConfigError, match=r"expected needs clip(.|\n)*got: expected=4"):
        aggregate(np.zeros(1), updates, expected=4)


def test_noise_has_the_deviation_that_its_privacy_needs() -> None:
    count = 200_000
    updates = [Update(str(i), np.full(count, 0.0), weight=i + 1) for i in range(4)]
    after = aggregate(np.zeros(count), updates, clip=2.0, noise=1.5, expected=5, seed=0).weights
    assert np.std(after) == pytest.approx(1.5 * 2.0 / 5, rel=0.01)
    assert np.mean(after) == pytest.approx(0, abs=0.01)
    one = aggregate(np.zeros(2), [Update("a", np.array([3.0, 4.0]), 7)], clip=1, noise=1e-9, expected=2, seed=0)
    np.testing.assert_allclose(one.weights, [0.3, 0.4], atol=1e-6)  # neither rows nor received updates count
    empty = aggregate(np.zeros(count), [], clip=2.0, noise=1.5, expected=5, seed=0)  # a round that sampled no client
    assert empty.weights.tobytes() == after.tobytes()


BROKEN = {
    "short": (np.zeros(4), 1, r"shape \(4,\), not \(5,\)"),
    "gap": (np.array([0, np.nan, 0, 0, 0]), 1, "not finite"),
    "endless": (np.full(5, np.inf), 1, "not finite"),
    "words": (np.array(list("abcde")), 1, "<U1"),
    "ragged": ([[1.0], [1.0, 2.0]], 1, "shape"),
    "outsize": (np.full(5, 1e6), 1, "a norm of 2.24e.06, over"),
    "weightless": (np.ones(5), 0, "a weight of 0"),
    "negative": (np.ones(5), -1, "a weight of -1"),
    "text weight": (np.ones(5), "3", "a weight of 3"),
    "large": (np.full(5, 1e39), 1, "over the largest of float32"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_client_is_rejected_by_name_and_the_round_goes_on(name: str) -> None:
    values, weight, reason = BROKEN[name]
    good = [Update(f"good {i}", np.full(5, 1.0 + i)) for i in range(3)]
    result = aggregate(np.zeros(5, np.float32), [*good, Update(name, values, weight)])
    np.testing.assert_allclose(result.weights, 2.0)
    assert [*result.rejected] == [name]
    assert [*result.norms] == ["good 0", "good 1", "good 2"]
    assert re.search(reason, result.rejected[name])


def test_clients_that_learned_nothing_do_not_make_the_others_outsize() -> None:
    updates = [Update(str(i), np.full(2, float(i == 0))) for i in range(3)]
    assert not aggregate(np.zeros(2), updates).rejected


def test_several_updates_of_a_client_do_not_count() -> None:
    result = aggregate(np.zeros(1), [Update("a", np.ones(1)), Update("b", np.ones(1)), Update("a", np.ones(1))])
    assert dict(result.rejected) == {"a": "2 updates"}
    assert [*result.norms] == ["b"]


def test_what_cannot_be_averaged_is_an_error() -> None:
    with pytest.raises(TrainError, match=r"got: a: numbers that are not finite"):
        aggregate(np.zeros(2), [Update("a", np.full(2, np.nan))])
    with pytest.raises(TrainError, match="no update"):
        aggregate(np.zeros(2), [])
    with pytest.raises(ConfigError, match=r"noise needs clip(.|\n)*clip=None, expected=None"):
        aggregate(np.zeros(2), [Update("a", np.ones(2))], noise=1.0)
    with pytest.raises(ConfigError, match=r"of must be weights or changes(.|\n)*got: change"):
        aggregate(np.zeros(2), [Update("a", np.ones(2))], of="change")  # type: ignore[arg-type]
    for wrong, got in ((np.zeros(2, np.int64), "int64"), (np.array([0, np.nan]), "not finite")):
        with pytest.raises(ConfigError, match=rf"weights must be finite floats(.|\n)*got: .*{got}"):
            aggregate(wrong, [Update("a", np.ones(2))])
    with pytest.raises(ConfigError, match="clip must be positive"):
        aggregate(np.zeros(2), [Update("a", np.ones(2))], clip=-1.0)
    for argument in ({"noise": 0.0}, {"delta": 1.5}, {"rounds": 0}, {"rate": 2.0}):
        with pytest.raises(ConfigError, match=f"{next(iter(argument))} must be"):
            epsilon(**{"noise": 1.0, "rounds": 10, "delta": 1e-3, **argument})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("noise", "rounds", "rate", "delta", "expected"),  # of dp-accounting 0.6.0: RdpAccountant(orders=range(2, 513))
    [
        (1.0, 100, 0.01, 1e-5, 1.2248457796361678),
        (1.1, 50, 1.0, 1e-3, 46.843774967449015),
        (2.0, 20, 1.0, 1e-2, 8.218875824868201),
        (0.8, 1000, 0.05, 1e-6, 21.81189384156891),
        (4.0, 500, 0.2, 1e-5, 5.577764839783207),
        (10.0, 1, 1.0, 1e-2, 0.1331956235531493),
    ],
)
def test_epsilon_is_that_of_dp_accounting(
    noise: float, rounds: int, rate: float, delta: float, expected: float
) -> None:
    assert epsilon(noise=noise, rounds=rounds, rate=rate, delta=delta) == pytest.approx(expected, rel=1e-9)


def test_a_client_trains_as_ortpipe_does(bundle: Path, gradient: Artifact) -> None:
    client = BundleClient(bundle, ROWS)
    weights, losses = client.fit(client.weights, epochs=1, batch_size=7, seed=3)
    order = np.random.default_rng(3).permutation(24)
    config = TrainConfig(OPTIMIZERS["momentum"](lr=0.05), epochs=1, batch_size=7, shuffle=False)
    expected = train(gradient, config, data=Data(Rows({"X": X[order]}, CLASSES[order])))
    np.testing.assert_allclose(losses, expected.tensors["losses/step"], rtol=1e-5)
    predicted = client.predict(weights, {"X": X.astype(np.float64)})["p"]
    np.testing.assert_allclose(predicted, Session(expected.model).run({"X": X}, ["p"])[0], rtol=1e-4, atol=1e-6)
    assert client.loss(weights) == pytest.approx(-np.log(predicted[np.arange(24), CLASSES]).mean(), rel=1e-4)
    assert len(weights) == 3 * 8 + 8 * 4 + 2 * 8 + 2 * 8  # with the running statistics


def test_averages_of_clients_reach_the_loss_of_pooled_training(bundle: Path) -> None:
    clients = {str(i): BundleClient(bundle, {name: a[i::3] for name, a in ROWS.items()}) for i in range(3)}
    everyone = BundleClient(bundle, ROWS)
    weights = everyone.weights
    for number in range(20):
        parts = {name: client.fit(weights, epochs=1, batch_size=8, seed=number)[0] for name, client in clients.items()}
        weights = aggregate(weights, [Update(n, w, clients[n].count) for n, w in parts.items()]).weights
    pooled, _ = everyone.fit(everyone.weights, epochs=20, batch_size=24, seed=0)
    assert everyone.loss(weights) < everyone.loss(everyone.weights)
    assert everyone.loss(weights) == pytest.approx(everyone.loss(pooled), rel=0.15)


def test_rows_and_weights_that_do_not_fit_are_errors(bundle: Path, gradient: Artifact, tmp_path: Path) -> None:
    for rows, message in (
        ({"X": X}, "Pass arrays of equal, positive length for X, label"),
        ({"X": X[:3], "label": ROWS["label"]}, r"X \(3, 3\), label \(24, 1\)"),
        ({"X": X[:0], "label": ROWS["label"][:0]}, "positive length"),
        ({"X": X[:, :2], "label": ROWS["label"]}, r"got: \(24, 2\), not \['N', 3\]"),
        ({"X": X.astype(str), "label": ROWS["label"]}, r"numbers of float32(.|\n)*got: an array of <U"),
        ({"X": X, "label": ROWS["label"] + 0.5}, r"numbers of int64(.|\n)*got: fractions"),
        ({"X": X.astype(np.float64) * 1e39, "label": ROWS["label"]}, r"numbers of float32(.|\n)*large numbers"),
        ({"X": X, "label": ROWS["label"] + 1}, r"from 0 to 3(.|\n)*got: 1 to 4"),
    ):
        with pytest.raises(ModelError, match=message):
            BundleClient(bundle, rows)
    client = BundleClient(bundle, ROWS)
    with pytest.raises(ModelError, match="one vector of the bundle's length"):
        client.fit(client.weights[1:], epochs=1, batch_size=4, seed=0)
    for wrong in ({"epochs": 0}, {"batch_size": 0}):
        with pytest.raises(ConfigError, match="must be positive"):
            client.fit(client.weights, **{"epochs": 1, "batch_size": 4, "seed": 0, **wrong})
    with pytest.raises(ModelError, match="Export it again"):
        BundleClient(tmp_path, ROWS)
    shutil.copytree(bundle, tmp_path / "damaged")
    (tmp_path / "damaged" / "train.onnx").write_bytes(b"no graph")
    with pytest.raises(ModelError, match=r"those of its export(.|\n)*missing or changed: train\.onnx"):
        BundleClient(tmp_path / "damaged", ROWS)
    write_bundle(gradient, TrainConfig(average=0.9), tmp_path / "average")
    with pytest.raises(ModelError, match=r"train\.average=null"):
        BundleClient(tmp_path / "average", ROWS)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a linear model of digits."""
    folder = tmp_path_factory.mktemp("digits") / "bundle"
    model = onnx.parser.parse_model(LINEAR)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((64, 10), np.float32), "w"))
    rows = Data(Rows({"X": rng.normal(size=(20, 64)).astype(np.float32)}, np.arange(20) % 10))
    loss = add_loss(convert(model, data=rows), AddLossConfig(LOSSES["cross_entropy"]()))
    write_bundle(derive(loss), TrainConfig(OPTIMIZERS["sgd"](lr=0.001)), folder)
    return folder


def test_the_experiment_of_the_page_prints_its_table(digits: Path, tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES / "federated.py", digits, "3", "picture.png"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row[1].strip(): float(row[3]) for row in (line.split("|") for line in done.stdout.splitlines()[3:])}
    assert len(rows) == 7
    assert rows["α = 1, three broken clients"] == rows["α = 1"] > 0.8
    assert "outsize: a norm of" in done.stdout
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_the_bundle_of_the_flower_example_trains_as_a_client(digits: Path) -> None:
    spec = importlib.util.spec_from_file_location("flower_bundle", EXAMPLES / "flower" / "averaging" / "bundle.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x, y = rng.normal(size=(4, 8, 64)).astype(np.float32), rng.integers(0, 10, (4, 8, 1))
    bundle = module.Bundle(digits)
    after, losses = bundle.fit(bundle.arrays["parameters"], x, y)
    client = BundleClient(digits, {"X": x[0], "label_1": y[0]})
    weights, first = client.fit(client.weights, epochs=1, batch_size=8, seed=0)
    np.testing.assert_allclose(losses[:1], first, rtol=1e-5)
    assert after.shape == weights.shape


@pytest.mark.skipif(shutil.which("flower-superlink") is None, reason="needs Flower's commands in PATH")
def test_flower_averages_two_clients_on_this_machine(digits: Path, tmp_path: Path) -> None:
    ports = [free_port() for _ in range(3)]
    for i in range(2):
        x, y = rng.normal(size=(4, 8, 64)).astype(np.float32), rng.integers(0, 10, (4, 8, 1))
        np.savez(tmp_path / f"rows{i}.npz", x=x, y=y)
    (tmp_path / "home").mkdir()
    link = f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "127.0.0.1:{ports[0]}"\ninsecure = true\n'
    (tmp_path / "home" / "config.toml").write_text(link)
    shutil.copytree(EXAMPLES / "flower", tmp_path / "app")
    place = f'bundle="{digits}"'
    environment = {**os.environ, "FLWR_HOME": str(tmp_path / "home"), "FLWR_TELEMETRY_ENABLED": "0"}
    options = ["--insecure", "--superlink", f"127.0.0.1:{ports[0]}"]
    commands = [
        ["flower-superlink", "--insecure", "--port", str(ports[0]), "--disable-runtime-dependency-installation"]
    ]
    for i in range(2):
        config = f'{place} rows="{tmp_path}/rows{i}.npz"'
        commands.append(["flower-supernode", *options, "--port", str(ports[1 + i]), "--node-config", config])
    processes = []
    try:
        for command in commands:
            processes.append(subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=subprocess.DEVNULL))
            time.sleep(5)
        command = ["flwr", "run", "app", "local", "--stream", "--run-config", place]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=True
        )
    finally:
        for process in processes:
            process.terminate()
            process.wait()
    assert "round 3: loss" in done.stdout
    np.testing.assert_allclose(np.load(f"{digits}.npy"), _averaged(digits, tmp_path), rtol=1e-4, atol=1e-6)


def _averaged(folder: Path, rows: Path) -> np.ndarray:
    """Return the weights after three rounds of the two clients, in the order of their rows."""
    fit = Session(onnx.load(folder / "train.onnx")).run
    weights = BundleClient(folder, {"X": np.zeros((1, 64)), "label_1": np.zeros((1, 1))}).weights
    files = [np.load(rows / f"rows{i}.npz") for i in range(2)]
    for _ in range(3):
        rate = np.full(4, -0.001, np.float32)
        feeds = ({"parameters": weights, "X": file["x"], "label_1": file["y"], "rate": rate} for file in files)
        weights = aggregate(weights, [Update(str(i), fit(fed)[0]) for i, fed in enumerate(feeds)]).weights
    return weights
