"""Compare new rows with a profile: schema, missing values, ranges, new words, stability index, two-sample tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ortpipe import Data
from ortpipe.app.drift.config import CheckConfig
from ortpipe.app.drift.profile import COLUMNS, Column, Values, binned, read_values
from ortpipe.doors import later
from ortpipe.errors import DataError
from ortpipe.picture import picture

if TYPE_CHECKING:
    from ortpipe.app.drift.two_samples import adjust, chance, chi_squared, kolmogorov_smirnov, psi
else:
    later(__name__)

REPORTED = {"psi": 0.2, "missing": 0.05, "new_words": 0.01, "outside": 0.05}  # from which a measure is reported
LEAST = 5  # training rows of a word that is compared by itself
SHOWN = 12  # words of a column in the figure
MOST_COLUMNS, PANELS = 20, 5  # of the figure, with the largest stability index


class RejectedRowsError(DataError):
    """New rows that a model must not be retrained on."""

    code = 4  # of the process


def drift_of(profile: Mapping[str, Column], data: Data, limits: CheckConfig) -> dict[str, Any]:
    """Return each column's measures, and the sentences about those beyond a limit, and about those worth a look."""
    columns = dict([*read_values(data.train, data.validation, data.test).items()][-COLUMNS:])
    hidden = {name for name in profile if any(name == glob or fnmatchcase(name, glob) for glob in limits.exclude)}
    columns = {name: values.typed(profile[name].kind if name in profile else None) for name, values in columns.items()}
    rejected = [
        *(f"column {name} is missing" for name in profile if name not in columns),
        *(f"column {name} is new: leave it out (data.source.exclude)" for name in columns if name not in profile),
    ]
    measured: dict[str, dict[str, Any]] = {}
    for name in [name for name in profile if name in columns and name not in hidden]:
        old, new = profile[name], columns[name]
        if old.kind != new.kind:
            rejected.append(f"column {name} holds {new.kind}s, {old.kind}s in training")
        else:
            measured[name] = _measured(old, new)
    adjust(measured)
    reported = []
    for name, measures in measured.items():
        for measure, text in _texts(name, measures).items():
            value, limit = measures[measure], getattr(limits, measure)
            if value is None or (measure == "psi" and value <= measures["chance"]):
                continue
            if limit is not None and (value < limit if measure == "p_value" else value > limit):
                rejected.append(f"{text}; {measure} {limit:g}")
            elif value > REPORTED.get(measure, 1):
                reported.append(text)
    return {"columns": measured, "rejected": rejected, "reported": reported}


def _measured(old: Column, new: Values) -> dict[str, Any]:
    """Return a column's measures; None for those that do not apply to its kind."""
    present, rows = new.present, max(1, len(new.array))
    missing = [old.missing / max(1, old.rows), 1 - len(present) / rows]
    facts: dict[str, Any] = {"kind": old.kind, "share": missing, "missing": missing[1] - missing[0]}
    facts |= {**dict.fromkeys(("psi", "test", "p_value", "new_words", "outside")), "chance": 0.0}
    if old.kind == "date" or not len(present) or old.missing == old.rows:
        return {**facts, "bins": [], "old": [], "new": []}
    measure = _of_numbers if old.kind == "number" else _of_words
    bins, before, now, measures = measure(old, present)
    if old.missing or len(present) < rows:
        bins, before, now = [*bins, "(missing)"], [*before, old.missing], [*now, rows - len(present)]
    facts |= {**measures, "psi": psi(before, now), "chance": chance(before, now), "bins": bins}
    return {**facts, **{name: (np.array(c) / sum(c)).tolist() for name, c in (("old", before), ("new", now))}}


def _of_numbers(old: Column, present: np.ndarray) -> tuple[list[str], list[int], list[int], dict[str, Any]]:
    """Return the names of bins, their counts in training and now, and further measures."""
    names = [f"≤ {edge:.4g}" for edge in old.edges]
    names.append(f"> {old.edges[-1]:.4g}" if names else f"{old.most:.4g}")
    outside = float(((present < old.least) | (present > old.most)).mean())
    p_value = kolmogorov_smirnov(old.values, present)
    counts = binned(present, np.array(old.edges)).tolist()
    return names, [*old.counts], counts, {"outside": outside, "test": "KS", "p_value": p_value}


