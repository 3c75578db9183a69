"""A store that machines share without a file system: objects below a URL, with a local folder in front.

`SharedStore` is a `Store` whose misses are looked up at the URL (s3://bucket/prefix, or any other that fsspec
knows), and whose results are sent there. Objects have the layout of a store's folder. Others may write them, so ortpipe
reads them with bounds and uses them only after verification. `check_url` validates a URL before a run. `usage`,
`verify` and `remove` do for the objects what `ortpipe/pipeline/gc.py` does for a folder. Read first: `shared.py` (the
store), `bucket.py` (objects, errors, claims), `upkeep.py` (list, verify, remove).
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.remote.bucket import Unreachable as Unreachable
    from ortpipe.remote.shared import SharedStore as SharedStore
    from ortpipe.remote.upkeep import location as location
    from ortpipe.remote.upkeep import remove as remove
    from ortpipe.remote.upkeep import size_of_artifacts as size_of_artifacts
    from ortpipe.remote.upkeep import usage as usage
    from ortpipe.remote.upkeep import verify as verify
    from ortpipe.remote.url import check_url as check_url
else:
    __getattr__, __dir__, __all__ = door(__name__)
