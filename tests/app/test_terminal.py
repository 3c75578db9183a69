"""A stream that is closed, full, or that nobody reads ends no run; a command whose output is lost says so."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import onnx.parser
import pytest
from command import run

from ortpipe.app import terminal
from ortpipe.app.command_list import command
from ortpipe.app.terminal import TerminalStream, streams

ROOT = Path(__file__).resolve().parents[2]


def ran(code: str, **files: object) -> subprocess.CompletedProcess[bytes]:
    """Run code inside `streams`, with these as standard output and error."""
    body = "".join(f"    {line}\n" for line in code.splitlines())
    program = f"import os, sys\nfrom ortpipe.app.terminal import forgive, streams\nwith streams():\n{body}os._exit(7)\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", program], env=environment, **files)  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def broken() -> int:
    """Return the writing end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def test_a_standard_error_that_nobody_reads_or_that_is_full_raises_nothing(broken: int) -> None:
    code = "for i in range(3): print('x' * 99999, file=sys.stderr, flush=True)"
    with open("/dev/full", "w") as full:
        for stream in (broken, full):
            assert ran(code, stderr=stream).returncode == 7


def test_standard_output_forgives_once_a_run_begins_and_raises_before(broken: int) -> None:
    code = "print('x', flush=True)"
    assert ran(f"forgive()\n{code}", stdout=broken).returncode == 7
    done = ran(code, stdout=broken, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith(b"BrokenPipeError: [Errno 32] Broken pipe")  # once: no second one at the end


def test_the_next_file_does_not_take_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    code = f"""
        import os, sys
        os.close(1), os.close(2)
        sys.stdout = sys.stderr = None
        from ortpipe.app.terminal import streams
        with streams():
            with open({str(tmp_path / "database")!r}, "w") as file:
                print("lost"), print("lost", file=sys.stderr)
                os.write(2, b"a library's")
                os._exit(0 if file.fileno() > 2 else 1)
    """
    program = "\n".join(line[8:] for line in code.splitlines())
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0
    assert (tmp_path / "database").read_text() == ""


def test_what_cannot_be_printed_is_said_once_in_the_log(
    broken: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "_pending", [])
    with os.fdopen(broken, "w") as file, caplog.at_level(logging.WARNING):
        stream = TerminalStream(file, 2, forgiving=True)
        for _ in range(3):
            stream.write("lost\n")
            stream.flush()
    [record] = caplog.records
    assert record.getMessage() == "standard error cannot be written (Broken pipe); the run continues"


def test_the_streams_are_put_back() -> None:
    before = sys.stdout, sys.stderr
    with streams():
        assert isinstance(sys.stderr, TerminalStream)
        assert sys.stderr.encoding == before[1].encoding
    assert (sys.stdout, sys.stderr) == before


def test_a_run_that_can_print_nowhere_finishes_and_its_folder_has_all(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ortpipe", "experiment=linear_regression", "train.epochs=2", "recorder=none"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with open("/dev/full", "w") as full:
        done = run([*command, "hydra.run.dir=r"], cwd=tmp_path, env=environment, stdout=full, stderr=full)
    assert done.returncode == 0
    assert json.loads((tmp_path / "r" / "run.json").read_text())["status"] == "FINISHED"
    assert (tmp_path / "r" / "report.html").is_file()
    log = (tmp_path / "r" / "ortpipe.log").read_text()
    assert log.count("standard error cannot be written") == log.count("standard output cannot be written") == 1


def test_a_command_whose_output_is_lost_fails() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ortpipe", "--version"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert b"error: The disk must have space" in done.stderr


def test_a_name_that_commands_the_terminal_is_shown_and_not_obeyed(tmp_path, capsys) -> None:
    evil = "w\x1b]0;gone\x07\x9b2J\u202e"
    graph = "g (float[N,1] X) => (float[N,1] Y) <float[1] w = {1}> { Y = Mul(X, w) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {graph}')
    model.graph.initializer[0].name = model.graph.node[0].input[1] = evil
    file = tmp_path / "m.onnx"
    file.write_bytes(model.SerializeToString())
    for arguments in (["show", str(file)], ["show", "--mermaid", str(file)], ["diff", str(file), str(file)]):
        with streams():
            command(arguments[0])(arguments[1:])
        said = capsys.readouterr().out
        assert not set(said) & set("\x1b\x07\x9b\u202e\r")
        assert arguments[0] == "diff" or r"w\x1b]0;gone\x07\x9b2J\u202e" in said


def test_a_progress_bar_begins_its_line_again(capsys) -> None:
    with streams():
        print("\repoch 1\x1b[A\r", end="", file=sys.stderr)
    assert capsys.readouterr().err == "\repoch 1\\x1b[A\\r"
