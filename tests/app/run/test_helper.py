"""A helper does what it is asked, whatever is signalled meanwhile, and ends with its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")

HEAD = """
import os, signal, sys, time
from ortpipe.app import stop
from ortpipe.app.run.helper import Helper, HelperEnded, saves
from ortpipe.errors import ConfigError
stop.listen_for_signals()

def work(name, *rest):
    if name == "sleep":
        time.sleep(rest[0])
    if name == "refuse":
        raise ConfigError("{key} is no rule.", key="own", got=3, fix="Set {key}=4.").under("convert")
    if name == "fail":
        raise KeyError("lost")
    if name == "double":
        return rest[0] * 2
    return name, os.getpid()

def prepare():
    import fractions
"""


def ran(code: str, *signals: int) -> tuple[int, str]:
    """Return the exit code and output of a script; after each line `now` its whole group is signalled."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HEAD + code]
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=environment, start_new_session=True, **out) as process:
        said, left = "", list(signals)
        for line in process.stdout:
            if line == "now\n":
                os.killpg(process.pid, left.pop(0))
            else:
                said += line
        return process.wait(), said


def test_a_call_is_made_in_another_process_and_gives_its_result() -> None:
    code = """
with Helper(work, prepare) as helper:
    helper.ask("double", b"x" * 1_000_000)
    print(len(helper.answer()))
    helper.ask("where")
    print(helper.answer()[1] == os.getpid(), "fractions" in sys.modules)
print(open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read() == "")
"""
    assert ran(code) == (0, "2000000\nFalse False\nTrue\n")


def test_what_it_raises_is_raised_here_with_all_that_an_error_says() -> None:
    code = """
with Helper(work, prepare) as helper:
    for name in ("refuse", "fail", "where"):
        helper.ask(name)
        try:
            print(helper.answer()[0])
        except Exception as error:
            print(type(error).__name__, error)
"""
    rule = "ConfigError convert.own is no rule.\n  got: 3\n  fix: Set convert.own=4.\n"
    assert ran(code) == (0, f"{rule}RuntimeError 'lost'\nwhere\n")


def test_an_import_that_fails_ends_nothing() -> None:
    code = """
def broken():
    import no_such_module
with Helper(work, broken) as helper:
    helper.ask("where")
    print(helper.answer()[0])
"""
    assert ran(code) == (0, "where\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_waiting_and_not_the_call_and_the_next_answer_is_its_own(number: int) -> None:
    code = """
with Helper(work, prepare) as helper:
    helper.ask("where")
    helper.answer()
    helper.ask("sleep", 1.0)
    try:
        print("now", flush=True)
        helper.answer()
    except stop.Stopped as stopped:
        helper.ask("double", "next")
        print(stopped.code, helper.answer())
"""
    assert ran(code, number) == (0, f"{128 + number} nextnext\n")


def test_a_message_that_a_signal_meets_is_sent_whole() -> None:
    code = """
content, got = b"x" * 5_000_000, 0
with Helper(work, prepare) as helper:
    for _ in range(20):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, 0.004)
        try:
            helper.ask("double", content)
            helper.answer()
        except stop.Stopped:
            got += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            helper.ask("double", "whole")
            assert helper.answer() == "wholewhole"
        except stop.Stopped:
            got += 1
print(got > 5)
"""
    assert ran(code) == (0, "True\n")


def test_a_helper_that_was_killed_is_said_to_have_ended() -> None:
    code = """
with Helper(work, prepare) as helper:
    os.kill(helper._process, signal.SIGKILL)
    for _ in range(2):
        try:
            helper.ask("where")
            helper.answer()
        except HelperEnded as error:
            print(error)
"""
    assert ran(code) == (0, "the process that works beside this one has ended\n" * 2)


@pytest.mark.parametrize("busy", [False, True])
def test_it_ends_with_its_process_though_that_is_killed(busy: bool) -> None:
    code = f"""
helper = Helper(work, prepare)
helper.ask("where")
print(helper.answer()[1], flush=True)
if {busy}:
    helper.ask("sleep", 60)
print("now", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD + code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        helper = int(process.stdout.readline())
        assert process.stdout.readline() == "now\n"
        assert Path(f"/proc/{helper}").exists()
        process.kill()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{helper}").exists() and "(zombie)" not in Path(f"/proc/{helper}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_saves_nothing_where_the_module_is_here_or_there_is_one_core() -> None:
    code = """
print(saves("fractions"), saves("sys"))
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(saves("fractions"))
"""
    several = len(os.sched_getaffinity(0)) > 1
    assert ran(code) == (0, f"{several} False\nFalse\n")
