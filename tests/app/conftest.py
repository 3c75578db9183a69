"""The registered model that tests of starts, gates and retraining share."""

from registered import registered

__all__ = ["registered"]
