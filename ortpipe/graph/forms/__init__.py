"""Other forms of a model: with adapters, in int8, in training or inference mode."""
