"""The results of a sweep: a table of its jobs, with the best one marked."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ortpipe.app.run.record import FAILED, FINISHED, KILLED, RunRecord
from ortpipe.app.run.report import plain
from ortpipe.app.sweep.job import Row, read_jobs
from ortpipe.app.sweep.overrides import names, short
from ortpipe.app.table import aligned
from ortpipe.metrics.named import greater_is_better, objective_in
from ortpipe.metrics.titles import heading

EPOCHS = "train.epochs"  # the key of a search's rungs
SHOWN = 20  # jobs, and groups over seeds, on the screen; the file has all jobs


@dataclass(frozen=True)
class Summary:
    """The started jobs of a sweep, in order, ranked by `objective`; of a search with the epochs of its rungs."""

    objective: str
    rows: Sequence[Row]
    rungs: Sequence[int] = ()

    @property
    def varying(self) -> list[str]:
        """The keys that jobs set, without those that have the same value in all jobs."""
        keys = dict.fromkeys(key for row in self.rows for key in row.job.varies)
        return [key for key in keys if len(self.rows) == 1 or len({row.job.varies.get(key) for row in self.rows}) > 1]

    @property
    def column(self) -> str:
        """The name of the objective among the measured values: its rows and its own name."""
        return objective_in(self.objective, [row.run.values for row in self.rows])

    @property
    def measured(self) -> list[str]:
        """The names of the measured values, such as validation/r2, the objective first."""
        names = dict.fromkeys(name for row in self.rows for name in row.run.values)
        return sorted(names, key=lambda name: name != self.column)

    @property
    def tested(self) -> list[str]:
        """The names of the test metrics, which only the best job shows: test rows do not choose."""
        return list(_tested(self.best)) if self.best else []

    @property
    def best(self) -> Row | None:
        """The best job, if one has a result."""
        return next(iter(self.ranked), None)

    @property
    def ranked(self) -> list[Row]:
        """The finished jobs that have the objective, the best first, equal ones in order."""
        sign, column = -1 if greater_is_better(self.objective) else 1, self.column
        candidates = [row for row in self.rows if row.run.status == FINISHED and column in row.run.values]
        return sorted(candidates, key=lambda row: sign * row.run.values[column])

    def cells(self) -> list[dict[str, object]]:
        """Return a mapping from column to value for each job, all with the same columns."""
        best, varying, measured, tested = self.best, self.varying, self.measured, self.tested
        return [
            {
                "job": row.job.number,
                **{key: row.job.varies.get(key, "") for key in varying},
                **{name: row.run.values.get(name, "") for name in measured},
                **(_tested(row) if row is best else dict.fromkeys(tested, "")),
                "best": row is best,
                "hits": _hits(row.run),
                "seconds": "" if row.run.seconds is None else round(row.run.seconds, 3),
                "status": row.run.status.lower() if row.run.passed else "failed gates",
                "error": (row.run.error or "").partition("\n")[0],
                "mlflow": row.run.mlflow or "",
                "folder": str(row.run.folder),
            }
            for row in self.rows
        ]

    def as_csv(self) -> str:
        """Return the table of all jobs as CSV."""
        text, cells = io.StringIO(), self.cells()
        table = csv.DictWriter(text, _columns(cells), lineterminator="\n")
        table.writeheader()
        table.writerows({name: _as_text(cell) for name, cell in row.items()} for row in cells)
        return text.getvalue()

    def as_table(self) -> str:
        """Return the table of all jobs as JSON, which MLflow's page shows as a table."""
        cells = self.cells()
        return json.dumps({"columns": _columns(cells), "data": [list(row.values()) for row in cells]}) + "\n"

    def over_seeds(self) -> list[dict[str, str]]:
        """Return a row for each group of jobs that differ only in seeds: each value's mean ± sample deviation.

        The best mean of the objective is first, and only this group shows test metrics. There are no rows if seeds do
        not vary or all groups have one job.
        """
        keys = [key for key in self.varying if not _is_seed(key)]
        groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
        for row in self.ranked if len(keys) < len(self.varying) else ():
            groups[tuple(row.job.varies.get(key, "") for key in keys)].append(row)
        if all(len(rows) == 1 for rows in groups.values()):
            return []
        sign = -1 if greater_is_better(self.objective) else 1

        def values(rows: Sequence[Row], name: str) -> list[float]:
            return [value for row in rows if (value := {**row.run.values, **_tested(row)}.get(name)) is not None]

        order = sorted(groups.items(), key=lambda group: sign * statistics.fmean(values(group[1], self.column)))
        shown = [*self.measured, *self.tested]
        return [
            {
                **dict(zip(keys, map(short, group_values), strict=True)),
                "seeds": str(len(rows)),
                **{name: _spread(values(rows, name) if i == 0 or name in self.measured else ()) for name in shown},
            }
            for i, (group_values, rows) in enumerate(order)
        ]

    def _by_rung(self) -> list[list[str]]:
        """Return the epochs of each rung, its number of jobs, the finished ones, and their best objective."""
        lines = []
        for epochs in self.rungs if len(self.rungs) > 1 else ():
            count = sum(row.job.varies.get(EPOCHS) == str(epochs) for row in self.rows)
            values = [row.run.values[self.column] for row in self.ranked if row.job.varies.get(EPOCHS) == str(epochs)]
            lines.append([str(epochs), str(count), str(len(values)), f"{values[0]:.4g}" if values else ""])
        return lines

    def as_markdown(self) -> str:
        """Return the text that MLflow shows above a sweep's metrics: the best jobs, and means over seeds.

        It has only the objective, one more value and one test metric: a wide table pushes the rest of the page out of
        view.
        """
        measured = [*self.measured[:2], *sorted(self.tested, key=lambda name: name != f"test/{self.objective}")[:1]]
        lines = []
        for title, heads, rows in self._tables(self.ranked[:SHOWN], measured):
            lines += [*([f"{title.capitalize()}:", ""] if title else []), _table(rows, heads), ""]
        return "\n".join(lines)

    def _tables(
        self, rows: Sequence[Row], measured: Sequence[str], before: Sequence[str] = (), after: Sequence[str] = ()
    ) -> list[tuple[str, list[str], list[list[str]]]]:
        """Return title, heads and cells of a table of jobs and, if there are any, of groups of seeds and of rungs."""
        varying, cells = names(self.varying), {row["job"]: row for row in self.cells()}
        titles = {"best": "", **varying, **{name: heading(name, measured) for name in measured}}
        columns = [*before, "job", *varying, *measured, *after]
        lines = [[_short(cells[row.job.number][column], column) for column in columns] for row in rows]
        tables = [("", [titles.get(column, column) for column in columns], lines)]
        if groups := self.over_seeds():
            columns = [column for column in [*varying, "seeds", *measured] if column in groups[0]]
            lines = [[group[column] for column in columns] for group in groups[:SHOWN]]
            tables.append(("mean ± deviation over seeds", [titles.get(column, column) for column in columns], lines))
        if rungs := self._by_rung():
            heads = ["epochs", "jobs", "finished", f"best {heading(self.column, self.measured)}"]
            tables.append(("rungs", heads, rungs))
        return tables

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return the best job's values and test metrics, and the number of jobs by status."""
        best = {**self.best.run.values, **_tested(self.best)} if self.best else {}
        counts = {s.lower(): float(sum(row.run.status == s for row in self.rows)) for s in (FINISHED, FAILED, KILLED)}
        return {**{name: {"best": value} for name, value in best.items()}, "jobs": counts}

    def as_text(self) -> str:
        """Return the text for the console: the jobs, the best first, then the errors of failed ones."""
        order = [*self.ranked, *(row for row in self.rows if row not in self.ranked)]
        hits = ["hits"] if any(row.run.stages for row in self.rows) else []
        measured, after = [*self.measured, *self.tested], [*hits, "seconds", "status"]
        (_, heads, jobs), *others = self._tables(order[:SHOWN], measured, ["best"], after)
        lines = aligned(jobs, heads, text_columns=0)
        lines += [f"   and {len(order) - SHOWN} more"] if len(order) > SHOWN else []
        if self.best:
            tested = "; only its test metrics are shown" if self.tested else ""
            lines += [f"* best by {heading(self.column, self.measured)}{tested}; hits: stages taken from the cache"]
        for title, heads, rows in others:
            lines += ["", title, *aligned(rows, heads, text_columns=0)]
        return "\n".join([*lines, *self._errors()])

    def _errors(self) -> list[str]:
        """Return the errors of failed jobs, grouped by rule, with the whole error of each group's first job."""
        rows_by_rule: Mapping[str, list[Row]] = defaultdict(list)
        for row in self.rows:
            if row.run.status == FAILED and row.run.error is not None:
                rows_by_rule[row.run.error.partition("\n")[0]].append(row)
        lines = []
        for rows in rows_by_rule.values():
            jobs = ", ".join(str(row.job.number) for row in rows)
            lines += ["", f"{'job' if len(rows) == 1 else 'jobs'} {jobs} failed: {rows[0].run.error}"]
            lines += [f"  see: {rows[0].run.folder / 'error.txt'}"]
        return lines


