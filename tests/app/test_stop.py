"""A process that sits inside a library ends soon after a signal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from command import Popen

LISTEN = """
from ortpipe.app import stop
stop.PATIENCE, stop.GRACE = {patience}, {grace}
stop.listen_for_signals()
"""
LOOP = '''
import numpy as np, onnx.parser
from ortpipe.runtime.session import Session
session = Session(onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
    g (int64 steps, float[2] x) => (float[2] y)
    { y = Loop(steps, , x) <body = b (int64 i, bool go, float[2] a) => (bool on, float[2] next)
        { on = Identity(go)  next = Neg(a) }> }"""))
print("ready", flush=True)
try:
    session.run({"steps": np.array(2**62), "x": np.ones(2, np.float32)})
except stop.Stopped as stopped:
    print("cleaned up", flush=True)
    raise SystemExit(stopped.code)
'''
LIBRARY = """
import hashlib
from pathlib import Path
from ortpipe.app.run.record import RunRecord
state = RunRecord(Path("."), "run", {})
state.write()
stop.before_the_end(state.abandon)
print("ready", flush=True)
hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # a quarter of an hour, in C
"""


STREAM = """
import numpy as np
from sklearn.linear_model import LinearRegression
from ortpipe import LOSSES, AddLossConfig, SplitConfig, TrainConfig, add_loss, convert, derive, train
from ortpipe.data.sources.npy import Npy
from ortpipe.data.load import DataConfig, load
np.save("X.npy", np.random.default_rng(0).normal(size=(400_000, 20)).astype(np.float32))
np.save("y.npy", np.ones(400_000, np.float32))
data = load(DataConfig(Npy("X.npy", stream=True, window=1), SplitConfig(test=0.2, validation=0.1)))
gradients = derive(add_loss(convert(LinearRegression(), data=data), AddLossConfig(LOSSES["l2"]())), data=data)
def seen(event):
    if getattr(event, "number", 0) == 1:
        print("ready", flush=True)
try:
    train(gradients, TrainConfig(epochs=100_000, batch_size=64), data=data, report=seen)
except stop.Stopped as stopped:
    print("cleaned up", flush=True)
    raise SystemExit(stopped.code)
"""


def ended(code, folder, number, *, times=1, patience=0.5, grace=0.5):
    listen = LISTEN.format(patience=patience, grace=grace)
    child = Popen([sys.executable, "-c", listen + code], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.2)
        begun = time.monotonic()
        for _ in range(times):
            child.send_signal(number)
            time.sleep(0.1)
        said, _ = child.communicate(timeout=30)
        return child.returncode, said, time.monotonic() - begun
    finally:
        child.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_loop_without_an_end_is_ended_and_what_is_open_is_closed(tmp_path, number):
    assert ended(LOOP, tmp_path, number, grace=20)[:2] == (128 + number, "cleaned up\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_training_on_rows_that_stream_ends_soon_and_leaves_no_file(tmp_path, monkeypatch, number):
    """A second thread reads them, and rows to validate on lie in a file without a name."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    expected = (-number, "") if number == signal.SIGKILL else (128 + number, "cleaned up\n")
    assert ended(STREAM, tmp_path, number, patience=20, grace=20)[:2] == expected
    assert list(scratch.iterdir()) == []


def test_a_library_that_never_returns_is_left_with_its_process_and_the_run_is_closed(tmp_path):
    code, _, _ = ended(LIBRARY, tmp_path, signal.SIGTERM)
    state = json.loads((tmp_path / "run.json").read_text())
    assert (code, state["status"]) == (128 + signal.SIGTERM, "KILLED")
    assert "SIGTERM" in state["error"]


def test_a_second_signal_waits_for_nothing(tmp_path):
    code, said, seconds = ended(LOOP, tmp_path, signal.SIGTERM, times=2, patience=60, grace=20)
    assert (code, said) == (128 + signal.SIGTERM, "cleaned up\n")
    assert seconds < 30
