"""The rule of `runtime.engine=auto`: what it chooses, says and records, and that it never measures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

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
from ortpipe.pipeline.digest import identity
from ortpipe.stages.convert.sources.networks.mlp import MLP
from ortpipe.stages.train import auto_engine

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


def chosen(gradient: Artifact, steps: int, installed: tuple[str, ...] = ("c", "xla")) -> str:
    """Return the engine for some steps."""
    training = auto_engine.Training(  # only what the rule reads
        gradient, SHORT, DATA, AUTO, print, None, None, dict, gradient
    )
    return engine_choice.choose(training, steps, installed)[0]


def test_short_trainings_stay_in_onnxruntime_and_long_ones_repay_a_compiler(gradient: Artifact) -> None:
    nodes = len(gradient.signature.graph.node)
    enough = -(-THRESHOLDS.c_node_steps // nodes)
    assert [chosen(gradient, steps) for steps in (1, enough - 1, enough, LONG)] == ["onnxruntime"] * 2 + ["c"] * 2
    assert [chosen(gradient, steps, ("xla",)) for steps in (enough, LONG)] == ["onnxruntime", "xla"]
    assert chosen(gradient, LONG, ()) == "onnxruntime"


def test_large_products_stay_in_onnxruntime(gradient: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(THRESHOLDS, "c_products", 10)
    assert chosen(gradient, LONG) == "xla"
    monkeypatch.setattr(THRESHOLDS, "xla_products", 10)
    assert chosen(gradient, LONG) == "onnxruntime"


def test_an_operator_that_no_compiler_knows_stays_in_onnxruntime(gradient: Artifact) -> None:
    model = gradient.model
    model.graph.node[0].op_type = "LSTM"
    strange = replace_model(gradient, model)
    assert chosen(strange, LONG) == "onnxruntime"


def replace_model(gradient: Artifact, model: object) -> Artifact:
    """Return an artifact whose signature is another model."""

    class Other:
        facts, initializers, signature = gradient.facts, gradient.initializers, model

    return Other()  # type: ignore[return-value]


def test_the_choice_is_said_in_one_line_before_training_and_recorded(gradient: Artifact) -> None:
    said = list[object]()
    result = train(gradient, SHORT, data=DATA, runtime=AUTO, report=said.append)
    nodes = len(gradient.signature.graph.node)
    assert said[0].text == f"engine: onnxruntime ({nodes} nodes, 8 steps)"  # type: ignore[attr-defined]
    assert result.facts.lineage[-1]["engine"] == "onnxruntime"
    plain = train(gradient, SHORT, data=DATA)
    assert result.digest() == plain.digest()
    assert "engine" not in plain.facts.lineage[-1]


@pytest.mark.parametrize("engine", ["c", "xla"])
def test_the_chosen_engine_gives_the_bytes_that_it_gives_by_name(
    gradient: Artifact, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(THRESHOLDS, f"{engine}_node_steps", 1)
    monkeypatch.setattr(auto_engine, "PACKAGES", {engine: auto_engine.PACKAGES[engine]})
    by_rule = train(gradient, SHORT, data=DATA, runtime=AUTO)
    by_name = train(gradient, SHORT, data=DATA, runtime=replace(AUTO, engine=engine))
    assert by_rule.digest() == by_name.digest()
    assert by_rule.facts.lineage[-1]["engine"] == engine


def test_the_cache_key_of_auto_holds_the_versions_of_all_engines() -> None:
    engines = [RuntimeConfig(engine=engine) for engine in ("onnxruntime", "xla", "c", "auto")]
    identities = [identity(config) for config in engines]
    assert len({str(one) for one in identities}) == 4
    assert {"jax", "scipy-openblas32"} <= {*identities[-1]["packages"]}


def test_a_gpu_and_auto_are_an_error(gradient: Artifact) -> None:
    with pytest.raises(EngineError, match="engine=auto chooses an engine for the CPU"):
        train(gradient, SHORT, data=DATA, runtime=replace(AUTO, provider="cuda"))
