"""What a summary makes of jobs: rank, columns, and what is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ortpipe.app.run.record import FAILED, FINISHED, JobRecord, RunRecord
from ortpipe.app.sweep.figure import _scale_heights, panels
from ortpipe.app.sweep.job import Row
from ortpipe.app.sweep.summary import Summary
from ortpipe.picture import picture


def _summary(objective: str, *values: dict[str, float], **keys: list[str]) -> Summary:
    rows = []
    for i, found in enumerate(values):
        varies = {key: value[i] for key, value in keys.items()}
        times = {"started": 0, "ended": 1000, "status": FINISHED if found else FAILED}
        named = {name if "/" in name else f"validation/{name}": value for name, value in found.items()}
        tested = {name.removeprefix("test/"): {"trained": value} for name, value in found.items() if "test/" in name}
        chosen = {name: value for name, value in named.items() if "test/" not in name}
        run = RunRecord(Path(str(i)), "job", {}, values=chosen, metrics=tested, **times)  # type: ignore[arg-type]
        rows.append(Row(JobRecord("sweep", i, varies), run))
    return Summary(objective, rows)


def _axes(summary: Summary) -> list[Any]:
    figure = Figure()
    axes = [figure.subplots() for _ in panels(summary)]
    for draw, place in zip(panels(summary), axes, strict=True):
        draw(place)
    return axes


def test_the_best_of_a_metric_that_rises_is_the_highest_and_of_a_loss_the_lowest() -> None:
    found = [{"loss": 1.0, "accuracy": 0.5}, {"loss": 2.0, "accuracy": 0.9}, {}]
    assert [row.job.number for row in _summary("accuracy", *found, lr=["1", "2", "3"]).ranked] == [1, 0]
    assert [row.job.number for row in _summary("loss", *found, lr=["1", "2", "3"]).ranked] == [0, 1]


def test_of_equal_jobs_the_first_is_best() -> None:
    assert _summary("loss", {"loss": 1.0}, {"loss": 1.0}, lr=["1", "2"]).ranked[0].job.number == 0


def test_a_key_with_one_value_in_all_jobs_is_no_column() -> None:
    summary = _summary("loss", {"loss": 1.0}, {"loss": 2.0}, lr=["1", "2"], seed=["0", "0"])
    assert summary.varying == ["lr"]
    assert "seed" not in summary.as_csv()


def test_every_row_has_the_same_columns_and_a_failing_job_empty_cells() -> None:
    lines = _summary("loss", {"loss": 1.0, "r2": 0.5}, {}, lr=["1", "2"]).as_csv().splitlines()
    assert lines[0] == "job,lr,validation/loss,validation/r2,best,hits,seconds,status,error,mlflow,folder"
    assert lines[2].startswith("1,2,,,False,,1.0,failed")


def test_a_sweep_that_is_stopped_before_its_first_job_has_an_empty_table() -> None:
    assert _summary("loss").as_table() == '{"columns": ["job"], "data": []}\n'


def test_a_long_table_is_cut_on_the_screen_but_not_in_the_file() -> None:
    summary = _summary("loss", *[{"loss": float(i)} for i in range(50)], seed=[str(i) for i in range(50)])
    assert "and 30 more" in summary.as_text()
    assert len(summary.as_csv().splitlines()) == 51


def test_words_numbers_and_outliers_are_drawn_and_nothing_without_results() -> None:
    found = [{"r2": 0.1}, {"r2": 0.2}, {"r2": -1e15}, {}]
    keys = {"optimizer": ["sgd", "adam", "sgd", "adam"], "lr": ["0.1", "0.001", "10", "1e9"]}
    drawn = picture(*panels(_summary("r2", *found, **keys)))
    assert drawn is not None
    assert drawn.startswith(b"\x89PNG")
    assert drawn == picture(*panels(_summary("r2", *found, **keys)))
    assert panels(_summary("r2", {}, {}, lr=["1", "2"])) == []


def test_cells_that_a_spreadsheet_would_compute_are_text() -> None:
    lines = _summary("loss", {"loss": -1.0}, {"loss": 2.0}, note=["=cmd|'/c calc'!A1", "-1.5"]).as_csv().splitlines()
    assert [line.split(",")[1] for line in lines[1:]] == ["'=cmd|'/c calc'!A1", "-1.5"]
    assert lines[1].split(",")[2] == "-1.0"


def test_the_jobs_said_to_lie_beyond_the_figures_range_are_those_that_do() -> None:
    axes = Figure().subplots()
    heights = [1.0, 1.1, 1.2, 1.21, 1.0 + 0.2 * 1.01, 300.0]  # the last but one is within the margin
    _scale_heights([-h for h in heights], axes)
    low, high = axes.get_ylim()
    assert sum(not low <= -h <= high for h in heights) == 1
    assert axes.get_title() == "1 more beyond this range"


def test_jobs_that_differ_in_their_seed_alone_are_one_row_of_means_and_deviations() -> None:
    found = [{"loss": 1.0}, {"loss": 3.0}, {"loss": 0.5}, {"loss": 0.5}]
    summary = _summary("loss", *found, lr=["1", "1", "2", "2"], seed=["0", "1", "0", "1"])
    assert summary.over_seeds() == [
        {"lr": "2", "seeds": "2", "validation/loss": "0.5 ± 0"},
        {"lr": "1", "seeds": "2", "validation/loss": "2 ± 1.4"},
    ]
    assert "| 1 | 2 | 2 ± 1.4 |" in summary.as_markdown()
    assert "mean ± deviation over seeds" in summary.as_text()
    assert _summary("loss", *found[:2], lr=["1", "2"], seed=["0", "1"]).over_seeds() == []


def test_mlflow_shows_the_objective_and_one_more_of_what_was_measured() -> None:
    found = {"accuracy": 0.5, "loss": 1.0, "f1": 0.25, "recall": 0.75}
    first, *_ = _summary("f1", found, found, lr=["1", "2"]).as_markdown().splitlines()
    assert [cell.strip() for cell in first.strip("| ").split("|")] == [
        "job",
        "lr",
        "validation f1",
        "validation accuracy",
    ]


def test_test_metrics_choose_nothing_and_the_best_job_alone_shows_them() -> None:
    found = [{"r2": 0.5, "test/r2": 0.4}, {"r2": 0.4, "test/r2": 0.9}]
    summary = _summary("r2", *found, lr=["1", "2"])
    assert [row.job.number for row in summary.ranked] == [0, 1]
    assert [(row["validation/r2"], row["test/r2"]) for row in summary.cells()] == [(0.5, 0.4), (0.4, "")]
    assert summary.metrics()["test/r2"] == {"best": 0.4}
    text = summary.as_text()
    assert text.count("test r2") == 1
    assert "0.9" not in text + summary.as_csv() + summary.as_markdown() + summary.as_table()
    [axes] = _axes(summary)
    assert axes.get_ylabel() == "validation r2"


def test_of_groups_of_seeds_the_best_alone_shows_its_mean_test_metric() -> None:
    found = [{"loss": loss, "test/r2": r2} for loss, r2 in ((1.0, 0.3), (2.0, 0.5), (5.0, 0.9), (6.0, 0.9))]
    summary = _summary("loss", *found, lr=["1", "1", "2", "2"], seed=["0", "1", "0", "1"])
    assert [row["test/r2"] for row in summary.over_seeds()] == ["0.4 ± 0.14", ""]


def test_without_validation_rows_a_loss_is_of_training_rows_and_no_metric_is_an_objective() -> None:
    found = {"train/loss": 1.0, "test/r2": 0.5}
    assert _summary("loss", found).as_csv().startswith("job,train/loss,test/r2,best")
    assert _summary("r2", found).ranked == []


def test_jobs_with_validation_rows_are_not_ranked_among_those_without() -> None:
    jobs = _summary("loss", {"train/loss": 0.1}, {"validation/loss": 2.0}, lr=["1", "2"])
    assert [row.job.number for row in jobs.ranked] == [1]
