"""Class weights as factors of a loss's terms."""

import numpy as np
import onnx_ir as ir

from ortpipe.facts import Facts
from ortpipe.graph.core.builder import Builder


def weighted_by_class(op: Builder, label: ir.Value, terms: ir.Value, facts: Facts) -> ir.Value:
    """Return the terms [N, E…, K] times the class weights of the data and of the source.

    Weights of columns, [negatives', positives'], count where each class or label has a term of its own. Elsewhere the
    weight of a row is that of its class as a positive.
    """
    if terms.dtype is None:
        return terms
    numbers = terms.dtype.numpy()
    kind, shape, weights = terms.type, terms.shape, np.array(facts.class_weight or 1.0, numbers)
    source = np.array(facts.objective.get("class_weight", 1.0), numbers)
    if source.ndim == 2 and shape is not None and shape[-1] == len(source):
        one_hot = label if facts.classes is None else op.cast(op.Equal(label, op.const(np.arange(len(source)))), terms)
        negative, positive = source.T
        terms = op.Mul(terms, op.Add(op.Mul(one_hot, op.const(positive - negative)), op.const(negative)))
    else:
        weights = weights * (source[:, 1] if source.ndim == 2 else source)
    if weights.ndim and facts.classes is not None:
        terms = op.Mul(terms, op.Gather(op.const(weights), label))
    terms.type, terms.shape = kind, shape
    return terms
