import importlib

import onnx.parser
import pytest
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge

from ortpipe.artifact import Artifact
from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Data, Rows
from ortpipe.data.split import split
from ortpipe.errors import PenaltyError, StageError
from ortpipe.flow import FLOW
from ortpipe.pipeline.plan import Stage
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses.l2 import L2
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.sklearn_estimator import SklearnEstimator
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.penalty.config import PenaltyConfig

X, Y = load_diabetes(return_X_y=True)
CONVERT, ADD_LOSS = FLOW[:2]
HERE = __name__


@pytest.fixture
def data():
    return split(Rows({"X": X}, Y), SplitConfig())


@pytest.fixture
def forward():
    return convert(Ridge().fit(X, Y))


def test_the_flow_is_six_stages_in_order():
    assert [stage.name for stage in FLOW] == ["convert", "add_loss", "penalty", "derive", "train", "evaluate"]


@pytest.mark.parametrize("stage", FLOW, ids=lambda stage: stage.name)
def test_every_stage_of_the_flow_names_functions_that_are_there(stage):
    for reference in filter(None, (stage.function, stage.check)):
        module, _, name = reference.partition(":")
        assert callable(getattr(importlib.import_module(module), name))
    assert stage.function.endswith(f":{stage.name}")


def test_a_stage_reads_only_what_it_asked_for(data):
    config = ConvertConfig(SklearnEstimator("sklearn.linear_model.Ridge"))
    made = CONVERT(None, config, data=data, runtime="not asked for")
    assert isinstance(data, Data)
    assert made.facts.lineage[0]["data"] == data.digest()


def test_a_stage_makes_another_artifact_and_leaves_its_input(forward):
    before = forward.digest()
    made = ADD_LOSS(forward, AddLossConfig(L2()), data=None)
    assert isinstance(made, Artifact)
    assert made.facts.loss == "loss"
    assert forward.digest() == before != made.digest()


def test_a_stage_is_not_run_without_the_facts_it_requires(forward):
    later = {stage.name: stage for stage in FLOW}
    with pytest.raises(StageError, match=r"penalty requires(.|\n)*not set: loss(.|\n)*stages before it"):
        later["penalty"](forward, None)


def test_a_stage_is_not_run_without_an_artifact():
    with pytest.raises(StageError, match=r"add_loss requires(.|\n)*task, inputs, outputs"):
        ADD_LOSS(None, AddLossConfig(L2()))


def test_a_stage_without_a_check_refuses_nothing_early(forward):
    assert CONVERT.check is None
    assert CONVERT.check_early(forward.facts, None) is forward.facts


def test_a_stage_refuses_early_what_it_would_refuse_late(forward):
    penalty, config = FLOW[2], PenaltyConfig({"nope": {"l2": 1.0}})
    loss_model = ADD_LOSS(forward, AddLossConfig(L2()), data=None)
    with pytest.raises(PenaltyError, match="'nope'"):
        penalty.check_early(forward.facts, config)
    with pytest.raises(PenaltyError, match="'nope'"):
        penalty(loss_model, config)
    penalty.check_early(forward.facts, PenaltyConfig({"coef*": {"l2": 1.0}}))


# Stages that break their promise, found by the name of this module.


def same(artifact, config):
    return artifact


def nothing(artifact, config):
    return None


def writes_in_its_input(artifact, config):
    result = artifact.next("bad", 1)
    artifact.model.graph.node[0].name = "changed"
    return result


def forgets_its_fact(artifact, config):
    return artifact.next("bad", 1)


def keeps_its_promise(artifact, config):
    return artifact.next("good", 1, loss="loss")


@pytest.fixture
def bad(monkeypatch):
    import sys

    def make(function, **promises):
        monkeypatch.setitem(sys.modules, "stages_of_this_test", sys.modules.get(HERE) or _module())
        return Stage("bad", f"stages_of_this_test:{function.__name__}", **promises)

    return make


def _module():
    import types

    module = types.ModuleType("stages_of_this_test")
    module.__dict__.update(globals())
    return module


def test_a_stage_that_gives_back_its_input_is_caught(forward, bad):
    with pytest.raises(StageError, match="another artifact than its input"):
        bad(same)(forward, None)


def test_a_stage_cannot_change_its_input(forward, bad):
    before, model = forward.digest(), forward.model
    bad(writes_in_its_input)(forward, None)
    assert forward.model == model
    assert forward.digest() == before == Artifact(forward.model, forward.facts, forward.tensors).digest()


@pytest.mark.parametrize("function", [forgets_its_fact, nothing])
def test_a_stage_that_does_not_set_its_fact_is_caught(forward, bad, function):
    with pytest.raises(StageError, match=r"bad ensures(.|\n)*not set: loss"):
        bad(function, ensures=("loss",))(forward, None)


def test_a_stage_that_keeps_its_promise_passes(forward, bad):
    made = bad(keeps_its_promise, requires=("prediction",), ensures=("loss",))(forward, None)
    assert made.facts.loss == "loss"
    assert onnx.printer.to_text(made.model.graph) == onnx.printer.to_text(forward.model.graph)
