from __future__ import annotations

import sys
from pathlib import Path

from command import ROOT, run

from acceptance.files.run import with_tests
from acceptance.scripts.known import DELIBERATE
from acceptance.scripts.run import FAILED, PASSED, PURPOSE, Result, may_match


def test_every_deliberate_difference_from_the_earlier_libraries_is_a_row_of_its_page() -> None:
    page = (ROOT / "docs" / "howto" / "onnxcustom.md").read_text()
    rows = [line.split(" | ")[0].removeprefix("| ") for line in page.splitlines()]
    assert [why for why in DELIBERATE if why not in rows] == []


def test_a_test_of_an_earlier_library_that_does_not_end_as_listed_fails() -> None:
    name = "onnxcustom/test_data_loader/test_ort_data_loader_101"
    ends = {"AssertionError: 1 != 5": PURPOSE, "KeyError: 5": FAILED}
    assert {said: Result(name, "failed", said, 0.0).verdict()[0] for said in ends} == ends
    assert Result(name, "passed", "", 0.0).verdict()[0] == FAILED
    assert Result("onnxcustom/test_x/test_y", "passed", "", 0.0).verdict()[0] == PASSED
    assert Result("onnxcustom/test_x/test_y", "skipped", "Skipped: no GPU", 0.0).verdict()[0] == FAILED


def test_files_that_hold_nothing_of_an_expression_are_not_run(tmp_path: Path) -> None:
    file = tmp_path / "test_small.py"
    file.write_text(SMALL)
    chosen = {"": True, "test_rate": True, "RATE and x": True, "small": True, "not rate": True, "loss or nan": False}
    assert {expression: may_match(expression, file) for expression in chosen} == chosen


def test_a_checkout_of_an_earlier_library_is_rewritten_run_and_judged(tmp_path: Path) -> None:
    tests = tmp_path / "checkout" / "_unittests" / "ut_training"
    tests.mkdir(parents=True)
    (tmp_path / "checkout" / "onnxcustom").mkdir()
    (tests / "test_small.py").write_text(SMALL)
    command = [sys.executable, "-m", "acceptance", "scripts", str(tmp_path / "checkout"), "--limit", "5"]
    done = run(command, cwd=ROOT, env=with_tests(), text=True)
    assert done.returncode == 1, done.stderr
    assert "| onnxcustom/test_small/test_rate | passed |" in done.stdout
    assert "| onnxcustom/test_small/test_slow | FAILED | TimeoutError: 5 s have passed |" in done.stdout
    assert done.stdout.endswith("1 passed, 0 deliberate difference, 0 needs what is gone, 1 FAILED\n")


SMALL = """
import time
from pyquickhelper.pycode import ExtTestCase
from onnxcustom.training.sgd_learning_rate import (
    LearningRateSGD)

class TestSmall(ExtTestCase):
    def test_rate(self):
        self.assertGreater(len(list(LearningRateSGD().loop())), 1)

    def test_slow(self):
        time.sleep(60)
"""