def _columns(cells: Sequence[Mapping[str, object]]) -> list[str]:
    return list(cells[0]) if cells else ["job"]  # if no job began


def _tested(row: Row) -> dict[str, float]:
    """Return the metrics of a job's trained model on the test rows."""
    return {f"test/{name}": by_state["trained"] for name, by_state in row.run.metrics.items() if "trained" in by_state}


def _is_seed(key: str) -> bool:
    return key.rpartition(".")[2] == "seed"


def _spread(values: Sequence[float]) -> str:
    """Return the mean and the sample deviation as text.

    >>> _spread([1.0, 2.0, 3.0]), _spread([0.5])
    ('2 ± 1', '0.5')
    """
    mean = f"{statistics.fmean(values):.4g}" if values else ""
    return f"{mean} ± {statistics.stdev(values):.2g}" if len(values) > 1 else mean


def _table(rows: Sequence[Sequence[str]], heads: Sequence[str]) -> str:
    lines = [map(plain, heads), ["--:"] * len(heads), *(map(plain, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _hits(run: RunRecord) -> str:
    """Return a job's cache hits of all finished stages, such as "2/6"; "" before the first stage finished."""
    return f"{sum(stage.origin is not None for stage in run.stages)}/{len(run.stages)}" if run.stages else ""


def _as_text(cell: object) -> object:
    """Return a cell quoted so that a spreadsheet does not evaluate it as a formula.

    >>> [_as_text(cell) for cell in ("=A1", "-1.5", "-x", "adam", -1.5)]
    ["'=A1", '-1.5', "'-x", 'adam', -1.5]
    """
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _short(cell: object, column: str) -> str:
    if isinstance(cell, bool):
        return "*" if cell else ""
    if column == "seconds" and isinstance(cell, float):
        return f"{cell:.1f}"
    return f"{cell:.4g}" if isinstance(cell, float) else short(str(cell))


def best_job(folder: Path) -> Path | None:
    """Return the folder of a sweep's best job; None if it has no result, or the folder is not a sweep's."""
    record = RunRecord.read(folder)
    best = None if record.sweep is None else Summary(record.sweep.objective, read_jobs(record)).best
    return None if best is None else best.run.folder
