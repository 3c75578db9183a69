"""The architecture in one tuple: six stages, what each reads, requires and ensures."""

from ortpipe.pipeline.plan import Stage

GRAPH = ("ortpipe", "onnx", "onnx-ir")
NUMBERS = (*GRAPH, "numpy", "onnxruntime-training", "onnxruntime")
FORWARD = ("task", "inputs", "outputs", "prediction")

FLOW = (
    Stage(
        "convert",
        "ortpipe.stages.convert.stage:convert",
        reads=("data",),
        packages=(*NUMBERS, "scikit-learn"),
        ensures=FORWARD,
    ),
    Stage(
        "add_loss",
        "ortpipe.stages.add_loss.stage:add_loss",
        check="ortpipe.stages.add_loss.stage:check",
        packages=GRAPH,
        requires=FORWARD,
        ensures=("loss", "label", "reduction"),
    ),
    Stage(
        "penalty",
        "ortpipe.stages.penalty.stage:penalty",
        check="ortpipe.stages.penalty.stage:check",
        packages=GRAPH,
        requires=("loss",),
        ensures=("loss",),
    ),
    Stage(
        "derive",
        "ortpipe.stages.derive.stage:derive",
        check="ortpipe.stages.derive.stage:check",
        takes=("data",),
        packages=NUMBERS,
        requires=FORWARD,
        ensures=FORWARD,
    ),
    Stage(
        "train",
        "ortpipe.stages.train.stage:train",
        check="ortpipe.stages.train.stage:check",
        reads=("data", "runtime"),
        takes=("report", "start"),
        packages=(*NUMBERS, "scipy"),
        requires=("gradients", "outputs", "label"),
        ensures=FORWARD,
    ),
    Stage(
        "evaluate",
        "ortpipe.stages.evaluate.stage:evaluate",
        check="ortpipe.stages.evaluate.stage:check",
        reads=("data", "runtime"),
        packages=(*NUMBERS, "scikit-learn"),
        requires=FORWARD,
        ensures=("metrics",),
    ),
)
