"""add_loss: a forward model → the same model with a label input and a scalar loss output."""
