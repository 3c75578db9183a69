"""ortpipe init: the project that it makes runs with the commands that it prints and that its README shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import command
import pytest

from ortpipe.app.commands.init import FILES, TEMPLATES
from ortpipe.errors import ConfigError


def shell(line: str, folder: Path) -> str:
    done = command.shell(line, folder)
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a project that was run with the printed command."""
    folder = tmp_path_factory.mktemp("user")
    made, suggested = shell("ortpipe init 'my flats'", folder).splitlines()
    assert made == f"made    my flats: {', '.join(FILES)}"
    assert "scikit-learn LinearRegression" in shell(suggested.removeprefix("run it  "), folder)
    return folder / "my flats"


def test_the_printed_command_trains_a_model_that_predicts(project: Path) -> None:
    import json

    [record] = project.glob("outputs/runs/*/*/run.json")
    r2 = json.loads(record.read_text())["metrics"]["r2"]
    assert r2["trained"] > 0.95 > r2["before"]


def test_every_command_of_its_readme_runs(project: Path) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", (project / "README.md").read_text(), re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    assert lines[0] == "ortpipe --config-dir conf experiment=mine"  # what `project` has run
    for line in lines[1:]:
        shell(line, project)
    assert len(list(project.glob("outputs/multiruns/*/*/*/model.onnx"))) == 2


def test_its_experiment_opens_with_the_command_that_runs_it(project: Path) -> None:
    lines = (project / "conf" / "experiment" / "mine.yaml").read_text().splitlines()
    assert lines[:2] == ["# @package _global_", "# ortpipe --config-dir conf experiment=mine"]


def test_an_empty_folder_is_filled_and_a_full_one_is_refused(call: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    call("init", "here")
    found = {str(path.relative_to("here")) for path in Path("here").rglob("*") if path.is_file()}
    assert found == set(FILES)
    (tmp_path / "here" / "README.md").write_text("mine")
    for folder in ("here", "here/README.md"):
        with pytest.raises(ConfigError, match="new or empty"):
            call("init", folder)
    assert Path("here/README.md").read_text() == "mine"
    with pytest.raises(ConfigError, match="no such argument"):
        call("init", "there", "train.epochs=3")
    assert not Path("there").exists()


def test_the_templates_lie_inside_the_package() -> None:
    import ortpipe

    assert TEMPLATES.is_relative_to(Path(str(ortpipe.__file__)).parent)  # all of which a wheel holds
    assert {path.name for path in TEMPLATES.rglob("*") if path.is_file()} == {
        Path(name).name.removeprefix(".") for name in FILES
    }
