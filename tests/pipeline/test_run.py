import numpy as np
import onnx
import onnx.parser
import pytest
from sklearn.datasets import load_diabetes

from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Rows
from ortpipe.data.split import split
from ortpipe.errors import ConvertError, DeriveError, PenaltyError
from ortpipe.flow import FLOW
from ortpipe.pipeline.dry_run import dry_run
from ortpipe.pipeline.events import (
    Began,
    RunFailed,
    RunFinished,
    RunStarted,
    StageFinished,
    StageNotice,
    StageProgressed,
    StageStarted,
)
from ortpipe.pipeline.plan import Step
from ortpipe.pipeline.run import run
from ortpipe.pipeline.store import Store
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses.l2 import L2
from ortpipe.stages.convert import stage
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.convert.sources.sklearn_estimator import SklearnEstimator
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.train.config import TrainConfig

X, Y = load_diabetes(return_X_y=True)


@pytest.fixture
def context():
    return {"data": split(Rows({"X": X}, Y), SplitConfig()), "runtime": RuntimeConfig(), "start": None}


def plan(estimator="sklearn.linear_model.Ridge", params=None, stages=6):
    configs = (
        ConvertConfig(SklearnEstimator(estimator, params=params or {})),
        AddLossConfig(L2()),
        PenaltyConfig(),
        DeriveConfig(),
        TrainConfig(epochs=2),
        EvaluateConfig(),
    )
    return tuple(Step(stage, config) for stage, config in zip(FLOW[:stages], configs, strict=False))


def test_a_run_tells_every_stage_in_order(context):
    events = []
    steps = plan()
    artifact = run(steps, context, [events.append])
    names = [stage.name for stage in FLOW]
    assert events[0] == RunStarted(steps)
    started = [e for e in events if isinstance(e, StageStarted)]
    assert started == [StageStarted(name, i, 6) for i, name in enumerate(names, 1)]
    finished = [e for e in events if isinstance(e, StageFinished)]
    assert [(e.name, e.number) for e in finished] == [(name, i) for i, name in enumerate(names, 1)]
    assert isinstance(events[-1], RunFinished)
    assert events[-1].artifact is finished[-1].artifact is artifact
    assert all(e.seconds >= 0 for e in finished)


def test_what_a_stage_reports_is_told_under_its_name(context):
    events = []
    run(plan(), context, [events.append])
    reports = [i for i, e in enumerate(events) if isinstance(e, StageProgressed) and e.report != Began()]
    assert {events[i].name for i in reports} == {"train"}
    begun = events.index(StageStarted("train", 5, 6))
    [ended] = [i for i, e in enumerate(events) if isinstance(e, StageFinished) and e.name == "train"]
    assert begun < reports[0] <= reports[-1] < ended


def test_a_stage_reports_first_that_it_began_where_the_store_lacks_its_result(context, tmp_path):
    began = []
    for stages in (2, 4):
        events = []
        run(plan(stages=stages), context, [events.append], Store(tmp_path))
        began.append([e.name for e in events if isinstance(e, StageProgressed) and e.report == Began()])
    assert began == [["convert", "add_loss"], ["penalty", "derive"]]


def test_a_dry_run_tells_what_a_run_would_read_from_the_store(context, tmp_path):
    run(plan(stages=2), context, store=Store(tmp_path))
    statuses = [
        [status.status for status in dry_run(steps, context, Store(tmp_path))]
        for steps in (plan(stages=3), plan(params={"alpha": 2.0}, stages=3))
    ]
    assert statuses == [["hit", "hit", "miss"], ["miss", "blocked", "miss"]]


def test_the_lineage_is_the_flow(context):
    artifact = run(plan(), context)
    assert [record["stage"] for record in artifact.facts.lineage] == [stage.name for stage in FLOW]


def test_the_same_plan_gives_the_same_digest(context):
    assert run(plan(), context).digest() == run(plan(), context).digest()


def test_each_listener_hears_each_event_and_the_context_stays_as_it_was(context):
    one, two, before = [], [], dict(context)
    run(plan(stages=2), context, [one.append, two.append])
    assert one == two
    assert context == before


def test_a_failure_names_its_stage_and_is_raised(context):
    events = []
    with pytest.raises(ConvertError, match="params"):
        run(plan(params={"colour": 1}), context, [events.append])
    assert [type(e) for e in events] == [RunStarted, StageStarted, StageProgressed, RunFailed]
    assert isinstance(events[-1].error, ConvertError)
    assert (events[-1].stage, events[-1].killed) == ("convert", False)


