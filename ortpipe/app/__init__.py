"""The command line, schema and recorders; the only folder that imports hydra, omegaconf and mlflow."""
