"""Bundles: folders with everything that trains and predicts in any onnxruntime, without ortpipe and Python.

Names: `training_graphs` returns the graphs of a gradient model as `BundleGraphs`; `write_bundle` checks them and writes
the folder; `keep_others` keeps the other files of a folder that is written again; `started` sets the weights that they
start from. `read_bundle` returns the description of a folder,
`changed_files` the files that are not as exported, `read_state` its arrays, `scalars_at` the optimizer's numbers for
some steps, and `restored` a model with weights that were trained in a bundle. `page_files` returns a page that trains
in a browser, `static_files` the part that all pages share, and `runtime_files` onnxruntime-web. `c_sources` returns the
same model in C.

Read first: `graphs.py` (the four graphs), `folder.py` (the files and bundle.json) and `checks.py` (the check of
the files).
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.bundle.c_files import c_sources
    from ortpipe.bundle.folder import keep_others, started, write_bundle
    from ortpipe.bundle.graphs import BundleGraphs, training_graphs
    from ortpipe.bundle.page import page_files, static_files
    from ortpipe.bundle.reading import DESCRIPTION, GRAPHS, changed_files, read_bundle, read_state, scalars_at
    from ortpipe.bundle.restoring import restored
    from ortpipe.bundle.web_runtime import runtime_files
else:
    __getattr__, __dir__, __all__ = door(__name__)
