"""A command that prints nothing else prints its current step every few seconds."""

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
        assert {*wait_for_lines(capsys, 2)} == {"  predict, 0 s so far, 8,192 rows"}
        with own.during("evaluate"):  # a run inside the command
            assert wait_for_lines(capsys, 1)[-1] == "  evaluate, 0 s so far"
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
    assert "  schedule, 0 s so far" in capsys.readouterr().err.splitlines()
