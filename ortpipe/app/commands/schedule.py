"""ortpipe schedule: draw the learning rate of every step of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ortpipe import SCHEDULES
from ortpipe.app.compose import Parser
from ortpipe.data.load import load
from ortpipe.files import atomic_write
from ortpipe.picture import picture
from ortpipe.stages import planned, steps_per_epoch, watches

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ABOUT = "Draw the learning rate of every step of a run with these settings, and print the picture's path."
EXAMPLES = (
    "ortpipe schedule train/schedule=cosine",
    "ortpipe schedule train/schedule=one_cycle train.epochs=20 train.warmup=100",
)


def run(arguments: Sequence[str]) -> None:
    """Draw the learning rates of the run that the arguments configure."""
    config = Parser("schedule", ABOUT, EXAMPLES).read(arguments).composed.config
    data, training = load(config.data), config.train
    steps, rates = planned(training, len(data.train), validated=data.validation is not None)
    per_epoch = steps_per_epoch(training, len(data.train))
    name = SCHEDULES.name_of(type(training.schedule))
    duration = f"{training.epochs} epochs of {per_epoch:,} steps"
    note = "if the value that it watches never improves" if watches(training.schedule) else ""

    def draw(axes: Axes) -> None:
        axes.plot(steps, rates, marker="." if len(steps) < 50 else "")
        axes.set(xlabel="step", ylabel="learning rate", title=f"{name}: {duration}\n{note}".strip())
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)

    file = Path(config.paths.outputs) / "schedules" / f"{config.name}-{name}.png"
    atomic_write(file, picture(draw))
    highest = int(rates.argmax())
    print(f"{name}: {duration}", *([note] if note else []), sep=", ")
    print(f"first rate {rates[0]:.6g}, highest {rates[highest]:.6g} at step {steps[highest]:,}, last {rates[-1]:.6g}")
    print(f"picture  {file}")
