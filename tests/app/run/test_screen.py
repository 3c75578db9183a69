"""What a person sees of a training: its speed is that of the epochs, not of what came before them."""

import pytest

from ortpipe.app.run.screen import Screen
from ortpipe.pipeline.events import StageProgressed, StageStarted
from ortpipe.stages.train.losses import Epoch


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