def test_a_later_stage_refuses_its_config_before_the_second_stage_works(context):
    events, steps = [], plan()
    wrong = Step(FLOW[2], PenaltyConfig({"nope": {"l2": 1.0}}))
    with pytest.raises(PenaltyError, match="'nope'"):
        run((*steps[:2], wrong, *steps[3:]), context, [events.append])
    of_convert = [RunStarted, StageStarted, StageProgressed, StageNotice, StageNotice, StageFinished]
    assert [type(e) for e in events] == [*of_convert, RunFailed]
    assert events[3].message.startswith("trains 2 of 2 float initializers")
    assert events[4].message.startswith("scikit-learn fits it by l2")
    assert events[-1].stage == "penalty"


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
def test_a_run_that_is_asked_to_stop_says_so(context, signal):
    events = []

    def stop(event):
        events.append(event)
        if isinstance(event, StageStarted) and event.name == "add_loss":
            raise signal

    with pytest.raises(signal):
        run(plan(), context, [stop])
    assert (events[-1].stage, events[-1].killed) == ("add_loss", True)
    assert not any(isinstance(e, RunFinished) for e in events)


def named(**names):
    """Return the text of y = x · w + b, with other names for some of its values."""
    n = {"X": "X", "Y": "Y", "w": "w", "b": "b", "h": "h"} | names
    weights = ", ".join(["0"] * 10)
    return (
        '<ir_version: 8, opset_import: ["" : 17]> '
        f"g (float[N, 10] {n['X']}) => (float[N, 1] {n['Y']}) "
        f"<float[10, 1] {n['w']} = {{{weights}}}, float[1] {n['b']} = {{0}}> "
        f"{{ {n['h']} = MatMul({n['X']}, {n['w']}) {n['Y']} = Add({n['h']}, {n['b']}) }}"
    )


def trained(tmp_path, text, context, **derive):
    onnx.save(onnx.parser.parse_model(text), tmp_path / "a.onnx")
    first, *rest = plan()
    steps = (Step(first.stage, ConvertConfig(OnnxFile(str(tmp_path / "a.onnx")))), *rest)
    steps = tuple(Step(s.stage, DeriveConfig(**derive)) if s.stage.name == "derive" else s for s in steps)
    artifact = run(steps, context)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in artifact.model.graph.initializer}
    return [weights[name] for name in artifact.facts.parameters]


ODD = [
    {"X": "label"},
    {"Y": "loss"},
    {"Y": "label"},
    {"w": "label", "b": "loss"},
    {"w": "X_grad"},
    {"w": "loss_grad"},
    {"b": "w_grad"},
    {"h": "w_grad"},
    {"Y": "w_grad"},
    {"X": "w_grad"},
    {"w": "learning_rate", "b": "step"},
    {"X": "batch", "w": "epoch"},
]


@pytest.mark.parametrize("names", ODD, ids=str)
def test_odd_names_train_to_the_same_weights(tmp_path, context, names):
    expected = trained(tmp_path, named(), context)
    assert np.abs(expected[0]).max() > 0
    found = trained(tmp_path, named(**names), context, inputs=(names.get("X", "X"),))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


OLD = {
    **{f"opset {version}": named().replace(": 17", f": {version}") for version in (9, 13, 14, 15, 18, 21, 22)},
    "weights that are inputs": named()
    .replace("ir_version: 8", "ir_version: 3")
    .replace("[N, 10] X", "[N, 10] X, float[10, 1] w, float[1] b"),
}


@pytest.mark.parametrize("text", OLD.values(), ids=OLD)
def test_models_of_every_age_train_to_the_same_weights(tmp_path, context, text):
    for one, other in zip(trained(tmp_path, text, context), trained(tmp_path, named(), context), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_note_of_a_stage_is_said_whether_the_stage_ran_or_was_taken_from_the_store(context, tmp_path, monkeypatch):
    converted = stage.convert

    def noting(*given, **rest):
        return converted(*given, **rest).next("convert", 1, notes=["look at this"])

    monkeypatch.setattr(stage, "convert", noting)
    said = []
    for _ in range(2):
        events = []
        run(plan(stages=1), context, [events.append], Store(tmp_path))
        said.append([(e.name, e.message) for e in events if isinstance(e, StageNotice)])
    assert said == [[("convert", "look at this")]] * 2
    [finished] = [e for e in events if isinstance(e, StageFinished)]
    assert finished.hit is not None


def test_a_model_without_parameters_by_default_trains_those_that_are_named_from_the_store_too(context, tmp_path):
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N,10] X) => (float[N,1] y) <float[10] w = {WS}> {
        scaled = Mul(X, w) y = ReduceMax<axes=[1], keepdims=1>(scaled) }"""
    path = tmp_path / "scaled.onnx"
    onnx.save(onnx.parser.parse_model(text.replace("WS", ",".join(["0.5"] * 10))), path)
    convert, *others = plan()
    steps = (Step(convert.stage, ConvertConfig(OnnxFile(path=str(path)))), *others)
    store = Store(tmp_path / "store")
    with pytest.raises(DeriveError, match="At least one parameter must be trained"):
        run(steps, context, [], store)
    derive = Step(others[2].stage, DeriveConfig(parameters=("w",)))
    events = []
    named = (*steps[:3], derive, *steps[4:])
    trained = run(named, context, [events.append], store)
    hits = [e.name for e in events if isinstance(e, StageFinished) and e.hit is not None]
    assert hits == ["convert", "add_loss", "penalty"]
    assert trained.facts.parameters == ("w",)
