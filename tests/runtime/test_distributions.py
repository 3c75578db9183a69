"""Two runtimes in one environment are refused by name; found through real package metadata on the path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ortpipe.errors import ModelError
from ortpipe.runtime.library import check_one_runtime


def test_one_runtime_is_fine() -> None:
    check_one_runtime()


def test_two_runtimes_are_refused_with_the_command_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "onnxruntime_gpu-1.20.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 1.20.0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ModelError) as error:
        check_one_runtime()
    assert "onnxruntime-gpu" in str(error.value)
    assert "pip uninstall -y" in str(error.value)
