"""The six stages in order, with the context that each reads and the facts that it requires and ensures."""

from typing import Any

from ortpipe.pipeline.plan import Stage

GRAPH = ("ortpipe", "onnx", "onnx-ir")
NUMBERS = (*GRAPH, "numpy", "onnxruntime-training", "onnxruntime")
LEARNING = (*NUMBERS, "scikit-learn", "scipy")
FORWARD = ("task", "inputs", "outputs", "prediction")


def _stage(name: str, *, has_check: bool = True, **facts: Any) -> Stage:
    """Return a stage, whose functions are in the folder of its name."""
    module = f"ortpipe.stages.{name}.stage"
    return Stage(name, f"{module}:{name}", f"ortpipe.stages.{name}.early:check" if has_check else None, **facts)


FLOW = (
    _stage("convert", has_check=False, reads=("data",), packages=LEARNING, ensures=FORWARD),
    _stage("add_loss", takes=("data",), packages=GRAPH, requires=FORWARD, ensures=("loss", "label", "reduction")),
    _stage("penalty", packages=GRAPH, requires=("loss",), ensures=("loss",)),
    _stage("derive", takes=("data",), packages=NUMBERS, requires=FORWARD, ensures=FORWARD),
    _stage(
        "train",
        reads=("data", "runtime"),
        takes=("report", "start"),
        packages=(*NUMBERS, "scipy"),
        requires=("gradients", "outputs", "label"),
        ensures=FORWARD,
        continued="ortpipe.stages.train.continued",
    ),
    _stage(
        "evaluate",
        reads=("data", "runtime"),
        takes=("report",),
        packages=LEARNING,
        requires=FORWARD,
        ensures=("metrics",),
    ),
)
