"""The names of ortpipe.compat."""

from __future__ import annotations

import ortpipe.compat


def test_every_name_is_imported_from_the_package_and_offered_for_completion():
    names: dict[str, object] = {}
    exec("from ortpipe.compat import *", names)
    assert names.keys() >= set(ortpipe.compat.__all__) == set(dir(ortpipe.compat))
    private = ("_loss_elastic", "_loss_l1", "_loss_l2", "_loss_log", "_rewrite_op_no_grad", "_unique_name")
    assert all(callable(getattr(ortpipe.compat, name)) for name in private)
