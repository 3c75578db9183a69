"""ortpipe gradient, as a user calls it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from ortpipe.errors import ConfigError, DeriveError
from ortpipe.graph.files.serial import read
from ortpipe.runtime.session import Session

TEXT = """<ir_version: 8, opset_import: ["": 18]>
g (float[N,2] x) => (float e) <float[2] k = {1.0, 3.0}, float[1] "a,b" = {2.0}>
  { s = Mul(x, x) t = Mul(s, k) u = Mul(t, "a,b") e = ReduceSum<keepdims=0>(u) }"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "energy.onnx")
    return tmp_path / "energy.onnx"


def test_it_writes_the_gradient_and_says_what_it_takes_and_gives(call: Callable[..., str], file: Path) -> None:
    said = call("gradient", file.name, "--of", "e", "--wrt", "x,k", "--wrt", "a,b", "--value", "--output", "new/g.onnx")
    lines = said.splitlines()
    assert lines[0].split(maxsplit=2) == ["inputs", "x", "float[N, 2]"]
    assert lines[1].split()[-3:] == ["default", "the", "model's"]
    assert lines[3].split() == ["e_grad", "float[]", "by", "default", "1"]
    assert lines[4].split() == ["outputs", "e", "float[]"]
    assert lines[-1] == "file     new/g.onnx"
    made = read(Path("new/g.onnx"))
    assert [o.name for o in made.graph.output] == ["e", "x_grad", "k_grad", "a,b_grad"]
    x = np.array([[1, 2]], np.float32)
    found = Session(made).run({"x": x})
    assert [v.tolist() for v in found] == [26, [[4, 24]], [2, 8], [13]]


@pytest.mark.parametrize(("kind", "output"), [("jacobian", "e_x_jacobian"), ("jvp", "e_tangent"), ("hvp", "x_hvp")])
def test_it_writes_the_other_products_too(call: Callable[..., str], file: Path, kind: str, output: str) -> None:
    said = call("gradient", file.name, "--of=e", "--wrt=x", f"--{kind}", "--shape", "x=5,2", "--output=g.onnx")
    assert output in said
    assert "float[5, 2]" in said


def test_it_writes_onnx_files_only(call: Callable[..., str], file: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)ends in \.onnx.*g\.txt.*--output g\.onnx"):
        call("gradient", str(file), "--of", "y", "--wrt", "x", "--output", "g.txt")


def test_it_overwrites_nothing_unasked(call: Callable[..., str], file: Path) -> None:
    arguments = ("gradient", file.name, "--of=e", "--wrt=x")
    with pytest.raises(ConfigError, match="--force"):
        call(*arguments, f"--output={file.name}")
    with pytest.raises(DeriveError, match="Did you mean 'e'"):
        call("gradient", file.name, "--of=ee", "--wrt=x", "--output=g.onnx")
    assert not Path("g.onnx").exists()
    assert call(*arguments, f"--output={file.name}", "--force")
