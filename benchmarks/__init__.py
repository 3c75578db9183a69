"""Side-by-side runs; never timed tests.

Python caches compiled modules in these processes, as it does for users. With PYTHONDONTWRITEBYTECODE, and packages
installed by uv, which does not compile them, each start compiled all modules and took twice as long.
"""

import os

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
