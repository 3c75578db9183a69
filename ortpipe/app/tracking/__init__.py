"""Recording of runs and sweeps: the recorders, and MLflow."""
