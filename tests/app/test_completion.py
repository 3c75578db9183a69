"""Tab completion: the function that bash calls, behind commands too; and words that are no command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.errors import OverrideParseException

from ortpipe.app import cli
from ortpipe.app.command_list import COMMANDS, FIRST_ARGUMENTS, answer
from ortpipe.app.hydra_errors import explained
from ortpipe.flow import FLOW

SCRIPT = """
eval "$(ortpipe -sc install=bash)"
for line in "$@"; do
  COMP_LINE=$line COMP_POINT=${#line} words=($line) COMPREPLY=()
  COMP_CWORD=$((${#words[@]} - 1))
  case $line in *" ") COMP_CWORD=${#words[@]};; esac
  hydra_bash_completion
  echo "${COMPREPLY[*]}"
done
complete -p ortpipe
"""
LINES = {
    "ortpipe pl": "plan",
    "ortpipe plan --check experiment=lin": "experiment=linear_regression",
    "ortpipe validate train.epo": "train.epochs=",
}


def test_bash_completes_commands_and_behind_them_the_keys_of_a_run(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", SCRIPT, "bash", *LINES],
        capture_output=True,
        encoding="utf-8",
        env=environment,
        cwd=tmp_path,
        check=True,
    )
    *found, rule = done.stdout.splitlines()
    assert dict(zip(LINES, found, strict=True)) == LINES
    assert "-o default" in rule  # where nothing is found, bash completes files


ANSWERS = {
    "ortpipe ca": ("cache\n", True, "ortpipe ca"),
    "ortpipe ": (f"{' '.join(COMMANDS)}\n", True, "ortpipe "),
    "ortpipe train.epochs=1 tr": ("", True, "ortpipe train.epochs=1 tr"),
    "ortpipe plan a=1 --check ~x tr": ("", True, "ortpipe a=1 ~x tr"),
    "ortpipe plan --ch": ("", False, "ortpipe --ch"),
    "ortpipe show out": ("", False, "ortpipe out"),
    "ortpipe cache ": ("gc ls rm verify\n", False, "ortpipe cache "),
    "ortpipe run-stage tr": ("train\n", False, "ortpipe run-stage tr"),
    "ortpipe run-stage train tr": ("", True, "ortpipe tr"),
}


@pytest.mark.parametrize(("line", "expected"), ANSWERS.items(), ids=ANSWERS)
def test_what_a_command_takes_is_completed_and_hydra_sees_a_run(line, expected, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COMP_LINE", line)
    go_on = answer()
    assert (capsys.readouterr().out, go_on, os.environ["COMP_LINE"]) == expected


def test_what_run_stage_takes_first_are_the_stages() -> None:
    assert set(FIRST_ARGUMENTS["run-stage"]) == {stage.name for stage in FLOW}
    assert set(FIRST_ARGUMENTS) <= set(COMMANDS)


WORDS = {
    "vlidate": "Did you mean 'validate'",
    "run-stge": "Did you mean 'run-stage'",
    "trian": "Did you mean 'retrain'? Valid: adapter, cache, ",
}


@pytest.mark.parametrize(("word", "guess"), WORDS.items())
def test_an_unknown_command_says_so_and_lists_the_commands(word, guess, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["ortpipe", word, "train.epochs=1"])
    monkeypatch.setattr(cli, "listen_for_signals", lambda: None)  # this process is pytest's
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {word} is no command.\n  fix: {guess}")
    assert ", ".join(sorted(COMMANDS)) in error


def test_a_command_that_does_not_come_first_is_told_where_it_belongs() -> None:
    error = explained(OverrideParseException("plan", "no viable alternative"))
    assert "The command must come first: ortpipe plan …" in str(error)
