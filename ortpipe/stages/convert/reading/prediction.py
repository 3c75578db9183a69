"""The outputs of a file's model: the prediction, and further heads."""

import difflib

import onnx_ir as ir

from ortpipe.errors import ConvertError, nearest
from ortpipe.graph.choice.choice import some
from ortpipe.graph.core import query
from ortpipe.stages.convert.reading.reading import Reading
from ortpipe.stages.convert.reading.which_output import choose_output, label_outputs
from ortpipe.stages.convert.rows.compared_rows import compared_rows


def choose_prediction(reading: Reading) -> str:
    """Return the output to train: the config's or the file's choice, or the one that fits labels."""
    graph, config, data = reading.graph, reading.config, reading.data
    chosen = config.prediction if config.prediction is not None else reading.metadata.get("prediction")
    output, reading.labelled = _prediction(graph, chosen), bool(label_outputs(graph))
    floats = [o for o in graph.outputs if o.dtype in query.FLOATS and o.name not in config.heads]
    candidates = [o for o in floats if query.float_initializers(graph, o)]
    if chosen is None and data is not None and candidates:
        rows = compared_rows(data)
        output, classes = choose_output(reading.model, reading.original, candidates, rows, reading.meaning_of)
        indices = tuple(range(len(classes or ())))  # a file may compute these beside the names of classes
        is_told = classes != reading.classes and (classes != indices or {*(reading.classes or ())} == {*indices})
        if classes is not None and is_told and config.classes is None:
            reading.classes = classes
            listed_labels = some([str(label) for label in classes])
            reading.notes.append(
                f"the columns of {output.name!r} are {listed_labels}, by the labels that the file computes"
            )
    if not query.float_initializers(graph, output):
        raise ConvertError(
            "A prediction must depend on at least one float initializer, or on a constant that is a weight.",
            got=f"{config.origin}: none for output {output.name!r}",
            fix="Choose another output with {at}prediction, or name constants that are weights in {at}lift.",
        )
    return str(output.name)


def check_heads(reading: Reading, prediction: str) -> list[str]:
    """Return the names of the heads; reject names that are no float outputs, or the prediction."""
    outputs = {str(o.name): o for o in reading.graph.outputs}
    for name in reading.config.heads:
        output = outputs.get(name)
        candidates = [n for n, o in outputs.items() if n != prediction and o.dtype in query.FLOATS]
        if name not in candidates:
            actual = "the prediction itself" if name == prediction else "no output" if output is None else output.dtype
            rule, fix = "{key} must name float outputs beside the prediction.", nearest(name, candidates)
            raise ConvertError(rule, key="heads", got=f"{name!r}, {actual}", fix=fix)
        if not query.float_initializers(reading.graph, outputs[name]):
            rule, fix = "A head must depend on at least one float initializer.", "Leave it out of {key}."
            raise ConvertError(rule, key="heads", got=f"none for output {name!r}", fix=fix)
    return list(reading.config.heads)


def _prediction(graph: ir.Graph, choice: str | int | None) -> ir.Value:
    names = [str(o.name) for o in graph.outputs]
    if isinstance(choice, int):
        if not 0 <= choice < len(names):
            rule, fix = "{key} must be an output's index.", f"The model has {len(names)}: {', '.join(names)}."
            raise ConvertError(rule, key="prediction", got=choice, fix=fix)
        choice = names[choice]
    if choice is not None and choice not in names:
        rule, values = "{key} must be an output, or a value inside of the graph.", query.values(graph).items()
        close = difflib.get_close_matches(choice, [name for name, value in values if value.producer() is not None])
        raise ConvertError(rule, key="prediction", got=repr(choice), fix=nearest(choice, {*names, *close}))
    floats = [o for o in graph.outputs if o.dtype in query.FLOATS and choice in (None, o.name)]
    if not floats:
        candidates = [o for o in graph.outputs if choice in (None, o.name)]
        ancestors = query.ancestors(candidates)
        inner = [v for node in graph for v in node.outputs if v in ancestors and v.dtype in query.FLOATS]
        scores = next((f": {v.name!r}." for v in reversed(inner) if query.float_initializers(graph, v)), ".")
        raise ConvertError(
            "A model needs a float output to train.",
            got=f"outputs {', '.join(str(o.name) for o in candidates)}",
            key="prediction",
            fix="Name a float value inside of the graph with {key}, such as the scores in front of the labels" + scores,
        )
    return next((o for o in floats if query.float_initializers(graph, o)), floats[0])
