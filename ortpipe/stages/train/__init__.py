"""train: a gradient model and rows → a trained model."""
