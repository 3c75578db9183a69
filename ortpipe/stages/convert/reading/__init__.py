"""The steps from a file's model to a forward model."""
