"""The report: tables, the bars with the measurements, versions, machine and date."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import numpy as np

from benchmarks.contest import COMMAND, COMPILED, FLOOR, NATIVE, ORTPIPE, PEERS, SCAN
from benchmarks.work import EPOCHS, GROWTH, MODELS

Key = tuple[str, str, int]  # model, optimizer, threads
Seconds = Mapping[str, Sequence[float]]  # peer → one number per round


@dataclass
class Results:
    """The measurements and their settings."""

    has: list[dict[str, str]]
    python: dict[str, str]
    options: argparse.Namespace
    steady: dict[Key, Seconds] = field(default_factory=dict)
    job: dict[Key, Mapping[str, Mapping[str, Sequence[float]]]] = field(default_factory=dict)
    growth: dict[str, Seconds] = field(default_factory=dict)


# model, optimizer, peer, how many times as fast ortpipe must at least be
ALL, MLPS = ("linear", "mlp", "digits", "large", "cnn"), ("mlp", "digits", "large")
STEADY_BARS = (
    *((m, o, peer, bar) for m, bar in (("mlp", 8.0), ("digits", 5.0), ("large", 2.0)) for o in ("sgd", "adam")
      for peer in ("scikit-learn MLP", "PyTorch")),
    *((m, o, "ORT on-device", 1.2 if m == "cnn" else 1.3) for m in ALL for o in ("sgd", "adam")),
    *((m, o, "onnxsim", 1.0) for m in ALL for o in ("sgd", "adam")),
    *((m, o, "JAX", bar) for m in MLPS for o, bar in (("sgd", 1.0), ("adam", 0.9))),
    *((m, o, "JAX", 2.0) for m in ("linear", "mlp", "digits") for o in ("sgd", "adam")),
    *((m, o, FLOOR, bar) for m, bar in (("linear", 0.5), ("mlp", 0.5), ("digits", 1 / 1.3), ("large", 1 / 1.15))
      for o in ("sgd", "adam")),
    *((m, o, ORTPIPE, 2.0) for m in ("table", "tabm") for o in ("sgd", "adam")),
    *((m, o, SCAN, 0.95 if m == "cnn" else 0.91) for m in ALL for o in ("sgd", "adam")),
)  # fmt: skip
WITHIN = 0.9  # of JAX by hand, how fast the second engine must at least be
JOB_BARS = ("scikit-learn MLP", "PyTorch", "ORT on-device", "JAX")


def report(results: Results) -> str:
    """Return the whole report as Markdown."""
    parts = [_made_with(results)]
    for threads in results.options.threads:
        name = "one thread, one core" if threads == 1 else f"{threads} threads, {threads} cores"
        if steady := _steady(results, threads):
            parts += [f"### Steady state, {name}: µs per step (times {base_of(results)}'s)", steady]
        if compiled := _compiled(results, threads):
            parts += [f"### Compiled by XLA, {name}: how many times as long the others take", compiled]
        if jobs := _jobs(results, threads):
            parts += [f"### Whole job of {EPOCHS} epochs, {name}", jobs]
    if results.growth:
        parts += ["### Growth: ms per epoch (SGD, one thread), and against the base", _growth(results)]
    if results.options.device == "cpu":
        parts += ["### Bars (one thread)", _bars(results)]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return how many times as long the others took: the median over rounds."""
    return float(np.median(np.array(theirs) / np.array(ours)))


def _peers(results: Results, contest: str) -> list[str]:
    return [p.name for p in PEERS if contest in p.contests and p.name in results.python]


def _steady(results: Results, threads: int) -> str:
    peers, rows, base = _peers(results, "steady"), [], base_of(results)
    for (model, optimizer, count), seconds in results.steady.items():
        if count == threads:
            cells = []
            for peer in peers:
                if peer not in seconds:
                    cells.append("–")
                    continue
                own = f"{np.median(seconds[peer]) * 1e6:.1f}"
                cells.append(own if peer == base else f"{own} ({ratio(seconds[base], seconds[peer]):.2f}×)")
            work = MODELS[model]
            rows.append([f"{work.name} ({work.batch})", optimizer, *cells])
    return table(["model (batch)", "optimizer", *peers], rows) if rows else ""


def base_of(results: Results) -> str:
    """Return the peer that the others are held against: what trains on the device."""
    return ORTPIPE if results.options.device == "cpu" else COMPILED


