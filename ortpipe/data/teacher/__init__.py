"""Distillation: training rows with the predictions of another model, the teacher, and new rows that it labels.

The teacher is any estimator with `predict`. The predictions become part of the training rows, so that every stage after
them works as on any other rows; validation and test rows keep their own labels.

Names: `TeacherConfig` is `data.teacher`; `taught` returns data with a teacher's predictions; `Remember` is a
cache of predictions; `StackClassifier` and `StackRegressor` make strong teachers; `Features` turns rows into the input
of an estimator.

Read first: `targets.py` (the steps), `estimator.py` (estimators and their predictions) and `mixed.py` (new rows).
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.data.teacher.config import Remember, TeacherConfig
    from ortpipe.data.teacher.features import Features
    from ortpipe.data.teacher.stack import StackClassifier, StackRegressor
    from ortpipe.data.teacher.targets import taught
else:
    __getattr__, __dir__, __all__ = door(__name__)
