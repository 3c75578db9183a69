"""ortpipe doctor: what is wrong with a machine, found for real, each with its fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import hydra
import pytest

from ortpipe.app.commands import doctor
from ortpipe.app.commands.doctor import requirements
from ortpipe.pipeline import digest


def problems(call: Callable[..., str], capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    """Return what is a problem, by the name of its check, with its fix."""
    with pytest.raises(SystemExit) as ended:
        call("doctor", *arguments)
    assert ended.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    found = [[*line.split(maxsplit=2), lines[i + 1].strip()] for i, line in enumerate(lines) if line[:7] == "PROBLEM"]
    assert lines[-1] == ("1 problem" if len(found) == 1 else f"{len(found)} problems")
    assert all(fix.startswith("fix ") and len(fix) > 20 for *_, fix in found)
    return {name: f"{said} {fix}" for _, name, said, fix in found}


def installed(package: str, version: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the metadata of a package lie in front of all others."""
    info = folder / "site" / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(folder / "site")
    monkeypatch.setattr(digest, "_version", digest._version.__wrapped__)  # which a process asks for once


def test_a_machine_in_order_has_no_problem_and_nothing_is_written(call: Callable[..., str], tmp_path: Path) -> None:
    lines = call("doctor").splitlines()
    assert lines[-1] == "no problems found"
    assert all(line.startswith("ok ") for line in lines[:-1])
    names = [line.split()[1] for line in lines[:-1]]
    assert list(dict.fromkeys(names)) == ["runtime", "provider", "packages", "folders", "disk", "tracking", "training"]
    assert any("gradients, loss" in line for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_is_there_is_opened(call: Callable[..., str], linear: Path) -> None:
    assert "mlflow.db answers in" in call("doctor", f"recorder.tracking_uri=sqlite:///{linear.parent}/mlflow.db")


def test_folders_that_cannot_be_written_are_named(call: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    found = problems(call, capsys, "paths.outputs=/proc/nowhere", "recorder=none")
    assert "/proc/nowhere" in found["folders"]
    assert "Set paths." in found["folders"]


def test_a_file_in_the_place_of_the_outputs_is_a_problem(
    call: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("")
    assert set(problems(call, capsys, "paths.outputs=taken/runs", "paths.cache=null", "recorder=none")) == {"folders"}


def test_a_disk_that_is_nearly_full_is_a_problem(
    call: Callable[..., str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "MIN_FREE", 2**80)
    assert set(problems(call, capsys, "recorder=none")) == {"disk"}


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "sqlite:///garbage.db"])
def test_tracking_that_does_not_answer_is_a_problem(
    uri: str, call: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "garbage.db").write_text("no database")
    found = problems(call, capsys, f"recorder.tracking_uri={uri}")
    assert set(found) == {"tracking"}
    assert uri.rpartition("/")[2] in found["tracking"]


def test_a_package_of_another_version_is_a_problem(
    call: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("tqdm", "3.1", tmp_path, monkeypatch)
    found = problems(call, capsys, "recorder=none")
    assert set(found) == {"packages"}
    assert found["packages"].startswith("tqdm 3.1, and ortpipe needs ")
    assert "pip install 'tqdm" in found["packages"]


def test_packages_that_each_start_compiles_are_no_problem_but_the_way_out_is_said(
    call: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "cache_from_source", lambda source: str(tmp_path / "none"))
    folder = Path(str(hydra.__file__)).parents[1]
    lines = call("doctor", "recorder=none").splitlines()
    [line] = [line for line in lines if "compileall" in line]
    assert line.startswith("ok ")
    assert line.endswith(f"python -m compileall -q {folder}")
    assert lines[-1] == "no problems found"
    monkeypatch.setattr(doctor, "cache_from_source", lambda source: source)
    assert "compileall" not in call("doctor", "recorder=none")


def test_two_runtimes_are_a_problem(
    call: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("onnxruntime-gpu", "1.20.0", tmp_path, monkeypatch)
    found = problems(call, capsys, "recorder=none")
    assert "onnxruntime-gpu" in found["runtime"]
    assert "pip uninstall" in found["runtime"]


def test_a_provider_that_is_not_here_is_a_problem(call: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    from ortpipe.errors import ModelError
    from ortpipe.runtime.config import RuntimeConfig
    from ortpipe.runtime.providers import check_provider

    try:
        check_provider(RuntimeConfig(provider="cuda"))
        pytest.skip("needs a machine without CUDA")
    except ModelError:
        found = problems(call, capsys, "recorder=none", "runtime.provider=cuda")
    assert "runtime.provider=cpu" in found["runtime"]
    assert "training" in found


def test_what_ortpipe_needs_is_listed_without_its_extras() -> None:
    names = [needed.name for needed in requirements()]
    assert {"onnx", "hydra-core", "pyyaml"} <= set(names)
    assert len(names) == len(set(names))
    assert "pytest" not in names
