"""evaluate: a trained model and held-out rows → the same model with metrics; figures of it."""
