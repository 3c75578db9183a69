"""The choice of the initializers to train, by the operators that read them and by their values."""
