"""Recording runs and sweeps: the recorders, and MLflow."""
