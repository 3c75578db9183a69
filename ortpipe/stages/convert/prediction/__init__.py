"""The outputs of a model: which one is the prediction, and what it means."""
