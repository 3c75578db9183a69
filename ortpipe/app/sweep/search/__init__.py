"""Searches that stop bad trials early, by Optuna: Hydra's sweeper `search`.

A trial is a point of the search space. It runs in rungs: each rung trains it for more epochs, as an ordinary job that
continues from the store. Only the best trials of a rung reach the next. `search_settings` checks a search before its
sweep opens; `search` runs it. Read first: `config.py` (settings, rungs, brackets), `space.py` (overrides as Optuna's
distributions), `trials.py` (the loop).
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.app.sweep.search.config import search_settings as search_settings
    from ortpipe.app.sweep.search.trials import search as search
else:
    __getattr__, __dir__, __all__ = door(__name__)
