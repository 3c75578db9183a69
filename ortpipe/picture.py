"""matplotlib figures and their PNG bytes."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def figure(*draw: Callable[[Axes], object]) -> Figure:
    """Return a figure with one axes per drawing function, up to three side by side."""
    from matplotlib.figure import Figure

    class Drawn(Figure):
        """A figure that a notebook shows as a picture even if no matplotlib backend is chosen yet."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    columns = min(len(draw), 3)
    rows = -(-len(draw) // 3)
    size = (6.0, 4.5) if len(draw) == 1 else (4.0 * columns, 3.5 * rows)
    drawn = Drawn(figsize=size, dpi=120, layout="constrained")
    for i, panel in enumerate(draw, start=1):
        panel(drawn.add_subplot(rows, columns, i))
    return drawn


def picture(*draw: Callable[[Axes], object]) -> bytes:
    """Return the figure as PNG: the same drawings give the same bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    # `figure.savefig` would draw twice, first for the layout, which drawing does anyway; no version in the metadata;
    # level 1 takes a third of the time of 6, and a seventh more bytes
    FigureCanvasAgg(figure(*draw)).print_png(buffer, metadata={"Software": None}, pil_kwargs={"compress_level": 1})
    return buffer.getvalue()
