import numpy as np
import pytest

from ortpipe.artifact import Facts
from ortpipe.errors import EvaluateError
from ortpipe.metrics.predictions import predicted

FACTS = {"inputs": ("X",), "outputs": ("Y",), "prediction": "Y", "parameters": ("w",)}


@pytest.mark.parametrize(
    ("task", "rows", "message"),
    [
        ("multiclass", [[0.2, 0.2, 0.2]], "sums of rows from 0.6 to 0.6"),
        ("binary", [[-3.0, 3.0]], "values from -3 to 3"),
        ("binary", [[1.7]], "values from 1.7 to 1.7"),
        ("multilabel", [[0.5, -0.5]], "values from -0.5 to 0.5"),
        ("multiclass", [[0.5, 0.5], [np.nan, 1.0]], "nan or inf in 1 of 2 rows"),
        ("regression", [[np.inf]], "nan or inf in 1 of 1 rows"),
    ],
)
def test_what_is_no_prediction_of_its_task_is_refused(task, rows, message):
    with pytest.raises(EvaluateError, match=message):
        predicted(Facts(task=task, **FACTS), np.array(rows))
