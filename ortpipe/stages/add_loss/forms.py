"""The form of a regression's prediction: what it is of the label, and the values that the trained model returns.

| link | prediction [N, K] | label |
| --- | --- | --- |
| `log` | log μ | values [N, K] |
| `quantiles` | a quantile per column, in ascending order in each row | a value [N, 1] |
| `risk` | the logarithm of the relative hazard [N, 1] | time and event [N, 2] |
| `pairs` | two embeddings, one after the other, of equal widths | the number of the pair [N, 1] |
| `survival` | the probability of no event up to a time per column | time and event [N, 2] |
"""

from typing import Any

import onnx_ir as ir

from ortpipe.errors import LossError
from ortpipe.graph.core.builder import Builder
from ortpipe.stages.add_loss.config import HeadLoss
from ortpipe.stages.add_loss.early import link_of
from ortpipe.stages.add_loss.losses import LOSSES, Scores

LOG = "the prediction is the logarithm of the mean (link=log): the trained model predicts log μ, metrics use μ"


def write_form(op: Builder, config: HeadLoss, scores: Scores, head: str) -> tuple[dict[str, Any], list[str]]:
    """Return the facts and notes about the form of a prediction; if the loss has one, write the final prediction.

    The loss reads the raw prediction. `loss.predicts` returns the final one, which takes over its name and its place
    among the outputs.

    Raises:
        LossError: the prediction has another number of columns than the loss needs, or more axes, or is final already.
    """
    loss: Any = config.loss
    link = link_of(loss)
    notes = [f"{LOG}{f', of head {head!r}' if head else ''}"] if link == "log" else []
    if link in (None, "log"):
        return {"link": link, "levels": ()}, notes
    _check_columns(config, scores)
    if predicts := getattr(loss, "predicts", None):
        with op.formulas():
            _replace_output(op, scores.prediction, predicts(op, scores.prediction))
        notes.append(loss.note)
    return {"link": link, "levels": getattr(loss, "levels", ())}, notes


def _check_columns(config: HeadLoss, scores: Scores) -> None:
    loss: Any = config.loss
    name, (_, *sizes) = LOSSES.name_of(type(loss)), scores.sizes
    count = sizes[0] if loss.link == "pairs" else max(1, len(getattr(loss, "levels", ())))
    if sizes == [count] and config.padding is None:
        return
    raise LossError(
        f"The loss {name} needs a prediction [N, {count}] with these settings, and no padding.",
        got=f"a prediction [N, {', '.join(map(str, sizes))}]"
        + (f", padding {config.padding}" if config.padding is not None else ""),
        fix="Choose a network by config, such as convert=auto or mlp, whose outputs a run fits to the loss; in Python, "
        "set that network's outputs or intervals.",
    )


def _replace_output(op: Builder, raw: ir.Value, final: ir.Value) -> None:
    """Put the final prediction in the place of the raw one among the outputs, under its name."""
    name = str(raw.name)
    if f"raw_{name}" in {value.name for node in op.graph for value in node.outputs}:
        rule, fix = "The model already predicts quantiles or survival.", "Convert the model that it was trained from."
        raise LossError(rule, got=f"{name!r}, computed from 'raw_{name}'", fix=fix)
    op.rename(raw, f"raw_{name}")
    final.name, final.type, final.shape = name, raw.type, raw.shape
    op.graph.outputs[list(op.graph.outputs).index(raw)] = final
