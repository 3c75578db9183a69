"""A picture as PNG bytes."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def picture(draw: Callable[[Axes], object]) -> bytes:
    """Return what is drawn on axes, as PNG: the same drawing gives the same bytes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.5), dpi=120, layout="constrained")
    draw(figure.add_subplot())
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})  # no version
    return buffer.getvalue()
