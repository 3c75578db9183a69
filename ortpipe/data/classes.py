"""Labels as class indices."""

from typing import Any

import numpy as np

from ortpipe.data.feed_errors import reject_classes, reject_several
from ortpipe.data.feeds import name_head
from ortpipe.data.rows import RowSet
from ortpipe.facts import Facts


def check_labels(facts: Facts, rows: RowSet) -> None:
    """Reject labels that are no class of their classifier; of a stream, only the labels it remembers."""
    for head, head_facts in facts.predictions.items():
        if head_facts.classes is not None and (labels := rows.of(head).labels) is not None:
            with name_head(head):
                class_index(head_facts, labels)


def class_index(facts: Facts, labels: np.ndarray) -> np.ndarray:
    """Return each label's class index, int64 [N], or [N, …] of elements; −1 for padding."""
    classes = facts.classes or ()
    per_row = facts.class_axis is None
    label = labels.reshape(len(labels)) if per_row and labels.ndim == 2 and labels.shape[1] == 1 else labels
    if per_row and label.ndim != 1:
        reject_several(facts, labels)
    index: dict[Any, int] = {c: i for i, c in enumerate(classes)}
    values, inverse = np.unique(np.array(label.tolist()) if label.dtype == object else label, return_inverse=True)
    if facts.padding is not None:
        index[str(facts.padding) if values.dtype.kind == "U" else facts.padding] = -1
    if unknown := [v for v in values.tolist() if v not in index]:
        reject_classes(facts, unknown)
    return np.array([index[v] for v in values.tolist()], np.int64)[inverse].reshape(label.shape)
