"""The architecture in one tuple: six stages, what each reads, requires and ensures."""

from __future__ import annotations

from ortpipe.pipeline.plan import Stage

FORWARD = ("task", "inputs", "outputs", "prediction", "parameters")

FLOW = (
    Stage("convert", "ortpipe.stages.convert.stage:convert", reads=("data",), ensures=FORWARD),
    Stage(
        "add_loss",
        "ortpipe.stages.add_loss.stage:add_loss",
        requires=FORWARD,
        ensures=("loss", "label", "reduction"),
    ),
    Stage(
        "penalty",
        "ortpipe.stages.penalty.stage:penalty",
        check="ortpipe.stages.penalty.stage:check",
        requires=("loss",),
        ensures=("loss",),
    ),
    Stage(
        "derive",
        "ortpipe.stages.derive.stage:derive",
        check="ortpipe.stages.derive.stage:check",
        reads=("data",),
        requires=FORWARD,
        ensures=FORWARD,
    ),
    Stage(
        "train",
        "ortpipe.stages.train.stage:train",
        check="ortpipe.stages.train.stage:check",
        reads=("data", "runtime", "report", "start"),
        requires=("gradients", "outputs", "label"),
        ensures=FORWARD,
    ),
    Stage(
        "evaluate",
        "ortpipe.stages.evaluate.stage:evaluate",
        check="ortpipe.stages.evaluate.stage:check",
        reads=("data", "runtime"),
        requires=FORWARD,
        ensures=("metrics",),
    ),
)
