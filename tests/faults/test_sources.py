"""Sources that are not there, lie outside, or may not be trusted; also where their result is stored already."""

from __future__ import annotations

import os
from pathlib import Path

import joblib
import numpy as np
import onnx
import pytest
from command import ortpipe
from faults.conftest import outputs_of
from faults.processes import SMALL
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge

from ortpipe import ConvertConfig, SplitConfig, convert, split
from ortpipe.data.rows import Rows
from ortpipe.errors import ModelError
from ortpipe.flow import FLOW
from ortpipe.pipeline.events import StageFinished
from ortpipe.pipeline.plan import Step
from ortpipe.pipeline.run import run
from ortpipe.pipeline.store import Store
from ortpipe.stages.convert.sources.onnx_file import OnnxFile

X, Y = load_diabetes(return_X_y=True)
DATA = split(Rows({"X": X.astype(np.float32)}, Y), SplitConfig())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a model whose weights lie beside it."""
    (tmp_path / "models").mkdir()
    path = tmp_path / "models" / "a.onnx"
    made = convert(Ridge().fit(X, Y)).model
    onnx.save(made, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def point(path: Path, location: str) -> None:
    made = onnx.load(path, load_external_data=False)
    for tensor in made.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    path.write_bytes(made.SerializeToString())


def taken(path: Path, store: Store) -> bool:
    """Convert a file, and return whether that came from the store."""
    events: list[object] = []
    steps = (Step(FLOW[0], ConvertConfig(OnnxFile(str(path)))),)
    run(steps, {"data": DATA}, [events.append], store)
    [finished] = [event for event in events if isinstance(event, StageFinished)]
    return finished.hit is not None


REFUSED = {
    "missing": lambda path: (path.parent / "weights.bin").unlink(),
    "outside": lambda path: (os.rename(path.parent / "weights.bin", path.parents[1] / "out"), point(path, "../out")),
    "absolute": lambda path: point(path, str(path.parent / "weights.bin")),
    "a link out": lambda path: (
        os.rename(path.parent / "weights.bin", path.parents[1] / "out"),
        (path.parent / "weights.bin").symlink_to("../out"),
    ),
    "a folder that is a link out": lambda path: (
        os.rename(path.parent / "weights.bin", path.parents[1] / "out"),
        (path.parent / "within").symlink_to(".."),
        point(path, "within/out"),
    ),
}


@pytest.mark.parametrize("how", REFUSED)
def test_external_data_that_are_not_beside_the_model_are_refused_also_when_the_result_is_stored(
    model: Path, tmp_path: Path, how: str
) -> None:
    store = Store(tmp_path / "cache")
    assert [taken(model, store), taken(model, store)] == [False, True]
    REFUSED[how](model)
    with pytest.raises(ModelError, match="external data must be readable"):
        taken(model, store)
    assert len(list(store.entries())) == 1


def test_missing_external_data_are_told_by_name_on_the_command_line(model: Path, tmp_path: Path) -> None:
    (tmp_path / "models" / "weights.bin").unlink()
    choices = ("~experiment", "data=diabetes", "add_loss=l2", "convert=onnx", "recorder=none")
    done = ortpipe(*choices, f"convert.source.path={model}", cwd=tmp_path)
    assert done.returncode == 1
    assert "error: The .onnx file and its external data must be readable." in done.stderr
    assert "weights.bin" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_pickle_is_refused_without_trust_also_when_its_result_is_stored(tmp_path: Path) -> None:
    joblib.dump(Ridge().fit(X, Y), tmp_path / "a.pkl")
    source = ("convert.source.estimator=null", "convert.source.scaler=null", "convert.source.path=a.pkl")
    trusted = ortpipe(*SMALL, *source, "convert.source.trust=true", cwd=tmp_path)
    assert trusted.returncode == 0, trusted.stderr
    done = ortpipe(*SMALL, *source, cwd=tmp_path)
    assert done.returncode == 1
    assert "error: A pickle runs code when it is opened, so it is opened only on request." in done.stderr
    again = ortpipe(*SMALL, *source, "convert.source.trust=true", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert len(outputs_of(tmp_path)[0]) == 6
