"""An estimator in a notebook: scikit-learn's own diagram, and of a fitted one the flow of stages and the losses."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from sklearn.utils import estimator_html_repr

from ortpipe.facts import Facts, read_metadata
from ortpipe.sklearn.parts import loss_of, optimizer_of
from ortpipe.stages.add_loss.losses.auto import Auto

WIDTH, HEIGHT, EDGE = 360, 120, 6  # pixels
COLORS = {"loss": "#1f77b4", "validation_loss": "#ff7f0e"}


def html(estimator: Any) -> str:
    """Return the HTML of an estimator."""
    diagram: str = estimator_html_repr(estimator)
    history: Mapping[str, Sequence[float]] = getattr(estimator, "history_", {})
    return diagram + (f"<div>{flow(estimator)}{curve(history)}</div>" if history else "")


def flow(estimator: Any) -> str:
    """Return the stages of a fitted estimator, with what each of them was given."""
    loss, charged = loss_of(estimator.loss), estimator.penalty
    facts = Facts.from_json(read_metadata(estimator.onnx_))
    if isinstance(loss, Auto):
        charged = "auto" if charged is None and facts.objective.get("penalty") else charged
        loss = loss.of(facts)
    stages = {
        "convert": estimator.model if estimator.model is not None else f"MLP {tuple(estimator.hidden)}",
        "add_loss": loss,
        "penalty": charged,
        "derive": None,
        "train": f"{optimizer_of(estimator.optimizer, estimator.learning_rate)}, {estimator.n_iter_} epochs",
    }
    told = [f"<b>{name}</b>{'' if what is None else f' {escape(_short(what))}'}" for name, what in stages.items()]
    return f'<div style="font-size: 90%">{" ▸ ".join(told)}</div>'


def curve(history: Mapping[str, Sequence[float]]) -> str:
    """Return the losses of each epoch as an SVG picture, on a scale of their own.

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


def _short(what: Any) -> str:
    text = " ".join((what if isinstance(what, str) else repr(what)).split())
    return text if len(text) <= 60 else f"{text[:57]}…"
