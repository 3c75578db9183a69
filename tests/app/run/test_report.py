"""A run on one page: what a person who was not there reads in report.md and report.html."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from command import ROOT, ortpipe
from command import run as run_command
from markdown_it import MarkdownIt

from ortpipe.app.run.record import COMMAND, RunRecord
from ortpipe.app.run.report import report_contents, write_report
from ortpipe.flow import FLOW
from ortpipe.metrics.titles import STATES

SMALL = ("recorder=none", "experiment=linear_regression", "train.epochs=2")
NASTY = "<b>a|b</b> & `c` <script>"
VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Tags, attributes and visible text of a page; a tag that is not closed fails."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self._open = "", []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the folders of a run, of the same with another rate, and of one whose loss becomes infinite."""
    folder = tmp_path_factory.mktemp("reports")
    codes = [
        ortpipe(*SMALL, f"train.optimizer.lr={rate}", f"name='{NASTY}'", cwd=folder).returncode
        for rate in ("0.01", "0.02", "1e9")
    ]
    assert codes == [0, 0, 1]
    return sorted(folder.glob("outputs/runs/*/*"))


def read(folder: Path, name: str) -> dict:
    return json.loads((folder / name).read_text())


def picture(folder: Path) -> list[tuple[str, list[str]]]:
    """Return the state and the words of each box in the page's flow."""
    [drawing] = re.findall(r'<svg class="wide".*?</svg>', (folder / "report.html").read_text(), re.S)
    boxes = ET.fromstring(drawing).findall("g")
    return [(box.attrib["class"], [text.text or "" for text in box.findall("text")]) for box in boxes]


def test_the_picture_of_the_flow_shows_hits_and_times(runs: list[Path]) -> None:
    states = [[state for state, _ in picture(run)] for run in runs]
    assert states == [
        ["computed"] * 6,
        ["stored"] * 4 + ["computed"] * 2,
        ["stored"] * 4 + ["failed", "waiting"],
    ]
    for run in runs:
        boxes = picture(run)
        assert [words[0] for _, words in boxes] == [stage.name for stage in FLOW]
        timed = [re.fullmatch(r"\d+(\.\d+)? s", words[-1]) is not None for _, words in boxes]
        assert timed == [state in ("computed", "stored") for state, _ in boxes]
    markdown = (runs[1] / "report.md").read_text()
    for i, stage in enumerate(read(runs[1], "run.json")["stages"], start=1):
        word = "from the store" if stage["origin"] else "computed"
        assert re.search(rf's{i}\["{stage["name"]}<br/>{word}<br/>[\d.]+ s"\]', markdown)
    assert f"computed by `{runs[0]}` in " in markdown


def test_both_reports_say_the_metrics_beside_their_baselines(runs: list[Path]) -> None:
    page, markdown = Page((runs[0] / "report.html").read_text()), (runs[0] / "report.md").read_text()
    assert "scikit-learn LinearRegression" in page.text
    for name, values in read(runs[0], "run.json")["metrics"].items():
        row = next(line for line in markdown.splitlines() if line.startswith(f"| {name.replace('_', chr(92) + '_')} "))
        shown = [float(cell.strip(" *").replace("−", "-").replace(",", "")) for cell in row.split("|")[2:6]]
        assert shown == pytest.approx([values[state] for state in STATES if state in values], rel=1e-4, abs=5e-5)
        assert row.split("|")[3].strip(" *") in page.text


def test_a_network_that_nothing_fitted_before_has_no_column_beside_it(cli: Callable, only_run: Callable) -> None:
    cli("recorder=none", "figures=false", "experiment=networks/mlp", "convert.source.hidden=[4]", "train.epochs=1")
    folder = only_run()
    page, markdown = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    assert "| metric | before | trained | baseline |\n|---|--:|--:|--:|\n| " in markdown
    assert "converted from MLP" in markdown
    assert "scikit-learn" not in page.partition("<h2>Figures")[0]
    assert f"Not drawn yet. This command draws them: <code>ortpipe report {folder}</code>" in page
    assert not (folder / "figures").exists()
    assert ortpipe("report", str(folder), cwd=folder).returncode == 0
    assert {path.stem for path in (folder / "figures").iterdir()} == {"losses", "predicted", "residuals"}
    assert "Not drawn yet" not in (folder / "report.html").read_text()


