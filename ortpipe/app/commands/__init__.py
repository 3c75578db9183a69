"""The commands other than a run: each is a module of that name with a function `run`, imported when it is called.

`ortpipe/app/command_list.py` finds them, and is the only way in.

Read first: `ortpipe/app/command_list.py`, `gradient.py` (a short command) and `ortpipe/app/lookup.py` (how commands
find runs, artifacts and files).
"""
