"""scikit-learn estimators that train any model with ortpipe's stages."""

from ortpipe.sklearn.classifier import OrtClassifier as OrtClassifier
from ortpipe.sklearn.regressor import OrtRegressor as OrtRegressor
