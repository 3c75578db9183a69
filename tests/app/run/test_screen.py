"""What a person sees of a training: its speed is that of the epochs, not of what came before them."""

import io
import re
from types import SimpleNamespace

import onnx
import onnx.parser
import pytest

from ortpipe import Artifact, Facts
from ortpipe.app.run.screen import Screen
from ortpipe.pipeline.events import RunStarted, StageFinished, StageNotice, StageProgressed, StageStarted
from ortpipe.stages.evaluate.baselines import BaselineFit
from ortpipe.stages.train.training import Epoch


def test_a_wait_before_the_first_epoch_does_not_count_as_slow_training(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    screen(StageStarted("train", 5, 6))
    for number, seconds in ((1, 60.0), (2, 61.0), (3, 62.0)):  # another job's lock, and a large graph
        screen(StageProgressed("train", Epoch(number, 3, 0.5, None, None, 100 * number, 100 * number), seconds))
    lines = capsys.readouterr().err.splitlines()
    assert lines[1:] == [
        "  epoch 1/3: loss 0.5",
        "  epoch 2/3: loss 0.5, 100 steps/s",
        "  epoch 3/3: loss 0.5, 100 steps/s",
    ]


@pytest.mark.parametrize(("seconds", "is_long"), [(8.0, True), (4.9, False)])
def test_training_of_more_than_ten_times_a_baseline_gets_a_line(
    capsys: pytest.CaptureFixture[str], seconds: float, is_long: bool
) -> None:
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[N] x) => (float[N] y) { y = Neg(x) }'
    model = Artifact(onnx.parser.parse_model(text), Facts("regression", ("x",), ("y",), "y", ()))
    screen, boosting = Screen(), "HistGradientBoosting"
    screen(StageFinished("train", 5, model, seconds, "", {}, "", None, None))
    screen(StageProgressed("evaluate", BaselineFit(boosting, ended=False), 1.0))
    screen(StageProgressed("evaluate", BaselineFit(boosting, ended=True), 1.5))
    line = f"  training took 8.00 s, 16 times the 0.50 s of {boosting}\n"
    assert capsys.readouterr().err == (line if is_long else "")


def test_a_job_of_a_sweep_says_only_what_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    for job in (0, 1):
        screen = Screen(["1,168 rows to train"], job)
        for event in (RunStarted(()), StageStarted("convert", 1, 6), StageNotice("convert", "trains w", stored=True)):
            screen(event)
        screen(StageNotice("train", "stopped after epoch 3 of 60"))
    assert capsys.readouterr().err.splitlines() == [
        "job 0: data: 1,168 rows to train",
        "job 0: stopped after epoch 3 of 60",
        "job 1: stopped after epoch 3 of 60",
    ]


@pytest.mark.parametrize("job", [None, 7])
def test_a_slow_training_speaks_every_few_seconds(
    job: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("ortpipe.app.run.screen.time", SimpleNamespace(monotonic=lambda: now))
    screen = Screen(job=job)
    screen(StageStarted("train", 5, 6))
    for number in range(1, 7):  # 2.6 seconds each, of 59 epochs
        now += 2.6
        screen(StageProgressed("train", Epoch(number, 59, 0.5, None, None, number, number), now - 100))
    lines = capsys.readouterr().err.splitlines()
    assert [int(line.partition("epoch ")[2].partition("/")[0]) for line in lines if "epoch" in line] == [2, 4, 6]


def test_a_cell_of_a_notebook_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    monkeypatch.setattr("sys.stderr", cell)
    screen = Screen()
    screen(StageStarted("train", 5, 6))
    for number in (1, 2, 3):
        screen(StageProgressed("train", Epoch(number, 3, 0.5, None, None, number, number), float(number)))
    screen._close_bar()
    *_, last = cell.getvalue().rstrip("\n").split("\r")
    assert re.fullmatch(r"epoch 3/3 \|[█#]+\| loss 0.5, 1 steps/s, 00:00 left", last.strip())
