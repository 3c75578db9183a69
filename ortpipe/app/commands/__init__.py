"""The commands beside a run: each is a module of its name with a function `run`, imported when it is called."""
