"""derive: a loss model → a functional gradient model."""
