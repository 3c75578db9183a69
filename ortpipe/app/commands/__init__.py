"""The commands other than a run: each is a module of that name with a function `run`, imported when it is called."""
