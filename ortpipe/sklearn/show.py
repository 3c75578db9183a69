"""An estimator's HTML for notebooks: scikit-learn's diagram, and if fitted, the stages and the losses."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from sklearn.utils import estimator_html_repr

from ortpipe.facts_json import read_facts, read_metadata
from ortpipe.sklearn.parts import loss_of, optimizer_of
from ortpipe.stages import Auto

WIDTH, HEIGHT, EDGE = 360, 120, 6  # pixels
COLORS = {"loss": "#1f77b4", "validation_loss": "#ff7f0e"}


def html(estimator: Any) -> str:
    """Return the HTML of an estimator."""
    diagram: str = estimator_html_repr(estimator)
    history: Mapping[str, Sequence[float]] = getattr(estimator, "history_", {})
    return diagram + (f"<div>{flow(estimator)}{curve(history)}</div>" if history else "")


def flow(estimator: Any) -> str:
    """Return the stages of a fitted estimator as HTML, each with its main setting."""
    loss, penalty = loss_of(estimator.loss), estimator.penalty
    facts = read_facts(read_metadata(estimator.onnx_))
    if isinstance(loss, Auto):
        penalty = "auto" if penalty is None and facts.objective.get("penalty") else penalty
        loss = loss.of(facts)
    stages = {
        "convert": estimator.model if estimator.model is not None else f"MLP {tuple(estimator.hidden)}",
        "add_loss": loss,
        "penalty": penalty,
        "derive": None,
        "train": f"{optimizer_of(estimator.optimizer, estimator.learning_rate)}, {estimator.n_iter_} epochs",
    }
    labels = [
        f"<b>{name}</b>{'' if setting is None else f' {escape(_short(setting))}'}" for name, setting in stages.items()
    ]
    return f'<div style="font-size: 90%">{" ▸ ".join(labels)}</div>'


def curve(history: Mapping[str, Sequence[float]]) -> str:
    """Return the losses of each epoch as an SVG picture, scaled to their range.

    >>> curve({"loss": [2.0, 1.0]}).count("polyline")
    1
    """
    values = [value for losses in history.values() for value in losses if value == value]
    low, high, last = min(values), max(values), max(len(losses) for losses in history.values())
    lines, names = [], []
    for name, losses in history.items():
        points = [
            f"{EDGE + (WIDTH - 2 * EDGE) * i / max(1, last - 1):.1f},"
            f"{EDGE + (HEIGHT - 2 * EDGE) * (high - loss) / ((high - low) or 1):.1f}"
            for i, loss in enumerate(losses)
            if loss == loss
        ]
        color = COLORS.get(name, "gray")
        lines.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        names.append(f'<span style="color: {color}">{escape(name)} {losses[-1]:.4g}</span>')
    frame = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#ccc"/>'
    picture = f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="losses">{frame}{"".join(lines)}</svg>'
    return f'{picture}<div style="font-size: 90%">{", ".join(names)}; from {high:.4g} to {low:.4g}, {last} epochs</div>'


def _short(setting: Any) -> str:
    text = " ".join((setting if isinstance(setting, str) else repr(setting)).split())
    return text if len(text) <= 60 else f"{text[:57]}…"
