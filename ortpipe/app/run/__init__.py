"""One run, from outside: its folder and what listens to it."""
