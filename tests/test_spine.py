"""The spine: files that a linear regression and an MLP need, their lines, and docs/explanation/architecture.md."""

import ast
import re
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINES = 6_272  # comments and docstrings included; lower it whenever the sum falls. The aim is 3,000.


def section(title: str = "## The spine") -> str:
    """Return a section of docs/explanation/architecture.md with its subsections."""
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8").partition(f"\n{title}\n")[2]
    return re.split(rf"^#{{2,{title.index(' ')}}} ", text, flags=re.M)[0]


def listed(title: str = "## The spine") -> list[Path]:
    """Return the files in the tables of a section."""
    return [ROOT / "ortpipe" / name for name in re.findall(r"^\| `([\w/]+\.py)` \|", section(title), re.M)]


def is_empty(path: Path) -> bool:
    """Return whether a file is an `__init__.py` with only a docstring, or with a door, which imports on first use."""
    text = path.read_text(encoding="utf-8")
    return path.name == "__init__.py" and (len(text.splitlines()) == 1 or "door(__name__)" in text)


class Blocked:
    """Import only the listed modules of ortpipe, and packages without code."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Reject a module that is not listed."""
        if name.partition(".")[0] == "ortpipe":
            base = ROOT.joinpath(*name.split("."))
            file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
            if file not in self.files and not is_empty(file):
                message = f"{name} is not in the spine: import it only where a feature beyond the spine is used."
                raise ModuleNotFoundError(message, name=name)
        return None


def train_both() -> None:
    """Train a linear regression and an MLP on rows in memory, from a network by config to metrics."""
    import numpy as np

    from ortpipe import (
        LOSSES,
        OPTIMIZERS,
        AddLossConfig,
        ConvertConfig,
        EvaluateConfig,
        PenaltyConfig,
        Rows,
        SplitConfig,
        TrainConfig,
        add_loss,
        convert,
        derive,
        evaluate,
        penalty,
        split,
        train,
    )
    from ortpipe.stages.convert.sources import SOURCES

    x = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    straight, curved = x @ np.float32([[1], [-2], [0.5]]), np.abs(x[:, :1]) - x[:, 1:2]
    for hidden, y in (((), straight), ((32,), curved)):
        data = split(Rows({"x": x}, y), SplitConfig(test=0.25))
        network = convert(None, ConvertConfig(SOURCES["mlp"](hidden=hidden, dropout=0.0)), data=data)
        loss = penalty(add_loss(network, AddLossConfig(LOSSES["l2"]())), PenaltyConfig({"*.weight": {"l2": 1e-5}}))
        trained = train(derive(loss), TrainConfig(OPTIMIZERS["sgd"](lr=0.05), epochs=20), data=data)
        r2 = evaluate(trained, EvaluateConfig(baseline=None), data=data).facts.metrics["r2"]
        assert r2["trained"] > 0.95, r2


def test_a_linear_regression_and_an_mlp_need_the_listed_files_only() -> None:
    done = subprocess.run([sys.executable, __file__], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_module_that_is_not_listed_cannot_be_imported() -> None:
    with pytest.raises(ModuleNotFoundError, match="is not in the spine"):
        Blocked(listed()).find_spec("ortpipe.app.cli")


def test_the_page_shows_what_each_file_says_of_itself() -> None:
    page = section()
    for path in listed():
        purpose = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n\n")[0]
        purpose = purpose.replace("\n", " ").rstrip(".").replace("|", "&#124;")
        assert f"| `{path.relative_to(ROOT / 'ortpipe').as_posix()}` | {purpose} |" in page


def test_a_file_in_reading_order_imports_only_files_above_it_and_files_to_look_up() -> None:
    order, read = listed("### Files in reading order"), set[Path]()
    assert sorted([*order, *listed("### Files to look up")]) == sorted(set(listed()))
    for path in order:
        imports = [n for n in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(n, ast.ImportFrom)]
        names = {f"{node.module}{end}" for node in imports for end in ("", *(f".{alias.name}" for alias in node.names))}
        files = {ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in names}
        assert files & {*order} <= read, f"{path} imports files that come later in the table"
        read.add(path)


def test_the_example_of_imports_at_the_first_call_is_code() -> None:
    [example] = re.findall(r"```text\n(.*?)```", section("### Imports at the first call"), re.S)
    code = (ROOT / "ortpipe" / "stages" / "derive" / "stage.py").read_text(encoding="utf-8").splitlines()
    assert [line for line in example.splitlines() if line not in code] == []


def counted(text: str) -> int:
    """Return a module's lines, without those between the first and the last of a table with a name in capitals."""
    assigned = [node for node in ast.parse(text).body if isinstance(node, ast.Assign | ast.AnnAssign)]
    targets = {node: node.target if isinstance(node, ast.AnnAssign) else node.targets[0] for node in assigned}
    tables = [node for node, name in targets.items() if isinstance(name, ast.Name) and name.id.isupper()]
    return len(text.splitlines()) - sum(max((node.end_lineno or 0) - node.lineno - 1, 0) for node in tables)


def test_the_lines_of_the_spine_fall() -> None:
    lines = sum(counted(path.read_text(encoding="utf-8")) for path in listed())
    assert lines <= LINES, "move what a plain training run does not need to a file of its own"


def test_an_entry_of_a_table_is_no_line_of_the_spine_but_code_is() -> None:
    table = 'LOSSES: Catalogue[Any] = Catalogue(\n    {\n        "l1": "a:B",\n    }\n)\n'
    assert counted(table) == counted(table.replace('        "l1"', '        "l0": "a:A",\n        "l1"')) == 2
    assert counted(table + "def f():\n    return {\n        1: 2,\n    }\n") == 6


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.meta_path.insert(0, Blocked(listed()))  # type: ignore[arg-type]
    train_both()
    assert "jax" not in sys.modules, "only runtime.engine=xla imports JAX"
    loaded = {Path(str(m.__file__)) for name, m in sys.modules.items() if name.partition(".")[0] == "ortpipe"}
    unused = [str(path.relative_to(ROOT)) for path in listed() if path not in loaded]
    assert not unused, f"docs/explanation/architecture.md lists files that are not needed: {unused}"
