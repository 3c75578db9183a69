"""Federated learning: clients train where their rows are, and a server averages their weights.

Names: `BundleClient` trains and evaluates a bundle of `ortpipe export` on a client's rows. `aggregate` turns the
`Update`s of a round into a `Round`, with clipping and noise; `epsilon` is the differential privacy of that noise.

Read first: `average.py` (one round on the server), `privacy.py` (the two formulas) and `client.py`.
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.federated.average import Round, Update, aggregate
    from ortpipe.federated.client import BundleClient
    from ortpipe.federated.privacy import epsilon
else:
    __getattr__, __dir__, __all__ = door(__name__)
