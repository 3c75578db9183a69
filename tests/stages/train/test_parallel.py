"""One training over several workers: the same bytes for any number of them, and close to a single process."""

import dataclasses
import os
import re
import signal
import threading

import numpy as np
import psutil
import pytest
from sklearn.datasets import load_digits

from ortpipe.data.batches import order
from ortpipe.data.load import DataConfig, load
from ortpipe.data.parts import SplitConfig
from ortpipe.data.sources.csv import Csv
from ortpipe.data.sources.npz import Npz
from ortpipe.errors import ConfigError, ConvergenceError, DataError, EngineError, TrainError
from ortpipe.parallel import ParallelConfig, Pool
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.networks.mlp import MLP
from ortpipe.stages.convert.sources.sklearn_estimator import SklearnEstimator
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.lora import Lora
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.penalty.stage import penalty
from ortpipe.stages.train.config import ClipConfig, EarlyStopConfig, TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.remark import Remark
from ortpipe.stages.train.slice_work import SliceSums, Span
from ortpipe.stages.train.stage import train
from ortpipe.stages.train.training import Checkpoint

ADAM = TrainConfig(OPTIMIZERS["adam"](0.01), epochs=2, batch_size=50)  # 5 batches of 50 rows and one of 29


def digits(path, *, stream, weighted=False):
    x, y = (array[:350] for array in load_digits(return_X_y=True))
    weight = {"w": np.linspace(0.5, 2, len(y))} if weighted else {}
    np.savez(path / "rows.npz", X=(x / 16).astype(np.float32), y=y, **weight)
    source = Npz(str(path / "rows.npz"), sample_weight="w" if weighted else None, stream=stream)
    return load(DataConfig(source, SplitConfig(test=0.1, validation=0.1)))


def gradient_model(data, source=None, reduction="mean", weighted=False, penalized=None, **settings):
    forward = convert(None, ConvertConfig(source or MLP(hidden=(12,), dropout=0.0)), data=data)
    model = add_loss(forward, AddLossConfig(LOSSES["cross_entropy"](), reduction, weighted), data=data)
    return derive(penalty(model, penalized or PenaltyConfig()), DeriveConfig(**settings), data=data)


def parallel(config=ADAM, **settings):
    return dataclasses.replace(config, parallel=ParallelConfig(**{"slices": 4, "workers": 1, **settings}))


@pytest.mark.parametrize("every", ["step", 2])
def test_any_number_of_workers_gives_the_same_bytes_in_memory_and_streamed(tmp_path, every):
    held, streamed = (digits(tmp_path, stream=stream) for stream in (False, True))
    model = gradient_model(held, MLP(hidden=(12,), dropout=0.2))
    results = [
        train(model, parallel(every=every, workers=workers), data=data)
        for data, workers in ((held, 1), (streamed, 3 if every == "step" else 2))
    ]
    first = results[0].tensors
    for result in results[1:]:
        assert result.tensors.keys() == first.keys()
        assert all(result.tensors[name].tobytes() == first[name].tobytes() for name in first)


