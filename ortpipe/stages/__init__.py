"""The six stages, which do not know each other. The package `ortpipe` has their functions and configs.

The names here are for what builds on stages: `compat`, `sklearn` and `app`.
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.stages.add_loss.losses import Scores
    from ortpipe.stages.add_loss.losses.auto import Auto
    from ortpipe.stages.add_loss.losses.elastic import Elastic
    from ortpipe.stages.add_loss.losses.l1 import L1
    from ortpipe.stages.add_loss.losses.l2 import L2
    from ortpipe.stages.add_loss.losses.log import Log
    from ortpipe.stages.convert.dialects.standardize import standardize, without_zip_map
    from ortpipe.stages.convert.forward import Forward
    from ortpipe.stages.convert.imported import Imported
    from ortpipe.stages.evaluate.baselines import BaselineFit
    from ortpipe.stages.evaluate.figures import figures, panels
    from ortpipe.stages.evaluate.gates import Scored, paired, score, slice_of
    from ortpipe.stages.penalty.penalties import charges
    from ortpipe.stages.train.continued import planned, restarts, watches
    from ortpipe.stages.train.optimizers.sgd import SGD
    from ortpipe.stages.train.outcome import trained_loss
    from ortpipe.stages.train.random_weights import random_parameters
    from ortpipe.stages.train.remark import Remark
    from ortpipe.stages.train.step import build_step
    from ortpipe.stages.train.training import Checkpoint, Epoch, steps_per_epoch
else:
    __getattr__, __dir__, __all__ = door(__name__)
