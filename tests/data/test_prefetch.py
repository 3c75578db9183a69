"""A second thread makes what comes next: the same items, the same errors, and nothing that is left behind."""

import subprocess
import sys
import threading
import time

import pytest

from ortpipe.data.prefetch import prefetch


@pytest.fixture
def threads():
    """Return what lists the threads that this test began: another test's may stay until its iterator is collected."""
    earlier = {*threading.enumerate()}
    return lambda: [thread for thread in {*threading.enumerate()} - earlier if thread.name.startswith("prefetch")]


def numbers(count, made, *, error=None):
    for number in range(count):
        made.append((number, threading.current_thread()))
        yield number
    if error is not None:
        raise error


@pytest.mark.parametrize("count", [0, 1, 2, 100])
def test_items_come_in_their_order_from_one_other_thread(count, threads):
    made = []
    assert list(prefetch(numbers(count, made))) == list(range(count))
    assert len({thread for _, thread in made} - {threading.current_thread()}) == min(1, count)
    assert threads() == []


def test_an_error_comes_where_its_item_would_and_is_the_same_one(threads):
    error = ValueError("row 7 of rows.parquet")
    items = prefetch(numbers(3, [], error=error))
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match=r"row 7 of rows\.parquet") as raised:
        next(items)
    assert raised.value is error
    assert threads() == []


def test_no_more_is_made_than_was_said():
    made = []
    items = prefetch(numbers(100, made), count=3)
    assert next(items) == 0
    deadline = time.monotonic() + 10
    while len(made) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(made) == 4  # the one that was given, and three ahead
    items.close()


def test_whoever_leaves_early_ends_the_thread_and_what_it_read_from(threads):
    closed = []

    def items():
        try:
            yield from range(100)
        finally:
            closed.append(True)

    for item in prefetch(items()):
        if item == 2:
            break
    assert closed == [True]
    assert threads() == []


HELD = """
from ortpipe.data.prefetch import prefetch
held = prefetch(iter(range(100)))
next(held)
raise SystemExit(3)
"""


def test_a_process_ends_though_somebody_holds_an_iterator_that_is_not_closed():
    assert subprocess.run([sys.executable, "-c", HELD], timeout=60, check=False).returncode == 3