def test_the_page_is_one_file_without_scripts_and_nothing_in_it_is_taken_for_markup(runs: list[Path]) -> None:
    for run in runs:
        page = Page((run / "report.html").read_text())
        tags = {tag for tag, _ in page.tags}
        assert not tags & {"script", "link", "iframe", "b"}
        sources = [attributes["src"] or "" for tag, attributes in page.tags if tag == "img"]
        figures = sorted((run / "figures").glob("*.png"), key=lambda path: (path.stem != "losses", path.stem))
        drawn = [f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}" for path in figures]
        assert sources[: len(drawn)] == drawn
        assert all(source.startswith("data:image/svg+xml;base64,") for source in sources[len(drawn) :])
        links = [attributes["href"] or "" for tag, attributes in page.tags if tag == "a"]
        assert all((run / link).is_file() for link in links)
        assert NASTY in page.text
        shown = MarkdownIt("commonmark").enable("table").render((run / "report.md").read_text())
        read_as = Page(shown)
        assert not {tag for tag, _ in read_as.tags} & {"script", "b"}
        assert NASTY in read_as.text
        linked = [attributes.get("href") or attributes.get("src") for _, attributes in read_as.tags]
        assert all((run / link).is_file() for link in linked if link)


def test_a_report_holds_config_environment_data_parameters_and_digests(runs: list[Path]) -> None:
    for text in (Page((runs[0] / "report.html").read_text()).text, (runs[0] / "report.md").read_text()):
        assert (runs[0] / "config.yaml").read_text().strip() in text
        assert read(runs[0], "environment.json")["onnx"] in text
        assert read(runs[0], "run.json")["data"]["digest"] in text
        assert "coefficient" in text
        assert "10 × 1" in text
        for stage in read(runs[0], "run.json")["stages"]:
            assert stage["output"][:12] in text


def test_the_report_of_a_run_that_failed_says_where_why_and_what_is_left(runs: list[Path]) -> None:
    run = read(runs[2], "run.json")
    for name in ("report.html", "report.md"):
        text = (runs[2] / name).read_text()
        shown = Page(text).text if name == "report.html" else text
        assert "Failed at train" in shown
        assert run["error"] in shown
        assert run["again"] is None  # the same command would fail again
        assert "ConvergenceError" in shown  # the end of its log
        assert "Metrics" not in shown


def test_a_report_can_be_mailed_without_the_passwords_of_addresses(cli: Callable, only_run: Callable) -> None:
    assert cli(*SMALL, "name='postgresql://me:secret@server/runs'").returncode == 0
    for name in ("config.yaml", "report.md", "report.html"):
        text = (only_run() / name).read_text()
        assert "secret" not in text
        assert "name: postgresql://me:***@server/runs" in text


def test_a_run_that_fails_after_its_last_stage_says_so(cli: Callable, tmp_path: Path, only_run: Callable) -> None:
    place = "hydra.run.dir=outputs/runs/day/again"
    assert cli(*SMALL, place).returncode == 0
    small_files = """if True:  # there is room for the stages, and none for figures
        import resource
        from ortpipe.app.cli import main

        resource.setrlimit(resource.RLIMIT_FSIZE, (12 * 2**10,) * 2)
        main()
    """
    command = [sys.executable, "-c", small_files, *SMALL, place]
    done = run_command(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "stage          evaluate" in done.stderr
    assert "## Failed after evaluate" in (only_run() / "report.md").read_text()
    assert [stage["state"] for stage in report_contents(only_run())["stages"]] == ["stored"] * 6


def test_reports_are_written_again_from_the_folder_byte_for_byte(runs: list[Path]) -> None:
    for run in runs:
        before = {name: (run / name).read_bytes() for name in ("report.md", "report.html")}
        for name in before:
            (run / name).unlink()
        write_report(run)
        assert {name: (run / name).read_bytes() for name in before} == before


def test_the_report_of_a_run_that_was_killed_says_how_far_it_came(cli: Callable, only_run: Callable) -> None:
    assert cli(*SMALL).returncode == 0
    folder = only_run()  # as a kill while it trained would have left it
    run = read(folder, "run.json")
    run |= {"status": "RUNNING", "ended": None, "metrics": {}, "stages": run["stages"][:4]}
    (folder / "run.json").write_text(json.dumps(run))  # of a process that is gone by now
    for name in ("figures/losses.png", "figures/predicted.png", "logs/6_evaluate.log"):
        (folder / name).unlink()
    write_report(folder)
    assert [stage["state"] for stage in report_contents(folder)["stages"]] == ["computed"] * 4 + [
        "unfinished",
        "waiting",
    ]
    text = (folder / "report.md").read_text()
    assert text.startswith("# linear\\_regression: stopped\n")
    assert "ended without closing this run: it was killed" in text


def test_a_run_that_ended_before_its_first_stage_shows_nothing_of_an_older_run_in_its_folder(tmp_path: Path) -> None:
    """Its files may be what could not be removed."""
    rows = {"source": {"name": "npz"}, "digest": "0", "rows": {"train": 3}}
    state = RunRecord(tmp_path, "mine", {COMMAND: "ortpipe seed=1"}, {"train": "sgd"}, rows)
    state.end("FAILED", "No space left on device")
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "r2.png").write_text("an older run's")
    write_report(tmp_path)
    page = (tmp_path / "report.md").read_text()
    assert "No space left on device" in page
    assert "r2" not in page
