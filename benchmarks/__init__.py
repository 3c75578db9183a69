"""Side-by-side runs; never timed tests.

Their processes keep what they import compiled, as a user's do: with PYTHONDONTWRITEBYTECODE, and packages that uv
installed, which does not compile them, each start compiled all modules anew and took twice as long.
"""

import os

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
