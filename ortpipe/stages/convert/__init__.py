"""convert: a source (scikit-learn estimator, ONNX file) → a forward model in standard operators."""
