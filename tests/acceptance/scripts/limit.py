"""A pytest plugin: a time limit for each test, and one line of JSON about it in `$EARLIER_LOG`."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Raise TimeoutError in a test after `$EARLIER_LIMIT` seconds."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"{os.environ['EARLIER_LIMIT']} s have passed")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(int(os.environ["EARLIER_LIMIT"]))
    try:
        return (yield)
    finally:
        signal.alarm(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Write the outcome of a test, and of a fixture that fails."""
    report = yield
    if report.when == "call" or not report.passed:
        said = call.excinfo.exconly() if call.excinfo else ""
        _write(item.path.stem, item.name, report.outcome, said, report.duration)
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write that a file cannot be imported."""
    if report.failed:
        _write(os.path.basename(report.nodeid).removesuffix(".py"), "", "failed", report.longreprtext, 0.0)


def _write(file: str, test: str, outcome: str, said: str, seconds: float) -> None:
    with open(os.environ["EARLIER_LOG"], "a") as log:
        log.write(json.dumps({"file": file, "test": test, "outcome": outcome, "said": said, "seconds": seconds}) + "\n")