def _compiled(results: Results, threads: int) -> str:
    """Return the times of the second engine, with the bar: within 10 % of JAX by hand."""
    rows = []
    for (model, optimizer, count), seconds in results.steady.items():
        if count == threads and {COMPILED, "JAX", ORTPIPE} <= {*seconds}:
            others = {peer: ratio(seconds[COMPILED], seconds[peer]) for peer in ("JAX", ORTPIPE)}
            met = "met" if others["JAX"] >= WITHIN else "**not met**"
            own = f"{np.median(seconds[COMPILED]) * 1e6:.1f}"
            rows.append([MODELS[model].name, optimizer, own, *(f"{other:.2f}×" for other in others.values()), met])
    head = ["model", "optimizer", f"{COMPILED}, µs", "JAX by hand", ORTPIPE, f"≥ {WITHIN:.2f}× of JAX"]
    return table(head, rows) if rows else ""


def _jobs(results: Results, threads: int) -> str:
    peers, rows = _peers(results, "job"), []
    for (model, optimizer, count), outcome in results.job.items():
        for what, unit, form in (
            ("weights", "s to weights on disk", "{:.2f}"),
            ("end", "s to the end", "{:.2f}"),
            ("memory", "MB at most", "{:.0f}"),
        ):
            if count == threads:
                cells = [form.format(np.median(outcome[p][what])) if p in outcome else "–" for p in peers]
                rows.append([MODELS[model].name if what == "weights" else "", optimizer, unit, *cells])
    return table(["model", "optimizer", "", *peers], rows) if rows else ""


def _growth(results: Results) -> str:
    peers, rows, base = _peers(results, "steady"), [], results.growth[GROWTH[0].name]
    for work in GROWTH:
        steps, seconds = work.rows // work.batch, results.growth[work.name]
        growth = {p: steps / (GROWTH[0].rows // GROWTH[0].batch) * ratio(base[p], seconds[p]) for p in seconds}
        cells = [
            f"{np.median(seconds[p]) * steps * 1e3:.1f} ({growth[p]:.2f}×)" if p in seconds else "–" for p in peers
        ]
        rows.append([work.name, *cells])
    return table(["", *peers], rows)


def _bars(results: Results) -> str:
    rows = []
    for model, optimizer, peer, bar in STEADY_BARS:
        seconds = results.steady.get((model, optimizer, 1), {})
        if peer in seconds:
            engines = [engine for engine in (ORTPIPE, COMPILED, NATIVE) if engine in seconds]
            found = {engine: ratio(seconds[engine], seconds[peer]) for engine in engines}
            shown = " / ".join(f"{value:.2f}×" for value in found.values())
            verdict = "**not met**"
            if met := [engine for engine, value in found.items() if value >= bar]:
                verdict = "met" if ORTPIPE in met else f"met by {' and '.join(met).replace('ortpipe, ', '')}"
            rows.append([peer, f"{MODELS[model].name}, {optimizer}: µs per step", f"≥ {bar:.2f}×", shown, verdict])
    for (model, optimizer, threads), outcome in results.job.items():
        for peer in JOB_BARS:
            if threads == 1 and peer in outcome and COMMAND in outcome:
                found = ratio(outcome[COMMAND]["weights"], outcome[peer]["weights"])
                script = ratio(outcome[ORTPIPE]["weights"], outcome[peer]["weights"])
                what = f"{MODELS[model].name}, {optimizer}: s of the job"
                verdict = "met" if found > 1 else "**not met**"
                rows.append([peer, what, "> 1×", f"{found:.2f}× (script {script:.2f}×)", verdict])
    rows.sort(key=lambda row: [p.name for p in PEERS].index(row[0]))
    head = ["against", "what", "bar: times as fast", "measured (/ with engine=xla / with engine=c)", ""]
    return table(head, rows) if rows else "None could be measured."


def _made_with(results: Results) -> str:
    names = [f"{'this interpreter' if i == 0 else 'another'}: " + ", ".join(f"{k} {v}" for k, v in has.items())
             for i, has in enumerate(results.has)]  # fmt: skip
    absent = [name for name in results.options.peers if name not in results.python]
    lines = [
        f"Made on {date.today()}: {_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}; "
        f"{results.options.rounds} rounds of turns, {results.options.jobs} of jobs.",
        *names,
        *([f"absent: {', '.join(absent)}"] if absent else []),
    ]
    return "  \n".join(lines)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "a processor of no name"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "x86-64")
