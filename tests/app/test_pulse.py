"""A command that prints nothing else prints its current step every few seconds."""

import re
import time

import pytest

from ortpipe.app import pulse
from ortpipe.app.command_list import command
from ortpipe.app.pulse import Pulse


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "EVERY", 0.01)


def wait_for_lines(capsys: pytest.CaptureFixture[str], count: int) -> list[str]:
    lines: list[str] = []
    while len(lines) < count:
        time.sleep(0.005)
        lines += capsys.readouterr().err.splitlines()
    return lines


@pytest.mark.usefixtures("fast")
def test_a_silent_step_prints_its_duration_until_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    own = Pulse()
    with own.during("predict"):
        own.detail("8,192 rows")
        assert all(re.fullmatch(r"  predict, \d+ s so far, 8,192 rows", line) for line in wait_for_lines(capsys, 2))
        with own.during("evaluate"):  # a run inside the command
            assert re.fullmatch(r"  evaluate, \d+ s so far", wait_for_lines(capsys, 1)[-1])
        own.step("")  # a progress bar
        capsys.readouterr()
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_a_step_that_prints_is_left_alone_and_a_long_one_prints_less_often(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, seconds = [0.0], iter([4, 3, 4, 600, 29, 2])  # between two looks
    own = Pulse()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    own.step("derive")

    class Clock:
        def wait(self, pause: float) -> bool:
            step = next(seconds, None)
            now[0] += step or 0
            if now[0] == 7:
                own.heard()
            return step is None

    own._watch(Clock())  # type: ignore[arg-type]
    assert capsys.readouterr().err.splitlines() == ["  derive, 611 s so far", "  derive, 642 s so far"]


@pytest.mark.usefixtures("fast")
def test_a_command_prints_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    command("schedule")(["experiment=linear_regression"])
    assert re.search(r"^  schedule, \d+ s so far$", capsys.readouterr().err, re.M)
