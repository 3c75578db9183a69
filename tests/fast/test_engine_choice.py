"""The rule of `runtime.engine=auto`: what it chooses, says and records, and that it never measures."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import onnx.parser
import pytest
from runtime.c.epochs import needs_engine

from ortpipe import (
    LOSSES,
    AddLossConfig,
    Artifact,
    ConvertConfig,
    Data,
    Rows,
    RuntimeConfig,
    TrainConfig,
    add_loss,
    convert,
    derive,
    train,
)
from ortpipe.errors import EngineError
from ortpipe.fast import engine_choice
from ortpipe.fast.thresholds import THRESHOLDS
from ortpipe.parallel import ParallelConfig, check_engine
from ortpipe.pipeline.digest import identity
from ortpipe.stages.convert.sources.networks.mlp import MLP
from ortpipe.stages.train.training import plan

RNG = np.random.default_rng(0)
DATA = Data(Rows({"X": RNG.normal(size=(64, 5)).astype(np.float32)}, RNG.normal(size=64).astype(np.float32)))
AUTO = RuntimeConfig(engine="auto")
SHORT = TrainConfig(epochs=2, batch_size=16)
LONG = 10**7  # steps


@pytest.fixture(scope="module")
def gradient() -> Artifact:
    """A small network with its gradients."""
    forward = convert(None, ConvertConfig(MLP(hidden=(4,))), data=DATA)
    return derive(add_loss(forward, AddLossConfig(LOSSES["l2"]())))


def chosen(gradient: Artifact, steps: int, installed: tuple[str, ...] = ("c", "xla"), **settings: object) -> str:
    """Return the engine for some steps, and the reason."""
    training = plan(gradient, replace(SHORT, **settings), DATA, AUTO, print, None)
    return ": ".join(engine_choice.choose(training, steps, lambda name: None if name in installed else "not installed"))


def line(artifact: Artifact, data: Data = DATA, runtime: RuntimeConfig = AUTO) -> str:
    """Return the line that training prints about its engine."""
    said = list[object]()
    train(artifact, SHORT, data=data, runtime=runtime, report=said.append)
    return str(said[0].text)  # type: ignore[attr-defined]


needs_xla = pytest.mark.skipif(find_spec("jax") is None, reason="no JAX")


@pytest.fixture
def only_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose C for any number of steps, and never XLA."""
    monkeypatch.setattr(THRESHOLDS, "c_node_steps", 1)
    monkeypatch.setattr(THRESHOLDS, "xla_node_steps", LONG * LONG)


def test_short_trainings_stay_in_onnxruntime_and_long_ones_repay_a_compiler(gradient: Artifact) -> None:
    nodes = len(gradient.signature.graph.node)
    enough = -(-THRESHOLDS.c_node_steps // nodes)
    engines = [chosen(gradient, steps).partition(":")[0] for steps in (1, enough - 1, enough, LONG)]
    assert engines == ["onnxruntime"] * 2 + ["c"] * 2
    assert chosen(gradient, enough, ("xla",)).startswith("onnxruntime: ")
    assert chosen(gradient, LONG, ("xla",)) == f"xla: {nodes} nodes, 10,000,000 steps; not c: not installed"
    assert chosen(gradient, LONG, ()).endswith("; not c: not installed; not xla: not installed")


def test_large_products_stay_in_onnxruntime(gradient: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(THRESHOLDS, "c_products", 10)
    products = 16 * sum(gradient.initializers[name].size for name in gradient.facts.gradients)
    assert chosen(gradient, LONG).endswith(f"; not c: rows × parameters is {products}, not below 10")
    monkeypatch.setattr(THRESHOLDS, "xla_products", 10)
    assert chosen(gradient, LONG).startswith("onnxruntime: ")


@pytest.mark.parametrize(("transport", "engine"), [("devices", "xla"), ("processes", "onnxruntime")])
def test_the_transport_of_parallel_training_decides(gradient: Artifact, transport: str, engine: str) -> None:
    parallel = ParallelConfig(transport=transport)  # type: ignore[arg-type]
    assert chosen(gradient, LONG, parallel=parallel).startswith(f"{engine}: ")
    check_engine(parallel, "auto")


@needs_engine
@pytest.mark.usefixtures("only_c")
def test_a_form_that_c_does_not_compile_stays_in_onnxruntime() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> g (float[N,5] X) => (float[N,1] y)
        <float[7,1] w = {1, 2, 3, 4, 5, 6, 7}, int64[4] pads = {0, 1, 0, 1}> {
          wide = Pad<mode="reflect">(X, pads) y = MatMul(wide, w) }"""
    )
    artifact = derive(add_loss(convert(model, data=DATA), AddLossConfig(LOSSES["l2"]())))
    assert re.match(r"engine: onnxruntime \(.*; not c: Pad .*reflect", line(artifact))


@needs_engine
@pytest.mark.usefixtures("only_c")
def test_two_threads_and_a_missing_compiler_stay_in_onnxruntime(
    gradient: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert line(gradient).startswith("engine: c (")
    assert "not c: provider=cpu, threads=2" in line(gradient, runtime=replace(AUTO, threads=2))
    monkeypatch.setenv("CC", "nope")
    assert "engine: onnxruntime" in line(gradient)
    assert "not c: CC=nope, which does not run" in line(gradient)


def test_the_choice_is_said_in_one_line_before_training_and_recorded(gradient: Artifact) -> None:
    said = list[object]()
    result = train(gradient, SHORT, data=DATA, runtime=AUTO, report=said.append)
    nodes = len(gradient.signature.graph.node)
    assert said[0].text == (  # type: ignore[attr-defined]
        f"engine: onnxruntime ({nodes} nodes, 8 steps; not c: nodes × steps is below 1,000,000; "
        "not xla: nodes × steps is below 3,000,000)"
    )
    assert result.facts.lineage[-1]["engine"] == "onnxruntime"
    plain = train(gradient, SHORT, data=DATA)
    assert result.digest() == plain.digest()
    assert "engine" not in plain.facts.lineage[-1]


@pytest.mark.parametrize("engine", [pytest.param("c", marks=needs_engine), pytest.param("xla", marks=needs_xla)])
def test_the_chosen_engine_gives_the_bytes_that_it_gives_by_name(
    gradient: Artifact, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(THRESHOLDS, f"{engine}_node_steps", 1)
    by_rule = train(gradient, SHORT, data=DATA, runtime=AUTO)
    by_name = train(gradient, SHORT, data=DATA, runtime=replace(AUTO, engine=engine))
    assert by_rule.digest() == by_name.digest()
    assert by_rule.facts.lineage[-1]["engine"] == engine


@needs_engine
@needs_xla
def test_the_cache_key_of_auto_holds_the_versions_of_all_engines() -> None:
    engines = [RuntimeConfig(engine=engine) for engine in ("onnxruntime", "xla", "c", "auto")]
    identities = [identity(config) for config in engines]
    assert len({str(one) for one in identities}) == 4
    assert {"jax", "scipy-openblas32"} <= {*identities[-1]["packages"]}


def test_a_gpu_and_auto_are_an_error(gradient: Artifact) -> None:
    with pytest.raises(EngineError, match="engine=auto chooses an engine for the CPU"):
        train(gradient, SHORT, data=DATA, runtime=replace(AUTO, provider="cuda"))
