"""The front door: command line, schema, recorders; hydra, omegaconf and mlflow live only here."""