def _of_words(old: Column, present: np.ndarray) -> tuple[list[str], list[int], list[int], dict[str, Any]]:
    """Return the words that are frequent in training, their counts there and now, and further measures."""
    words, frequencies = np.unique(present, return_counts=True)
    counts = dict(zip(words.tolist(), frequencies.tolist(), strict=True))
    before = {word: count for word, count in zip(old.words, old.counts, strict=False) if count >= LEAST}
    now = {word: counts.get(word, 0) for word in before}
    others = (sum(old.counts) - sum(before.values()), len(present) - sum(now.values()))
    old_counts, new_counts = [*before.values(), others[0]], [*now.values(), others[1]]
    unknown = sum(count for word, count in counts.items() if word not in old.words)
    new_words = unknown / len(present) if old.closed else None
    measures = {"new_words": new_words, "test": "χ²", "p_value": chi_squared(old_counts, new_counts)}
    return [*before, "(others)"], old_counts, new_counts, measures


def _texts(name: str, measures: Mapping[str, Any]) -> dict[str, str]:
    """Return a sentence per measure."""
    before, now = measures["share"]
    p = "" if measures["p_value"] is None else f" ({measures['test']} p = {measures['p_value']:.2g})"
    return {
        "missing": f"{name}: {now:.1%} of the values are missing, {before:.1%} in training",
        "new_words": f"{name}: {measures['new_words'] or 0:.1%} of the values are new",
        "outside": f"{name}: {measures['outside'] or 0:.1%} of the numbers are outside the range of the training rows",
        "psi": f"{name} drifts: stability index {measures['psi'] or 0:.3g}{p}",
        "p_value": f"{name} differs{p}",
    }


def in_words(drift: Mapping[str, Any]) -> list[str]:
    """Return the sentences for the notes of a run."""
    if not drift:
        return []
    return drift["reported"] or [f"no drift against {drift['against']} in {len(drift['columns'])} columns"]


def drift_table(drift: Mapping[str, Any]) -> list[list[str]]:
    """Return a row of titles and a row per column, the largest stability index first; nothing without columns."""
    columns = sorted(drift.get("columns", {}).items(), key=lambda item: -(item[1]["psi"] or 0))
    titles = ["column", "stability index", "p-value", "missing in training", "missing now", "new words", "out of range"]
    rows = [
        [
            name,
            _short(c["psi"]),
            _short(c["p_value"], c["test"]),
            *map(_percent, [*c["share"], c["new_words"], c["outside"]]),
        ]
        for name, c in columns
    ]
    return [titles, *rows] if rows else []


def _short(value: float | None, test: str | None = None) -> str:
    """Return a number with two digits.

    >>> _short(0.2719), _short(1.5e-9, "KS"), _short(None)
    ('0.27', '1.5e-09 (KS)', '')
    """
    return "" if value is None else f"{value:.2g}" + (f" ({test})" if test else "")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}".replace("%", " %")


def raise_rejected(drift: Mapping[str, Any]) -> None:
    """Raise if a limit is exceeded."""
    if drift["rejected"]:
        fix = "Correct the rows; or raise data.check.LIMIT, or name the column in data.check.exclude."
        rule = f"New rows must be like the rows that trained {drift['against']}."
        raise RejectedRowsError(rule, got="\n       ".join(drift["rejected"]), fix=fix)


def drift_figures(drift: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the figure by its name: the stability index of columns, and the distributions that changed most."""
    measured = {name: column for name, column in drift.get("columns", {}).items() if _is_drawn(column)}
    if not measured:
        return {}
    names = sorted(measured, key=lambda name: -measured[name]["psi"])
    panels: list[Callable[[Any], None]] = [partial(_indices, {name: measured[name]["psi"] for name in names})]
    panels += [partial(_distribution, name, measured[name]) for name in names[:PANELS]]
    return {"drift": picture(*panels)}


def _is_drawn(column: Mapping[str, Any]) -> bool:
    return column["psi"] is not None and len(column["bins"]) == len(column["old"]) == len(column["new"])


def _indices(values: Mapping[str, float], axes: Any) -> None:
    names = [*values][:MOST_COLUMNS][::-1]
    axes.barh(names, [values[name] for name in names])
    axes.axvline(REPORTED["psi"], color="0.4", linestyle="--", linewidth=1)
    axes.set(title="Drift", xlabel="population stability index")
    axes.tick_params(axis="y", labelsize="small")


def _distribution(name: str, column: Mapping[str, Any], axes: Any) -> None:
    order = np.argsort(-np.array(column["old"]), kind="stable")[:SHOWN] if column["kind"] == "word" else slice(None)
    bins = np.array(column["bins"])[order]
    for shift, part, label in ((-0.2, "old", "training"), (0.2, "new", "new")):
        axes.bar(np.arange(len(bins)) + shift, np.array(column[part])[order], 0.4, label=label)
    axes.set_xticks(np.arange(len(bins)), bins, rotation=60, fontsize="x-small", parse_math=False)
    axes.set_title(f"{name}: {column['psi']:.2g}", parse_math=False)
    axes.legend(fontsize="small")
