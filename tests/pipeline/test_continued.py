"""A longer training continues from the store, with the bytes of one from scratch."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Rows
from ortpipe.data.split import split
from ortpipe.errors import TrainError
from ortpipe.flow import FLOW
from ortpipe.pipeline.dry_run import Reason, dry_run
from ortpipe.pipeline.events import StageNotice
from ortpipe.pipeline.plan import Step
from ortpipe.pipeline.run import run
from ortpipe.pipeline.store import Store
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses.l2 import L2
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.networks.mlp import MLP
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.train.config import EarlyStopConfig, TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.schedules import SCHEDULES

X, Y = load_diabetes(return_X_y=True)
Y = (Y - Y.mean()) / Y.std()
ROWS = Rows({"X": X.astype(np.float32)}, Y.astype(np.float32))
EARLY = EarlyStopConfig(patience=3)
RISING = {"optimizer": OPTIMIZERS["adam"](lr=0.2), "seed": 14}  # its lowest validation loss is not the last one
CASES = {
    **{name: {"optimizer": OPTIMIZERS[name]()} for name in ("adam",)},
    **{name: {"schedule": SCHEDULES[name]()} for name in ("adaptive", "reduce_on_plateau")},
    "restarts": {"schedule": SCHEDULES["cosine"](period=7), "warmup": 5},
    "accumulated": {"accumulate": 3, "drop_last": True},
    "validated": {"validate_every": 2},
    "early stop, kept before the end": {**RISING, "early_stop": EARLY},
    "early stop, stopped before the end": {**RISING, "seed": 13, "early_stop": EarlyStopConfig(patience=1)},
    "early stop, kept before the end, average": {**RISING, "early_stop": EARLY, "average": 0.5},
}
FROM_SCRATCH = {
    "a schedule over all epochs": {"schedule": SCHEDULES["cosine"]()},
    "its last epoch was validated as the last": {"validate_every": 3},
    "lbfgs": {"optimizer": OPTIMIZERS["lbfgs"](), "batch_size": 32, "dropout": 0.0},
}


def plan(*, dropout=0.2, **settings):
    configs = {
        "convert": ConvertConfig(MLP(hidden=(8,), dropout=dropout)),
        "add_loss": AddLossConfig(L2()),
        "penalty": PenaltyConfig(),
        "derive": DeriveConfig(),
        "train": TrainConfig(**{"batch_size": 64, **settings}),
    }
    return tuple(Step(stage, configs[stage.name]) for stage in FLOW if stage.name in configs)


def context(validation=0.2):
    data = split(ROWS, SplitConfig(validation=validation, test=0.2))
    return {"data": data, "runtime": RuntimeConfig(), "start": None}


def performed(steps, store, given):
    events = []
    artifact = run(steps, given, [events.append], store)
    return artifact, [e.message for e in events if isinstance(e, StageNotice) and "continues after" in e.message]


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """Return a store with the stages before train, for all cases."""
    return Store(tmp_path_factory.mktemp("store"), {"folder": "the first run"})


@pytest.mark.parametrize("name", CASES)
def test_more_epochs_continue_with_the_bytes_of_a_training_from_scratch(stages, name):
    settings, given = {"seed": list(CASES).index(name), **CASES[name]}, context()
    first, notices = performed(plan(epochs=4, **settings), stages, given)
    assert notices == []
    record = first.facts.lineage[-1].get("early_stop", {})
    done = record.get("epoch", 4)
    statuses = dry_run(plan(epochs=7, **settings), given, stages)
    assert statuses[-1].reasons == (Reason("continued", old=done, new=7),)
    longer, notices = performed(plan(epochs=7, **settings), stages, given)
    assert notices == [f"continues after epoch {done}, which the first run computed"]
    again, _ = performed(plan(epochs=7, **settings), None, given)
    assert longer.digest() == again.digest()
    assert list(longer.tensors) == list(again.tensors)
    assert longer.facts.lineage == again.facts.lineage
    assert done < 4 or "before the end" not in name


@pytest.mark.parametrize("name", FROM_SCRATCH)
def test_epochs_that_would_differ_are_computed_again(stages, name):
    settings, given = FROM_SCRATCH[name], context()
    performed(plan(epochs=4, **settings), stages, given)
    [*_, status] = dry_run(plan(epochs=7, **settings), given, stages)
    assert status.reasons == (Reason("changed", "train.epochs", 4, 7),)
    longer, notices = performed(plan(epochs=7, **settings), stages, given)
    assert notices == []
    assert longer.digest() == performed(plan(epochs=7, **settings), None, given)[0].digest()


def test_without_validation_rows_any_epoch_is_a_start(stages):
    settings, given = {"validate_every": 3, "early_stop": EARLY}, context(validation=0.0)
    performed(plan(epochs=2, **settings), stages, given)
    longer, notices = performed(plan(epochs=4, **settings), stages, given)
    assert notices == ["continues after epoch 2, which the first run computed"]
    assert longer.digest() == performed(plan(epochs=4, **settings), None, given)[0].digest()


def test_it_continues_the_longest_one_that_is_stored(stages):
    settings, given = {"seed": 200}, context()
    for epochs in (1, 3, 2):
        performed(plan(epochs=epochs, **settings), stages, given)
    assert performed(plan(epochs=4, **settings), stages, given)[1] == [
        "continues after epoch 3, which the first run computed"
    ]


def test_any_number_of_epochs_finds_its_start_at_once(stages):
    """Trying the keys of all shorter trainings would take an hour."""
    settings, given = {"seed": 400}, context()
    performed(plan(epochs=2, **settings), stages, given)
    *_, status = dry_run(plan(epochs=100_000_000, **settings), given, stages)
    assert status.reasons == (Reason("continued", old=2, new=100_000_000),)


def test_an_entry_without_the_seal_of_the_store_is_no_start(stages):
    settings, given = {"seed": 300}, context()
    performed(plan(epochs=2, **settings), stages, given)
    sealed = Store(stages.folder, key=b"k" * 32)
    assert performed(plan(epochs=3, **settings), sealed, given)[1] == []


@pytest.mark.parametrize("states", [2, (4, 2)])
def test_states_that_are_asked_for_are_results_of_so_many_epochs(stages, states):
    settings, given = {"seed": 400 + (states == 2)}, context()
    longer, notices = performed(plan(epochs=5, states=states, **settings), stages, given)
    assert notices == [f"continues after epoch {n}, which the first run computed" for n in (2, 4)]
    assert longer.digest() == performed(plan(epochs=5, **settings), None, given)[0].digest()
    for epochs in (2, 4):
        [*_, status] = dry_run(plan(epochs=epochs, **settings), given, stages)
        assert status.status == "hit"
        assert performed(plan(epochs=epochs, **settings), None, given)[0].digest() == status.entry.output


@pytest.mark.parametrize(
    ("settings", "got"),
    [
        ({"states": (3, 9)}, "9 of 7"),
        ({"states": 2, "schedule": SCHEDULES["cosine"]()}, "2, of 7 epochs"),
        ({"states": (4, 6), "validate_every": 4}, "6, of 7 epochs"),
        ({"states": 2, "early_stop": EARLY}, "early_stop.patience"),
        (FROM_SCRATCH["lbfgs"] | {"states": 3}, "3, of 7 epochs"),
    ],
    ids=str,
)
def test_a_state_that_no_training_would_continue_from_is_rejected_early(stages, settings, got):
    with pytest.raises(TrainError) as error:
        performed(plan(epochs=7, **settings), stages, context())
    assert error.value.got == got
