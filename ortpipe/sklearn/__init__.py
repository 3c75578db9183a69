"""scikit-learn estimators that train any model with ortpipe's stages.

Names: `OrtClassifier` and `OrtRegressor`.

Read first: `classifier.py` (the parameters of an estimator), `base.py` (fit and predict) and `parts.py` (from these
parameters to the configs of stages).
"""

from ortpipe.sklearn.classifier import OrtClassifier as OrtClassifier
from ortpipe.sklearn.regressor import OrtRegressor as OrtRegressor