L2 = PenaltyConfig({"*weight": {"l2": 0.1}})
CASES = {
    "weights, clipping, an average and early stopping": (
        {"weighted": True},
        {
            "clip": ClipConfig(norm=0.5),
            "average": 0.9,
            "weight_decay": 0.1,
            "early_stop": EarlyStopConfig(patience=1),
            "epochs": 3,
        },
    ),
    "a summed loss with a penalty per row": (
        {
            "source": SklearnEstimator("sklearn.linear_model.LogisticRegression", {"C": 0.01}),
            "penalized": PenaltyConfig(auto=True),
            "reduction": "sum",
        },
        {"optimizer": OPTIMIZERS["sgd"](0.001)},
    ),
    "a penalty, and dropped rows in their order": ({"penalized": L2}, {"drop_last": True, "shuffle": False}),
    "low-rank adapters": ({"adapters": Lora(rank=2)}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_summed_gradients_train_as_one_process_does(tmp_path, case):
    settings, changes = CASES[case]
    data = digits(tmp_path, stream=False, weighted=settings.get("weighted", False))
    model, config = gradient_model(data, **settings), dataclasses.replace(ADAM, **changes)
    alone, split = train(model, config, data=data), train(model, parallel(config), data=data)
    for name, tensor in alone.tensors.items():
        np.testing.assert_allclose(split.tensors[name], tensor, rtol=2e-3, atol=2e-5, err_msg=name)


def test_running_statistics_are_averages_over_slices(tmp_path):
    data = digits(tmp_path, stream=False)
    model = gradient_model(data, MLP(hidden=(12,), dropout=0.0, norm="batch"))
    config = dataclasses.replace(ADAM, optimizer=OPTIMIZERS["sgd"](0.01), epochs=1)
    tensors = [train(model, parallel(config, slices=slices), data=data).tensors for slices in (1, 2)]
    alone = train(model, config, data=data).tensors
    for name in model.facts.statistics:
        key = f"parameter/{name}"
        np.testing.assert_allclose(tensors[0][key], alone[key], rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(tensors[1][key], alone[key], rtol=0.3, atol=0.1)


@pytest.mark.parametrize("every", ["step", "epoch"])
def test_killed_and_stopped_workers_change_no_byte(tmp_path, every):
    data, random, reports = digits(tmp_path, stream=False), np.random.default_rng(0), []
    model, config = gradient_model(data), dataclasses.replace(ADAM, epochs=6)
    expected = train(model, parallel(config, every=every), data=data)

    def hurt(report):
        """Hurt the oldest worker a moment after some epochs have ended."""
        reports.append(str(report))
        sign = {2: signal.SIGKILL, 4: signal.SIGSTOP}.get(getattr(report, "number", 0))
        if sign is not None:
            threading.Timer(random.uniform(0, 0.01), os.kill, [workers()[0].pid, sign]).start()

    settings = {"every": every, "workers": 2, "timeout": 5.0}
    assert train(model, parallel(config, **settings), data=data, report=hurt).digest() == expected.digest()
    assert len([report for report in reports if "computing slice" in report]) >= 2
    assert not workers()


def workers():
    """Return the running workers of this process."""
    return [child for child in psutil.Process().children() if "ortpipe.parallel.process" in child.cmdline()]


def test_ray_actors_give_the_same_bytes_as_processes_also_when_one_is_killed(tmp_path):
    import ray

    data = digits(tmp_path, stream=True)
    model, config, killed, received = gradient_model(data), dataclasses.replace(ADAM, epochs=3), [], []
    expected = train(model, parallel(config), data=data)
    before = signal.signal(signal.SIGTERM, lambda *_: received.append(True))  # as the command line sets one

    def kill(report):
        if getattr(report, "number", 0) == 1:
            actors = [p for p in psutil.Process().children(recursive=True) if p.name().startswith("ray::_Holder")]
            killed.append(actors[0].name())
            actors[0].kill()
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        settings = {"transport": "ray", "workers": 2}
        assert train(model, parallel(config, **settings), data=data, report=kill).digest() == expected.digest()
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, before)
    assert killed
    assert received == [True]


def test_workers_do_not_read_streamed_csv_files(tmp_path):
    (tmp_path / "rows.csv").write_text("x,y\n" + "".join(f"{i / 9},{i / 7}\n" for i in range(40)))
    data = load(DataConfig(Csv(path=str(tmp_path / "rows.csv"), label="y", stream=True)))
    forward = convert(None, ConvertConfig(MLP(hidden=(2,))), data=data)
    model = derive(penalty(add_loss(forward, AddLossConfig(LOSSES["l2"]())), PenaltyConfig()), DeriveConfig())
    with pytest.raises(DataError, match=r"(?s)parsed once.*as Parquet"):
        train(model, parallel(), data=data)


def test_a_cluster_that_does_not_answer_is_an_error_at_once(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(EngineError, match=r"got: 127\.0\.0\.1:1: .*refused"):
        Pool(lambda: None, ParallelConfig(transport="ray"), print)


def test_a_run_reports_its_times_and_continues_from_a_checkpoint_with_the_same_bytes(tmp_path):
    data = digits(tmp_path, stream=False)
    model, reports = gradient_model(data), []
    config = dataclasses.replace(ADAM, epochs=4, checkpoint=dataclasses.replace(ADAM.checkpoint, epochs=1))
    whole = train(model, parallel(config), data=data, report=reports.append)
    [(text, values)] = [(report.text, report.values) for report in reports if isinstance(report, Remark)]
    assert (values["parallel/workers"], values["parallel/slices"]) == (1, 4)
    computed, exchanged = map(float, re.findall(r"takes (.*) ms to compute, and (.*) ms to exchange", text)[0])
    assert 0 < computed < 1000
    assert exchanged == pytest.approx(values["parallel/exchange_ms"], rel=0.1)
    is_slow = values["parallel/exchange_ms"] > values["parallel/compute_ms"]  # not rounded
    assert ("every=epoch exchanges less often" in text) == is_slow
    [first, *_] = [report for report in reports if isinstance(report, Checkpoint)]
    assert train(model, parallel(config), data=data, start=first).digest() == whole.digest()
    with pytest.raises(TrainError, match="a checkpoint of another run"):
        train(model, parallel(config, slices=5), data=data, start=first)


def test_a_loss_that_diverges_names_the_slice(tmp_path):
    data = digits(tmp_path, stream=False)
    config = dataclasses.replace(ADAM, optimizer=OPTIMIZERS["sgd"](1e30))
    with pytest.raises(ConvergenceError, match=r"of slice \d in epoch 1, batch \d, from worker"):
        train(gradient_model(data), parallel(config), data=data)


@pytest.mark.parametrize(
    ("every", "text"),
    [
        ("step", "validation loss nan after step 1"),
        ("epoch", "a parameter that is not finite, of slices 1, 2, 3, 4 in epoch 1"),
    ],
)
def test_an_update_that_diverges_is_reported_as_in_one_process(tmp_path, every, text):
    data = digits(tmp_path, stream=False)
    config = dataclasses.replace(ADAM, optimizer=OPTIMIZERS["sgd"](3e38), batch_size=1000, epochs=1)
    with pytest.raises(ConvergenceError, match=text):
        train(gradient_model(data), parallel(config, every=every), data=data)


def test_results_of_other_slices_shapes_or_types_are_noticed():
    span, kinds = Span(1, 0, 1, 10, 4), [((2,), np.dtype("f4"))]
    losses, values = {0: np.zeros(1), 1: np.zeros(1)}, np.zeros(2, np.float32)
    assert SliceSums(losses, {(0, 2): [values]}).fits(span, [0, 1], kinds)
    for sums in ({(0, 1): [values]}, {(0, 2): [values[:1]]}, {(0, 2): [values.astype(float)]}, {(0, 2): [None]}):
        assert not SliceSums(losses, sums).fits(span, [0, 1], kinds)
    for sums in (None, {(0, 2): None}, {(0, 2): [values, values]}):
        assert not SliceSums(losses, sums).fits(span, [0, 1], kinds)
    for other in (None, [0.0, 0.0], {0: np.zeros(1)}, {0: np.zeros(1), 1: None}, {0: np.zeros(1), 1: np.array(["x"])}):
        assert not SliceSums(other, {(0, 2): [values]}).fits(span, [0, 1], kinds)


def test_a_worker_needs_rows_of_every_row_group():
    groups, window, batch = [100] * 20, 500, 50
    rows = order(2000, seed=0, number=1, window=window, group_sizes=groups).reshape(-1, batch)
    assert {*rows[:, : batch // 8].ravel() // 100} == {*range(20)}  # those of one slice of eight


def test_what_slices_cannot_split_is_rejected_by_name(tmp_path):
    with pytest.raises(ConfigError, match="accumulate"):
        dataclasses.replace(ADAM, accumulate=2, parallel=ParallelConfig())
    with pytest.raises(ConfigError, match="parallel"):
        TrainConfig(OPTIMIZERS["lbfgs"](), parallel=ParallelConfig())
    data = digits(tmp_path, stream=False)
    summed = gradient_model(data, reduction="sum", penalized=L2)
    with pytest.raises(TrainError, match="a summed loss with a penalty"):
        train(summed, parallel(), data=data)
    with pytest.raises(ConfigError, match="engine=xla"):
        train(gradient_model(data), parallel(), data=data, runtime=RuntimeConfig(engine="xla"))
